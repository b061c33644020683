// A mask's outline as SVG path data.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "image/annotate.h"
#include "image/svg_path.h"
#include "refine/mask.h"

namespace gapless {

// A part of a closed contour: a corner (to points[1], then to points[2]), or a curve (control points and end).
struct ContourPart {
  bool is_corner = false;
  PathPoint points[3];  // of a corner the first is not used
};
struct Contour {
  PathPoint start;
  std::vector<ContourPart> parts;
};

// In pixels of the mask; holes run the other way round than what they lie in. By libpotrace where this build has it (trace_potrace.cpp),
// with lines alone where it has not (trace_lines.cpp).
std::vector<Contour> trace_contours(const Mask& mask);
// "potrace", or "lines".
std::string outline_tracer();

// As segments have it: "M.5,.021L...C...z" in a square of side 1 that is `box`, the smallest box around the mask's pixels.
struct Outline {
  std::string path;
  MarkBox box;  // of the picture
};
// `mask`: a part of a picture of these sides, whose first pixel lies at (left, top). nullopt: nothing is inside, or the tracer found
// nothing to outline.
std::optional<Outline> outline_of(const Mask& mask, int left, int top, int picture_width,
                                  int picture_height);

}  // namespace gapless
