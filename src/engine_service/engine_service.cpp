#include "engine_service/engine_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include "base/clock.h"
#include "image/image.h"
#include "image/image_hash.h"
#include "image/write_png.h"
#include "model/model_source.h"
#include "model/model_summary.h"
#include "observe/ledger.h"
#include "observe/trace.h"

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
  return loaded.kernels->activation_dtype() == DType::kF32 ? "F32" : "BF16";
}

// What clients describe a model by.
void describe_weights(const LoadedModel& loaded, ServiceInfo& info) {
  const ModelWeights& weights = loaded.model->weights();
  info.weight_type = weight_type_name(loaded);
  info.num_parameters = model_size(loaded.config).total();
  info.weight_bytes = static_cast<std::int64_t>(
      weights.buffer.size_bytes() + weights.prepared.size_bytes() + weights.fp8.size_bytes());
  info.max_running = loaded.model->limits().max_seats;
  const std::string facts = fmt::format("{} {} {} {}", info.model, info.weight_type,
                                        info.num_parameters, info.weight_bytes);
  info.digest = hash_image_bytes(std::as_bytes(std::span(facts))).hex();
}

// What clients and examples call the published models whose shape this is. A model of another shape
// has its own name only.
std::vector<std::string> published_names(const ModelConfig& config) {
  if (config.text == moondream2_config().text) {
    return {"moondream", "moondream2", "moondream-2", "moondream-2B", "vikhyatk/moondream2"};
  }
  const StatusOr<ModelConfig> small = published_architecture("moondream-0.5b");
  if (small.ok() && config.text == small->text) {
    return {"moondream", "moondream-0.5b", "moondream-0.5B"};
  }
  return {};
}

}  // namespace

EngineService::EngineService(std::unique_ptr<Engine> engine, std::string model)
    : engine_(std::move(engine)) {
  const LoadedModel& loaded = engine_->model();
  info_.model = model.empty() ? short_name(loaded.name) : std::move(model);
  info_.other_names = published_names(loaded.config);
  info_.other_names.push_back(loaded.name);  // OWNER/NAME, where it has one
  info_.max_context = loaded.config.text.max_context;
  const StatusOr<DeviceInfo> device = loaded.device->info();
  info_.device = device.ok() ? device->name : "";
  info_.on_gpu = device.ok() && device->kind == DeviceKind::kCuda;
  describe_weights(loaded, info_);
}

StatusOr<RequestId> EngineService::submit(SkillRequest request,
                                          std::shared_ptr<ResponseSink> sink) {
  return engine_->submit(std::move(request), std::move(sink));
}

StatusOr<std::vector<RequestId>> EngineService::submit_choices(
    SkillRequest request, std::vector<std::shared_ptr<ResponseSink>> sinks) {
  return engine_->submit_choices(std::move(request), std::move(sinks));
}

void EngineService::cancel(RequestId id) {
  engine_->cancel(id);
}

ServiceMetrics EngineService::metrics() const {
  Loop& loop = engine_->loop();
  const Loop::Counts counts = loop.counts();
  const LedgerTotals totals = loop.ledger().totals();
  const int num_pages = engine_->model().model->limits().num_pages;
  ServiceMetrics metrics;
  metrics.num_running = counts.running;
  // With those that are being preprocessed: for a router they wait as well.
  metrics.num_waiting = std::max(0, engine_->num_active() - counts.running);
  metrics.num_pictures_waiting = static_cast<std::int64_t>(engine_->num_pictures_waiting());
  metrics.picture_memory_bytes = engine_->picture_memory_in_use();
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

StatusOr<std::vector<TokenId>> EngineService::tokenize(std::string_view text) const {
  return engine_->model().tokenizer.encode(text);
}

StatusOr<std::string> EngineService::detokenize(const std::vector<TokenId>& ids) const {
  const Tokenizer& tokenizer = engine_->model().tokenizer;
  for (const TokenId id : ids) {
    if (!tokenizer.has(id)) return invalid_argument("tokens: there is no token {}", id.value);
  }
  return tokenizer.decode(ids, SpecialTokens::kKeep);
}

StatusOr<ServiceTimeline> EngineService::timeline(int max_steps) const {
  Loop& loop = engine_->loop();
  ServiceTimeline timeline;
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
  return chrome_trace(engine_->loop().ledger(), static_cast<std::size_t>(max_steps));
}

Status EngineService::set_depth(int depth) {
  Loop& loop = engine_->loop();
  if (depth < 1 || depth > loop.depth()) {
    return invalid_argument("depth: this server was started for 1 to {}", loop.depth());
  }
  loop.set_active_depth(depth);
  return ok_status();
}

TokenId EngineService::bos_id() const {
  return engine_->model().config.tokenizer.bos_id;
}

Status EngineService::warm_up() {
  Image image;
  image.width = 64;
  image.height = 64;
  image.rgb.assign(64 * 64 * 3, 128);
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<std::byte> png, encode_png(image));
  const auto picture =
      std::make_shared<const std::string>(reinterpret_cast<const char*>(png.data()), png.size());
  for (const Skill skill : {Skill::kQuery, Skill::kCaption, Skill::kPoint, Skill::kDetect}) {
    SkillRequest request;
    request.skill = skill;
    request.images = {picture};
    request.text = skill == Skill::kCaption ? "" : "square";
    request.settings.max_tokens = 4;
    request.settings.max_objects = 1;
    const StatusOr<SkillResult> result = engine_->run(std::move(request));
    // A model may lack a skill.
    if (result.ok() || result.status().code() == StatusCode::kInvalidArgument) continue;
    return result.status().with_context("warm-up");
  }
  return ok_status();
}

}  // namespace gapless
