#include "kernels/cuda/expert_map.h"

#include "kernels/cuda/encode_tiled.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

StatusOr<CUtensorMap> make_expert_map(const void* weights, int element_bytes, int num_experts,
                                      int out, int in, int parts, int box_rows) {
  EncodeTiled encode = nullptr;
  GAPLESS_RETURN_IF_ERROR(find_encode_tiled(encode));
  constexpr cuuint32_t kEight = 8, kBoxBytes = 128;  // of a box's row
  const auto num_parts = static_cast<cuuint32_t>(parts);
  const auto row_bytes = static_cast<cuuint64_t>(in) * static_cast<cuuint64_t>(element_bytes);
  const cuuint64_t part_rows = static_cast<cuuint64_t>(out) / num_parts;
  CUtensorMap map;
  const cuuint64_t sizes[5] = {static_cast<cuuint64_t>(in), kEight, num_parts, part_rows / kEight,
                               static_cast<cuuint64_t>(num_experts)};
  const cuuint64_t strides_bytes[4] = {row_bytes, part_rows * row_bytes, kEight * row_bytes,
                                       static_cast<cuuint64_t>(out) * row_bytes};
  const cuuint32_t box[5] = {kBoxBytes / static_cast<cuuint32_t>(element_bytes), kEight, num_parts,
                             static_cast<cuuint32_t>(box_rows) / num_parts / kEight, 1};
  const cuuint32_t element_strides[5] = {1, 1, 1, 1, 1};
  const bool is_byte = element_bytes == 1;
  const CUresult result =
      encode(&map, is_byte ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5,
             const_cast<void*>(weights), sizes, strides_bytes, box, element_strides,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return make_error(StatusCode::kDeviceError,
                      "cuTensorMapEncodeTiled: error {} for {} experts' [{}, {}] matrices",
                      static_cast<int>(result), num_experts, out, in);
  }
  return map;
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
