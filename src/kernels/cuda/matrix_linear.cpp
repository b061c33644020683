#include "kernels/cuda/matrix_linear.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

// Of each product in a graph, a cache line and more. A model's prefill has four products a layer and a few others.
constexpr std::size_t kCounterBytes = 256;
constexpr std::size_t kAllCountersBytes = 512 * kCounterBytes;
constexpr std::size_t kWorkspaceBytes = (32u << 20) - kAllCountersBytes;
// Of the rows that run_aside() multiplies at a time: 13 crops of Moondream 2, 6,144 tokens of prompts.
constexpr std::size_t kResidualCopyBytes = 24u << 20;
// Of those that are widened.
constexpr std::size_t kWidenedBytes = 8u << 20;
// Algorithms are chosen for these numbers of rows, the next one above the actual number.
constexpr int kRowBuckets[] = {64,   128,  256,  384,  512,  768,  1024,
                               1536, 2048, 3072, 4096, 6144, 8192, 10240};
// Of every pointer and row; the strides of activations are multiples of 8 elements.
constexpr std::uint32_t kAlignment = 16;

Status lt_status(cublasStatus_t status, const char* call, const LinearParams& params) {
  if (status == CUBLAS_STATUS_SUCCESS) return ok_status();
  return make_error(StatusCode::kDeviceError, "{}: {} (linear, {} rows, {} -> {})", call,
                    cublasLtGetStatusName(status), params.num_rows, params.weights.in,
                    params.weights.out);
}

// cuBLASLt is column-major: it sees y^T [out, rows] = W [out, in] x^T [in, rows], so the weights
// are its A (transposed), x its B, and the bias runs along its columns. The structs live on the
// stack: the "init" calls allocate nothing.
struct Problem {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c, d;

  static StatusOr<Problem> describe(const LinearParams& params, int num_rows);
};

#define GAPLESS_LT_RETURN_IF_ERROR(call) GAPLESS_RETURN_IF_ERROR(lt_status((call), #call, params))

StatusOr<Problem> Problem::describe(const LinearParams& params, int num_rows) {
  const LinearWeights& w = params.weights;
  Problem problem;
  GAPLESS_LT_RETURN_IF_ERROR(
      cublasLtMatmulDescInit(&problem.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    return cublasLtMatmulDescSetAttribute(&problem.operation, attribute, &value, sizeof(value));
  };
  const cublasOperation_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N;
  GAPLESS_LT_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, transposed));
  GAPLESS_LT_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSB, plain));

  const bool gelu = params.activation == Activation::kGeluTanh;  // cuBLASLt's GELU is the tanh form
  const cublasLtEpilogue_t epilogue =
      w.bias != nullptr ? (gelu ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_BIAS)
                        : (gelu ? CUBLASLT_EPILOGUE_GELU : CUBLASLT_EPILOGUE_DEFAULT);
  GAPLESS_LT_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
  if (w.bias != nullptr) {
    GAPLESS_LT_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, w.bias));
  }

  const bool is_fp8 = params.x_scales != nullptr;
  if (is_fp8) {
    // Row i of W times its scale, row j of x times its own.
    const cublasLtMatmulMatrixScale_t per_row = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    GAPLESS_LT_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, per_row));
    GAPLESS_LT_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, per_row));
    GAPLESS_LT_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w.fp8_scales));
    GAPLESS_LT_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, params.x_scales));
    // Sums stay in the matrix units' accumulators: 10 to 30 % faster, and the difference drowns in
    // the rounding of y.
    const std::int8_t fast = 1;
    GAPLESS_LT_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast));
  }

  const std::int64_t c_stride =
      params.residual != nullptr ? params.residual_stride : params.y_stride;
  const cudaDataType_t input_type = is_fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
  auto init = [](cublasLtMatrixLayoutOpaque_t& layout, std::int64_t rows, std::int64_t columns,
                 std::int64_t stride, cudaDataType_t type = CUDA_R_16BF) {
    return cublasLtMatrixLayoutInit(&layout, type, static_cast<std::uint64_t>(rows),
                                    static_cast<std::uint64_t>(columns), stride);
  };
  GAPLESS_LT_RETURN_IF_ERROR(init(problem.a, w.in, w.out, w.in, input_type));
  GAPLESS_LT_RETURN_IF_ERROR(init(problem.b, w.in, num_rows, params.x_stride, input_type));
  GAPLESS_LT_RETURN_IF_ERROR(init(problem.c, w.out, num_rows, c_stride));
  GAPLESS_LT_RETURN_IF_ERROR(init(problem.d, w.out, num_rows, params.y_stride));
  return problem;
}

#undef GAPLESS_LT_RETURN_IF_ERROR

struct Preference {
  cublasLtMatmulPreference_t handle = nullptr;
  ~Preference() {
    if (handle != nullptr) cublasLtMatmulPreferenceDestroy(handle);
  }
};

template <typename T>
T attribute_of(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name,
               T fallback) {
  T value{};
  std::size_t written = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, name, &value, sizeof(value), &written);
  return status == CUBLAS_STATUS_SUCCESS ? value : fallback;
}

// Adds up all columns of an output in one place.
bool keeps_columns_together(const cublasLtMatmulAlgo_t& algorithm) {
  const auto split = attribute_of<std::int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 2);
  const auto reduction = attribute_of<std::uint32_t>(
      algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_REDUCTION_SCHEME_MASK);
  return split <= 1 && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status == cudaStreamCaptureStatusActive;
}

int bucket_of(int num_rows) {
  for (const int bucket : kRowBuckets) {
    if (num_rows <= bucket) return bucket;
  }
  return kRowBuckets[std::size(kRowBuckets) - 1];
}

}  // namespace

std::size_t MatrixLinear::device_bytes() {
  return kWorkspaceBytes + kAllCountersBytes + kResidualCopyBytes + kWidenedBytes;
}

StatusOr<std::unique_ptr<MatrixLinear>> MatrixLinear::create(Device& device) {
  GAPLESS_ASSIGN_OR_RETURN(Buffer workspace, device.allocate(kWorkspaceBytes));
  GAPLESS_ASSIGN_OR_RETURN(Buffer counters, device.allocate(kAllCountersBytes));
  GAPLESS_ASSIGN_OR_RETURN(Buffer residual_copy, device.allocate(kResidualCopyBytes));
  cublasLtHandle_t handle = nullptr;
  const cublasStatus_t status = cublasLtCreate(&handle);
  if (status != CUBLAS_STATUS_SUCCESS) {
    return make_error(StatusCode::kDeviceError, "cublasLtCreate: {}",
                      cublasLtGetStatusName(status));
  }
  std::unique_ptr<MatrixLinear> linear(new MatrixLinear(
      device, handle, std::move(workspace), std::move(counters), std::move(residual_copy)));
  if (!linear->find_fp8_products()) {
    GAPLESS_ASSIGN_OR_RETURN(linear->widened_dev_, device.allocate(kWidenedBytes));
  }
  return linear;
}

// 9.0 has them; what others have depends on cuBLASLt's release, so it is asked for a typical one.
bool MatrixLinear::find_fp8_products() const {
  if constexpr (kPath.has_warpgroups) return true;
  if (!kPath.has_fp8) return false;
  constexpr int kWidth = 2048;
  LinearParams typical;
  typical.x = typical.weights.fp8 = workspace_dev_.data();
  typical.x_scales = typical.weights.fp8_scales = workspace_dev_.as<float>();
  typical.y = residual_copy_dev_.data();
  typical.weights.in = typical.weights.out = kWidth;
  typical.x_stride = typical.y_stride = kWidth;
  typical.num_rows = kTypicalRows;
  return candidates(typical, kTypicalRows).ok();
}

MatrixLinear::~MatrixLinear() {
  cublasLtDestroy(handle_);
}

bool MatrixLinear::supports(const LinearParams& params) {
  // The activation comes after the residual in cuBLASLt's epilogues, before it in ours; and its
  // bias has the type of y.
  const bool ends_in_order = params.residual == nullptr || params.activation == Activation::kNone;
  const auto is_aligned = [](const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
  };
  if (params.x_scales != nullptr &&
      (params.weights.in % 16 != 0 || params.x_stride % 16 != 0 || !is_aligned(params.x_scales) ||
       params.weights.fp8 == nullptr || params.weights.fp8_scales == nullptr)) {
    return false;
  }
  return params.y_dtype == DType::kBF16 && ends_in_order && params.weights.in % 8 == 0 &&
         params.weights.out % 8 == 0 && params.x_stride % 8 == 0 && params.y_stride % 8 == 0 &&
         params.residual_stride % 8 == 0 && params.activation_begin == 0 &&
         params.weights.weight != nullptr && is_aligned(params.x) && is_aligned(params.y) &&
         is_aligned(params.residual) && is_aligned(params.weights.bias);
}

StatusOr<MatrixLinear::Algorithms> MatrixLinear::candidates(const LinearParams& params,
                                                            int num_rows) const {
  GAPLESS_ASSIGN_OR_RETURN(Problem problem, Problem::describe(params, num_rows));
  Preference preference;
  GAPLESS_RETURN_IF_ERROR(lt_status(cublasLtMatmulPreferenceCreate(&preference.handle),
                                    "cublasLtMatmulPreferenceCreate", params));
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return lt_status(
        cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute", params);
  };
  const std::uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  GAPLESS_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, no_reduction));
  GAPLESS_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    GAPLESS_RETURN_IF_ERROR(prefer(attribute, kAlignment));
  }

  constexpr int kMaxCandidates = 32;
  cublasLtMatmulHeuristicResult_t found[kMaxCandidates];
  int num_found = 0;
  GAPLESS_RETURN_IF_ERROR(
      lt_status(cublasLtMatmulAlgoGetHeuristic(handle_, &problem.operation, &problem.a, &problem.b,
                                               &problem.c, &problem.d, preference.handle,
                                               kMaxCandidates, found, &num_found),
                "cublasLtMatmulAlgoGetHeuristic", params));
  Algorithms algorithms;
  for (int i = 0; i < num_found; ++i) {
    if (found[i].state == CUBLAS_STATUS_SUCCESS && keeps_columns_together(found[i].algo)) {
      algorithms.push_back(found[i].algo);
    }
  }
  if (!algorithms.empty()) return algorithms;
  return make_error(StatusCode::kDeviceError, "cuBLASLt has no algorithm for linear {} -> {}",
                    params.weights.in, params.weights.out);
}

bool MatrixLinear::same_kind(const cublasLtMatmulAlgo_t& a, const cublasLtMatmulAlgo_t& b) {
  return attribute_of<std::int32_t>(a, CUBLASLT_ALGO_CONFIG_ID, -1) ==
         attribute_of<std::int32_t>(b, CUBLASLT_ALGO_CONFIG_ID, -2);
}

MatrixLinear::Shape MatrixLinear::shape_of(const LinearParams& params) {
  return {params.weights.in,
          params.weights.out,
          params.x_stride,
          params.y_stride,
          params.residual != nullptr ? params.residual_stride : 0,
          params.activation == Activation::kGeluTanh,
          params.weights.bias != nullptr,
          params.residual != nullptr,
          params.x_scales != nullptr};
}

StatusOr<MatrixLinear::Algorithms> MatrixLinear::alternatives(const LinearParams& params,
                                                              const Algorithms& typical) const {
  GAPLESS_ASSIGN_OR_RETURN(const Algorithms fitting, candidates(params, params.num_rows));
  Algorithms result{typical[0]};
  for (const Algorithms* list : {&fitting, &typical}) {
    for (const cublasLtMatmulAlgo_t& algorithm : *list) {
      const bool is_known = std::any_of(result.begin(), result.end(), [&](const auto& known) {
        return std::memcmp(&known, &algorithm, sizeof(algorithm)) == 0;
      });
      if (!is_known && same_kind(algorithm, typical[0])) result.push_back(algorithm);
    }
  }
  return result;
}

StatusOr<cublasLtMatmulAlgo_t> MatrixLinear::algorithm_for(const LinearParams& params) {
  const Shape shape = shape_of(params);
  std::lock_guard<std::mutex> lock(mutex_);
  if (const auto choices = tuned_.find(shape); choices != tuned_.end()) {
    const auto found = choices->second.lower_bound(params.num_rows);
    if (found != choices->second.end()) return found->second;
  }
  const int bucket = bucket_of(params.num_rows);
  Choices& guesses = guessed_[shape];
  if (const auto found = guesses.find(bucket); found != guesses.end()) return found->second;

  GAPLESS_ASSIGN_OR_RETURN(const Algorithms typical, candidates(params, kTypicalRows));
  const cublasLtMatmulAlgo_t chosen = first_fitting(params, bucket, typical);
  guesses.emplace(bucket, chosen);
  return chosen;
}

cublasLtMatmulAlgo_t MatrixLinear::first_fitting(const LinearParams& params, int num_rows,
                                                 const Algorithms& typical) const {
  const StatusOr<Algorithms> fitting = candidates(params, num_rows);
  if (!fitting.ok()) return typical[0];
  for (const cublasLtMatmulAlgo_t& algorithm : *fitting) {
    if (same_kind(algorithm, typical[0])) return algorithm;
  }
  return typical[0];
}

Status MatrixLinear::run(Stream& stream, const LinearParams& params) {
  // cuBLASLt asks the current device which algorithms there are.
  (void)native_stream(stream);
  if (params.num_rows == 0) return ok_status();
  if (params.x_scales != nullptr && widened_dev_.data() != nullptr) {
    return run_widened(stream, params);
  }
  if (params.residual == nullptr) return multiply(stream, params);
  if (params.residual == params.y) return run_aside(stream, params);
  if (params.residual_rows >= params.num_rows) return multiply(stream, params);
  return run_aside(stream, params);
}

// The residual is laid out beside y first, some rows at a time: one that several rows share because
// cuBLASLt knows no such thing; one that is y itself because cuBLASLt then rounds the product
// before it adds the residual: two roundings, and other bits than with a separate output.
Status MatrixLinear::run_aside(Stream& stream, const LinearParams& params) {
  const std::size_t row_bytes = static_cast<std::size_t>(params.weights.out) * 2;
  // Whole vectors of the rows' scales, so that each part's lie on 16 bytes.
  const auto rows_at_once = static_cast<int>(std::min<std::size_t>(
      static_cast<std::size_t>(params.num_rows), kResidualCopyBytes / row_bytes / 4 * 4));
  if (rows_at_once == 0) {
    return invalid_argument("linear: {} columns are too many", params.weights.out);
  }
  for (int first = 0; first < params.num_rows; first += rows_at_once) {
    LinearParams part = params;
    part.num_rows = std::min(rows_at_once, params.num_rows - first);
    const bool is_fp8 = params.x_scales != nullptr;
    part.x = static_cast<const char*>(params.x) + first * params.x_stride * (is_fp8 ? 1 : 2);
    if (is_fp8) part.x_scales = params.x_scales + first;
    part.y = static_cast<char*>(params.y) + first * params.y_stride * 2;
    GAPLESS_RETURN_IF_ERROR(
        copy_residual(stream, params, first, part.num_rows, residual_copy_dev_.data()));
    part.residual = residual_copy_dev_.data();
    part.residual_stride = part.weights.out;
    part.residual_rows = part.num_rows;
    GAPLESS_RETURN_IF_ERROR(multiply(stream, part));
  }
  return ok_status();
}

Status MatrixLinear::run_widened(Stream& stream, const LinearParams& params) {
  const std::size_t row_bytes = static_cast<std::size_t>(params.weights.in) * 2;
  auto rows_at_once = static_cast<int>(
      std::min<std::size_t>(static_cast<std::size_t>(params.num_rows), kWidenedBytes / row_bytes));
  // A residual that several rows share begins anew with each part.
  const bool shares = params.residual != nullptr && params.residual_rows < params.num_rows;
  if (shares) rows_at_once = rows_at_once / params.residual_rows * params.residual_rows;
  if (rows_at_once == 0) {
    return invalid_argument("linear: {} columns are too many", params.weights.in);
  }
  for (int first = 0; first < params.num_rows; first += rows_at_once) {
    LinearParams part = params;
    part.num_rows = std::min(rows_at_once, params.num_rows - first);
    GAPLESS_RETURN_IF_ERROR(
        widen_fp8_rows(stream, params, first, part.num_rows, widened_dev_.data()));
    part.x = widened_dev_.data();
    part.x_stride = params.weights.in;
    part.x_scales = nullptr;
    part.y = static_cast<char*>(params.y) + first * params.y_stride * 2;
    if (params.residual != nullptr && !shares) {
      part.residual =
          static_cast<const char*>(params.residual) + first * params.residual_stride * 2;
      part.residual_rows = part.num_rows;
    }
    GAPLESS_RETURN_IF_ERROR(run(stream, part));
  }
  return ok_status();
}

Status MatrixLinear::multiply(Stream& stream, const LinearParams& params) {
  GAPLESS_ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t algorithm, algorithm_for(params));
  return multiply(stream, params, algorithm);
}

MatrixLinear::Workspace MatrixLinear::workspace_for(Stream& stream,
                                                    std::size_t needed_bytes) const {
  if (needed_bytes > 0 && needed_bytes <= kCounterBytes) {
    if (void* const counter = stream.take_zeros(counters_dev_, kCounterBytes); counter != nullptr) {
      return {counter, kCounterBytes};
    }
  }
  return {workspace_dev_.data(), workspace_dev_.size_bytes()};
}

Status MatrixLinear::multiply(Stream& stream, const LinearParams& p,
                              const cublasLtMatmulAlgo_t& algorithm) const {
  GAPLESS_ASSIGN_OR_RETURN(Problem problem, Problem::describe(p, p.num_rows));
  const float alpha = 1.0f, beta = p.residual != nullptr ? 1.0f : 0.0f;
  const void* c = p.residual != nullptr ? p.residual : p.y;
  const void* weight = p.x_scales != nullptr ? p.weights.fp8 : p.weights.weight;
  // Asked for in captures alone: elsewhere nobody takes zeros. What cuBLASLt does not know is the matter of the call below.
  std::size_t needed_bytes = 0;
  if (is_captured(native_stream(stream))) {
    cublasLtMatmulHeuristicResult_t checked = {};
    const cublasStatus_t known =
        cublasLtMatmulAlgoCheck(handle_, &problem.operation, &problem.a, &problem.b, &problem.c,
                                &problem.d, &algorithm, &checked);
    if (known == CUBLAS_STATUS_SUCCESS) needed_bytes = checked.workspaceSize;
  }
  const Workspace workspace = workspace_for(stream, needed_bytes);
  return lt_status(cublasLtMatmul(handle_, &problem.operation, &alpha, weight, &problem.a, p.x,
                                  &problem.b, &beta, c, &problem.c, p.y, &problem.d, &algorithm,
                                  workspace.data, workspace.bytes, native_stream(stream)),
                   "cublasLtMatmul", p);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
