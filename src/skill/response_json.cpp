#include "skill/response_json.h"

#include <boost/json/array.hpp>
#include <cmath>

namespace gapless {
namespace {

// Milliseconds with microseconds kept: more digits would only be noise.
double rounded_ms(double ms) {
  return std::round(ms * 1e3) / 1e3;
}

// A coordinate has 1024 bins, a size about as many: six digits lose nothing, and 0.1f prints as
// 0.1.
double rounded_coordinate(float value) {
  return std::round(static_cast<double>(value) * 1e6) / 1e6;
}

boost::json::object metrics_json(const GenerationMetrics& metrics) {
  return {{"input_tokens", metrics.input_tokens},
          {"output_tokens", metrics.output_tokens},
          {"prefill_time_ms", rounded_ms(metrics.prefill_time_ms)},
          {"decode_time_ms", rounded_ms(metrics.decode_time_ms)},
          {"ttft_ms", rounded_ms(metrics.ttft_ms)}};
}

}  // namespace

boost::json::array grounding_json(const Reasoning& reasoning) {
  boost::json::array parts;
  for (const Grounding& part : reasoning.grounding) {
    boost::json::array points;
    for (const Point& point : part.points) {
      points.push_back(
          boost::json::array{rounded_coordinate(point.x), rounded_coordinate(point.y)});
    }
    parts.push_back(boost::json::object{
        {"start_idx", part.start_idx}, {"end_idx", part.end_idx}, {"points", std::move(points)}});
  }
  return parts;
}

boost::json::object response_json(const SkillResult& result) {
  boost::json::object json{{"request_id", result.request_id},
                           {"finish_reason", finish_reason_name(result.finish_reason)}};
  switch (result.skill) {
    case Skill::kQuery:
      json["answer"] = result.text;
      if (result.reasoning) {
        json["reasoning"] = boost::json::object{{"text", result.reasoning->text},
                                                {"grounding", grounding_json(*result.reasoning)}};
      }
      break;
    case Skill::kCaption:
      json["caption"] = result.text;
      break;
    case Skill::kPoint: {
      boost::json::array points;
      for (const Point& point : result.points) {
        points.push_back(boost::json::object{{"x", rounded_coordinate(point.x)},
                                             {"y", rounded_coordinate(point.y)}});
      }
      json["points"] = std::move(points);
      break;
    }
    case Skill::kDetect: {
      boost::json::array objects;
      for (const Box& box : result.boxes) {
        objects.push_back(boost::json::object{{"x_min", rounded_coordinate(box.x_min)},
                                              {"y_min", rounded_coordinate(box.y_min)},
                                              {"x_max", rounded_coordinate(box.x_max)},
                                              {"y_max", rounded_coordinate(box.y_max)}});
      }
      json["objects"] = std::move(objects);
      break;
    }
  }
  json["metrics"] = metrics_json(result.metrics);
  return json;
}

}  // namespace gapless
