// Requests as JSON objects: the fields of Moondream's HTTP API and of `gapless batch` lines.
#pragma once

#include <boost/json/object.hpp>

#include "base/status.h"
#include "skill/skill_request.h"

namespace gapless {

// Everything but the image:
//   question (query), object (point, detect; "obj" too), length (caption), spatial_refs ([x, y] or
//   [x_min, y_min, x_max, y_max]), settings {temperature, top_p, top_k, min_p, seed, max_tokens,
//   max_objects, stop, ignore_eos}.
// Settings may be snake_case or camelCase and may also stand at the top level; unknown fields are
// ignored. A field of a wrong type is an error that names it. `reasoning: true` is refused: it is
// not there yet. Does not call validate(): the image is still missing.
StatusOr<SkillRequest> skill_request_from_json(Skill skill, const boost::json::object& json);

}  // namespace gapless
