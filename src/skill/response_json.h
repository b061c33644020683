// The response objects of Moondream's HTTP API; `gapless run --json` prints the same.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <span>
#include <string>

#include "skill/skill_result.h"

namespace gapless {

// query    {"request_id", "finish_reason", "answer", "reasoning"?, "metrics"}
// caption  {"request_id", "finish_reason", "caption", "metrics"}
// point    {"request_id", "finish_reason", "points": [{"x", "y"}], "metrics"}
// detect   {"request_id", "finish_reason", "objects": [{"x_min", "y_min", "x_max", "y_max"}],
//           "metrics"}
// segment  {"request_id", "finish_reason", "path", "bbox": {"x_min", "y_min", "x_max", "y_max"}, "coarse", "metrics"}
//           "coarse": nothing refined what the model wrote;
//           the path is SVG path data in a square of side 1 that is the box; "bbox" is null where there is none
// Points, objects and segments of a request that asked have "confidence" and "bin_confidences": [x, y], of boxes
// [x, y, width, height], too.
// metrics  {"input_tokens", "output_tokens", "prefill_time_ms", "decode_time_ms", "ttft_ms"}
// reasoning {"text", "grounding": [{"start_idx", "end_idx", "points": [[x, y]]}]}: where it was asked for
boost::json::object response_json(const SkillResult& result);

// Of a request that names several objects, one result for each, in order:
//   {"request_id", "answers": [{"object", ...}]}, each as above without its request_id
boost::json::object response_json(std::span<const SkillResult> results,
                                  std::span<const std::string> objects);

// {"x_min", "y_min", "x_max", "y_max"}
boost::json::object box_json(const Box& box);

// "grounding" as above.
boost::json::array grounding_json(const Reasoning& reasoning);

}  // namespace gapless
