#include "bench/cuda_bench.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "measure/result_file.h"

namespace gapless::bench {
namespace {

constexpr int kWarmUps = 3;
constexpr int kReplays = 21;

void require_cuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

template <typename T>
T value_of(StatusOr<T> result) {
  require(result.ok() ? ok_status() : result.status());
  return std::move(result).value();
}

}  // namespace

void require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  std::exit(1);
}

CudaBench::CudaBench(const char* device_name) {
  device_ = value_of(open_device(device_name));
  kernels_ = value_of(make_kernels(*device_));
  stream_ = value_of(device_->create_stream("bench"));
  require_cuda(cudaEventCreate(&start_));
  require_cuda(cudaEventCreate(&stop_));
}

CudaBench::~CudaBench() {
  cudaEventDestroy(start_);
  cudaEventDestroy(stop_);
  buffers_.clear();
}

void* CudaBench::allocate(std::size_t bytes) {
  buffers_.push_back(value_of(device_->allocate(std::max<std::size_t>(bytes, 256))));
  return buffers_.back().data();
}

void* CudaBench::noise(std::int64_t elements, float stddev) {
  void* out = allocate(static_cast<std::size_t>(elements) * 2);
  require(kernels_->fill_random(*stream_, {.out = out,
                                           .num_rows = 1,
                                           .row_size = elements,
                                           .row_stride = elements,
                                           .seed = next_seed_++,
                                           .stddev = stddev}));
  return out;
}

void* CudaBench::upload_bytes(const void* data, std::size_t bytes) {
  void* out = allocate(bytes);
  PinnedBuffer pinned = value_of(device_->allocate_pinned(bytes));
  std::memcpy(pinned.data(), data, bytes);
  require(stream_->copy_to_device(out, pinned.data(), bytes));
  require(stream_->synchronize());
  return out;
}

void CudaBench::free_all() {
  require(stream_->synchronize());
  buffers_.clear();
}

Spread CudaBench::time(int num_calls, const std::function<Status()>& enqueue) {
  require(enqueue());
  require(stream_->synchronize());
  require(stream_->begin_capture());
  require(enqueue());
  const std::unique_ptr<Graph> graph = value_of(stream_->end_capture());
  const auto native = static_cast<cudaStream_t>(stream_->native_handle());
  std::vector<double> times;
  for (int i = 0; i < kWarmUps + kReplays; ++i) {
    require_cuda(cudaEventRecord(start_, native));
    require(stream_->launch(*graph));
    require_cuda(cudaEventRecord(stop_, native));
    require_cuda(cudaEventSynchronize(stop_));
    float ms = 0;
    require_cuda(cudaEventElapsedTime(&ms, start_, stop_));
    if (i >= kWarmUps) times.push_back(1e3 * static_cast<double>(ms) / num_calls);
  }
  std::sort(times.begin(), times.end());
  return {.median_us = times[kReplays / 2],
          .low_us = times[kReplays / 10],
          .high_us = times[kReplays - 1 - kReplays / 10]};
}

void CudaBench::print_header() {
  std::printf("%-44s %10s %19s %8s %6s %8s %6s\n", "what", "us", "(10 % .. 90 %)", "GB/s", "%",
              "TFLOP/s", "%");
}

void CudaBench::print(const std::string& what, const Spread& spread, double bytes,
                      double operations) {
  const double seconds = spread.median_us * 1e-6;
  std::printf("%-44s %10.2f (%7.2f ..%8.2f)", what.c_str(), spread.median_us, spread.low_us,
              spread.high_us);
  if (bytes > 0) {
    const double rate = bytes / seconds;
    std::printf(" %8.0f %6.1f", rate / 1e9, 100 * rate / kReadBytesPerSecond);
  } else {
    std::printf(" %8s %6s", "", "");
  }
  if (operations > 0) {
    const double rate = operations / seconds;
    std::printf(" %8.1f %6.1f", rate / 1e12, 100 * rate / kMatrixOpsPerSecond);
  }
  std::printf("\n");
  std::fflush(stdout);
  boost::json::object line{{"what", what},
                           {"us", boost::json::object{{"median", rounded(spread.median_us, 2)},
                                                      {"p10", rounded(spread.low_us, 2)},
                                                      {"p90", rounded(spread.high_us, 2)}}}};
  if (bytes > 0) {
    line["bytes"] = bytes;
    line["share_of_bandwidth"] = rounded(bytes / seconds / kReadBytesPerSecond, 4);
  }
  if (operations > 0) {
    line["operations"] = operations;
    line["share_of_matrix_rate"] = rounded(operations / seconds / kMatrixOpsPerSecond, 4);
  }
  lines_.push_back(std::move(line));
}

Status CudaBench::write(const std::string& path, const std::string& commit) const {
  GAPLESS_ASSIGN_OR_RETURN(const DeviceInfo info, device_->info());
  const ResultHeader header{
      .command = {},
      .commit = commit,
      .device = info.name,
      .model = "Moondream 2's shapes",
      .ceiling = fmt::format("read bandwidth {} TB/s, matrix rate {} TFLOP/s",
                             kReadBytesPerSecond / 1e12, kMatrixOpsPerSecond / 1e12)};
  return write_result(path, header, {{"benchmark", "kernels"}, {"kernels", lines_}});
}

void repeat(CudaBench& b, const std::string& what, double bytes,
            const std::function<Status()>& call) {
  constexpr int kCalls = 20;
  const Spread spread = b.time(kCalls, [&] {
    for (int i = 0; i < kCalls; ++i) GAPLESS_RETURN_IF_ERROR(call());
    return ok_status();
  });
  b.print(what, spread, bytes, 0);
}

}  // namespace gapless::bench
