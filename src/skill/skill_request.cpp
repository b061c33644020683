#include "skill/skill_request.h"

#include <algorithm>
#include <cmath>

#include "base/limits.h"

namespace gapless {
namespace {

bool is_blank(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
  });
}

Status validate_settings(const GenerationSettings& settings) {
  if (settings.temperature &&
      !(*settings.temperature >= 0 && std::isfinite(*settings.temperature))) {
    return invalid_argument("temperature must be a finite number of at least 0");
  }
  if (settings.top_p && !(*settings.top_p > 0 && *settings.top_p <= 1)) {
    return invalid_argument("top_p must be above 0 and at most 1");
  }
  if (settings.min_p && !(*settings.min_p >= 0 && *settings.min_p <= 1)) {
    return invalid_argument("min_p must lie between 0 and 1");
  }
  if (settings.top_k && *settings.top_k < 0) return invalid_argument("top_k must be at least 0");
  if (settings.max_tokens && *settings.max_tokens < 1) {
    return invalid_argument("max_tokens must be at least 1");
  }
  if (settings.max_objects && (*settings.max_objects < 1 || *settings.max_objects > kMaxObjects)) {
    return invalid_argument("max_objects must lie between 1 and {}", kMaxObjects);
  }
  if (settings.top_logprobs < 0 || settings.top_logprobs > kMaxTopLogprobs) {
    return invalid_argument("top_logprobs must lie between 0 and {}", kMaxTopLogprobs);
  }
  if (settings.top_logprobs > 0 && !settings.logprobs) {
    return invalid_argument("top_logprobs needs logprobs to be true");
  }
  if (settings.stop.size() > kMaxStopStrings) {
    return invalid_argument("at most {} stop strings are allowed", kMaxStopStrings);
  }
  for (const std::string& stop : settings.stop) {
    if (stop.empty()) return invalid_argument("a stop string must not be empty");
    if (stop.size() > kMaxStopStringBytes) {
      return invalid_argument("a stop string may have at most {} bytes", kMaxStopStringBytes);
    }
  }
  return ok_status();
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
  if (request.images.empty()) return invalid_argument("spatial_refs need an image");
  if (request.images.size() > 1) return invalid_argument("spatial_refs need exactly one image");
  if (request.skill != Skill::kQuery && request.skill != Skill::kPoint) {
    return invalid_argument("{} takes no spatial_refs", skill_name(request.skill));
  }
  if (request.spatial_refs.size() > kMaxSpatialRefs) {
    return invalid_argument("at most {} spatial_refs are allowed", kMaxSpatialRefs);
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
  }
  return "query";
}

StatusOr<Skill> skill_from_name(std::string_view name) {
  for (const Skill skill : {Skill::kQuery, Skill::kCaption, Skill::kPoint, Skill::kDetect}) {
    if (name == skill_name(skill)) return skill;
  }
  if (name == "segment") {
    return invalid_argument("this model has no segment skill (Moondream 3 introduced it)");
  }
  return invalid_argument("unknown skill '{}'; there are query, caption, point and detect", name);
}

StatusOr<CaptionLength> caption_length_from_name(std::string_view name) {
  if (name == "short") return CaptionLength::kShort;
  if (name == "normal") return CaptionLength::kNormal;
  if (name == "long") return CaptionLength::kLong;
  return invalid_argument("unknown caption length '{}'; there are short, normal and long", name);
}

Status validate(const SkillRequest& request) {
  const bool needs_text = request.skill != Skill::kCaption;
  if (needs_text && is_blank(request.text)) {
    return invalid_argument("{} must not be empty",
                            request.skill == Skill::kQuery ? "question" : "object");
  }
  if (request.text.size() > kMaxPromptBytes) {
    return invalid_argument("the prompt has {} bytes, more than the {} allowed",
                            request.text.size(), kMaxPromptBytes);
  }
  GAPLESS_RETURN_IF_ERROR(validate_images(request));
  GAPLESS_RETURN_IF_ERROR(validate_spatial_refs(request));
  return validate_settings(request.settings);
}

}  // namespace gapless
