#include "image/resize_lanczos.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "image/lanczos_sums.h"
#include "image/raster_memory.h"

namespace gapless {
namespace {

// What a task makes: outputs of an axis's taps, rows of the vertical pass or of a plain copy.
constexpr int kTaskTaps = 128;
constexpr int kTaskRows = 32;

std::size_t bytes_of_row(int width) {
  return static_cast<std::size_t>(width) * kLanczosChannels;
}

int num_parts(int whole, int part) {
  return (whole + part - 1) / part;
}

// Rows [first, first + num_rows), the first one at `in`, at most kLanczosBlockRows, each resized and handed to sink.
void resize_block_horizontally(const std::uint8_t* in, int in_width, const LanczosTaps& taps,
                               int first, int num_rows, const LanczosResize::RowSink& sink) {
  const std::size_t stride = bytes_of_row(taps.out_size()) + kLanczosSpill;
  const auto rows =
      std::make_unique_for_overwrite<std::uint8_t[]>(stride * static_cast<std::size_t>(num_rows));
  lanczos_sums().block(in, in_width, num_rows, taps, rows.get(), stride);
  for (int r = 0; r < num_rows; ++r) {
    sink(first + r, rows.get() + static_cast<std::size_t>(r) * stride);
  }
}

// `in`: the first row that is read for output row `first`.
void resize_rows_vertically(const std::uint8_t* in, int width, const LanczosTaps& taps, int first,
                            int num_rows, const LanczosResize::RowSink& sink) {
  const std::size_t row_bytes = bytes_of_row(width);
  const auto row = std::make_unique_for_overwrite<std::uint8_t[]>(row_bytes);
  const auto sum_row = lanczos_sums().row;
  for (int o = first; o < first + num_rows; ++o) {
    sum_row(in + static_cast<std::size_t>(taps.first(o) - taps.first(first)) * row_bytes, row_bytes,
            taps, o, row.get());
    sink(o, row.get());
  }
}

// Which pass goes first changes the rounding, so this is Pillow 13's rule to the letter.
bool is_vertical_first(int in_width, int in_height, int out_width, int out_height) {
  const int rows_removed = in_height - out_height;
  const int columns_removed = in_width - out_width;
  return rows_removed > 0 && rows_removed > 2 * columns_removed;
}

void wait_until_not(const std::atomic<int>& value, int unwanted) {
  while (value.load(std::memory_order_acquire) == unwanted) {
    value.wait(unwanted, std::memory_order_acquire);
  }
}

}  // namespace

LanczosResize::LanczosResize(int in_width, int in_height, int out_width, int out_height,
                             RowSink sink)
    : in_width_(in_width), in_height_(in_height), sink_(std::move(sink)) {
  GAPLESS_CHECK(in_width > 0 && in_height > 0 && out_width > 0 && out_height > 0);
  const bool vertical_first = is_vertical_first(in_width, in_height, out_width, out_height);
  int width = in_width, height = in_height;  // of the next pass's input
  for (const bool is_horizontal : {!vertical_first, vertical_first}) {
    int& size = is_horizontal ? width : height;
    const int out_size = is_horizontal ? out_width : out_height;
    if (size == out_size) continue;
    if (!passes_.empty()) {
      middle_row_bytes_ = bytes_of_row(width);
      const std::size_t middle_bytes = middle_row_bytes_ * static_cast<std::size_t>(height);
      middle_ = std::make_unique_for_overwrite<std::uint8_t[]>(middle_bytes);
      prefer_huge_pages(middle_.get(), middle_bytes);
    }
    passes_.push_back({is_horizontal, width, height, LanczosTaps(size, out_size)});
    size = out_size;
  }
  progress_ = std::make_unique<Progress>(num_tasks(kFirstPass));
  progress_->taps_left.store(num_tasks(kTaps), std::memory_order_relaxed);
}

bool LanczosResize::reads_in_blocks(int in_width, int in_height, int out_width, int out_height) {
  return in_width != out_width && in_height != out_height &&
         !is_vertical_first(in_width, in_height, out_width, out_height);
}

std::int64_t LanczosResize::memory_bytes(int in_width, int in_height, int out_width,
                                         int out_height) {
  if (in_width == out_width || in_height == out_height) return 0;
  const bool vertical_first = is_vertical_first(in_width, in_height, out_width, out_height);
  return std::int64_t{kLanczosChannels} * (vertical_first ? in_width : out_width) *
         (vertical_first ? out_height : in_height);
}

int LanczosResize::Pass::num_tasks() const {
  return is_horizontal ? num_parts(in_height, kLanczosBlockRows)
                       : num_parts(taps.out_size(), kTaskRows);
}

int LanczosResize::Pass::rows_needed(int task) const {
  if (is_horizontal) return std::min(in_height, (task + 1) * kLanczosBlockRows);
  return taps.end_of(std::min(taps.out_size(), (task + 1) * kTaskRows) - 1);
}

int LanczosResize::Pass::first_row(int task) const {
  return is_horizontal ? task * kLanczosBlockRows : taps.first(task * kTaskRows);
}

void LanczosResize::Pass::run_task(int task, const std::uint8_t* in, const RowSink& sink) const {
  if (is_horizontal) {
    const int first = task * kLanczosBlockRows;
    return resize_block_horizontally(in, in_width, taps, first,
                                     std::min(kLanczosBlockRows, in_height - first), sink);
  }
  const int first = task * kTaskRows;
  resize_rows_vertically(in, in_width, taps, first, std::min(kTaskRows, taps.out_size() - first),
                         sink);
}

int LanczosResize::num_tasks(Stage stage) const {
  switch (stage) {
    case kTaps: {
      int num_tasks = 0;
      for (const Pass& pass : passes_) num_tasks += num_parts(pass.taps.out_size(), kTaskTaps);
      return num_tasks;
    }
    case kFirstPass:
      return passes_.size() < 2 ? 0 : passes_.front().num_tasks();
    case kLastPass:
      break;
  }
  return passes_.empty() ? num_parts(in_height_, kTaskRows) : passes_.back().num_tasks();
}

int LanczosResize::first_tasks_needed(int last_task) const {
  const int middle_rows = passes_.back().rows_needed(last_task);
  return num_parts(middle_rows, passes_.front().is_horizontal ? kLanczosBlockRows : kTaskRows);
}

int LanczosResize::rows_needed(Stage stage, int task) const {
  switch (stage) {
    case kTaps:
      return 0;
    case kFirstPass:
      return passes_.front().rows_needed(task);
    case kLastPass:
      break;
  }
  if (passes_.empty()) return std::min(in_height_, (task + 1) * kTaskRows);
  if (passes_.size() < 2) return passes_.back().rows_needed(task);
  return passes_.front().rows_needed(first_tasks_needed(task) - 1);
}

void LanczosResize::run_task(Stage stage, int task, const PictureRows& rows) {
  if (stage == kTaps) return compute_taps(task);
  // Acquire, for all threads' taps: the count is a chain of their decrements.
  for (int left = progress_->taps_left.load(std::memory_order_acquire); left > 0;
       left = progress_->taps_left.load(std::memory_order_acquire)) {
    progress_->taps_left.wait(left, std::memory_order_acquire);
  }
  if (stage == kFirstPass) {
    if (const std::uint8_t* const rgb = rows.wait_for(rows_needed(stage, task))) {
      const Pass& pass = passes_.front();
      const std::uint8_t* const in =
          rgb + rows.place_of(pass.first_row(task)) *
                    static_cast<std::ptrdiff_t>(bytes_of_row(pass.in_width));
      pass.run_task(task, in, [this](int y, const std::uint8_t* row) {
        std::memcpy(middle_.get() + static_cast<std::size_t>(y) * middle_row_bytes_, row,
                    middle_row_bytes_);
      });
    }
    return end_first_task(task);
  }
  if (passes_.size() == 2) {
    for (int i = 0; i < first_tasks_needed(task); ++i) {
      wait_until_run(i);
    }
  }
  // Also when they were there: a decoder that gave up left the pass before without rows.
  const std::uint8_t* const rgb = rows.wait_for(rows_needed(stage, task));
  if (rgb == nullptr) return;
  if (passes_.empty()) return hand_on_rows(task, rgb);
  const Pass& pass = passes_.back();
  pass.run_task(task,
                (middle_ ? middle_.get() : rgb) +
                    static_cast<std::size_t>(pass.first_row(task)) * bytes_of_row(pass.in_width),
                sink_);
}

void LanczosResize::skip_task(Stage stage, int task) {
  GAPLESS_CHECK(stage != kTaps);
  if (stage == kFirstPass) end_first_task(task);
}

bool LanczosResize::has_run(int first_task) const {
  return progress_->first_tasks[static_cast<std::size_t>(first_task)].load(
             std::memory_order_acquire) != 0;
}

void LanczosResize::wait_until_run(int first_task) const {
  wait_until_not(progress_->first_tasks[static_cast<std::size_t>(first_task)], 0);
}

void LanczosResize::end_first_task(int task) {
  std::atomic<int>& done = progress_->first_tasks[static_cast<std::size_t>(task)];
  done.store(1, std::memory_order_release);
  done.notify_all();
}

void LanczosResize::compute_taps(int task) {
  for (Pass& pass : passes_) {
    const int num_tasks = num_parts(pass.taps.out_size(), kTaskTaps);
    if (task < num_tasks) {
      pass.taps.compute(task * kTaskTaps, std::min((task + 1) * kTaskTaps, pass.taps.out_size()));
      if (progress_->taps_left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        progress_->taps_left.notify_all();
      }
      return;
    }
    task -= num_tasks;
  }
}

void LanczosResize::hand_on_rows(int task, const std::uint8_t* rgb) const {
  const int end = std::min(in_height_, (task + 1) * kTaskRows);
  for (int y = task * kTaskRows; y < end; ++y) {
    sink_(y, rgb + static_cast<std::size_t>(y) * bytes_of_row(in_width_));
  }
}

bool run_resizes(std::span<LanczosResize> resizes, PictureRows& rows, ThreadPool* pool,
                 const std::function<void()>& decode, const StopCheck& stop,
                 DecodeHelpers* helpers) {
  GAPLESS_CHECK(rows.num_kept() % kLanczosBlockRows ==
                0);  // a block's rows lie one behind the other
  struct Task {
    int rows_needed;
    LanczosResize::Stage stage;
    LanczosResize* resize;
    int index;
  };
  std::vector<Task> tasks;
  for (LanczosResize& resize : resizes) {
    for (const auto stage :
         {LanczosResize::kTaps, LanczosResize::kFirstPass, LanczosResize::kLastPass}) {
      for (int i = 0; i < resize.num_tasks(stage); ++i) {
        tasks.push_back({resize.rows_needed(stage, i), stage, &resize, i});
      }
    }
  }
  // A task comes after those that it waits for, so one thread gets through as well as many.
  std::sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) {
    return a.rows_needed != b.rows_needed ? a.rows_needed < b.rows_needed : a.stage < b.stage;
  });
  const int num_before = decode ? 1 + (helpers != nullptr ? helpers->count() : 0) : 0;
  std::atomic<bool> stopped{false};
  const auto run_task = [&](const Task& task) {
    if (task.stage != LanczosResize::kTaps) {
      if (!stopped.load(std::memory_order_relaxed) && is_stopped(stop)) stopped.store(true);
      if (stopped.load()) return task.resize->skip_task(task.stage, task.index);
    }
    task.resize->run_task(task.stage, task.index, rows);
  };
  // Where rows do not stay, the decoder runs tasks, too, so they are handed out by a count of their own: the next one to
  // whoever comes, if num_rows rows are enough for it.
  alignas(64) std::atomic<std::size_t> next{0};  // many threads write it
  const auto run_next = [&](int num_rows) {
    std::size_t index = next.load(std::memory_order_relaxed);
    do {
      if (index == tasks.size() || tasks[index].rows_needed > num_rows) return false;
    } while (!next.compare_exchange_weak(index, index + 1, std::memory_order_relaxed));
    run_task(tasks[index]);
    return true;
  };
  alignas(64) int num_blocks_gone = 0;
  rows.set_reader([&](int num_rows, int end) {
    for (; num_blocks_gone * kLanczosBlockRows < end; ++num_blocks_gone) {
      for (const LanczosResize& resize : resizes) {
        while (!resize.has_run(num_blocks_gone) && run_next(num_rows)) {
        }
        resize.wait_until_run(num_blocks_gone);  // by another thread
      }
    }
  });
  const auto run = [&](std::int64_t index) {
    if (index < num_before) return index == 0 ? decode() : helpers->help();
    if (rows.num_kept() == 0) return run_task(tasks[static_cast<std::size_t>(index - num_before)]);
    run_next(std::numeric_limits<int>::max());
  };
  const auto num_to_run = static_cast<std::int64_t>(tasks.size()) + num_before;
  if (pool != nullptr) {
    pool->parallel_for(num_to_run, run);
  } else {
    for (std::int64_t i = 0; i < num_to_run; ++i) run(i);
  }
  rows.set_reader(nullptr);
  return !stopped.load();
}

}  // namespace gapless
