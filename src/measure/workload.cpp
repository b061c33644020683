#include "measure/workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/philox.h"

namespace gapless {
namespace {

struct Name {
  std::string_view name;
  RowConstraint constraint;
  bool decodes_regions = false;
  bool new_grammars = false;
};
constexpr std::array kConstraints{
    Name{.name = "plain", .constraint = RowConstraint::kNone},
    Name{.name = "host-mask", .constraint = RowConstraint::kHostMask},
    Name{.name = "device-constrained", .constraint = RowConstraint::kDeviceAutomaton},
    Name{.name = "detect", .constraint = RowConstraint::kDeviceAutomaton, .decodes_regions = true},
    Name{.name = "detect-host-mask",
         .constraint = RowConstraint::kHostMask,
         .decodes_regions = true},
    Name{.name = "json", .constraint = RowConstraint::kGrammar},
    Name{.name = "json-new", .constraint = RowConstraint::kGrammar, .new_grammars = true},
    Name{.name = "json-host-mask", .constraint = RowConstraint::kHostGrammar},
};
constexpr double kShortTokens = 3;
constexpr double kLongFactor = 3;
// No logit is large beside it, so all tokens are equally likely.
constexpr float kEvenTemperature = 1e6f;

// In [0, 1).
double uniform(std::uint64_t seed, std::uint64_t client, std::uint64_t answer) {
  return philox4x32(seed, client, answer).words[0] * 0x1p-32;
}

}  // namespace

std::vector<std::string> workload_names() {
  std::vector<std::string> names;
  for (const Name& name : kConstraints) names.emplace_back(name.name);
  names.emplace_back("short");
  names.emplace_back("long");
  return names;
}

StatusOr<Workload> named_workload(std::string_view name, const Workload& base) {
  Workload workload = base;
  workload.name = name;
  if (name == "short" || name == "long") {
    workload.mean_tokens = name == "short" ? kShortTokens : kLongFactor * base.mean_tokens;
    // The prompt of the others.
    workload.context += static_cast<int>(std::lround(workload.mean_tokens / 2)) -
                        static_cast<int>(std::lround(base.mean_tokens / 2));
    return workload;
  }
  const auto found = std::find_if(kConstraints.begin(), kConstraints.end(),
                                  [&](const Name& known) { return known.name == name; });
  if (found == kConstraints.end()) {
    return invalid_argument("workload '{}': known are {}", name, fmt::join(workload_names(), ", "));
  }
  workload.constraint = found->constraint;
  workload.decodes_regions = found->decodes_regions;
  workload.new_grammars = found->new_grammars;
  return workload;
}

StatusOr<PromptSource> PromptSource::create(Device& device, const StepModelInfo& info,
                                            const SpatialTokens& tokens, Workload workload,
                                            WorkloadGrammar grammar) {
  const bool is_spatial = workload.constraint == RowConstraint::kDeviceAutomaton ||
                          workload.constraint == RowConstraint::kHostMask;
  if (is_spatial && tokens.coord_id < 0) {
    return invalid_argument("workload '{}': a text model has no coordinates", workload.name);
  }
  if (workload.constraint == RowConstraint::kHostMask && tokens.any_token_is_coord) {
    return invalid_argument("workload '{}': this model has no token for coordinates",
                            workload.name);
  }
  if (workload.mean_tokens < 1) return invalid_argument("an answer has at least one token");
  workload.image = workload.image && info.image_tokens > 0;  // a text model sees none
  PromptSource source(info, tokens, std::move(workload));
  source.grammar_ = std::move(grammar);
  if ((source.workload_.constraint == RowConstraint::kGrammar && !source.grammar_.on_device) ||
      (source.workload_.constraint == RowConstraint::kHostGrammar && !source.grammar_.on_host)) {
    return invalid_argument("workload '{}': this model holds no grammar there",
                            source.workload_.name);
  }
  const int num_tokens = source.prompt_tokens();
  const int prefix = source.workload_.image ? 1 + info.image_tokens : 1;
  const int longest = static_cast<int>(std::ceil(source.workload_.mean_tokens * 1.5));
  if (num_tokens <= prefix) {
    return invalid_argument(
        "context {}: answers of {} tokens leave {} for a prompt that begins with {}",
        source.workload_.context, source.workload_.mean_tokens, num_tokens, prefix);
  }
  if (num_tokens + longest > info.max_context) {
    return invalid_argument("context {} and answers of up to {} tokens: the model has {}",
                            source.workload_.context, longest, info.max_context);
  }
  source.inputs_.push_back({InputKind::kText, 0, 0, 0});
  if (source.workload_.image) {
    GAPLESS_ASSIGN_OR_RETURN(PinnedBuffer crop, device.allocate_pinned(info.crop_bytes));
    std::memset(crop.data(), 128, info.crop_bytes);
    source.crop_ = std::make_shared<PinnedBuffer>(std::move(crop));
    for (int i = 0; i < info.image_tokens; ++i) {
      source.inputs_.push_back({InputKind::kImage, i, 0, 0});
    }
  }
  while (static_cast<int>(source.inputs_.size()) < num_tokens) {
    const auto id = static_cast<std::int32_t>(source.inputs_.size() * 7919 %
                                              static_cast<std::size_t>(info.vocab));
    source.inputs_.push_back({InputKind::kText, id, 0, 0});
  }
  return source;
}

int PromptSource::prompt_tokens() const {
  return workload_.context - static_cast<int>(std::lround(workload_.mean_tokens / 2));
}

int PromptSource::answer_tokens(int client, std::int64_t answer) const {
  const double mean = workload_.mean_tokens;
  if (!workload_.random_lengths) return std::max(1, static_cast<int>(std::lround(mean)));
  const double draw = uniform(workload_.seed, static_cast<std::uint64_t>(client),
                              static_cast<std::uint64_t>(answer));
  const double length = answer == 0 ? mean * draw : mean * (0.5 + draw);
  return std::max(1, static_cast<int>(std::lround(length)));
}

PreparedPrompt PromptSource::make(int client, std::int64_t answer) const {
  PreparedPrompt prompt;
  prompt.inputs = inputs_;
  // Answers differ by the last token of their prompt.
  prompt.inputs.back().id = static_cast<std::int32_t>((client * 131 + answer * 17) % info_.vocab);
  prompt.row.sampling.seed = workload_.seed;
  if (workload_.random_tokens) draw_tokens(client, answer, prompt);
  if (workload_.image) {
    prompt.prefix_len = 1 + info_.image_tokens;
    PreparedImage& image = prompt.images.emplace_back();
    image.hash.fill(static_cast<std::uint8_t>(workload_.seed));
    if (!workload_.shared_image) std::memcpy(image.hash.data(), &client, sizeof(client));
    image.prefix_hash = image.hash;
    image.crops_pinned = {crop_->as<std::uint8_t>()};
    image.crops_owner = crop_;
  }
  prompt.row.max_generated = answer_tokens(client, answer);
  set_constraint(prompt);
  return prompt;
}

void PromptSource::draw_tokens(int client, std::int64_t answer, PreparedPrompt& prompt) const {
  const PhiloxBlock drawn = philox4x32(workload_.seed, static_cast<std::uint64_t>(client),
                                       static_cast<std::uint64_t>(answer));
  const std::uint64_t seed = (std::uint64_t{drawn.words[2]} << 32) | drawn.words[3];
  const std::size_t first = workload_.image ? 1 + static_cast<std::size_t>(info_.image_tokens) : 1;
  for (std::size_t i = first; i < prompt.inputs.size(); ++i) {
    prompt.inputs[i].id = static_cast<std::int32_t>(uniform(seed, i, 0) * info_.vocab);
  }
  prompt.row.sampling.temperature = kEvenTemperature;
  prompt.row.sampling.seed = seed;
}

// No stop ids: an end of the grammar goes on with the next object.
void PromptSource::set_constraint(PreparedPrompt& prompt) const {
  // As a request for objects has them.
  if (workload_.decodes_regions) prompt.row.flags |= kRowDecodesRegions | kRowSkipsLogprob;
  switch (workload_.constraint) {
    case RowConstraint::kNone:
      return;
    case RowConstraint::kDeviceAutomaton:
      prompt.row.automaton = automaton_start(SpatialSkill::kDetect);
      return;
    case RowConstraint::kHostMask:
      prompt.row.flags |= kRowHostMask;
      prompt.host_constraint = std::make_unique<SpatialConstraint>(SpatialSkill::kDetect, tokens_);
      return;
    case RowConstraint::kGrammar: {
      const std::shared_ptr<const DeviceGrammar> grammar = grammar_.on_device();
      prompt.row.grammar = grammar->index;
      prompt.device_grammar = grammar;
      return;
    }
    case RowConstraint::kHostGrammar:
      prompt.row.flags |= kRowHostMask;
      prompt.host_constraint = grammar_.on_host();
      return;
  }
}

}  // namespace gapless
