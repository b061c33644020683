// Requests as JSON objects: the fields of Moondream's HTTP API and of `gapless batch` lines.
#pragma once

#include <boost/json/object.hpp>
#include <span>

#include "base/status.h"
#include "skill/skill_request.h"

namespace gapless {

// Everything but the image:
//   question (query), object (point, detect; "obj" too) or objects (a list), length (caption), reasoning (query), spatial_refs ([x, y] or
//   [x_min, y_min, x_max, y_max]), settings {temperature, top_p, top_k, min_p, repetition_penalty,
//   presence_penalty, frequency_penalty, logit_bias ({"TOKEN": number}), seed, max_tokens, min_tokens,
//   max_objects, confidence, stop, stop_token_ids, ignore_eos}.
// Settings may be snake_case or camelCase and may also stand at the top level. A field of a wrong type
// is an error that names it, and so is one that would change the answer and is not there
// (unsupported_fields.h); other unknown fields are ignored. Does not call validate(): the image is still
// missing.
StatusOr<SkillRequest> skill_request_from_json(Skill skill, const boost::json::object& json);

// [x, y] or [x_min, y_min, x_max, y_max], from 0 to 1. InvalidArgument, of the field spatial_refs: anything else.
StatusOr<SpatialRef> make_spatial_ref(std::span<const double> numbers);

}  // namespace gapless
