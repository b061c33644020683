// Where the person looks whose face is in a box: `point` with the object "gaze" and one box in spatial_refs.
//
// A gaze from one point is uncertain, so many are asked for and averaged, as the high-accuracy mode of Moondream 2's public
// code of January 2025 does: from 10 random points of the box, and from 10 of the box in the picture with left and right exchanged. Fewer
// than 10 answers are none, and those far from all others do not count.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "skill/skill_request.h"
#include "skill/skill_result.h"

namespace gapless {

inline constexpr int kNumFaceGazePoints = 10;  // of each of the two pictures
inline constexpr int kMinFaceGazes = 10;

bool asks_for_face_gaze(const SkillRequest& request);

// Of a request that asks so: what to ask for, 2 * kNumFaceGazePoints gazes. The points are those of the request's seed, without one of
// seed 0, so that answers can be repeated.
std::vector<SkillRequest> face_gaze_requests(const SkillRequest& request);

// Of their answers in order, each with a point or none: where the person looks.
std::optional<Point> average_gaze(std::span<const std::optional<Point>> answers);

}  // namespace gapless
