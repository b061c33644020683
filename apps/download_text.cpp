#include "download_text.h"

#include <fmt/format.h>

#include "progress.h"

namespace gapless {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kBarCells = 24;

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= 1'000'000'000) return fmt::format("{:.2f} GB", value / 1e9);
  if (bytes >= 1'000'000) return fmt::format("{:.1f} MB", value / 1e6);
  if (bytes >= 1'000) return fmt::format("{:.1f} kB", value / 1e3);
  return fmt::format("{} B", bytes);
}

DownloadText::DownloadText(std::string file, std::uint64_t done, std::uint64_t total,
                           std::int64_t now_ns)
    : file_(std::move(file)),
      done_before_(done),
      total_(total),
      began_ns_(now_ns),
      printed_ns_(now_ns - WrittenOverLine::kIntervalNs) {}

std::string DownloadText::update(std::uint64_t done, std::int64_t now_ns) {
  if (now_ns - printed_ns_ < WrittenOverLine::kIntervalNs || total_ == 0) return {};
  printed_ns_ = now_ns;
  const std::uint64_t cells = std::min(done, total_) * kBarCells / total_;
  std::string line = fmt::format("{} [{:<{}}] {} of {}", file_, std::string(cells, '#'), kBarCells,
                                 bytes_text(done), bytes_text(total_));
  const double seconds = static_cast<double>(now_ns - began_ns_) / kSecond;
  if (done > done_before_ && done < total_ && seconds > 0) {
    const double speed = static_cast<double>(done - done_before_) / seconds;
    const double left = static_cast<double>(total_ - done) / speed;
    line += fmt::format(", {}/s, {} left", bytes_text(static_cast<std::uint64_t>(speed)),
                        duration_text(static_cast<std::int64_t>(left + 0.5)));
  }
  return line_.write(line);
}

}  // namespace gapless
