// Which cuBLASLt algorithm is the fastest for a shape and a number of rows: by trying them.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "base/log.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/matrix_linear.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kFewRows = 64;
constexpr int kRounds = 3;  // of timing; the shortest counts
// Bounds start-up: the more numbers of rows, the fewer algorithms of each are tried. The
// heuristic's order is good: the first few hold one within some percent of the best.
constexpr std::size_t kTrialsPerShape = 768;
constexpr std::size_t kMinCandidates = 5, kMaxCandidates = 48;
// What took so much longer than the best in the first round is not timed again.
constexpr float kClearlySlower = 1.1f;

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
                                       int max_rows) {
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
    GAPLESS_ASSIGN_OR_RETURN(b.num_differences, device.allocate(sizeof(unsigned)));
    GAPLESS_ASSIGN_OR_RETURN(b.differences_pinned, device.allocate_pinned(sizeof(unsigned)));
    return b;
  }
};

std::size_t candidates_for(std::size_t num_row_counts) {
  return std::clamp(kTrialsPerShape / num_row_counts, kMinCandidates, kMaxCandidates);
}

}  // namespace

// The shortest of some rounds, in milliseconds, of each algorithm.
StatusOr<std::vector<float>> MatrixLinear::time_algorithms(Stream& stream,
                                                           const LinearParams& trial,
                                                           const Algorithms& algorithms) const {
  GAPLESS_ASSIGN_OR_RETURN(Timer timer, Timer::create());
  std::vector<float> best_ms(algorithms.size(), std::numeric_limits<float>::infinity());
  for (int round = 0; round < kRounds; ++round) {
    const float limit_ms = kClearlySlower * *std::min_element(best_ms.begin(), best_ms.end());
    for (std::size_t i = 0; i < algorithms.size(); ++i) {
      if (round > 0 && best_ms[i] > limit_ms) continue;
      // Once more than timed: the device must be busy while the host enqueues what is.
      GAPLESS_RETURN_IF_ERROR(multiply(stream, trial, algorithms[i]));
      GAPLESS_RETURN_IF_ERROR(timer.begin(stream));
      GAPLESS_RETURN_IF_ERROR(multiply(stream, trial, algorithms[i]));
      GAPLESS_RETURN_IF_ERROR(timer.end(stream));
      GAPLESS_ASSIGN_OR_RETURN(const float ms, timer.milliseconds());
      best_ms[i] = std::min(best_ms[i], ms);
    }
  }
  return best_ms;
}

Status MatrixLinear::take_first(const LinearParams& params, std::span<const int> row_counts) {
  GAPLESS_ASSIGN_OR_RETURN(const Algorithms typical, candidates(params, kTypicalRows));
  std::lock_guard<std::mutex> lock(mutex_);
  for (const int num_rows : row_counts) {
    // What suits fewer rows than a tile has shows no gain, and not every one exists.
    if (num_rows < kFewRows) continue;
    tuned_[shape_of(params)].insert_or_assign(num_rows, first_fitting(params, num_rows, typical));
  }
  return ok_status();
}

Status MatrixLinear::tune(Stream& stream, const LinearParams& params,
                          std::span<const int> row_counts) {
  if (row_counts.empty()) return ok_status();
  (void)native_stream(stream);  // makes its device current, for cuBLASLt and the timer's events
  if (params.x_scales != nullptr && widened_dev_.data() != nullptr) {
    LinearParams wide = params;
    wide.x_scales = nullptr;
    wide.x_stride = params.weights.in;
    return tune(stream, wide, row_counts);
  }
  // Of products in 8 bits cuBLASLt knows one algorithm for a number of rows.
  if (params.x_scales != nullptr) return take_first(params, row_counts);
  const int max_rows = *std::max_element(row_counts.begin(), row_counts.end());
  StatusOr<TrialBuffers> buffers = TrialBuffers::create(device_, stream, params, max_rows);
  if (buffers.status().code() == StatusCode::kResourceExhausted) {
    log_info("products {} -> {} are not tuned: {}", params.weights.in, params.weights.out,
             buffers.status().message());
    return take_first(params, row_counts);
  }
  GAPLESS_ASSIGN_OR_RETURN(const TrialBuffers b, std::move(buffers));
  LinearParams trial = params;
  trial.x = b.x.data();
  trial.residual = b.residual.data();

  auto has_expected_bits = [&](const cublasLtMatmulAlgo_t& algorithm) -> StatusOr<bool> {
    const auto bytes = static_cast<std::size_t>(trial.num_rows * trial.y_stride) * 2;
    trial.y = b.actual.data();
    GAPLESS_RETURN_IF_ERROR(stream.fill_bytes(trial.y, 0, bytes));
    GAPLESS_RETURN_IF_ERROR(multiply(stream, trial, algorithm));
    GAPLESS_RETURN_IF_ERROR(stream.fill_bytes(b.num_differences.data(), 0, sizeof(unsigned)));
    GAPLESS_RETURN_IF_ERROR(count_differences(stream, b.expected.data(), b.actual.data(), bytes,
                                              b.num_differences.as<unsigned>()));
    GAPLESS_RETURN_IF_ERROR(stream.copy_to_host(b.differences_pinned.data(),
                                                b.num_differences.data(), sizeof(unsigned)));
    GAPLESS_RETURN_IF_ERROR(stream.synchronize());
    return *b.differences_pinned.as<unsigned>() == 0;
  };

  GAPLESS_ASSIGN_OR_RETURN(const Algorithms typical, candidates(params, kTypicalRows));
  Choices choices;
  for (const int num_rows : row_counts) {
    trial.num_rows = num_rows;
    GAPLESS_ASSIGN_OR_RETURN(Algorithms algorithms, alternatives(trial, typical));
    algorithms.resize(std::min(algorithms.size(), candidates_for(row_counts.size())));
    trial.y = b.expected.data();
    GAPLESS_ASSIGN_OR_RETURN(const std::vector<float> ms,
                             time_algorithms(stream, trial, algorithms));
    // The bits of the shape's first choice; the fastest that has them is taken.
    GAPLESS_RETURN_IF_ERROR(multiply(stream, trial, algorithms[0]));
    std::vector<std::size_t> order(algorithms.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t i, std::size_t j) { return ms[i] < ms[j]; });
    for (const std::size_t i : order) {
      GAPLESS_ASSIGN_OR_RETURN(const bool same, has_expected_bits(algorithms[i]));
      if (!same) continue;
      choices.insert_or_assign(num_rows, algorithms[i]);
      break;
    }
  }
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [num_rows, algorithm] : choices) {
    tuned_[shape_of(params)].insert_or_assign(num_rows, algorithm);
  }
  return ok_status();
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
