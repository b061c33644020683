#include "engine_service/engine_service.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/check.h"
#include "base/clock.h"
#include "image/image.h"
#include "image/write_png.h"
#include "model/model_source.h"
#include "observe/ledger.h"

namespace gapless {
namespace {

double to_seconds(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

// "checkpoints/moondream2/" and "models/tiny/model.safetensors" are moondream2 and tiny.
std::string short_name(const std::string& name) {
  std::filesystem::path path(name);
  if (path.extension() == ".safetensors") path = path.parent_path();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().empty() ? "gapless" : path.filename().string();
}

std::string_view weight_type_name(const LoadedModel& loaded) {
  const std::vector<DecoderBlock>& blocks = loaded.model->weights().text.blocks;
  const bool fp8 = !blocks.empty() && blocks[0].prepared_format == PreparedFormat::kFp8;
  if (fp8) return "FP8";
  if (loaded.model->weights().text.lm_head.int8 != nullptr) return "INT8";
  return loaded.kernels->activation_dtype() == DType::kF32 ? "F32" : "BF16";
}

// What the driver calls it; empty when it cannot say.
std::string device_name(const Engine& engine) {
  const StatusOr<DeviceInfo> info = engine.model().device->info();
  return info.ok() ? info->name : "";
}

std::string sha256_hex(std::string_view text) {
  std::array<unsigned char, 32> digest{};
  unsigned size = 0;
  const int ok = EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr);
  GAPLESS_CHECK_MSG(ok == 1 && size == digest.size(), "OpenSSL has no SHA-256");
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

// What clients describe a model by.
void describe_weights(const LoadedModel& loaded, ServiceInfo& info) {
  const DecoderWeights& weights = loaded.model->weights();
  info.weight_type = weight_type_name(loaded);
  info.num_parameters = weights.layout.num_parameters();
  info.weight_bytes =
      static_cast<std::int64_t>(weights.buffer.size_bytes() + weights.prepared.size_bytes() +
                                weights.fp8.size_bytes() + weights.int8.size_bytes());
  const std::string facts = fmt::format("{} {} {} {}", info.model, info.weight_type,
                                        info.num_parameters, info.weight_bytes);
  info.digest = sha256_hex(facts);
}

std::vector<std::string> skill_names(const TokenizerConfig& prompts) {
  std::vector<std::string> names;
  const auto add = [&names](bool is_there, std::string name) {
    if (is_there) names.push_back(std::move(name));
  };
  add(!prompts.query.prefix.empty(), "query");
  add(!prompts.caption_short.empty() || !prompts.caption_normal.empty() ||
          !prompts.caption_long.empty(),
      "caption");
  add(!prompts.point.prefix.empty(), "point");
  add(!prompts.detect.prefix.empty(), "detect");
  add(!prompts.segment.prefix.empty(), "segment");
  add(prompts.chat.has_value(), "chat");
  add(!prompts.query_reasoning.empty(), "reasoning");
  return names;
}

// "NVIDIA H200", "2 x NVIDIA H200", "NVIDIA H200, NVIDIA H100".
std::string together(const std::vector<std::string>& names) {
  if (std::count(names.begin(), names.end(), names[0]) == std::ssize(names)) {
    return names.size() == 1 ? names[0] : fmt::format("{} x {}", names.size(), names[0]);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

ServiceMetrics metrics_of(const Engine& engine, Loop& loop) {
  const Loop::Counts counts = loop.counts();
  const LedgerTotals totals = loop.ledger().totals();
  const int num_pages = engine.model().model->limits().num_pages;
  ServiceMetrics metrics;
  metrics.lost = !engine.device_status().ok();
  metrics.num_running = counts.running;
  // With those that are being preprocessed: for a router they wait as well.
  metrics.num_waiting = std::max(0, engine.num_active() - counts.running);
  metrics.num_pictures_waiting = static_cast<std::int64_t>(engine.num_pictures_waiting());
  metrics.picture_memory_bytes = engine.picture_memory_in_use();
  metrics.num_pages = num_pages;
  metrics.page_tokens = kPageTokens;
  metrics.kv_usage = num_pages == 0 ? 0 : static_cast<double>(counts.seats.pages_held) / num_pages;
  const DeviceTime time = loop.ledger().device_time(host_now_ns());
  metrics.busy_s = to_seconds(time.busy_ns());
  metrics.preparing_s = to_seconds(time.preparing_ns());
  metrics.starved_s = to_seconds(time.starved_ns());
  metrics.bubble_s = to_seconds(time.bubble_ns());
  for (int i = 0; i < kNumHostPhaseKinds; ++i) {
    const auto kind = static_cast<HostPhaseKind>(i);
    if (kind == HostPhaseKind::kIdle) continue;  // its time is never a bubble
    metrics.bubble_by_phase.push_back({host_phase_name(kind), to_seconds(time.bubble_ns(kind))});
    if (kind == HostPhaseKind::kWait || kind == HostPhaseKind::kOther) continue;
    metrics.host_work_by_phase.push_back(
        {host_phase_name(kind), to_seconds(totals.host_ns[static_cast<std::size_t>(i)])});
  }
  for (const StepKind kind : {StepKind::kEncode, StepKind::kPrefill, StepKind::kDecode}) {
    const auto at = static_cast<std::size_t>(kind);
    metrics.device_by_step.push_back(
        {step_kind_name(kind), to_seconds(totals.forward_ns[at] + totals.sampling_ns[at])});
  }
  metrics.num_encode_steps = totals.num_steps[static_cast<std::size_t>(StepKind::kEncode)];
  metrics.num_prefill_steps = totals.num_steps[static_cast<std::size_t>(StepKind::kPrefill)];
  metrics.num_decode_steps = totals.num_steps[static_cast<std::size_t>(StepKind::kDecode)];
  metrics.num_decode_rows = totals.num_decode_rows;
  metrics.num_zombie_rows = totals.num_zombie_rows;
  metrics.num_forbidden_calls = loop.forbidden_calls();
  return metrics;
}

}  // namespace

std::vector<std::string> published_names(const ModelConfig& config) {
  // A server may keep to a part of the context.
  const auto has_shape_of = [&config](TextConfig text) {
    text.max_context = config.text.max_context;
    return config.text == text;
  };
  if (has_shape_of(moondream2_config().text)) {
    return {"moondream", "moondream2", "moondream-2", "moondream-2B", "vikhyatk/moondream2"};
  }
  if (has_shape_of(moondream3_config().text)) {
    return {"moondream",           "moondream3",          "moondream3-preview",
            "moondream-3-preview", "moondream3.1-9B-A2B", "moondream/moondream3-preview"};
  }
  const StatusOr<ModelConfig> small = published_architecture("moondream-0.5b");
  if (small.ok() && has_shape_of(small->text)) {
    return {"moondream", "moondream-0.5b", "moondream-0.5B"};
  }
  return {};
}

std::vector<DeviceTrace> traces_of(const EngineGroup& engines, std::size_t most_steps) {
  std::vector<DeviceTrace> traces;
  for (int i = 0; i < engines.size(); ++i) {
    traces.push_back(trace_of(engines.engine(i).loop().ledger(), engines.label(i), most_steps));
  }
  return traces;
}

EngineService::EngineService(std::unique_ptr<EngineGroup> engines, std::string model)
    : engines_(std::move(engines)) {
  const LoadedModel& loaded = first().model();
  info_.model = model.empty() ? short_name(loaded.name) : std::move(model);
  info_.family = loaded.family;
  if (loaded.vision_language_model() != nullptr) {
    info_.other_names = published_names(loaded.config);
  }
  info_.other_names.push_back(loaded.name);  // OWNER/NAME, where it has one
  info_.max_context = loaded.model->info().max_context;
  for (int i = 0; i < engines_->size(); ++i) {
    device_names_.push_back(device_name(engines_->engine(i)));
  }
  info_.device = together(device_names_);
  info_.on_gpu = loaded.device->kind() == DeviceKind::kCuda;
  info_.skills = skill_names(loaded.prompts.config());
  info_.takes_tools = first().takes_tools();
  describe_weights(loaded, info_);
  info_.max_running = 0;
  for (int i = 0; i < engines_->size(); ++i) {
    info_.max_running += engines_->engine(i).model().model->limits().max_seats;
  }
}

StatusOr<RequestId> EngineService::submit(SkillRequest request,
                                          std::shared_ptr<ResponseSink> sink) {
  return engines_->submit(std::move(request), std::move(sink));
}

StatusOr<std::vector<RequestId>> EngineService::submit_choices(
    SkillRequest request, std::vector<std::shared_ptr<ResponseSink>> sinks) {
  return engines_->submit_choices(std::move(request), std::move(sinks));
}

void EngineService::cancel(RequestId id) {
  engines_->cancel(id);
}

std::vector<ServiceMetrics> EngineService::device_metrics() const {
  std::vector<ServiceMetrics> all;
  for (int i = 0; i < engines_->size(); ++i) {
    Engine& engine = engines_->engine(i);
    all.push_back(metrics_of(engine, engine.loop()));
    all.back().device = engines_->label(i);
    all.back().device_name = device_names_[static_cast<std::size_t>(i)];
  }
  return all;
}

StatusOr<std::vector<TokenId>> EngineService::tokenize(std::string_view text) const {
  return first().model().tokenizer.encode(text);
}

StatusOr<std::string> EngineService::detokenize(const std::vector<TokenId>& ids) const {
  const Tokenizer& tokenizer = first().model().tokenizer;
  for (const TokenId id : ids) {
    if (!tokenizer.has(id)) return invalid_field("tokens", "has {}, which is no token", id.value);
  }
  return tokenizer.decode(ids, SpecialTokens::kKeep);
}

StatusOr<ServiceTimeline> EngineService::timeline(int max_steps, std::string_view device) const {
  ServiceTimeline timeline;
  int chosen = device.empty() ? 0 : -1;
  for (int i = 0; i < engines_->size(); ++i) {
    timeline.devices.push_back(engines_->label(i));
    if (engines_->label(i) == device) chosen = i;
  }
  if (chosen < 0) {
    return invalid_argument("device: there is no '{}', only {}", device,
                            fmt::join(timeline.devices, ", "));
  }
  timeline.device = engines_->label(chosen);
  Loop& loop = engines_->engine(chosen).loop();
  timeline.depth = loop.active_depth();
  timeline.max_depth = loop.depth();
  const auto most = static_cast<std::size_t>(max_steps);
  for (const StepRecord& record : loop.ledger().records(most)) {
    timeline.steps.push_back({record.number, step_kind_name(record.kind), record.num_rows,
                              record.num_zombies, record.forward_begin_ns, record.forward_end_ns,
                              record.sampling_begin_ns, record.sampling_end_ns});
  }
  for (const IdlePart& part : loop.ledger().idle_parts(most * kPhasesPerStep)) {
    const bool is_bubble = part.state == DeviceActivity::kBubble;
    timeline.gaps.push_back({device_activity_name(part.state),
                             is_bubble ? host_phase_name(part.phase) : "", part.begin_ns,
                             part.end_ns});
  }
  return timeline;
}

StatusOr<std::string> EngineService::trace(int max_steps) const {
  return chrome_trace(traces_of(*engines_, static_cast<std::size_t>(max_steps)));
}

Status EngineService::set_depth(int depth) {
  const int max_depth = first().loop().depth();  // that of all
  if (depth < 1 || depth > max_depth) {
    return invalid_field("depth", "must be 1 to {}, for which this server was started", max_depth);
  }
  for (int i = 0; i < engines_->size(); ++i) engines_->engine(i).loop().set_active_depth(depth);
  return ok_status();
}

TokenId EngineService::bos_id() const {
  return first().model().prompts.config().bos_id;
}

Status EngineService::warm_up() {
  for (int i = 0; i < engines_->size(); ++i) {
    const Status status = warm_up_one(engines_->engine(i));
    if (!status.ok())
      return engines_->size() == 1 ? status : status.with_context(engines_->label(i));
  }
  return ok_status();
}

Status EngineService::warm_up_one(Engine& engine) {
  Image image;
  image.width = 64;
  image.height = 64;
  image.rgb.assign(64 * 64 * 3, 128);
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<std::byte> png, encode_png(image));
  const auto picture =
      std::make_shared<const std::string>(reinterpret_cast<const char*>(png.data()), png.size());
  for (const Skill skill : kSkills) {
    SkillRequest request;
    request.skill = skill;
    request.images = {picture};
    if (engine.model().vision_language_model() == nullptr) {
      if (skill != Skill::kQuery) continue;
      request.images.clear();
      request.form = QueryForm::kCompletion;
    }
    request.text = skill == Skill::kCaption ? "" : "square";
    request.settings.max_tokens = 4;
    request.settings.max_objects = 1;
    const StatusOr<SkillResult> result = engine.run(std::move(request));
    // A model may lack a skill.
    if (result.ok() || result.status().code() == StatusCode::kInvalidArgument) continue;
    return result.status().with_context("warm-up");
  }
  return ok_status();
}

}  // namespace gapless
