#include "refine/mask.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

namespace gapless {
namespace {

// Pixels [begin, end) of a line that have the same value.
struct Run {
  int line = 0;
  int begin = 0;
  int end = 0;
};

// The connected pixels of one value, by runs: memory grows with outlines, not with areas.
class Pieces {
 public:
  Pieces(const Mask& mask, bool value) : mask_(mask) {
    std::size_t above = 0;  // the first run of the line above
    for (int y = 0; y < mask.height; ++y) {
      const std::size_t here = runs_.size();
      add_runs(y, value);
      join(above, here);
      above = here;
    }
    areas_.resize(runs_.size());
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      areas_[find(i)] += runs_[i].end - runs_[i].begin;
    }
  }

  const std::vector<Run>& runs() const { return runs_; }
  std::int64_t area_of(std::size_t run) { return areas_[find(run)]; }
  // Counts the piece as large, whatever it has here.
  void make_large(std::size_t run) { areas_[find(run)] = INT64_MAX / 2; }

 private:
  void add_runs(int y, bool value) {
    for (int x = 0; x < mask_.width;) {
      const int begin = x;
      while (x < mask_.width && mask_.is_inside(x, y) == value) ++x;
      if (x > begin) {
        parents_.push_back(runs_.size());
        runs_.push_back({y, begin, x});
      } else {
        ++x;
      }
    }
  }

  // Runs [above, here) of one line with those of the next.
  void join(std::size_t above, std::size_t here) {
    std::size_t up = above;
    for (std::size_t down = here; down < runs_.size(); ++down) {
      while (up < here && runs_[up].end < runs_[down].begin) ++up;
      for (std::size_t i = up; i < here && runs_[i].begin <= runs_[down].end; ++i) {
        parents_[find(i)] = find(down);
      }
    }
  }

  std::size_t find(std::size_t run) {
    while (parents_[run] != run) run = parents_[run] = parents_[parents_[run]];
    return run;
  }

  const Mask& mask_;
  std::vector<Run> runs_;
  std::vector<std::size_t> parents_;
  std::vector<std::int64_t> areas_;
};

void paint(Mask& mask, const Run& run, std::uint8_t value) {
  for (int x = run.begin; x < run.end; ++x) mask.at(x, run.line) = value;
}

bool reaches(const Mask& mask, const Run& run, const OpenSides& open) {
  return (open.left && run.begin == 0) || (open.right && run.end == mask.width) ||
         (open.top && run.line == 0) || (open.bottom && run.line + 1 == mask.height);
}

// The largest, or the smallest, of the three neighbours along lines or columns; a neighbour outside counts as the pixel itself.
template <typename Choose>
void over_neighbours(Mask& mask, const Choose& choose) {
  std::vector<std::uint8_t> before(static_cast<std::size_t>(std::max(mask.width, mask.height)));
  const auto pass = [&](int length, const auto& pixel) {
    for (int i = 0; i < length; ++i) before[static_cast<std::size_t>(i)] = pixel(i);
    for (int i = 0; i < length; ++i) {
      const auto left = static_cast<std::size_t>(std::max(i - 1, 0));
      const auto right = static_cast<std::size_t>(std::min(i + 1, length - 1));
      pixel(i) = choose(before[left], choose(before[static_cast<std::size_t>(i)], before[right]));
    }
  };
  for (int y = 0; y < mask.height; ++y) {
    pass(mask.width, [&](int x) -> std::uint8_t& { return mask.at(x, y); });
  }
  for (int x = 0; x < mask.width; ++x) {
    pass(mask.height, [&](int y) -> std::uint8_t& { return mask.at(x, y); });
  }
}

}  // namespace

void remove_specks(Mask& mask, double min_pixels, const OpenSides& open) {
  Pieces holes(mask, false);
  for (std::size_t i = 0; i < holes.runs().size(); ++i) {
    if (reaches(mask, holes.runs()[i], open)) holes.make_large(i);
  }
  for (std::size_t i = 0; i < holes.runs().size(); ++i) {
    if (static_cast<double>(holes.area_of(i)) < min_pixels) paint(mask, holes.runs()[i], 1);
  }
  Pieces islands(mask, true);
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < islands.runs().size(); ++i) {
    largest = std::max(largest, islands.area_of(i));
  }
  const double at_least = std::min(min_pixels, static_cast<double>(largest));
  for (std::size_t i = 0; i < islands.runs().size(); ++i) {
    if (static_cast<double>(islands.area_of(i)) < at_least) paint(mask, islands.runs()[i], 0);
  }
}

void close_gaps(Mask& mask) {
  over_neighbours(mask, [](std::uint8_t a, std::uint8_t b) { return std::max(a, b); });
  over_neighbours(mask, [](std::uint8_t a, std::uint8_t b) { return std::min(a, b); });
}

}  // namespace gapless
