#include "kernels/cuda/matrix_linear.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace gapless::cuda {
namespace {

// The number of rows for which algorithms are chosen: between one prompt and a full launch of crops.
constexpr int kTypicalRows = 3072;
constexpr std::size_t kWorkspaceBytes = 32u << 20;
// Of every pointer and row; the strides of activations are multiples of 8 elements.
constexpr std::uint32_t kAlignment = 16;

Status lt_status(cublasStatus_t status, const char* call, const LinearParams& params) {
  if (status == CUBLAS_STATUS_SUCCESS) return ok_status();
  return make_error(StatusCode::kDeviceError, "{}: {} (linear, {} rows, {} -> {})", call,
                    cublasLtGetStatusName(status), params.num_rows, params.weights.in,
                    params.weights.out);
}

// cuBLASLt is column-major: it sees y^T [out, rows] = W [out, in] x^T [in, rows], so the weights are its
// A (transposed), x its B, and the bias runs along its columns. The structs live on the stack: the
// "init" calls allocate nothing.
struct Problem {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c, d;

  static StatusOr<Problem> describe(const LinearParams& params, int num_rows);
};

#define GAPLESS_LT_RETURN_IF_ERROR(call) \
  GAPLESS_RETURN_IF_ERROR(lt_status((call), #call, params))

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

  const std::int64_t c_stride =
      params.residual != nullptr ? params.residual_stride : params.y_stride;
  auto init = [](cublasLtMatrixLayoutOpaque_t& layout, std::int64_t rows, std::int64_t columns,
                 std::int64_t stride) {
    return cublasLtMatrixLayoutInit(&layout, CUDA_R_16BF, static_cast<std::uint64_t>(rows),
                                    static_cast<std::uint64_t>(columns), stride);
  };
  GAPLESS_LT_RETURN_IF_ERROR(init(problem.a, w.in, w.out, w.in));
  GAPLESS_LT_RETURN_IF_ERROR(init(problem.b, w.in, num_rows, params.x_stride));
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

// True when the algorithm adds up all columns of an output in one place.
bool keeps_columns_together(const cublasLtMatmulAlgo_t& algorithm) {
  std::int32_t split = 0;
  std::uint32_t reduction = 0;
  std::size_t written = 0;
  const bool read =
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                           sizeof(split), &written) == CUBLAS_STATUS_SUCCESS &&
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                           &reduction, sizeof(reduction),
                                           &written) == CUBLAS_STATUS_SUCCESS;
  return read && (split == 0 || split == 1) && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

}  // namespace

StatusOr<std::unique_ptr<MatrixLinear>> MatrixLinear::create(Device& device) {
  GAPLESS_ASSIGN_OR_RETURN(Buffer workspace, device.allocate(kWorkspaceBytes));
  cublasLtHandle_t handle = nullptr;
  const cublasStatus_t status = cublasLtCreate(&handle);
  if (status != CUBLAS_STATUS_SUCCESS) {
    return make_error(StatusCode::kDeviceError, "cublasLtCreate: {}",
                      cublasLtGetStatusName(status));
  }
  return std::unique_ptr<MatrixLinear>(new MatrixLinear(handle, std::move(workspace)));
}

MatrixLinear::~MatrixLinear() { cublasLtDestroy(handle_); }

bool MatrixLinear::supports(const LinearParams& params) {
  // The activation comes after the residual in cuBLASLt's epilogues, before it in ours; and its bias has
  // the type of y.
  const bool ends_in_order =
      params.residual == nullptr || params.activation == Activation::kNone;
  const auto is_aligned = [](const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
  };
  return params.y_dtype == DType::kBF16 && ends_in_order && params.weights.in % 8 == 0 &&
         params.weights.out % 8 == 0 && params.x_stride % 8 == 0 && params.y_stride % 8 == 0 &&
         params.residual_stride % 8 == 0 && is_aligned(params.x) && is_aligned(params.y) &&
         is_aligned(params.residual) && is_aligned(params.weights.bias);
}

StatusOr<cublasLtMatmulAlgo_t> MatrixLinear::algorithm_for(const LinearParams& params) {
  const bool gelu = params.activation == Activation::kGeluTanh;
  const Key key(params.weights.in, params.weights.out, params.x_stride, params.y_stride,
                params.residual != nullptr ? params.residual_stride : 0, gelu,
                params.weights.bias != nullptr, params.residual != nullptr);
  std::lock_guard<std::mutex> lock(mutex_);
  if (const auto found = algorithms_.find(key); found != algorithms_.end()) return found->second;

  GAPLESS_ASSIGN_OR_RETURN(Problem problem, Problem::describe(params, kTypicalRows));
  Preference preference;
  GAPLESS_RETURN_IF_ERROR(lt_status(cublasLtMatmulPreferenceCreate(&preference.handle),
                                    "cublasLtMatmulPreferenceCreate", params));
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return lt_status(cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &value,
                                                          sizeof(value)),
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

  constexpr int kMaxCandidates = 16;
  cublasLtMatmulHeuristicResult_t candidates[kMaxCandidates];
  int num_candidates = 0;
  GAPLESS_RETURN_IF_ERROR(lt_status(
      cublasLtMatmulAlgoGetHeuristic(handle_, &problem.operation, &problem.a, &problem.b,
                                     &problem.c, &problem.d, preference.handle, kMaxCandidates,
                                     candidates, &num_candidates),
      "cublasLtMatmulAlgoGetHeuristic", params));
  for (int i = 0; i < num_candidates; ++i) {
    if (candidates[i].state != CUBLAS_STATUS_SUCCESS) continue;
    if (!keeps_columns_together(candidates[i].algo)) continue;
    algorithms_.emplace(key, candidates[i].algo);
    return candidates[i].algo;
  }
  return make_error(StatusCode::kDeviceError, "cuBLASLt has no algorithm for linear {} -> {}",
                    params.weights.in, params.weights.out);
}

Status MatrixLinear::run(Stream& stream, const LinearParams& params) {
  if (params.num_rows == 0) return ok_status();
  LinearParams p = params;
  if (p.residual != nullptr && p.residual_rows < p.num_rows) {
    // A residual shared by several rows is laid out in y first.
    GAPLESS_RETURN_IF_ERROR(repeat_residual(stream, p));
    p.residual = p.y;
    p.residual_stride = p.y_stride;
    p.residual_rows = p.num_rows;
  }
  GAPLESS_ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t algorithm, algorithm_for(p));
  GAPLESS_ASSIGN_OR_RETURN(Problem problem, Problem::describe(p, p.num_rows));
  const float alpha = 1.0f, beta = p.residual != nullptr ? 1.0f : 0.0f;
  const void* c = p.residual != nullptr ? p.residual : p.y;
  return lt_status(
      cublasLtMatmul(handle_, &problem.operation, &alpha, p.weights.weight, &problem.a, p.x,
                     &problem.b, &beta, c, &problem.c, p.y, &problem.d, &algorithm,
                     workspace_.data(), workspace_.size_bytes(), native_stream(stream)),
      "cublasLtMatmul", p);
}

}  // namespace gapless::cuda
