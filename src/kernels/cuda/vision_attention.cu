// Full attention inside each crop. Keys and values are read where the qkv product left them.
#include "kernels/cuda/device/flash_attention.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace gapless::cuda {
namespace {

struct CropProblem {
  const Bf16* qkv;  // of this crop and head: q; k and v lie `width` and 2 `width` further
  Bf16* out;
  int width, seq_len, first_query;

  __device__ bool has_query(int i) const { return first_query + i < seq_len; }
  __device__ const Bf16* token(int t) const { return qkv + std::int64_t{t} * 3 * width; }
  __device__ const Bf16* query(int i) const { return token(first_query + i); }
  __device__ Bf16* output(int i) const { return out + std::int64_t{first_query + i} * width; }
  __device__ int num_visible(int i) const { return has_query(i) ? seq_len : 0; }
  __device__ int num_keys() const { return seq_len; }
  __device__ const Bf16* key(int t) const { return token(t) + width; }
  __device__ const Bf16* value(int t) const { return token(t) + 2 * width; }
};

template <int kHeadDim>
__global__ void __launch_bounds__(kFlashThreads, 2)
    vision_attention_kernel(VisionAttentionParams p) {
  extern __shared__ __align__(16) char raw_shared[];
  let_successor_start();
  wait_for_predecessor();
  const int width = p.num_heads * kHeadDim;
  const std::int64_t first_token = std::int64_t{blockIdx.z} * p.seq_len;
  const int in_row = blockIdx.y * kHeadDim;
  const CropProblem problem{static_cast<const Bf16*>(p.qkv) + first_token * 3 * width + in_row,
                            static_cast<Bf16*>(p.out) + first_token * width + in_row, width,
                            p.seq_len, static_cast<int>(blockIdx.x) * kFlashQueries};
  flash_attention<kHeadDim>(problem, *reinterpret_cast<FlashShared<kHeadDim>*>(raw_shared));
}

template <int kHeadDim>
Status launch_for(Stream& stream, const VisionAttentionParams& params) {
  const LaunchShape shape{.grid = dim3(blocks_for(params.seq_len, kFlashQueries),
                                       static_cast<unsigned>(params.num_heads),
                                       static_cast<unsigned>(params.num_crops)),
                          .block = dim3(kFlashThreads),
                          .shared_bytes = sizeof(FlashShared<kHeadDim>)};
  return launch("vision_attention", stream, shape, vision_attention_kernel<kHeadDim>, params);
}

}  // namespace

Status vision_attention(Stream& stream, const VisionAttentionParams& params) {
  switch (params.head_dim) {
    case 32:
      return launch_for<32>(stream, params);
    case 64:
      return launch_for<64>(stream, params);
    case 72:
      return launch_for<72>(stream, params);
    default:
      return Status(StatusCode::kInvalidArgument,
                    "vision_attention: the head size must be 32, 64 or 72");
  }
}

}  // namespace gapless::cuda
