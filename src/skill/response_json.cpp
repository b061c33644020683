#include "skill/response_json.h"

#include <boost/json/array.hpp>
#include <cmath>
#include <utility>

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

// Adds how sure the i-th object is, where that was asked for.
void add_confidence(const SkillResult& result, std::size_t i, boost::json::object& json) {
  if (i >= result.confidences.size()) return;
  const ObjectConfidence& confidence = result.confidences[i];
  json["confidence"] = rounded_coordinate(confidence.object);
  boost::json::array bins;
  for (const float bin : confidence.bins) bins.push_back(rounded_coordinate(bin));
  json["bin_confidences"] = std::move(bins);
}

}  // namespace

boost::json::object box_json(const Box& box) {
  return {{"x_min", rounded_coordinate(box.x_min)},
          {"y_min", rounded_coordinate(box.y_min)},
          {"x_max", rounded_coordinate(box.x_max)},
          {"y_max", rounded_coordinate(box.y_max)}};
}

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
      for (std::size_t i = 0; i < result.points.size(); ++i) {
        const Point& point = result.points[i];
        boost::json::object shown{{"x", rounded_coordinate(point.x)},
                                  {"y", rounded_coordinate(point.y)}};
        add_confidence(result, i, shown);
        points.push_back(std::move(shown));
      }
      json["points"] = std::move(points);
      break;
    }
    case Skill::kDetect: {
      boost::json::array objects;
      for (std::size_t i = 0; i < result.boxes.size(); ++i) {
        boost::json::object shown = box_json(result.boxes[i]);
        add_confidence(result, i, shown);
        objects.push_back(std::move(shown));
      }
      json["objects"] = std::move(objects);
      break;
    }
    case Skill::kSegment:
      json["path"] = result.text;
      json["bbox"] = result.boxes.empty() ? boost::json::value(nullptr)
                                          : boost::json::value(box_json(result.boxes.front()));
      json["coarse"] = !result.is_refined;
      add_confidence(result, 0, json);
      break;
  }
  json["metrics"] = metrics_json(result.metrics);
  return json;
}

boost::json::object response_json(std::span<const SkillResult> results,
                                  std::span<const std::string> objects) {
  boost::json::array answers;
  for (std::size_t i = 0; i < results.size(); ++i) {
    boost::json::object answer{{"object", objects[i]}};
    for (auto& field : response_json(results[i])) {
      if (field.key() != "request_id") answer[field.key()] = std::move(field.value());
    }
    answers.push_back(std::move(answer));
  }
  return {{"request_id", results.front().request_id}, {"answers", std::move(answers)}};
}

}  // namespace gapless
