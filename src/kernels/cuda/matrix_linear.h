// y = activation(x W^T + b) + residual for many rows (vision, prefill), through cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"

namespace gapless::cuda {

// Row invariance: one algorithm without split columns is chosen per shape of weights and kind of epilogue,
// for a typical number of rows, and used for every number of rows.
//
// The choice is made at a shape's first use and costs milliseconds; later calls neither allocate nor
// wait, and may be captured. Threads: any.
class MatrixLinear {
 public:
  static StatusOr<std::unique_ptr<MatrixLinear>> create(Device& device);
  ~MatrixLinear();
  MatrixLinear(const MatrixLinear&) = delete;
  MatrixLinear& operator=(const MatrixLinear&) = delete;

  // What cuBLASLt's epilogues can express. The rest is row_linear's.
  static bool supports(const LinearParams& params);

  Status run(Stream& stream, const LinearParams& params);

 private:
  // in, out, stride of x, stride of y, stride of the residual, GELU, bias, residual.
  using Key = std::tuple<int, int, std::int64_t, std::int64_t, std::int64_t, bool, bool, bool>;

  MatrixLinear(cublasLtHandle_t handle, Buffer workspace)
      : handle_(handle), workspace_(std::move(workspace)) {}
  StatusOr<cublasLtMatmulAlgo_t> algorithm_for(const LinearParams& params);

  cublasLtHandle_t handle_;
  Buffer workspace_;
  std::mutex mutex_;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace gapless::cuda
