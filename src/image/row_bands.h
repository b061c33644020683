// A picture in bands of rows that several threads decode at once: who decodes which, and how many rows are
// there from the top.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "image/decode_image.h"

namespace gapless {

// All functions from any thread.
class RowBands {
 public:
  // Bands begin at multiples of `unit` rows; there are num_bands at most. on_rows is told of `rgb`, by one
  // thread at a time.
  RowBands(int height, int num_bands, int unit, const std::uint8_t* rgb, const OnRows& on_rows);

  int first_row(int band) const { return band * band_rows_; }
  int end_row(int band) const;
  bool is_last(int band) const { return end_row(band) == height_; }

  // The first band that nobody has. None: all are taken, or one has failed.
  std::optional<int> claim();
  // Rows [first_row(band), end) of a claimed band are final. More each time.
  void publish(int band, int end);
  void fail(int band, Status why);
  bool failed() const;
  // Once nobody decodes: of the bands that failed, the uppermost one's.
  Status status() const;

 private:
  const int height_;
  const int band_rows_;
  const std::uint8_t* const rgb_;
  const OnRows& on_rows_;
  mutable Mutex mutex_;
  int next_band_ GAPLESS_GUARDED_BY(mutex_) = 0;
  int failed_band_ GAPLESS_GUARDED_BY(mutex_) = -1;
  Status why_ GAPLESS_GUARDED_BY(mutex_);
  std::vector<int> ends_ GAPLESS_GUARDED_BY(mutex_);  // of each band's final rows
  int num_final_ GAPLESS_GUARDED_BY(mutex_) = 0;      // rows, from the top
};

}  // namespace gapless
