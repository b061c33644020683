#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace gapless {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr std::int64_t kPlainInterval = 10 * kSecondNs;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void print(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

ProgressText::ProgressText(std::string what, std::int64_t total, std::int64_t done, bool terminal,
                           std::int64_t now_ns)
    : what_(std::move(what)),
      total_(total),
      done_before_(done),
      terminal_(terminal),
      began_ns_(now_ns),
      printed_ns_(now_ns) {}

std::string ProgressText::update(std::int64_t done, std::int64_t now_ns) {
  if (now_ns - printed_ns_ < (terminal_ ? WrittenOverLine::kIntervalNs : kPlainInterval)) return {};
  printed_ns_ = now_ns;
  std::string line = fmt::format("{} of {} {}", done, total_, what_);
  if (done > done_before_ && done < total_) {
    const double ns_each =
        static_cast<double>(now_ns - began_ns_) / static_cast<double>(done - done_before_);
    const double seconds = ns_each * static_cast<double>(total_ - done) / kSecondNs;
    line += fmt::format(", {} left", duration_text(static_cast<std::int64_t>(seconds + 0.5)));
  }
  if (!terminal_) return line + "\n";
  return line_.write(line);
}

std::string duration_text(std::int64_t seconds) {
  if (seconds < 60) return fmt::format("{} s", seconds);
  const std::int64_t minutes = seconds / 60;
  if (minutes < 60) return fmt::format("{}:{:02}", minutes, seconds % 60);
  return fmt::format("{}:{:02}:{:02}", minutes / 60, minutes % 60, seconds % 60);
}

Progress::Progress(std::string what, std::int64_t total, std::int64_t done)
    : text_(std::move(what), total, done, isatty(STDERR_FILENO) == 1, now_ns()) {}

void Progress::update(std::int64_t done) {
  print(text_.update(done, now_ns()));
}

void Progress::clear() {
  print(text_.clear());
}

}  // namespace gapless
