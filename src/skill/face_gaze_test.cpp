#include "skill/face_gaze.h"

#include <gtest/gtest.h>

#include <set>

namespace gapless {
namespace {

SkillRequest gaze_of_a_face() {
  SkillRequest request;
  request.skill = Skill::kPoint;
  request.text = "gaze";
  request.spatial_refs = {
      {.is_box = true, .x_center = 0.25f, .y_center = 0.5f, .width = 0.2f, .height = 0.1f}};
  return request;
}

TEST(FaceGaze, IsAPointsRequestForGazeWithOneBox) {
  const SkillRequest request = gaze_of_a_face();
  EXPECT_TRUE(asks_for_face_gaze(request));
  SkillRequest other = request;
  other.text = "eye";
  EXPECT_FALSE(asks_for_face_gaze(other));
  other = request;
  other.spatial_refs.push_back(other.spatial_refs.front());
  EXPECT_FALSE(asks_for_face_gaze(other));
  other = request;
  other.spatial_refs.front().is_box = false;
  EXPECT_FALSE(asks_for_face_gaze(other));
  other = request;
  other.skill = Skill::kSegment;
  EXPECT_FALSE(asks_for_face_gaze(other));
}

TEST(FaceGaze, AsksFromPointsOfTheFaceInBothPictures) {
  const SkillRequest request = gaze_of_a_face();
  const std::vector<SkillRequest> all = face_gaze_requests(request);
  ASSERT_EQ(all.size(), 20u);
  std::set<float> places;
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i].spatial_refs.size(), 1u);
    const SpatialRef& eyes = all[i].spatial_refs.front();
    EXPECT_FALSE(eyes.is_box);
    EXPECT_EQ(all[i].mirrored, i >= 10);
    const float x = all[i].mirrored ? 1 - eyes.x_center : eyes.x_center;
    EXPECT_NEAR(x, 0.25f, 0.1001f);
    EXPECT_NEAR(eyes.y_center, 0.5f, 0.0501f);
    places.insert(eyes.x_center);
    EXPECT_EQ(face_gaze_requests(request)[i].spatial_refs.front().x_center, eyes.x_center);
  }
  EXPECT_EQ(places.size(), 20u);
  SkillRequest seeded = request;
  seeded.settings.seed = 7;
  EXPECT_NE(face_gaze_requests(seeded)[0].spatial_refs.front().x_center,
            all[0].spatial_refs.front().x_center);
}

TEST(FaceGaze, AveragesAndTurnsTheMirroredOnesBack) {
  std::vector<std::optional<Point>> answers(20);
  EXPECT_FALSE(average_gaze(answers));
  for (std::size_t i = 5; i < 14; ++i) answers[i] = Point{i < 10 ? 0.25f : 0.75f, 0.5f};
  EXPECT_FALSE(average_gaze(answers)) << "nine are too few";
  answers[14] = Point{0.75f, 0.5f};
  const auto same = average_gaze(answers);
  ASSERT_TRUE(same) << "all at one place: none is an outlier";
  EXPECT_FLOAT_EQ(same->x, 0.25f);
  EXPECT_FLOAT_EQ(same->y, 0.5f);
}

TEST(FaceGaze, WhatIsFarFromAllOthersDoesNotCount) {
  std::vector<std::optional<Point>> answers(20);
  // A row of points 0.01 apart around (0.3, 0.6), and two far away from it and from each other.
  for (std::size_t i = 0; i < 9; ++i)
    answers[i] = Point{0.26f + 0.01f * static_cast<float>(i), 0.6f};
  answers[9] = Point{0.9f, 0.1f};
  answers[19] = Point{0.9f, 0.9f};  // (0.1, 0.9) once it is turned back
  const auto average = average_gaze(answers);
  ASSERT_TRUE(average);
  EXPECT_NEAR(average->x, 0.3f, 1e-5);
  EXPECT_NEAR(average->y, 0.6f, 1e-5);
}

}  // namespace
}  // namespace gapless
