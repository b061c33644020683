// How far a long command is, on standard error.
#pragma once

#include <cstdint>
#include <string>

#include "written_over_line.h"

namespace gapless {

// What to print, and when: without a clock and without a file, so that it can be tested.
class ProgressText {
 public:
  // `what` follows the counts: "answered". Of `total`, `done` were there before the command began:
  // they say nothing about its speed. On a terminal one line is written over, ten times a second at
  // most; elsewhere (a log, a pipe) there is a line of its own every ten seconds at most.
  ProgressText(std::string what, std::int64_t total, std::int64_t done, bool terminal,
               std::int64_t now_ns);

  // Empty while it is too soon for more.
  std::string update(std::int64_t done, std::int64_t now_ns);
  // What takes the line back from a terminal, so that something else can be printed.
  std::string clear() { return line_.clear(); }

 private:
  const std::string what_;
  const std::int64_t total_;
  const std::int64_t done_before_;
  const bool terminal_;
  const std::int64_t began_ns_;
  std::int64_t printed_ns_;
  WrittenOverLine line_;
};

// "7 s", "3:05", "1:02:03"
std::string duration_text(std::int64_t seconds);

class Progress {
 public:
  Progress(std::string what, std::int64_t total, std::int64_t done = 0);
  void update(std::int64_t done);
  void clear();

 private:
  ProgressText text_;
};

}  // namespace gapless
