// Which cuBLASLt algorithm is the fastest for a shape and a number of rows: by trying them.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/matrix_linear.h"

namespace gapless::cuda {
namespace {

constexpr int kRounds = 3;  // of timing; the shortest counts

class Timer {
 public:
  static StatusOr<Timer> create() {
    Timer timer;
    for (Event* event : {&timer.begin_, &timer.end_}) {
      cudaEvent_t native = nullptr;
      GAPLESS_RETURN_IF_ERROR(launch_status(cudaEventCreate(&native), "cudaEventCreate"));
      event->reset(native);
    }
    return timer;
  }
  Status begin(Stream& stream) { return record(stream, begin_); }
  Status end(Stream& stream) { return record(stream, end_); }
  // Waits.
  StatusOr<float> milliseconds() const {
    GAPLESS_RETURN_IF_ERROR(
        launch_status(cudaEventSynchronize(end_.get()), "cudaEventSynchronize"));
    float ms = 0;
    GAPLESS_RETURN_IF_ERROR(
        launch_status(cudaEventElapsedTime(&ms, begin_.get(), end_.get()), "cudaEventElapsedTime"));
    return ms;
  }

 private:
  struct Destroy {
    void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  };
  using Event = std::unique_ptr<CUevent_st, Destroy>;
  static Status record(Stream& stream, const Event& event) {
    return launch_status(cudaEventRecord(event.get(), native_stream(stream)), "cudaEventRecord");
  }
  Event begin_, end_;
};

// Noise to multiply, and room for two results. Buffers are dense at the shape's strides.
struct TrialBuffers {
  Buffer x, residual, expected, actual, num_differences;
  PinnedBuffer differences_pinned;

  static StatusOr<TrialBuffers> create(Device& device, Stream& stream, const LinearParams& params,
                                       int max_rows, std::size_t max_candidates) {
    TrialBuffers b;
    const auto rows = static_cast<std::int64_t>(max_rows);
    auto noise = [&](Buffer& buffer, std::int64_t stride, std::uint64_t seed) -> Status {
      GAPLESS_ASSIGN_OR_RETURN(buffer, device.allocate(static_cast<std::size_t>(rows * stride) *
                                                       dtype_bytes(DType::kBF16)));
      return fill_random(stream, {.out = buffer.data(),
                                  .num_rows = 1,
                                  .row_size = rows * stride,
                                  .row_stride = rows * stride,
                                  .seed = seed,
                                  .stddev = 1.0f});
    };
    GAPLESS_RETURN_IF_ERROR(noise(b.x, params.x_stride, 1));
    if (params.residual != nullptr) {
      GAPLESS_RETURN_IF_ERROR(noise(b.residual, params.residual_stride, 2));
    }
    for (Buffer* y : {&b.expected, &b.actual}) {
      const auto bytes =
          static_cast<std::size_t>(rows * params.y_stride) * dtype_bytes(DType::kBF16);
      GAPLESS_ASSIGN_OR_RETURN(*y, device.allocate(bytes));
      GAPLESS_RETURN_IF_ERROR(stream.fill_bytes(y->data(), 0, bytes));
    }
    const std::size_t counts = max_candidates * sizeof(unsigned);
    GAPLESS_ASSIGN_OR_RETURN(b.num_differences, device.allocate(counts));
    GAPLESS_ASSIGN_OR_RETURN(b.differences_pinned, device.allocate_pinned(counts));
    return b;
  }
};

constexpr std::size_t kMaxCandidates = 64;

}  // namespace

Status MatrixLinear::tune(Stream& stream, const LinearParams& params,
                          std::span<const int> row_counts) {
  if (row_counts.empty()) return ok_status();
  const int max_rows = *std::max_element(row_counts.begin(), row_counts.end());
  GAPLESS_ASSIGN_OR_RETURN(const TrialBuffers b,
                           TrialBuffers::create(device_, stream, params, max_rows, kMaxCandidates));
  GAPLESS_ASSIGN_OR_RETURN(Timer timer, Timer::create());

  LinearParams trial = params;
  trial.x = b.x.data();
  trial.residual = b.residual.data();
  Choices choices;
  for (const int num_rows : row_counts) {
    trial.num_rows = num_rows;
    GAPLESS_ASSIGN_OR_RETURN(Algorithms algorithms, alternatives(trial, num_rows));
    if (algorithms.size() > kMaxCandidates) algorithms.resize(kMaxCandidates);
    const auto y_bytes = static_cast<std::size_t>(num_rows * trial.y_stride) * 2;

    // The bits of the shape's first choice, and whether each other one has them.
    trial.y = b.expected.data();
    GAPLESS_RETURN_IF_ERROR(multiply(stream, trial, algorithms[0]));
    trial.y = b.actual.data();
    GAPLESS_RETURN_IF_ERROR(
        stream.fill_bytes(b.num_differences.data(), 0, b.num_differences.size_bytes()));
    for (std::size_t i = 0; i < algorithms.size(); ++i) {
      GAPLESS_RETURN_IF_ERROR(stream.fill_bytes(b.actual.data(), 0, y_bytes));
      GAPLESS_RETURN_IF_ERROR(multiply(stream, trial, algorithms[i]));
      GAPLESS_RETURN_IF_ERROR(count_differences(stream, b.expected.data(), b.actual.data(), y_bytes,
                                                b.num_differences.as<unsigned>() + i));
    }
    GAPLESS_RETURN_IF_ERROR(stream.copy_to_host(
        b.differences_pinned.data(), b.num_differences.data(), b.num_differences.size_bytes()));

    std::vector<float> best_ms(algorithms.size(), std::numeric_limits<float>::infinity());
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t i = 0; i < algorithms.size(); ++i) {
        // Once more than timed: the device must be busy while the host enqueues what is.
        GAPLESS_RETURN_IF_ERROR(multiply(stream, trial, algorithms[i]));
        GAPLESS_RETURN_IF_ERROR(timer.begin(stream));
        GAPLESS_RETURN_IF_ERROR(multiply(stream, trial, algorithms[i]));
        GAPLESS_RETURN_IF_ERROR(timer.end(stream));
        GAPLESS_ASSIGN_OR_RETURN(const float ms, timer.milliseconds());
        best_ms[i] = std::min(best_ms[i], ms);
      }
    }
    const auto* differences = b.differences_pinned.as<unsigned>();
    std::size_t best = 0;
    for (std::size_t i = 1; i < algorithms.size(); ++i) {
      if (differences[i] == 0 && best_ms[i] < best_ms[best]) best = i;
    }
    choices.insert_or_assign(num_rows, algorithms[best]);
  }
  GAPLESS_RETURN_IF_ERROR(stream.synchronize());
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [num_rows, algorithm] : choices) {
    tuned_[shape_of(params)].insert_or_assign(num_rows, algorithm);
  }
  return ok_status();
}

}  // namespace gapless::cuda
