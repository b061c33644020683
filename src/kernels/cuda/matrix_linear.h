// y = activation(x W^T + b) + residual for many rows (vision, prefill), through cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"

namespace gapless::cuda {

// Row invariance: cuBLASLt's algorithms without split columns add up an output's products in the
// same order whatever their tiles are, so that the number of rows may choose among them. That was
// found by measuring (all candidates for all shapes of Moondream 2 gave the same bits), not
// promised by its manual: the test RowsDoNotDependOnTheNumberOfRows guards it. Algorithms of
// another kind than the shape's first choice for a typical number of rows are never used.
//
// A choice is made at the first use of a shape and a bucket of row counts, by asking cuBLASLt's
// heuristic (some 100 us of host time, nothing on the device); later calls neither allocate nor
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
  // in, out, stride of x, stride of y, stride of the residual, GELU, bias, residual, rows (a
  // bucket).
  using Key = std::tuple<int, int, std::int64_t, std::int64_t, std::int64_t, bool, bool, bool, int>;
  using Algorithms = std::vector<cublasLtMatmulAlgo_t>;

  MatrixLinear(cublasLtHandle_t handle, Buffer workspace, Buffer residual_copy)
      : handle_(handle),
        workspace_dev_(std::move(workspace)),
        residual_copy_dev_(std::move(residual_copy)) {}
  StatusOr<Algorithms> candidates(const LinearParams& params, int num_rows) const;
  StatusOr<cublasLtMatmulAlgo_t> algorithm_for(const LinearParams& params);
  Status run_aside(Stream& stream, const LinearParams& params);
  Status multiply(Stream& stream, const LinearParams& params);

  cublasLtHandle_t handle_;
  Buffer workspace_dev_;
  Buffer residual_copy_dev_;
  std::mutex mutex_;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace gapless::cuda
