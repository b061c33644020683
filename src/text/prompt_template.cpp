#include "text/prompt_template.h"

#include <string>

#include "base/check.h"
#include "base/limits.h"
#include "text/tool_calls.h"

namespace gapless {
namespace {

std::string_view strip(std::string_view text) {
  constexpr std::string_view kWhitespace = " \t\n\v\f\r";
  const std::size_t first = text.find_first_not_of(kWhitespace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kWhitespace) - first + 1);
}

// Also false for what is not a number.
bool in_unit_range(float value) {
  return value >= 0 && value <= 1;
}

}  // namespace

Status lacks_skill(std::string_view skill, bool is_text_model) {
  constexpr std::string_view kField = "skill";
  if (skill == "segment") {
    return invalid_argument(
               "this model has no segment skill; Moondream 3 and Moondream 3.1 have it")
        .with_field(kField);
  }
  if (skill == "gaze") {
    return invalid_argument("this model has no gaze skill; Moondream 2 and Moondream 3 have it")
        .with_field(kField);
  }
  if (!is_text_model) {
    return invalid_argument("this model has no {} skill", skill).with_field(kField);
  }
  return invalid_argument("this model has no {} skill: it is a text model; Moondream's have it",
                          skill)
      .with_field(kField);
}

Status PromptBuilder::check_reasons() const {
  if (!config_.query_reasoning.empty()) return ok_status();
  return invalid_field("reasoning",
                       "is nothing that this model does; Moondream 2 of June 2025, Moondream 3 and "
                       "Moondream 3.1 do");
}

Prompt PromptBuilder::begin(bool has_image) const {
  Prompt prompt;
  if (config_.bos_id.valid()) prompt.tokens.push_back({PromptToken::Kind::kText, config_.bos_id});
  if (has_image) prompt.image_position = prompt.tokens.size();
  return prompt;
}

void PromptBuilder::add_ids(std::span<const TokenId> ids, Prompt& prompt) const {
  for (const TokenId id : ids) prompt.tokens.push_back({PromptToken::Kind::kText, id});
}

Status PromptBuilder::add_refs(std::span<const SpatialRef> refs, Prompt& prompt) const {
  if (refs.empty()) return ok_status();
  if (!prompt.image_position) return invalid_argument("spatial_refs need an image");
  if (refs.size() > kMaxSpatialRefs) {
    return invalid_argument("{} spatial_refs, more than the {} allowed", refs.size(),
                            kMaxSpatialRefs);
  }
  const auto add_coord = [&](float value) {
    prompt.tokens.push_back({PromptToken::Kind::kCoord, config_.coord_id, value});
  };
  for (const SpatialRef& ref : refs) {
    for (const float value : {ref.x_center, ref.y_center, ref.width, ref.height}) {
      if (!in_unit_range(value)) return invalid_argument("spatial_refs must lie between 0 and 1");
    }
    add_coord(ref.x_center);
    add_coord(ref.y_center);
    if (ref.is_box) {
      prompt.tokens.push_back({PromptToken::Kind::kSize, config_.size_id, ref.width, ref.height});
    }
  }
  return ok_status();
}

StatusOr<Prompt> PromptBuilder::query(std::string_view question, bool has_image,
                                      std::span<const SpatialRef> refs, bool reasoning) const {
  if (config_.query.prefix.empty()) return lacks("query");
  if (reasoning) GAPLESS_RETURN_IF_ERROR(check_reasons());
  if (strip(question).empty()) return invalid_argument("the question is empty");
  GAPLESS_ASSIGN_OR_RETURN(
      const std::vector<TokenId> text,
      tokenizer_->encode(config_.question_leading_space ? fmt::format(" {}", question)
                                                        : std::string(question)));
  Prompt prompt = begin(has_image);
  add_ids(config_.query.prefix, prompt);
  GAPLESS_RETURN_IF_ERROR(add_refs(refs, prompt));
  add_ids(text, prompt);
  add_ids(reasoning ? config_.query_reasoning : config_.query.suffix, prompt);
  return prompt;
}

StatusOr<Prompt> PromptBuilder::caption(CaptionLength length) const {
  const bool is_short = length == CaptionLength::kShort;
  const std::vector<TokenId>& ids = is_short                         ? config_.caption_short
                                    : length == CaptionLength::kLong ? config_.caption_long
                                                                     : config_.caption_normal;
  if (config_.completes_text) return lacks("caption");
  if (ids.empty()) return invalid_argument("this model has no caption of that length");
  Prompt prompt = begin(/*has_image=*/true);
  add_ids(ids, prompt);
  return prompt;
}

StatusOr<Prompt> PromptBuilder::detect(std::string_view object) const {
  return object_prompt("detect", config_.detect, config_.object_leading_space, object, {});
}

StatusOr<Prompt> PromptBuilder::point(std::string_view object,
                                      std::span<const SpatialRef> refs) const {
  if (!config_.gazes && strip(object) == "gaze" && !refs.empty()) return lacks("gaze");
  return object_prompt("point", config_.point, config_.object_leading_space, object, refs);
}

StatusOr<Prompt> PromptBuilder::segment(std::string_view object,
                                        std::span<const SpatialRef> refs) const {
  return object_prompt("segment", config_.segment, /*leading_space=*/false, object, refs);
}

StatusOr<Prompt> PromptBuilder::chat(std::span<const ChatMessage> messages,
                                     const ChatOptions& options) const {
  if (!config_.chat) {
    return invalid_argument("this model has no chat template{}", config_.why_no_chat);
  }
  for (const ChatMessage& message : messages) {
    const std::size_t num_calls = message.tool_calls.size();
    if (message.role != ChatRole::kTool && num_calls == 0) continue;
    if (!takes_tools(*config_.chat)) {
      return invalid_argument("this model's chat template has no calls of functions");
    }
    if (num_calls > 1 && *config_.chat != ChatTemplate::kQwen3) {
      return invalid_argument("this model's chat template takes one call at a time");
    }
  }
  Prompt prompt;
  for (const ChatPiece& piece : chat_pieces(*config_.chat, messages, options)) {
    if (piece.is_special) {
      const std::optional<TokenId> id = tokenizer_->id_of(piece.text);
      GAPLESS_CHECK_MSG(id, piece.text);  // looked for when the model was loaded
      add_ids(std::span(&*id, 1), prompt);
      continue;
    }
    GAPLESS_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, tokenizer_->encode(piece.text));
    add_ids(ids, prompt);
  }
  return prompt;
}

StatusOr<Prompt> PromptBuilder::completion(std::string_view text) const {
  if (!config_.completes_text) return invalid_argument("this model does not complete text");
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, tokenizer_->encode(text));
  Prompt prompt = begin(/*has_image=*/false);
  add_ids(ids, prompt);
  if (prompt.tokens.empty()) return invalid_argument("the prompt is empty");
  return prompt;
}

StatusOr<Prompt> PromptBuilder::object_prompt(std::string_view skill,
                                              const SkillTemplate& skill_template,
                                              bool leading_space, std::string_view object,
                                              std::span<const SpatialRef> refs) const {
  if (skill_template.prefix.empty()) return lacks(skill);
  const std::string_view name = strip(object);
  if (name.empty()) return invalid_argument("the object is empty");
  const std::string text = fmt::format("{}{}", leading_space ? " " : "", name);
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, tokenizer_->encode(text));
  Prompt prompt = begin(/*has_image=*/true);
  add_ids(skill_template.prefix, prompt);
  GAPLESS_RETURN_IF_ERROR(add_refs(refs, prompt));
  add_ids(ids, prompt);
  add_ids(skill_template.suffix, prompt);
  return prompt;
}

}  // namespace gapless
