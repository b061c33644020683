// How long a step is sure to take, so that the engine thread may sleep for that long and waits awake
// for the rest only: a thread that sleeps wakes tens of microseconds late, and a step that is waited
// for awake costs a core.
//
// A step takes at least kSureShare of the quickest of the last kRemembered steps of its kind and about
// its number of live rows (1, 2, 3 and 4, 5 to 8, and so on), scaled down where this one is smaller: a
// decode step reads weights, and keys and values of its tokens; a prefill or an encode takes its time
// per token or crop. A step that is larger counts as large as the one that was seen. Rows that are done
// cost next to nothing, so a step counts by its live ones.
//
// Threads: the engine thread only.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/limits.h"
#include "step/step_model.h"

namespace gapless {

class SureTime {
 public:
  struct Work {
    StepKind kind = StepKind::kDecode;
    int num_live_rows = 0;  // 0: it ends almost at once
    double size = 0;        // decode: bytes read; prefill: tokens; encode: crops
  };

  // A step took so long on the device, forward to sampling.
  void committed(const Work& work, std::int64_t duration_ns);

  // Nanoseconds that this one takes at least; 0 until kRemembered steps like it were seen.
  std::int64_t of(const Work& work) const;

  static constexpr int kRemembered = 8;
  static constexpr double kSureShare = 0.9;

 private:
  struct Seen {
    double size = 0;
    std::int64_t duration_ns = 0;
  };
  struct History {
    std::array<Seen, kRemembered> last;
    std::int64_t num_seen = 0;
  };
  static std::size_t index(const Work& work);

  static constexpr std::size_t kDecodeHistories =
      std::bit_width(static_cast<unsigned>(kMaxSeats - 1)) + 1u;
  std::array<History, kDecodeHistories + 2> histories_;  // decode by rows, prefill, encode
};

}  // namespace gapless
