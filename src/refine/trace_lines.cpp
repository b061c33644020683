// Contours of lines: the edges between pixels, with what lies within about a pixel of a line left out.
#include <cmath>
#include <cstddef>
#include <utility>

#include "refine/outline.h"

namespace gapless {
namespace {

constexpr double kTolerance = 0.9;  // pixels: the steps of a slanted edge are less deep

// Walks along pixels' edges with what is inside on the right hand, y growing downwards.
class EdgeWalker {
 public:
  explicit EdgeWalker(const Mask& mask)
      : mask_(mask), seen_(Mask::empty(mask.width, mask.height)) {}

  std::vector<std::vector<PathPoint>> contours() {
    std::vector<std::vector<PathPoint>> found;
    for (int y = 0; y < mask_.height; ++y) {
      for (int x = 0; x < mask_.width; ++x) {
        const bool has_top_edge = mask_.is_inside(x, y) && !mask_.is_inside(x, y - 1);
        if (has_top_edge && !seen_.is_inside(x, y)) found.push_back(walk(x, y));
      }
    }
    return found;
  }

 private:
  // From the left end of a pixel's top edge until it comes back there. Every contour has a top edge.
  std::vector<PathPoint> walk(const int from_x, const int from_y) {
    std::vector<PathPoint> corners;
    int x = from_x, y = from_y, dx = 1, dy = 0;
    do {
      if (dx == 1) seen_.at(x, y) = 1;
      x += dx;
      y += dy;
      // The two pixels in front: beside the way on its right and on its left.
      const bool right = mask_.is_inside(x + (dx - dy - 1) / 2, y + (dx + dy - 1) / 2);
      const bool left = mask_.is_inside(x + (dx + dy - 1) / 2, y + (dy - dx - 1) / 2);
      const int old_dx = dx, old_dy = dy;
      if (!right) {
        dx = -old_dy;
        dy = old_dx;
      } else if (left) {
        dx = old_dy;
        dy = -old_dx;
      }
      if (dx != old_dx || dy != old_dy) {
        corners.push_back({static_cast<double>(x), static_cast<double>(y)});
      }
    } while (x != from_x || y != from_y || dx != 1);
    return corners;
  }

  const Mask& mask_;
  Mask seen_;  // top edges
};

double distance(PathPoint point, PathPoint from, PathPoint to) {
  const double dx = to.x - from.x, dy = to.y - from.y, length = std::hypot(dx, dy);
  if (length == 0) return std::hypot(point.x - from.x, point.y - from.y);
  return std::abs(dx * (point.y - from.y) - dy * (point.x - from.x)) / length;
}

// Douglas and Peucker's: keeps those of points (first, last) that lie far from the line between the kept ones.
void keep_far(const std::vector<PathPoint>& points, std::size_t first, std::size_t last,
              std::vector<bool>& kept) {
  std::vector<std::pair<std::size_t, std::size_t>> left = {{first, last}};
  while (!left.empty()) {
    const auto [begin, end] = left.back();
    left.pop_back();
    std::size_t farthest = begin;
    double largest = kTolerance;
    for (std::size_t i = begin + 1; i < end; ++i) {
      const double far = distance(points[i], points[begin], points[end % points.size()]);
      if (far > largest) {
        largest = far;
        farthest = i;
      }
    }
    if (farthest == begin) continue;
    kept[farthest] = true;
    left.emplace_back(begin, farthest);
    left.emplace_back(farthest, end);
  }
}

// A pixel's own four corners stay a square.
std::vector<PathPoint> simplified(const std::vector<PathPoint>& corners) {
  if (corners.size() <= 4) return corners;
  const std::size_t half = corners.size() / 2;
  std::vector<bool> kept(corners.size());
  kept[0] = kept[half] = true;
  keep_far(corners, 0, half, kept);
  keep_far(corners, half, corners.size(), kept);
  std::vector<PathPoint> points;
  for (std::size_t i = 0; i < corners.size(); ++i) {
    if (kept[i]) points.push_back(corners[i]);
  }
  return points.size() < 3 ? corners : points;
}

}  // namespace

std::vector<Contour> trace_contours(const Mask& mask) {
  std::vector<Contour> contours;
  for (const std::vector<PathPoint>& corners : EdgeWalker(mask).contours()) {
    std::vector<PathPoint> points = simplified(corners);
    Contour contour{.start = points.front(), .parts = {}};
    if (points.size() % 2 == 0) points.push_back(points.front());
    for (std::size_t i = 1; i + 1 < points.size(); i += 2) {
      contour.parts.push_back({.is_corner = true, .points = {{}, points[i], points[i + 1]}});
    }
    contours.push_back(std::move(contour));
  }
  return contours;
}

std::string outline_tracer() {
  return "lines";
}

}  // namespace gapless
