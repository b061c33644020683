#include "skill/response_json.h"

#include <cmath>

#include <boost/json/array.hpp>

namespace gapless {
namespace {

// Milliseconds with microseconds kept: more digits would only be noise.
double rounded_ms(double ms) { return std::round(ms * 1000.0) / 1000.0; }

boost::json::object metrics_json(const GenerationMetrics& metrics) {
  return {{"input_tokens", metrics.input_tokens},
          {"output_tokens", metrics.output_tokens},
          {"prefill_time_ms", rounded_ms(metrics.prefill_time_ms)},
          {"decode_time_ms", rounded_ms(metrics.decode_time_ms)},
          {"ttft_ms", rounded_ms(metrics.ttft_ms)}};
}

}  // namespace

boost::json::object response_json(const SkillResult& result) {
  boost::json::object json{{"request_id", result.request_id},
                           {"finish_reason", finish_reason_name(result.finish_reason)}};
  switch (result.skill) {
    case Skill::kQuery: json["answer"] = result.text; break;
    case Skill::kCaption: json["caption"] = result.text; break;
    case Skill::kPoint: {
      boost::json::array points;
      for (const Point& point : result.points) {
        points.push_back(boost::json::object{{"x", point.x}, {"y", point.y}});
      }
      json["points"] = std::move(points);
      break;
    }
    case Skill::kDetect: {
      boost::json::array objects;
      for (const Box& box : result.boxes) {
        objects.push_back(boost::json::object{
            {"x_min", box.x_min}, {"y_min", box.y_min}, {"x_max", box.x_max}, {"y_max", box.y_max}});
      }
      json["objects"] = std::move(objects);
      break;
    }
  }
  json["metrics"] = metrics_json(result.metrics);
  return json;
}

}  // namespace gapless
