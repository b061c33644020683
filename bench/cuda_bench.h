// Timing of op-table work on a CUDA device: a graph of many calls over rotating buffers, replayed
// between two events, and one table with each row's ceiling.
#pragma once

#include <cuda_runtime_api.h>

#include <boost/json/array.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/kernels.h"

namespace gapless::bench {

// Ceilings measured on an NVIDIA H200.
inline constexpr double kReadBytesPerSecond = 4.55e12;
inline constexpr double kMatrixOpsPerSecond = 790e12;

struct Spread {
  double median_us = 0, low_us = 0, high_us = 0;  // the range holds the middle 80 %
};

class CudaBench {
 public:
  explicit CudaBench(const char* device_name);
  ~CudaBench();

  Kernels& kernels() { return *kernels_; }
  Stream& stream() { return *stream_; }

  // Uninitialised device memory that lives as long as the benchmark, or until free_all.
  void* allocate(std::size_t bytes);
  // bf16 noise.
  void* noise(std::int64_t elements, float stddev = 1.0f);
  template <typename P>
  P* upload(const std::vector<P>& values) {
    return static_cast<P*>(upload_bytes(values.data(), values.size() * sizeof(P)));
  }
  void free_all();

  // One replay of a graph that holds what `enqueue` enqueues, divided by num_calls. `enqueue` runs
  // twice: directly first, so that algorithms are chosen, then captured.
  Spread time(int num_calls, const std::function<Status()>& enqueue);

  // Prints one line, and keeps it for write(). 0 bytes or operations: that column stays empty.
  static void print_header();
  void print(const std::string& what, const Spread& spread, double bytes, double operations);
  // All lines so far, as a file of bench/results. commit: as in ResultHeader.
  Status write(const std::string& path, const std::string& commit) const;

 private:
  void* upload_bytes(const void* data, std::size_t bytes);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> buffers_;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
  std::uint64_t next_seed_ = 1;
  boost::json::array lines_;
};

// Times `call` again and again and prints it, on data that L2 may hold: in a step these kernels'
// inputs were written just before.
void repeat(CudaBench& b, const std::string& what, double bytes,
            const std::function<Status()>& call);

// Stops the program with the error: a benchmark has nothing better to do.
void require(const Status& status);

}  // namespace gapless::bench
