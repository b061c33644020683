// SVG path data as polygons, and pictures of them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "image/annotate.h"
#include "image/image.h"

namespace gapless {

struct PathPoint {
  double x = 0;
  double y = 0;
};

// Each closed: its last point is joined to its first.
using PathPolygons = std::vector<std::vector<PathPoint>>;

// SVG 1.1, section 8.3: every command, absolute and relative. Curves become lines that lie within about `tolerance` of
// them. InvalidArgument: it is no path data. An empty path has no polygons.
StatusOr<PathPolygons> flatten_svg_path(std::string_view path, double tolerance);

// The points of a grid, row by row: 1 where one lies inside by the nonzero rule. xs and ys ascend.
std::vector<std::uint8_t> inside_polygons(const PathPolygons& polygons, std::span<const double> xs,
                                          std::span<const double> ys);

// The polygons' unit square becomes `box` of a picture: in pixels.
PathPolygons in_pixels(PathPolygons polygons, const MarkBox& box, int width, int height);

// A picture's pixels, row by row: 1 where a pixel's centre lies inside by the nonzero rule, which is SVG's own. The
// polygons' unit square is `box` of the picture; what lies outside of the picture is cut off.
std::vector<std::uint8_t> fill_polygons(const PathPolygons& polygons, const MarkBox& box, int width,
                                        int height);

// A segment: its inside shines through the colour, its edge is drawn. A path that is no path data is not drawn.
void draw_path(Image& image, std::string_view path, const MarkBox& box, Colour colour);

}  // namespace gapless
