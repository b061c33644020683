// What a terminal shows of a download.
#pragma once

#include <cstdint>
#include <string>

#include "written_over_line.h"

namespace gapless {

// One line that is written over, ten times a second at most. Without a clock and without a file, so
// that it can be tested.
class DownloadText {
 public:
  // Of `total` bytes `done` were there before: they say nothing about its speed.
  DownloadText(std::string file, std::uint64_t done, std::uint64_t total, std::int64_t now_ns);

  // Empty while it is too soon for more.
  std::string update(std::uint64_t done, std::int64_t now_ns);
  // What takes the line back.
  std::string clear() { return line_.clear(); }

 private:
  const std::string file_;
  const std::uint64_t done_before_;
  const std::uint64_t total_;
  const std::int64_t began_ns_;
  std::int64_t printed_ns_;
  WrittenOverLine line_;
};

// "512 B", "3.8 kB", "24.4 MB", "3.73 GB"
std::string bytes_text(std::uint64_t bytes);

}  // namespace gapless
