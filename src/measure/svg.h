// A drawing in SVG, built from a handful of shapes. Coordinates are pixels from the top left.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace gapless {

enum class TextAnchor { kStart, kMiddle, kEnd };

class Svg {
 public:
  Svg(double width, double height);

  void rectangle(double x, double y, double width, double height, std::string_view fill,
                 std::string_view tooltip = {});
  void line(double x1, double y1, double x2, double y2, std::string_view colour, double width = 1,
            bool dashed = false);
  void circle(double x, double y, double radius, std::string_view colour, bool filled,
              std::string_view tooltip = {});
  void text(double x, double y, std::string_view words, TextAnchor anchor = TextAnchor::kStart,
            double size = 12, std::string_view colour = "#333333");

  std::string str() const { return body_ + "</svg>\n"; }
  // InvalidArgument when the file cannot be written.
  Status write(const std::string& path) const;

 private:
  std::string body_;
};

}  // namespace gapless
