#include "skill/face_gaze.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace gapless {
namespace {

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Half of the distance to the nearest other one: the mean of the two smallest distances, of which one is to itself.
std::vector<double> apartness_of(std::span<const Point> points) {
  std::vector<double> apart;
  for (std::size_t i = 0; i < points.size(); ++i) {
    double nearest = INFINITY;
    for (std::size_t k = 0; k < points.size(); ++k) {
      if (k == i) continue;
      const double distance = std::hypot(points[i].x - points[k].x, points[i].y - points[k].y);
      nearest = std::min(nearest, distance);
    }
    apart.push_back(nearest / 2);
  }
  return apart;
}

}  // namespace

bool asks_for_face_gaze(const SkillRequest& request) {
  return request.skill == Skill::kPoint && request.text == "gaze" &&
         request.spatial_refs.size() == 1 && request.spatial_refs.front().is_box;
}

std::vector<SkillRequest> face_gaze_requests(const SkillRequest& request) {
  const SpatialRef face = request.spatial_refs.front();
  std::mt19937_64 random(request.settings.seed.value_or(0));
  // The distributions of the standard library differ between libraries.
  const auto share = [&random] {
    return static_cast<float>(random() >> 40) / static_cast<float>(1 << 24);
  };
  const auto within = [&share](float center, float extent) {
    return std::clamp(center + (share() - 0.5f) * extent, 0.0f, 1.0f);
  };
  std::vector<SkillRequest> all;
  for (int i = 0; i < 2 * kNumFaceGazePoints; ++i) {
    SkillRequest one = request;
    one.mirrored = i >= kNumFaceGazePoints;
    const float x = within(face.x_center, face.width), y = within(face.y_center, face.height);
    one.spatial_refs = {{.is_box = false,
                         .x_center = one.mirrored ? 1 - x : x,
                         .y_center = y,
                         .width = 0,
                         .height = 0}};
    all.push_back(std::move(one));
  }
  return all;
}

std::optional<Point> average_gaze(std::span<const std::optional<Point>> answers) {
  std::vector<Point> points;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i]) continue;
    const bool is_mirrored = i >= static_cast<std::size_t>(kNumFaceGazePoints);
    points.push_back({is_mirrored ? 1 - answers[i]->x : answers[i]->x, answers[i]->y});
  }
  if (points.size() < static_cast<std::size_t>(kMinFaceGazes)) return std::nullopt;
  const std::vector<double> apart = apartness_of(points);
  const double limit = 2 * median_of(apart);
  double x = 0, y = 0;
  int count = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (apart[i] > limit) continue;
    x += points[i].x;
    y += points[i].y;
    ++count;
  }
  return Point{static_cast<float>(x / count), static_cast<float>(y / count)};
}

}  // namespace gapless
