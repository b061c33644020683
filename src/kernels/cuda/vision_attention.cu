// Full attention inside each crop. Keys and values are read where the qkv product left them.
#include <algorithm>

#include "kernels/cuda/device/flash_attention.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

// One block per multiprocessor. A head of 72 leaves registers for three groups; they take twice the
// keys at a time.
template <int kHeadDim>
using Shape =
    FlashShapeOfPath<kHeadDim,
                     FlashShape<kHeadDim, kHeadDim == 72 ? 3 : 4, kHeadDim == 72 ? 128 : 64>>;
template <int kHeadDim>
constexpr int kTileQueries = Shape<kHeadDim>::kGroups* kGroupQueries;

struct CropProblem {
  const Bf16* qkv;  // of this crop and head: q; k and v lie `width` and 2 `width` further
  Bf16* out;
  int width, seq_len, first_query;

  __device__ bool has_query(int i) const { return first_query + i < seq_len; }
  __device__ const Bf16* query(int i) const { return qkv + offset(first_query + i); }
  __device__ Bf16* output(int i) const { return out + std::int64_t{first_query + i} * width; }
  __device__ int num_visible(int) const { return seq_len; }
  __device__ int num_keys() const { return seq_len; }
  __device__ const Bf16* keys() const { return qkv + width; }
  __device__ const Bf16* values() const { return qkv + 2 * width; }
  __device__ std::int64_t offset(int t) const { return std::int64_t{t} * 3 * width; }
};

// Tiles of queries of one crop and head lie beside each other, so that blocks read the same keys
// and values at about the same time.
template <int kHeadDim>
struct CropWork {
  using Problem = CropProblem;
  const VisionAttentionParams& p;
  int tiles_per_head;

  __device__ int num_problems() const { return p.num_crops * p.num_heads * tiles_per_head; }
  __device__ Problem problem(int index) const {
    const int width = p.num_heads * kHeadDim;
    const int tile = index % tiles_per_head, head = index / tiles_per_head % p.num_heads;
    const std::int64_t first_token = std::int64_t{index / tiles_per_head / p.num_heads} * p.seq_len;
    return {static_cast<const Bf16*>(p.qkv) + first_token * 3 * width + head * kHeadDim,
            static_cast<Bf16*>(p.out) + first_token * width + head * kHeadDim, width, p.seq_len,
            tile * kTileQueries<kHeadDim>};
  }
};

template <int kHeadDim>
__global__ void __launch_bounds__(kFlashThreads<Shape<kHeadDim>>, 1)
    vision_attention_kernel(VisionAttentionParams p) {
  extern __shared__ __align__(1024) char raw_shared[];
  let_successor_start();
  const CropWork<kHeadDim> work{p,
                                (p.seq_len + kTileQueries<kHeadDim> - 1) / kTileQueries<kHeadDim>};
  flash_attention(work, *reinterpret_cast<FlashShared<Shape<kHeadDim>, CropProblem>*>(raw_shared));
}

template <int kHeadDim>
Status launch_for(Stream& stream, const VisionAttentionParams& params, int num_multiprocessors) {
  const unsigned problems = blocks_for(params.seq_len, kTileQueries<kHeadDim>) *
                            static_cast<unsigned>(params.num_heads * params.num_crops);
  const LaunchShape shape{
      .grid = dim3(std::min(problems, static_cast<unsigned>(num_multiprocessors))),
      .block = dim3(kFlashThreads<Shape<kHeadDim>>),
      .shared_bytes = sizeof(FlashShared<Shape<kHeadDim>, CropProblem>),
      .registers = FlashRegisters<Shape<kHeadDim>>::kExchanged};
  return launch("vision_attention", stream, shape, vision_attention_kernel<kHeadDim>, params);
}

}  // namespace

Status vision_attention(Stream& stream, const VisionAttentionParams& params,
                        int num_multiprocessors) {
  switch (params.head_dim) {
    case 32:
      return launch_for<32>(stream, params, num_multiprocessors);
    case 64:
      return launch_for<64>(stream, params, num_multiprocessors);
    case 72:
      return launch_for<72>(stream, params, num_multiprocessors);
    default:
      return Status(StatusCode::kInvalidArgument,
                    "vision_attention: the head size must be 32, 64 or 72");
  }
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
