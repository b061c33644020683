#include "skill/skill_prompt.h"

#include <time.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <optional>
#include <string>

#include "base/limits.h"
#include "constraint/reasoning_automaton.h"
#include "constraint/segment_automaton.h"
#include "constraint/spatial_automaton.h"

namespace gapless {
namespace {

// As templates write it: "22 Nov 2026".
std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%d %b %Y", &local)};
}

ChatOptions chat_options(const SkillRequest& request) {
  ChatOptions options{.today = today(), .thinking = request.thinking.value_or(true)};
  if (!request.tools) return options;
  options.tools = request.tools->tools;
  options.opens_call = request.tools->must_call;
  if (options.opens_call) options.thinking = false;  // a call is all of the answer
  return options;
}

// A query of a text model.
StatusOr<Prompt> build_text(const SkillRequest& request, const PromptBuilder& builder) {
  if (!request.images.empty()) {
    return invalid_field("image_url",
                         "has a picture, but this is a text model; Moondream's take pictures");
  }
  switch (request.form) {
    case QueryForm::kQuestion:
      return builder.query(request.text, /*has_image=*/false);
    case QueryForm::kChat:
      return builder.chat(request.messages, chat_options(request));
    case QueryForm::kCompletion:
      return builder.completion(request.text);
  }
  return make_error(StatusCode::kInternal, "unknown form");
}

Status check_thinking(const SkillRequest& request, const PromptBuilder& builder) {
  if (!request.thinking.value_or(false) || builder.config().chat == ChatTemplate::kQwen3) {
    return ok_status();
  }
  return invalid_field("chat_template_kwargs",
                       "asks this model to think before it answers, which it does not");
}

StatusOr<Prompt> build_tokens(const SkillRequest& request, const PromptBuilder& builder) {
  GAPLESS_RETURN_IF_ERROR(check_thinking(request, builder));
  if (request.reasoning) GAPLESS_RETURN_IF_ERROR(builder.check_reasons());
  switch (request.skill) {
    case Skill::kQuery:
      if (builder.config().completes_text) return build_text(request, builder);
      return builder.query(request.text, !request.images.empty(), request.spatial_refs,
                           request.reasoning);
    case Skill::kCaption:
      return builder.caption(request.length);
    case Skill::kPoint:
      return builder.point(request.text, request.spatial_refs);
    case Skill::kDetect:
      return builder.detect(request.text);
    case Skill::kSegment:
      return builder.segment(request.text, request.spatial_refs);
  }
  return make_error(StatusCode::kInternal, "unknown skill");
}

TokenInput to_input(const PromptToken& token) {
  switch (token.kind) {
    case PromptToken::Kind::kText:
      return {InputKind::kText, token.id.value, 0, 0};
    case PromptToken::Kind::kCoord:
      return {InputKind::kCoord, token.id.value, token.x, 0};
    case PromptToken::Kind::kSize:
      return {InputKind::kSize, token.id.value, token.x, token.y};
  }
  return {};
}

void place_inputs(const Prompt& prompt, int num_image_tokens, SkillPrompt& out) {
  const std::size_t image_at = prompt.image_position.value_or(prompt.tokens.size());
  for (std::size_t i = 0; i < prompt.tokens.size(); ++i) {
    if (i == image_at) {
      for (int patch = 0; patch < num_image_tokens; ++patch) {
        out.inputs.push_back({InputKind::kImage, patch, 0, 0});
      }
      out.prefix_len = static_cast<int>(out.inputs.size());
    }
    out.inputs.push_back(to_input(prompt.tokens[i]));
  }
}

// Where the person looks whose eyes are at a point of the picture: at one place, or at none in it.
bool asks_for_gaze(const SkillRequest& request) {
  return request.text == "gaze" && request.spatial_refs.size() == 1 &&
         !request.spatial_refs.front().is_box;
}

std::optional<SpatialSkill> spatial_skill(const SkillRequest& request) {
  switch (request.skill) {
    case Skill::kPoint:
      return asks_for_gaze(request) ? SpatialSkill::kGaze : SpatialSkill::kPoint;
    case Skill::kDetect:
      return SpatialSkill::kDetect;
    case Skill::kQuery:
    case Skill::kCaption:
    case Skill::kSegment:
      return std::nullopt;
  }
  return std::nullopt;
}

// Whether the prompt leaves room for so many tokens.
Status check_room(const SkillRequest& request, int num_inputs, int needed,
                  const PromptLimits& limits) {
  const int max_context = limits.max_context;
  if (max_context - num_inputs < needed) {
    const std::size_t num_images = request.images.size();
    const std::string what = num_images < 2
                                 ? "the prompt takes"
                                 : fmt::format("{} images of {} positions each and the text take",
                                               num_images, limits.image_tokens);
    return make_error(StatusCode::kResourceExhausted,
                      "{} {} of the {} positions of the context: no room for an answer", what,
                      num_inputs, max_context);
  }
  return ok_status();
}

Status does_not_fit(const SkillRequest& request, int num_inputs, int max_context) {
  const std::string_view each = request.reasoning ? " for the reasoning and for the answer" : "";
  return make_error(StatusCode::kResourceExhausted,
                    "max_tokens is {}{}, but the prompt takes {} of the {} positions of the "
                    "context and leaves {}",
                    *request.settings.max_tokens, each, num_inputs, max_context,
                    max_context - num_inputs)
      .with_field("max_tokens");
}

// The longest answer: what was asked for if it fits, or as much as there is room for.
StatusOr<std::int32_t> max_generated(const SkillRequest& request, int num_inputs,
                                     const PromptLimits& limits) {
  GAPLESS_RETURN_IF_ERROR(check_room(request, num_inputs, 1, limits));
  const int room = limits.max_context - num_inputs;
  const GenerationSettings& settings = request.settings;
  std::int32_t wanted = settings.max_tokens.value_or(kDefaultMaxTokens);
  if (const auto spatial = spatial_skill(request)) {
    const int objects = settings.max_objects.value_or(kDefaultMaxObjects);
    const std::int32_t for_objects = spatial_max_generated(*spatial, objects);
    wanted = settings.max_tokens ? std::min(*settings.max_tokens, for_objects) : for_objects;
  }
  if (wanted > room && settings.max_tokens && !request.cut_max_tokens) {
    return does_not_fit(request, num_inputs, limits.max_context);
  }
  return std::min(wanted, room);
}

// Reasoning and answer have a limit each, so that an answer always comes. Where both do not fit, each gets
// at least half of the room, or what was asked for.
Status set_reasoning_limits(const SkillRequest& request, const TokenizerConfig& tokens,
                            int num_inputs, const PromptLimits& limits, RowState& row) {
  const std::int32_t num_fed = 1 + tokens.num_answer_ids_fed_again;  // between the two
  GAPLESS_RETURN_IF_ERROR(check_room(request, num_inputs, num_fed + 2, limits));
  const std::int32_t room = limits.max_context - num_inputs - num_fed;
  const std::int32_t wanted = request.settings.max_tokens.value_or(kDefaultMaxTokens);
  if (wanted > room - wanted && request.settings.max_tokens && !request.cut_max_tokens) {
    return does_not_fit(request, num_inputs, limits.max_context);
  }
  const std::int32_t answer = std::min(wanted, room / 2);
  row.exit_at = std::min(wanted, room - answer);
  row.max_after_exit = num_fed - 1 + answer;
  row.max_generated = row.exit_at + num_fed + answer;
  return ok_status();
}

Status set_limits(const SkillRequest& request, const TokenizerConfig& tokens, int num_inputs,
                  const PromptLimits& limits, RowState& row) {
  if (request.reasoning) {
    return set_reasoning_limits(request, tokens, num_inputs, limits, row);
  }
  GAPLESS_ASSIGN_OR_RETURN(row.max_generated, max_generated(request, num_inputs, limits));
  return ok_status();
}

void set_sampling(const GenerationSettings& settings, SamplingSettings& sampling) {
  sampling.temperature = settings.temperature.value_or(0.0f);
  sampling.top_p = settings.top_p.value_or(1.0f);
  sampling.top_k = std::max(0, settings.top_k.value_or(0));
  sampling.min_p = settings.min_p.value_or(0.0f);
  sampling.repetition_penalty = settings.repetition_penalty.value_or(1.0f);
  sampling.presence_penalty = settings.presence_penalty.value_or(0.0f);
  sampling.frequency_penalty = settings.frequency_penalty.value_or(0.0f);
  sampling.min_tokens = settings.min_tokens.value_or(0);
  sampling.num_top_logprobs = settings.top_logprobs;
  sampling.seed = settings.seed.value_or(0);
}

Status check_token(std::string_view field, TokenId token, int vocab) {
  if (token.value >= 0 && token.value < vocab) return ok_status();
  return invalid_field(field, "names token {} of a vocabulary of {}", token.value, vocab);
}

Status set_stop_ids(const GenerationSettings& settings, const TokenizerConfig& tokens, int vocab,
                    RowState& row) {
  if (!settings.ignore_eos) {
    if (tokens.eos_id.valid()) row.stop_ids[row.num_stop_ids++] = tokens.eos_id.value;
    for (const TokenId id : tokens.more_eos_ids) row.stop_ids[row.num_stop_ids++] = id.value;
  }
  for (const TokenId token : settings.stop_token_ids) {
    GAPLESS_RETURN_IF_ERROR(check_token("stop_token_ids", token, vocab));
    row.stop_ids[row.num_stop_ids++] = token.value;
  }
  return ok_status();
}

// What penalties and biases need to know of tokens. A plain row has no notes and no memory.
Status note_tokens(const GenerationSettings& settings, int vocab, SkillPrompt& prompt) {
  const SamplingSettings& sampling = prompt.row.sampling;
  if (sampling.repetition_penalty == 1 && sampling.presence_penalty == 0 &&
      sampling.frequency_penalty == 0 && settings.logit_bias.empty()) {
    return ok_status();
  }
  prompt.row.flags |= kRowAdjustsLogits;
  std::map<std::int32_t, TokenNote> notes;
  for (const LogitBias& one : settings.logit_bias) {
    GAPLESS_RETURN_IF_ERROR(check_token("logit_bias", one.token, vocab));
    notes[one.token.value].bias = one.bias;
  }
  if (sampling.repetition_penalty != 1) {
    for (const TokenInput& input : prompt.inputs) {
      if (input.kind != InputKind::kImage) notes[input.id].in_prompt = 1;
    }
  }
  for (auto& [token, note] : notes) {
    note.token = token;
    prompt.token_notes.push_back(note);
  }
  return ok_status();
}

Status set_constraint(const SkillRequest& request, const PromptBuilder& builder,
                      SkillPrompt& prompt) {
  RowState& row = prompt.row;
  const TokenizerConfig& tokens = builder.config();
  const auto spatial = spatial_skill(request);
  const bool is_segment = request.skill == Skill::kSegment;
  if (!spatial && !is_segment) {
    // Ends reasoning; an answer never holds it.
    if (tokens.answer_id.valid()) row.denied_ids[row.num_denied_ids++] = tokens.answer_id.value;
    if (!request.reasoning) return ok_status();
    row.flags |= kRowDecodesRegions;
    row.automaton = reasoning_start();
    return ok_status();
  }
  row.flags |= kRowDecodesRegions;
  if (!request.settings.logprobs) row.flags |= kRowSkipsLogprob;
  if (is_segment) prompt.num_region_tokens = kNumSegmentRegionTokens;
  if (request.settings.confidence) row.flags |= kRowWantsConfidence;
  if (request.constraint_mode == ConstraintMode::kDeviceAutomaton) {
    row.automaton = is_segment ? segment_start() : automaton_start(*spatial);
    return ok_status();
  }
  if (tokens.any_token_is_coord) {
    return invalid_argument(
        "masks of the host need a token for coordinates, which this model lacks");
  }
  row.flags |= kRowHostMask;
  const SpatialTokens spatial_tokens{tokens.coord_id.value, tokens.size_id.value,
                                     tokens.eos_id.value};
  if (is_segment) {
    prompt.host_constraint = std::make_unique<SegmentConstraint>(
        spatial_tokens, path_token_classes(builder.tokenizer().text_of_tokens()));
  } else {
    prompt.host_constraint = std::make_unique<SpatialConstraint>(*spatial, spatial_tokens);
  }
  return ok_status();
}

}  // namespace

StatusOr<SkillPrompt> build_skill_prompt(const SkillRequest& request, const PromptBuilder& builder,
                                         const PromptLimits& limits) {
  GAPLESS_ASSIGN_OR_RETURN(const Prompt tokens, build_tokens(request, builder));
  SkillPrompt prompt;
  const int num_image_tokens = static_cast<int>(request.images.size()) * limits.image_tokens;
  place_inputs(tokens, num_image_tokens, prompt);
  GAPLESS_RETURN_IF_ERROR(set_limits(request, builder.config(),
                                     static_cast<int>(prompt.inputs.size()), limits, prompt.row));
  set_sampling(request.settings, prompt.row.sampling);
  GAPLESS_RETURN_IF_ERROR(
      set_stop_ids(request.settings, builder.config(), limits.vocab, prompt.row));
  GAPLESS_RETURN_IF_ERROR(set_constraint(request, builder, prompt));
  GAPLESS_RETURN_IF_ERROR(note_tokens(request.settings, limits.vocab, prompt));
  return prompt;
}

}  // namespace gapless
