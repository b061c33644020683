#include "image/svg_path.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>
#include <utility>

namespace gapless {
namespace {

PathPoint operator+(PathPoint a, PathPoint b) {
  return {a.x + b.x, a.y + b.y};
}
PathPoint operator-(PathPoint a, PathPoint b) {
  return {a.x - b.x, a.y - b.y};
}
PathPoint operator*(double share, PathPoint a) {
  return {share * a.x, share * a.y};
}
PathPoint middle(PathPoint a, PathPoint b) {
  return 0.5 * (a + b);
}

// Letters and numbers, with blanks and commas between them.
class PathScanner {
 public:
  explicit PathScanner(std::string_view text) : rest_(text) {}

  bool at_end() {
    skip_blanks();
    return rest_.empty();
  }
  std::optional<char> command() {
    if (at_end()) return std::nullopt;
    const char letter = rest_.front();
    if (std::string_view("MmLlHhVvCcSsQqTtAaZz").find(letter) == std::string_view::npos) {
      return std::nullopt;
    }
    rest_.remove_prefix(1);
    return letter;
  }
  std::optional<double> number() {
    if (at_end()) return std::nullopt;
    double value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

 private:
  void skip_blanks() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" ,\t\r\n"), rest_.size()));
  }

  std::string_view rest_;
};

class PathFlattener {
 public:
  explicit PathFlattener(double tolerance) : tolerance_(tolerance) {}

  Status add(std::string_view path) {
    PathScanner scanner(path);
    while (!scanner.at_end()) {
      const std::optional<char> letter = scanner.command();
      const bool is_first = previous_ == 0;
      if (!letter || (is_first && *letter != 'M' && *letter != 'm')) return no_path();
      char command = *letter;
      if (command == 'Z' || command == 'z') {
        close();
        previous_ = 'Z';
        continue;
      }
      do {
        if (!add_one(command, scanner)) return no_path();
        // Further pairs of a move are lines.
        if (command == 'M') command = 'L';
        if (command == 'm') command = 'l';
      } while (has_number(scanner));
    }
    return ok_status();
  }

  PathPolygons take() { return std::move(polygons_); }

 private:
  static constexpr int kMaxHalvings = 12;

  static Status no_path() { return invalid_argument("it is no SVG path data"); }

  static bool has_number(const PathScanner& scanner) {
    PathScanner ahead = scanner;
    return ahead.number().has_value();
  }

  // Reads the numbers of one command, and draws it. False: they are not there.
  bool add_one(char command, PathScanner& scanner) {
    const bool is_relative = command >= 'a';
    const PathPoint origin = is_relative ? at_ : PathPoint();
    const char kind = is_relative ? static_cast<char>(command - 'a' + 'A') : command;
    double numbers[7] = {};
    const int count = num_numbers(kind);
    for (int i = 0; i < count; ++i) {
      const std::optional<double> number = scanner.number();
      if (!number) return false;
      numbers[i] = *number;
    }
    const auto point = [&](int i) { return origin + PathPoint{numbers[i], numbers[i + 1]}; };
    draw(kind, numbers, origin, point);
    previous_ = kind;
    return true;
  }

  template <typename PointOf>
  void draw(char kind, const double* numbers, PathPoint origin, const PointOf& point) {
    switch (kind) {
      case 'M':
        at_ = start_ = point(0);
        is_open_ = false;
        return;
      case 'L':
        return line_to(point(0));
      case 'H':
        return line_to({origin.x + numbers[0], at_.y});
      case 'V':
        return line_to({at_.x, origin.y + numbers[0]});
      case 'C':
        return cubic_to(point(0), point(2), point(4));
      case 'S':
        return cubic_to(previous_ == 'C' || previous_ == 'S' ? 2 * at_ - control_ : at_, point(0),
                        point(2));
      case 'Q':
        return quadratic_to(point(0), point(2));
      case 'T':
        return quadratic_to(previous_ == 'Q' || previous_ == 'T' ? 2 * at_ - control_ : at_,
                            point(0));
      case 'A':
        return arc_to(numbers, point(5));
      default:
        return;
    }
  }

  static int num_numbers(char kind) {
    switch (kind) {
      case 'H':
      case 'V':
        return 1;
      case 'S':
      case 'Q':
        return 4;
      case 'C':
        return 6;
      case 'A':
        return 7;
      default:
        return 2;
    }
  }

  void line_to(PathPoint to) {
    if (!is_open_) polygons_.push_back({at_});
    is_open_ = true;
    polygons_.back().push_back(to);
    at_ = to;
  }

  void close() {
    at_ = start_;
    is_open_ = false;
  }

  void cubic_to(PathPoint first, PathPoint second, PathPoint to) {
    flatten(at_, first, second, to, kMaxHalvings);
    control_ = second;
  }

  void quadratic_to(PathPoint control, PathPoint to) {
    flatten(at_, at_ + (2.0 / 3) * (control - at_), to + (2.0 / 3) * (control - to), to,
            kMaxHalvings);
    control_ = control;
  }

  // De Casteljau's halving, until the control points lie where a line's would.
  void flatten(PathPoint a, PathPoint b, PathPoint c, PathPoint d, int halvings_left) {
    const PathPoint bend_b = b - ((2.0 / 3) * a + (1.0 / 3) * d);
    const PathPoint bend_c = c - ((1.0 / 3) * a + (2.0 / 3) * d);
    const double bend = std::max(std::hypot(bend_b.x, bend_b.y), std::hypot(bend_c.x, bend_c.y));
    if (bend <= tolerance_ || halvings_left == 0) return line_to(d);
    const PathPoint ab = middle(a, b), bc = middle(b, c), cd = middle(c, d);
    const PathPoint abc = middle(ab, bc), bcd = middle(bc, cd), centre = middle(abc, bcd);
    flatten(a, ab, abc, centre, halvings_left - 1);
    flatten(centre, bcd, cd, d, halvings_left - 1);
  }

  // SVG 1.1, appendix F.6: from end points to a centre, and the radii that are too small made larger.
  void arc_to(const double* numbers, PathPoint to) {
    double rx = std::abs(numbers[0]), ry = std::abs(numbers[1]);
    const PathPoint from = at_;
    if (rx == 0 || ry == 0 || (from.x == to.x && from.y == to.y)) return line_to(to);
    const double angle = numbers[2] * std::numbers::pi / 180;
    const bool is_large = numbers[3] != 0, sweeps = numbers[4] != 0;
    const double cosine = std::cos(angle), sine = std::sin(angle);
    const PathPoint half = 0.5 * (from - to);
    const PathPoint turned = {cosine * half.x + sine * half.y, cosine * half.y - sine * half.x};
    const double reach = (turned.x / rx) * (turned.x / rx) + (turned.y / ry) * (turned.y / ry);
    if (reach > 1) {
      rx *= std::sqrt(reach);
      ry *= std::sqrt(reach);
    }
    double share = reach >= 1 ? 0 : std::sqrt((1 - reach) / reach);
    if (is_large == sweeps) share = -share;
    const PathPoint centre = {share * rx * turned.y / ry, -share * ry * turned.x / rx};
    const double begin = std::atan2((turned.y - centre.y) / ry, (turned.x - centre.x) / rx);
    const double end = std::atan2((-turned.y - centre.y) / ry, (-turned.x - centre.x) / rx);
    double sweep = end - begin;
    if (sweeps && sweep < 0) sweep += 2 * std::numbers::pi;
    if (!sweeps && sweep > 0) sweep -= 2 * std::numbers::pi;
    // A line under an angle of a lies within r * a^2 / 8 of its arc.
    const double step = std::sqrt(8 * tolerance_ / std::max(rx, ry));
    const int num_lines =
        static_cast<int>(std::clamp(std::ceil(std::abs(sweep) / step), 4.0, 4096.0));
    const PathPoint between = middle(from, to);
    for (int i = 1; i < num_lines; ++i) {
      const double at = begin + sweep * i / num_lines;
      const double x = centre.x + rx * std::cos(at), y = centre.y + ry * std::sin(at);
      line_to(between + PathPoint{cosine * x - sine * y, sine * x + cosine * y});
    }
    line_to(to);
  }

  const double tolerance_;
  PathPolygons polygons_;
  PathPoint at_, start_, control_;
  char previous_ = 0;     // the last command, as its capital letter
  bool is_open_ = false;  // the last polygon goes on
};

// Where a row of pixels crosses an edge, and which way the edge goes.
struct Crossing {
  double x = 0;
  int winding = 0;
};

std::vector<Crossing> crossings_of(const PathPolygons& polygons, double y) {
  std::vector<Crossing> crossings;
  for (const std::vector<PathPoint>& polygon : polygons) {
    for (std::size_t i = 0; i < polygon.size(); ++i) {
      const PathPoint a = polygon[i], b = polygon[(i + 1) % polygon.size()];
      if ((a.y <= y) == (b.y <= y)) continue;
      const double x = a.x + (y - a.y) / (b.y - a.y) * (b.x - a.x);
      crossings.push_back({x, a.y < b.y ? 1 : -1});
    }
  }
  std::ranges::sort(crossings, {}, &Crossing::x);
  return crossings;
}

}  // namespace

StatusOr<PathPolygons> flatten_svg_path(std::string_view path, double tolerance) {
  PathFlattener flattener(tolerance);
  GAPLESS_RETURN_IF_ERROR(flattener.add(path));
  return flattener.take();
}

std::vector<std::uint8_t> inside_polygons(const PathPolygons& polygons, std::span<const double> xs,
                                          std::span<const double> ys) {
  std::vector<std::uint8_t> inside(xs.size() * ys.size());
  // The first point at or behind x.
  const auto point_at = [xs](double x) { return std::ranges::lower_bound(xs, x) - xs.begin(); };
  for (std::size_t row = 0; row < ys.size(); ++row) {
    const std::vector<Crossing> crossings = crossings_of(polygons, ys[row]);
    const auto begin = inside.begin() + static_cast<std::ptrdiff_t>(row * xs.size());
    int winding = 0;
    for (std::size_t i = 0; i + 1 < crossings.size(); ++i) {
      winding += crossings[i].winding;
      if (winding == 0) continue;
      const auto first = point_at(crossings[i].x), last = point_at(crossings[i + 1].x);
      std::fill(begin + first, begin + std::max(first, last), std::uint8_t{1});
    }
  }
  return inside;
}

PathPolygons in_pixels(PathPolygons polygons, const MarkBox& box, int width, int height) {
  for (std::vector<PathPoint>& polygon : polygons) {
    for (PathPoint& point : polygon) {
      point.x = (box.x_min + point.x * (box.x_max - box.x_min)) * width;
      point.y = (box.y_min + point.y * (box.y_max - box.y_min)) * height;
    }
  }
  return polygons;
}

std::vector<std::uint8_t> fill_polygons(const PathPolygons& polygons, const MarkBox& box, int width,
                                        int height) {
  const auto centres = [](int count) {
    std::vector<double> at(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) at[static_cast<std::size_t>(i)] = i + 0.5;
    return at;
  };
  return inside_polygons(in_pixels(polygons, box, width, height), centres(width), centres(height));
}

void draw_path(Image& image, std::string_view path, const MarkBox& box, Colour colour) {
  if (image.rgb.empty()) return;
  const StatusOr<PathPolygons> polygons =
      flatten_svg_path(path, 0.1 / std::max(image.width, image.height));
  if (!polygons.ok()) return;
  const int width = image.width, height = image.height;
  const std::vector<std::uint8_t> inside = fill_polygons(*polygons, box, width, height);
  const int thickness = std::max(1, std::min(width, height) / 320);
  const auto is_inside = [&](int x, int y) {
    return x >= 0 && x < width && y >= 0 && y < height &&
           inside[static_cast<std::size_t>(y) * static_cast<std::size_t>(width) +
                  static_cast<std::size_t>(x)] != 0;
  };
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      if (!is_inside(x, y)) continue;
      const bool is_edge = !is_inside(x - thickness, y) || !is_inside(x + thickness, y) ||
                           !is_inside(x, y - thickness) || !is_inside(x, y + thickness);
      const std::size_t at = 3 * (static_cast<std::size_t>(y) * static_cast<std::size_t>(width) +
                                  static_cast<std::size_t>(x));
      for (std::size_t c = 0; c < 3; ++c) {
        std::uint8_t& channel = image.rgb[at + c];
        channel = is_edge ? colour[c] : static_cast<std::uint8_t>((channel + colour[c]) / 2);
      }
    }
  }
}

}  // namespace gapless
