#include "refine/outline.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace gapless {
namespace {

// In pixels of the mask, behind the last one.
struct PixelBox {
  int left = 0, top = 0, right = 0, bottom = 0;
};

std::optional<PixelBox> box_of(const Mask& mask) {
  PixelBox box{mask.width, mask.height, 0, 0};
  for (int y = 0; y < mask.height; ++y) {
    for (int x = 0; x < mask.width; ++x) {
      if (!mask.is_inside(x, y)) continue;
      box.left = std::min(box.left, x);
      box.right = std::max(box.right, x + 1);
      box.top = std::min(box.top, y);
      box.bottom = std::max(box.bottom, y + 1);
    }
  }
  if (box.right == 0) return std::nullopt;
  return box;
}

// ".5", "1.000", "-0.003": three decimals, without a zero in front where nothing is.
std::string path_number(double value) {
  std::string text = fmt::format("{:.3f}", value);
  if (text.starts_with("0.")) text.erase(0, 1);
  return text;
}

class PathWriter {
 public:
  explicit PathWriter(const PixelBox& box) : box_(box) {}

  void write(const Contour& contour) {
    add("M", contour.start);
    for (const ContourPart& part : contour.parts) {
      if (part.is_corner) {
        add("L", part.points[1]);
        add("L", part.points[2]);
      } else {
        add("C", part.points[0]);
        add(",", part.points[1]);
        add(",", part.points[2]);
      }
    }
    path_ += 'z';
  }
  std::string take() { return std::move(path_); }

 private:
  void add(std::string_view before, PathPoint point) {
    path_ += before;
    path_ += path_number((point.x - box_.left) / (box_.right - box_.left));
    path_ += ',';
    path_ += path_number((point.y - box_.top) / (box_.bottom - box_.top));
  }

  const PixelBox box_;
  std::string path_;
};

}  // namespace

std::optional<Outline> outline_of(const Mask& mask, int left, int top, int picture_width,
                                  int picture_height) {
  const std::optional<PixelBox> box = box_of(mask);
  if (!box) return std::nullopt;
  const std::vector<Contour> contours = trace_contours(mask);
  if (contours.empty()) return std::nullopt;
  PathWriter writer(*box);
  for (const Contour& contour : contours) writer.write(contour);
  const auto share = [](int value, int of) {
    return static_cast<float>(value) / static_cast<float>(of);
  };
  return Outline{.path = writer.take(),
                 .box = {.x_min = share(left + box->left, picture_width),
                         .y_min = share(top + box->top, picture_height),
                         .x_max = share(left + box->right, picture_width),
                         .y_max = share(top + box->bottom, picture_height)}};
}

}  // namespace gapless
