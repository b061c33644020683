#include "measure/svg.h"

#include <fmt/format.h>

#include <fstream>

namespace gapless {
namespace {

std::string escaped(std::string_view words) {
  std::string out;
  for (const char c : words) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string closed(std::string_view element, std::string_view tooltip) {
  if (tooltip.empty()) return "/>\n";
  return fmt::format("><title>{}</title></{}>\n", escaped(tooltip), element);
}

}  // namespace

Svg::Svg(double width, double height)
    : body_(fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
                        "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\">\n"
                        "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
                        width, height)) {}

void Svg::rectangle(double x, double y, double width, double height, std::string_view fill,
                    std::string_view tooltip) {
  body_ += fmt::format(
               "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" "
               "fill=\"{}\"",
               x, y, width, height, fill) +
           closed("rect", tooltip);
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view colour, double width,
               bool dashed) {
  body_ += fmt::format(
      "<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" "
      "stroke=\"{}\" stroke-width=\"{}\"{}/>\n",
      x1, y1, x2, y2, colour, width, dashed ? " stroke-dasharray=\"4 3\"" : "");
}

void Svg::circle(double x, double y, double radius, std::string_view colour, bool filled,
                 std::string_view tooltip) {
  body_ += fmt::format("<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"{}\" stroke=\"{}\" fill=\"{}\"", x,
                       y, radius, colour, filled ? colour : "none") +
           closed("circle", tooltip);
}

void Svg::text(double x, double y, std::string_view words, TextAnchor anchor, double size,
               std::string_view colour) {
  constexpr const char* kAnchors[] = {"start", "middle", "end"};
  body_ += fmt::format(
      "<text x=\"{:.2f}\" y=\"{:.2f}\" font-size=\"{}\" text-anchor=\"{}\" "
      "fill=\"{}\">{}</text>\n",
      x, y, size, kAnchors[static_cast<int>(anchor)], colour, escaped(words));
}

Status Svg::write(const std::string& path) const {
  std::ofstream file(path);
  file << str();
  file.close();
  if (!file) return invalid_argument("{}: cannot be written", path);
  return ok_status();
}

}  // namespace gapless
