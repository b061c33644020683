// Lanczos resize of 8-bit RGB, bit-equal to Pillow's Image.resize((w, h), Image.LANCZOS).
//
// Pillow's resampling, restated: per axis with scale s = in/out, f = max(1, s) and the centre
// c = (o + 0.5) s of output o, the taps x run over [floor(c - 3f + 0.5), floor(c + 3f + 0.5)) cut
// to the image, with weights L((x - c + 0.5) / f), L(t) = sinc(t) sinc(t/3) on [-3, 3), normalised
// to sum 1 and rounded to 22-bit fixed point. Each pass adds 1/2, shifts and clamps to 0..255, so
// the intermediate is 8-bit. A pass whose size does not change is skipped.
//
// The order of the passes shows in the rounding: horizontal first, except where the vertical pass
// removes more than twice as many rows as the horizontal one removes columns. The exception is
// Pillow 13.0's, read from its compiled module and checked on its results. Pillow 11.3 to 12.2 go
// horizontally first even so, and differ from us in the rounding of such shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "image/image.h"
#include "image/lanczos_taps.h"
#include "image/stop_check.h"

namespace gapless {

// One resize as tasks, so that several share the loops of a pool (run_resizes).
class LanczosResize {
 public:
  // Gets row y of the result, out_width * 3 bytes, which are gone when it returns. Every row once,
  // in any order, several from different threads at once.
  using RowSink = std::function<void(int y, const std::uint8_t* row)>;

  // `image` must outlive this. Both sizes at least 1 (checked: sizes come from select_tiling, not
  // from a user).
  LanczosResize(const Image& image, int out_width, int out_height, RowSink sink);

  // What the resize of such an image holds beside the image.
  static std::int64_t memory_bytes(int width, int height, int out_width, int out_height);

  // A stage's tasks may run at once, after all of the stage before.
  static constexpr int kNumStages = 3;
  int num_tasks(int stage) const;
  void run_task(int stage, int task);

 private:
  enum Stage { kTaps, kFirstPass, kLastPass };  // kFirstPass: of two, into middle_
  struct Pass {
    bool is_horizontal;
    const std::uint8_t* in;
    int in_width, in_height;
    LanczosTaps taps;

    int num_tasks() const;
    void run_task(int task, const RowSink& sink) const;
  };

  void compute_taps(int task);
  void hand_on_rows(int task) const;

  const Image& image_;
  RowSink sink_;
  std::vector<Pass> passes_;                // of the axes whose size changes, in order
  std::unique_ptr<std::uint8_t[]> middle_;  // between two passes
  std::size_t middle_row_bytes_ = 0;
};

// The work is shared with `pool`, if there is one; the result is the same. False: `stop`, asked
// before each task (some 16 or 32 rows), said so, and rows are missing.
bool run_resizes(std::span<LanczosResize> resizes, ThreadPool* pool, const StopCheck& stop = {});

}  // namespace gapless
