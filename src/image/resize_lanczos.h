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

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "image/decode_helpers.h"
#include "image/lanczos_taps.h"
#include "image/picture_rows.h"
#include "image/stop_check.h"

namespace gapless {

// One resize as tasks, so that several share the loop of a pool (run_resizes).
class LanczosResize {
 public:
  // Gets row y of the result, out_width * 3 bytes, which are gone when it returns. Every row once,
  // in any order, several from different threads at once.
  using RowSink = std::function<void(int y, const std::uint8_t* row)>;

  // Sizes at least 1 (checked: they come from select_tiling, not from a user).
  LanczosResize(int in_width, int in_height, int out_width, int out_height, RowSink sink);

  // Whether such a resize reads the image once, kLanczosBlockRows rows after the other, and so needs no others to be there.
  static bool reads_in_blocks(int in_width, int in_height, int out_width, int out_height);

  // What the resize of such an image holds beside the image.
  static std::int64_t memory_bytes(int in_width, int in_height, int out_width, int out_height);

  enum Stage { kTaps, kFirstPass, kLastPass };  // kFirstPass: of two, into middle_
  int num_tasks(Stage stage) const;
  // The first rows of the picture without which the task and those that it waits for cannot run.
  int rows_needed(Stage stage, int task) const;
  // Waits for these rows, and for tasks that need no more rows or belong to an earlier stage. Does
  // nothing when the rows do not come.
  void run_task(Stage stage, int task, const PictureRows& rows);
  // Of the first pass.
  bool has_run(int first_task) const;
  void wait_until_run(int first_task) const;
  // Instead of running it, when nobody wants the result any more; others go on. Not for kTaps, which have to be
  // right where they are read.
  void skip_task(Stage stage, int task);

 private:
  struct Pass {
    bool is_horizontal;
    int in_width, in_height;
    LanczosTaps taps;

    int num_tasks() const;
    // Input rows [0, ...) that the task reads.
    int rows_needed(int task) const;
    // Of rows from first_row(task) on, at `in`.
    void run_task(int task, const std::uint8_t* in, const RowSink& sink) const;
    int first_row(int task) const;
  };
  // What tasks tell each other.
  struct Progress {
    explicit Progress(int num_first_tasks)
        : first_tasks(static_cast<std::size_t>(num_first_tasks)) {}
    std::atomic<int> taps_left{0};
    std::vector<std::atomic<int>> first_tasks;  // 1: done
  };

  void compute_taps(int task);
  void end_first_task(int task);
  // Tasks of the first pass, from the first one on, that a task of the last one reads.
  int first_tasks_needed(int last_task) const;
  void hand_on_rows(int task, const std::uint8_t* rgb) const;

  int in_width_ = 0;
  int in_height_ = 0;
  RowSink sink_;
  std::vector<Pass> passes_;                // of the axes whose size changes, in order
  std::unique_ptr<std::uint8_t[]> middle_;  // between two passes
  std::size_t middle_row_bytes_ = 0;
  std::unique_ptr<Progress> progress_;
};

// Resizes one picture in several ways. `decode` publishes its rows, or gives up, and runs first;
// without one they are there already. Its helpers, if it has any, are threads of the pool. The work is shared with `pool`, if there is one, and begins
// with the rows that are there; the result is the same. Where rows do not stay, each resize reads_in_blocks, and the
// thread that decodes takes tasks, too, when their rows' places are wanted. False: `stop`, asked before each task (some
// 16 or 32 rows), said so, and rows are missing.
bool run_resizes(std::span<LanczosResize> resizes, PictureRows& rows, ThreadPool* pool,
                 const std::function<void()>& decode = nullptr, const StopCheck& stop = {},
                 DecodeHelpers* helpers = nullptr);

}  // namespace gapless
