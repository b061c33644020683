// Contours by libpotrace: smooth curves with corners where there are some.
#include <potracelib.h>

#include <memory>

#include "refine/outline.h"

namespace gapless {
namespace {

constexpr int kWordBits = 8 * static_cast<int>(sizeof(potrace_word));
// As the published refiner is drawn.
constexpr int kSpeckPixels = 2;
constexpr double kMaxCorner = 1.0;
constexpr double kCurveTolerance = 0.2;

PathPoint point_of(const potrace_dpoint_t& point) {
  return {point.x, point.y};
}

Contour contour_of(const potrace_curve_t& curve) {
  Contour contour{.start = point_of(curve.c[curve.n - 1][2]), .parts = {}};
  for (int i = 0; i < curve.n; ++i) {
    contour.parts.push_back(
        {.is_corner = curve.tag[i] == POTRACE_CORNER,
         .points = {point_of(curve.c[i][0]), point_of(curve.c[i][1]), point_of(curve.c[i][2])}});
  }
  return contour;
}

}  // namespace

std::vector<Contour> trace_contours(const Mask& mask) {
  const int words = (mask.width + kWordBits - 1) / kWordBits;
  std::vector<potrace_word> bits(static_cast<std::size_t>(words) *
                                 static_cast<std::size_t>(mask.height));
  for (int y = 0; y < mask.height; ++y) {
    for (int x = 0; x < mask.width; ++x) {
      if (!mask.is_inside(x, y)) continue;
      // The first line of the mask is potrace's lowest, so its y is ours.
      bits[static_cast<std::size_t>(y) * static_cast<std::size_t>(words) +
           static_cast<std::size_t>(x / kWordBits)] |= potrace_word{1}
                                                       << (kWordBits - 1 - x % kWordBits);
    }
  }
  potrace_bitmap_t bitmap{.w = mask.width, .h = mask.height, .dy = words, .map = bits.data()};
  const std::unique_ptr<potrace_param_t, decltype(&potrace_param_free)> params(
      potrace_param_default(), &potrace_param_free);
  if (!params) return {};
  params->turdsize = kSpeckPixels;
  params->alphamax = kMaxCorner;
  params->opticurve = 1;
  params->opttolerance = kCurveTolerance;
  const std::unique_ptr<potrace_state_t, decltype(&potrace_state_free)> state(
      potrace_trace(params.get(), &bitmap), &potrace_state_free);
  std::vector<Contour> contours;
  if (!state || state->status != POTRACE_STATUS_OK) return contours;
  for (const potrace_path_t* path = state->plist; path != nullptr; path = path->next) {
    contours.push_back(contour_of(path->curve));
  }
  return contours;
}

std::string outline_tracer() {
  return "potrace";
}

}  // namespace gapless
