// y = activation(x W^T + b) + residual for many rows (vision, prefill), through cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// Row invariance: cuBLASLt's algorithms without split columns add up an output's products in the
// same order whatever their tiles are, so that the number of rows may choose among them. That was
// found by measuring (all candidates for all shapes of Moondream 2 gave the same bits), not
// promised by its manual: the test RowsDoNotDependOnTheNumberOfRows guards it. Algorithms of
// another kind than the shape's first choice for a typical number of rows are never used.
//
// A choice is made by measuring, at start-up (tune), which also checks that the algorithms it
// compares give the same bits; or else at the first use of a shape and a bucket of row counts, by
// asking cuBLASLt's heuristic (some 100 us of host time, nothing on the device). Later calls
// neither allocate nor wait, and may be captured. Threads: any.
//
// Products in 8 bits are cuBLASLt's where it has them for this GPU. Elsewhere both sides are widened,
// which is exact: x a part of its rows at a time, and the weights lie in bfloat16 beside their 8-bit
// copy.
//
// All products share one workspace, in which some of cuBLASLt's algorithms count their tiles. So no two of
// them may run at once: not on two streams, and not in two branches of a graph (Stream::begin_branch).
// cuBLASLt empties such a counter by a fill before each product. In a graph each product counts in memory of its own, which
// the graph empties once, at its beginning (Stream::take_zeros).
class MatrixLinear {
 public:
  static StatusOr<std::unique_ptr<MatrixLinear>> create(Device& device);
  // Device memory that it takes at most: what it widens products for depends on the GPU and on cuBLASLt's release.
  static std::size_t device_bytes();
  ~MatrixLinear();
  MatrixLinear(const MatrixLinear&) = delete;
  MatrixLinear& operator=(const MatrixLinear&) = delete;

  // What cuBLASLt's epilogues can express. The rest is row_linear's.
  static bool supports(const LinearParams& params);

  Status run(Stream& stream, const LinearParams& params);

  // Kernels::tune_linear, for what supports() says.
  Status tune(Stream& stream, const LinearParams& params, std::span<const int> row_counts);

 private:
  static constexpr int kTypicalRows = 3072;
  // in, out, stride of x, stride of y, stride of the residual, GELU, bias, residual, 8 bits.
  using Shape =
      std::tuple<int, int, std::int64_t, std::int64_t, std::int64_t, bool, bool, bool, bool>;
  using Algorithms = std::vector<cublasLtMatmulAlgo_t>;
  // By number of rows: the next larger entry applies.
  using Choices = std::map<int, cublasLtMatmulAlgo_t>;

  MatrixLinear(Device& device, cublasLtHandle_t handle, Buffer workspace, Buffer counters,
               Buffer residual_copy)
      : device_(device),
        handle_(handle),
        workspace_dev_(std::move(workspace)),
        counters_dev_(std::move(counters)),
        residual_copy_dev_(std::move(residual_copy)) {}
  StatusOr<Algorithms> candidates(const LinearParams& params, int num_rows) const;
  static Shape shape_of(const LinearParams& params);
  // The shape's first choice, and what may stand in for it: of its kind, without split columns.
  // `typical`: the candidates for a typical number of rows.
  StatusOr<Algorithms> alternatives(const LinearParams& params, const Algorithms& typical) const;
  StatusOr<std::vector<float>> time_algorithms(Stream& stream, const LinearParams& trial,
                                               const Algorithms& algorithms) const;
  // Without measuring: the heuristic's first algorithm for each number of rows.
  Status take_first(const LinearParams& params, std::span<const int> row_counts);
  // Whether b may stand in for a, as far as its kind goes.
  static bool same_kind(const cublasLtMatmulAlgo_t& a, const cublasLtMatmulAlgo_t& b);
  // The heuristic's first algorithm of the first choice's kind, or that choice: few rows by many
  // columns have none in 8 bits but with split columns.
  cublasLtMatmulAlgo_t first_fitting(const LinearParams& params, int num_rows,
                                     const Algorithms& typical) const;
  StatusOr<cublasLtMatmulAlgo_t> algorithm_for(const LinearParams& params);
  Status run_aside(Stream& stream, const LinearParams& params);
  Status run_widened(Stream& stream, const LinearParams& params);
  // Whether cuBLASLt multiplies 8-bit numbers with a scale for each row here.
  bool find_fp8_products() const;
  Status multiply(Stream& stream, const LinearParams& params);
  Status multiply(Stream& stream, const LinearParams& params,
                  const cublasLtMatmulAlgo_t& algorithm) const;
  struct Workspace {
    void* data;
    std::size_t bytes;
  };
  // What an algorithm that says that it needs `needed_bytes` works in.
  Workspace workspace_for(Stream& stream, std::size_t needed_bytes) const;

  Device& device_;
  cublasLtHandle_t handle_;
  Buffer workspace_dev_;
  Buffer counters_dev_;  // of products in graphs
  Buffer residual_copy_dev_;
  // Rows of 8-bit numbers as bfloat16, where there are no products of them; else empty.
  Buffer widened_dev_;
  std::mutex mutex_;
  std::map<Shape, Choices> tuned_;
  std::map<Shape, Choices> guessed_;  // by bucket
};

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
