#include "skill/skill_request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/limits.h"
#include "skill/face_gaze.h"

namespace gapless {
namespace {

bool is_blank(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
  });
}

template <typename Number>
Status check_range(std::string_view field, const std::optional<Number>& value, Number least,
                   Number most) {
  // Written so that NaN fails.
  if (!value || (*value >= least && *value <= most)) return ok_status();
  return invalid_field(field, "must lie between {} and {}", least, most);
}

Status validate_filters(const GenerationSettings& settings) {
  if (settings.temperature &&
      !(*settings.temperature >= 0 && std::isfinite(*settings.temperature))) {
    return invalid_field("temperature", "must be a finite number of at least 0");
  }
  if (settings.top_p && !(*settings.top_p > 0 && *settings.top_p <= 1)) {
    return invalid_field("top_p", "must be above 0 and at most 1");
  }
  GAPLESS_RETURN_IF_ERROR(check_range("min_p", settings.min_p, 0.0f, 1.0f));
  if (settings.top_k && *settings.top_k < -1) {
    return invalid_field("top_k", "must be at least 1, or 0 or -1 for off");
  }
  return ok_status();
}

Status validate_penalties(const GenerationSettings& settings) {
  GAPLESS_RETURN_IF_ERROR(check_range("repetition_penalty", settings.repetition_penalty,
                                      kMinRepetitionPenalty, kMaxRepetitionPenalty));
  GAPLESS_RETURN_IF_ERROR(
      check_range("presence_penalty", settings.presence_penalty, -kMaxPenalty, kMaxPenalty));
  GAPLESS_RETURN_IF_ERROR(
      check_range("frequency_penalty", settings.frequency_penalty, -kMaxPenalty, kMaxPenalty));
  if (settings.logit_bias.size() > kMaxLogitBiases) {
    return invalid_field("logit_bias", "has {} entries, at most {} are allowed",
                         settings.logit_bias.size(), kMaxLogitBiases);
  }
  std::set<TokenId> biased;
  for (const LogitBias& one : settings.logit_bias) {
    if (!(one.bias >= -kMaxLogitBias && one.bias <= kMaxLogitBias)) {
      return invalid_field("logit_bias", "must lie between {} and {}", -kMaxLogitBias,
                           kMaxLogitBias);
    }
    if (!biased.insert(one.token).second) {
      return invalid_field("logit_bias", "names token {} twice", one.token.value);
    }
  }
  return ok_status();
}

Status validate_lengths(const GenerationSettings& settings) {
  constexpr std::int32_t kAny = std::numeric_limits<std::int32_t>::max();
  if (settings.max_tokens && *settings.max_tokens < 1) {
    return invalid_field("max_tokens", "must be at least 1");
  }
  GAPLESS_RETURN_IF_ERROR(
      check_range("min_tokens", settings.min_tokens, 0, settings.max_tokens.value_or(kAny)));
  return check_range("max_objects", settings.max_objects, 1, kMaxObjects);
}

Status validate_stops(const GenerationSettings& settings) {
  if (settings.stop.size() > kMaxStopStrings) {
    return invalid_field("stop", "may have at most {} strings", kMaxStopStrings);
  }
  for (const std::string& stop : settings.stop) {
    if (stop.empty()) return invalid_field("stop", "must not hold an empty string");
    if (stop.size() > kMaxStopStringBytes) {
      return invalid_field("stop", "may have strings of at most {} bytes", kMaxStopStringBytes);
    }
  }
  if (settings.stop_token_ids.size() > kMaxStopTokenIds) {
    return invalid_field("stop_token_ids", "may have at most {} ids", kMaxStopTokenIds);
  }
  return ok_status();
}

Status validate_settings(const GenerationSettings& settings) {
  GAPLESS_RETURN_IF_ERROR(validate_filters(settings));
  GAPLESS_RETURN_IF_ERROR(validate_penalties(settings));
  GAPLESS_RETURN_IF_ERROR(validate_lengths(settings));
  GAPLESS_RETURN_IF_ERROR(validate_stops(settings));
  if (settings.top_logprobs < 0 || settings.top_logprobs > kMaxTopLogprobs) {
    return invalid_field("top_logprobs", "must lie between 0 and {}", kMaxTopLogprobs);
  }
  if (settings.top_logprobs > 0 && !settings.logprobs) {
    return invalid_field("top_logprobs", "needs logprobs to be true");
  }
  return ok_status();
}

// Where a request has its text.
std::string_view text_field(Skill skill) {
  return skill == Skill::kQuery ? "question" : "object";
}

Status validate_images(const SkillRequest& request) {
  const std::size_t num_images = request.images.size();
  if (request.skill != Skill::kQuery && num_images != 1) {
    return invalid_argument("{} needs {} image", skill_name(request.skill),
                            num_images == 0 ? "an" : "exactly one");
  }
  if (num_images > kMaxImagesPerPrompt) {
    return invalid_argument("{} images, at most {} are allowed", num_images, kMaxImagesPerPrompt);
  }
  for (std::size_t i = 0; i < num_images; ++i) {
    const auto& image = request.images[i];
    const std::string name =
        num_images == 1 ? "the image" : fmt::format("image {} of {}", i + 1, num_images);
    if (image == nullptr || image->empty()) return invalid_argument("{} is empty", name);
    if (image->size() > kMaxImageBytes) {
      return invalid_argument("{} has {} bytes, more than the {} allowed", name, image->size(),
                              kMaxImageBytes);
    }
  }
  return ok_status();
}

Status validate_spatial_refs(const SkillRequest& request) {
  if (request.spatial_refs.empty()) return ok_status();
  if (request.images.empty()) return invalid_field("spatial_refs", "need an image");
  if (request.images.size() > 1) return invalid_field("spatial_refs", "need exactly one image");
  if (request.skill == Skill::kCaption || request.skill == Skill::kDetect) {
    return invalid_argument("{} takes no spatial_refs", skill_name(request.skill))
        .with_field("spatial_refs");
  }
  if (request.spatial_refs.size() > kMaxSpatialRefs) {
    return invalid_field("spatial_refs", "may be at most {}", kMaxSpatialRefs);
  }
  return ok_status();
}

// The form itself is looked at where it is compiled.
Status validate_grammar(const SkillRequest& request) {
  const GenerationSettings& settings = request.settings;
  if (!settings.grammar) {
    // A call that has to be made gets its form when the model is known.
    const bool has_form = request.tools && request.tools->must_call;
    if (settings.complete && !has_form) {
      return invalid_field("complete", "needs an answer of a given form");
    }
    return ok_status();
  }
  if (request.skill != Skill::kQuery) {
    return invalid_field(settings.grammar->field, "is for query; {} has an answer of its own form",
                         skill_name(request.skill));
  }
  // Where the form has ended, nothing may come but the end.
  if (settings.min_tokens.value_or(0) > 0) {
    return invalid_field("min_tokens", "cannot be kept by an answer of a given form");
  }
  if (settings.ignore_eos) {
    return invalid_field("ignore_eos", "cannot be kept by an answer of a given form");
  }
  return ok_status();
}

// Of one thing to look for or to ask.
Status validate_text(std::string_view field, std::string_view text) {
  if (is_blank(text)) return invalid_field(field, "must not be empty");
  if (text.size() > kMaxPromptBytes) {
    return invalid_argument("the prompt has {} bytes, more than the {} allowed", text.size(),
                            kMaxPromptBytes)
        .with_field(field);
  }
  return ok_status();
}

bool looks_for_objects(Skill skill) {
  return skill == Skill::kPoint || skill == Skill::kDetect || skill == Skill::kSegment;
}

Status validate_texts(const SkillRequest& request) {
  if (request.skill == Skill::kCaption && request.objects.empty()) return ok_status();
  if (request.objects.empty()) return validate_text(text_field(request.skill), request.text);
  constexpr std::string_view kField = "objects";
  if (!looks_for_objects(request.skill)) {
    return invalid_field(kField, "is for point, detect and segment");
  }
  if (!request.text.empty()) return invalid_field(kField, "and object cannot both be there");
  if (request.objects.size() > kMaxChoices) {
    return invalid_field(kField, "has {} names, at most {} are allowed", request.objects.size(),
                         kMaxChoices);
  }
  for (const std::string& object : request.objects) {
    GAPLESS_RETURN_IF_ERROR(validate_text(kField, object));
  }
  return ok_status();
}

Status validate_reasoning(const SkillRequest& request) {
  if (!request.reasoning) return ok_status();
  if (request.skill != Skill::kQuery) {
    return invalid_field("reasoning", "is for query; {} answers at once",
                         skill_name(request.skill));
  }
  const GenerationSettings& settings = request.settings;
  if (settings.grammar) {
    return invalid_field("reasoning", "cannot come before an answer of a given form ({})",
                         settings.grammar->field);
  }
  if (settings.min_tokens.value_or(0) > 0) {
    return invalid_field("min_tokens", "cannot be kept by an answer after reasoning");
  }
  return ok_status();
}

}  // namespace

std::string_view skill_name(Skill skill) {
  switch (skill) {
    case Skill::kQuery:
      return "query";
    case Skill::kCaption:
      return "caption";
    case Skill::kPoint:
      return "point";
    case Skill::kDetect:
      return "detect";
    case Skill::kSegment:
      return "segment";
  }
  return "query";
}

StatusOr<Skill> skill_from_name(std::string_view name) {
  for (const Skill skill : kSkills) {
    if (name == skill_name(skill)) return skill;
  }
  return invalid_argument("unknown skill '{}'; there are query, caption, point, detect and segment",
                          name)
      .with_field("skill");
}

StatusOr<CaptionLength> caption_length_from_name(std::string_view name) {
  if (name == "short") return CaptionLength::kShort;
  if (name == "normal") return CaptionLength::kNormal;
  if (name == "long") return CaptionLength::kLong;
  return invalid_argument("unknown caption length '{}'; there are short, normal and long", name)
      .with_field("length");
}

SkillRequest request_of_choice(SkillRequest request, std::size_t i) {
  if (request.objects.empty()) return request;
  request.text = std::move(request.objects[i]);
  request.objects.clear();
  return request;
}

std::vector<boost::json::object> ToolUse::callable() const {
  std::vector<boost::json::object> functions;
  for (const boost::json::object& tool : tools) {
    const boost::json::object& function = tool.at("function").as_object();
    const std::string_view name = function.at("name").as_string();
    if (only.empty() || name == only) functions.push_back(function);
  }
  return functions;
}

Status validate(const SkillRequest& request) {
  GAPLESS_RETURN_IF_ERROR(validate_texts(request));
  if (request.settings.confidence && !looks_for_objects(request.skill)) {
    return invalid_field("confidence", "is told by point, detect and segment");
  }
  if (const Status images = validate_images(request); !images.ok()) {
    return images.with_field("image_url");
  }
  GAPLESS_RETURN_IF_ERROR(validate_spatial_refs(request));
  if (request.settings.confidence && asks_for_face_gaze(request)) {
    return invalid_field("confidence", "is not told of a gaze that is an average");
  }
  GAPLESS_RETURN_IF_ERROR(validate_grammar(request));
  GAPLESS_RETURN_IF_ERROR(validate_reasoning(request));
  return validate_settings(request.settings);
}

}  // namespace gapless
