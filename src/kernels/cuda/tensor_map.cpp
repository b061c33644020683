#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime.h>

#include "kernels/cuda/encode_tiled.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

// The driver's library is not linked: it is asked for through the runtime.
EncodeTiled ask_for_encode_tiled() {
  constexpr unsigned kCuda12 = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             kCuda12, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<EncodeTiled>(function);
}

}  // namespace

Status find_encode_tiled(EncodeTiled& to) {
  static const EncodeTiled encode_tiled = ask_for_encode_tiled();
  if (encode_tiled == nullptr) {
    return make_error(StatusCode::kUnavailable, "the CUDA driver has no cuTensorMapEncodeTiled");
  }
  to = encode_tiled;
  return ok_status();
}

StatusOr<CUtensorMap> make_tensor_map(const void* matrix, std::int64_t rows, std::int64_t columns,
                                      std::int64_t stride, int box_rows) {
  EncodeTiled encode = nullptr;
  GAPLESS_RETURN_IF_ERROR(find_encode_tiled(encode));
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides_bytes[1] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[2] = {kBoxColumns, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t element_strides[2] = {1, 1};
  const CUresult result = encode(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(matrix), sizes, strides_bytes,
      box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return make_error(StatusCode::kDeviceError,
                      "cuTensorMapEncodeTiled: error {} for a [{}, {}] matrix with row stride {}",
                      static_cast<int>(result), rows, columns, stride);
  }
  return map;
}

Status describe_boxes(CUtensorMap& to, const void* matrix, int rows, int columns,
                      std::int64_t stride, int box_rows) {
  GAPLESS_ASSIGN_OR_RETURN(to, make_tensor_map(matrix, rows, columns, stride, box_rows));
  return ok_status();
}

Status describe_boxes(PlainMatrix& to, const void* matrix, int rows, int columns,
                      std::int64_t stride, int /*box_rows*/) {
  to = {.data = matrix, .stride = stride, .rows = rows, .columns = columns};
  return ok_status();
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
