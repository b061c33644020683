#include "image/row_bands.h"

#include <algorithm>
#include <utility>

namespace gapless {
namespace {

int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

}  // namespace

RowBands::RowBands(int height, int num_bands, int unit, const std::uint8_t* rgb,
                   const OnRows& on_rows)
    : height_(height),
      band_rows_(divide_up(divide_up(height, num_bands), unit) * unit),
      rgb_(rgb),
      on_rows_(on_rows) {
  for (int band = 0; band < divide_up(height, band_rows_); ++band) ends_.push_back(first_row(band));
}

int RowBands::end_row(int band) const {
  return std::min(height_, (band + 1) * band_rows_);
}

std::optional<int> RowBands::claim() {
  MutexLock lock(mutex_);
  if (failed_band_ >= 0 || next_band_ == static_cast<int>(ends_.size())) return std::nullopt;
  return next_band_++;
}

void RowBands::publish(int band, int end) {
  MutexLock lock(mutex_);
  ends_[static_cast<std::size_t>(band)] = end;
  const int before = num_final_;
  for (int b = before / band_rows_; b < static_cast<int>(ends_.size()); ++b) {
    num_final_ = ends_[static_cast<std::size_t>(b)];
    if (num_final_ < end_row(b)) break;
  }
  if (num_final_ > before && on_rows_) on_rows_(rgb_, num_final_);
}

void RowBands::fail(int band, Status why) {
  MutexLock lock(mutex_);
  if (failed_band_ >= 0 && failed_band_ < band) return;
  failed_band_ = band;
  why_ = std::move(why);
}

bool RowBands::failed() const {
  MutexLock lock(mutex_);
  return failed_band_ >= 0;
}

Status RowBands::status() const {
  MutexLock lock(mutex_);
  return why_;
}

}  // namespace gapless
