// A line of a terminal that is written over now and then.
#pragma once

#include <cstdint>
#include <string>

namespace gapless {

// What makes it, for a terminal's eyes; when to write is the caller's business.
class WrittenOverLine {
 public:
  static constexpr std::int64_t kIntervalNs = 100'000'000;  // ten times a second

  std::string write(const std::string& line) {
    is_open_ = true;
    return "\r" + line + kToTheEnd;
  }
  // What takes it back, so that something else can be printed; nothing where there is no line.
  std::string clear() {
    if (!is_open_) return {};
    is_open_ = false;
    return std::string("\r") + kToTheEnd;
  }

 private:
  static constexpr const char* kToTheEnd = "\x1b[K";  // erases what an earlier line leaves
  bool is_open_ = false;
};

}  // namespace gapless
