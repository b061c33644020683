// Full attention inside each crop. Keys and values are read where the qkv product left them.
#include <algorithm>

#include "kernels/cuda/device/flash_attention.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/encode_tiled.h"
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
                     FlashShape<kHeadDim, kHeadDim == 72 ? 3 : 4, kHeadDim == 72 ? 128 : 64, true>>;

// The matrix of q, k and v as [crop, token, part and head, column of the head].
struct CropMaps {
  CUtensorMap blocks, rest;
};

__device__ __forceinline__ void copy_crop_box(std::uint32_t to, const CUtensorMap* map, int column,
                                              int head, int token, int crop,
                                              std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(barrier), "r"(column), "r"(head), "r"(token),
      "r"(crop)
      : "memory");
}

// Tiles of queries: of the first heads of all crops as many as a block takes, of the others as few as let each have a block.
struct CropTiles {
  struct Size {
    int queries, per_head;
  };
  Size full, last;
  int full_heads;

  __host__ __device__ int num_problems(const VisionAttentionParams& p) const {
    return full_heads * full.per_head + (p.num_crops * p.num_heads - full_heads) * last.per_head;
  }
};

// A block takes full tiles as long as all blocks do. What is left would keep a few of them for as long as all of it did: in smaller
// tiles it keeps more blocks for less. A query's bits do not depend on its tile (flash_attention.cuh).
inline CropTiles tiles_of(const VisionAttentionParams& p, int most_groups, int num_blocks) {
  const auto size = [&](int groups) {
    const int queries = groups * kGroupQueries;
    return CropTiles::Size{.queries = queries, .per_head = (p.seq_len + queries - 1) / queries};
  };
  const int heads = p.num_crops * p.num_heads;
  CropTiles tiles = {.full = size(most_groups), .last = size(1), .full_heads = 0};
  const int rounds = heads * tiles.full.per_head / num_blocks;
  tiles.full_heads = rounds * num_blocks / tiles.full.per_head;
  const int left = heads - tiles.full_heads;
  for (int groups = 1; left * tiles.last.per_head > num_blocks && groups < most_groups;) {
    tiles.last = size(++groups);
  }
  return tiles;
}

struct CropProblem {
  const CropMaps* maps;
  int num_heads, head, crop;
  const Bf16* qkv;  // of this crop and head: q; k and v lie `width` and 2 `width` further
  Bf16* out;
  int width, seq_len, first_query, tile_queries;

  __device__ bool has_query(int i) const { return i < tile_queries && first_query + i < seq_len; }
  __device__ const Bf16* query(int i) const { return qkv + offset(first_query + i); }
  __device__ Bf16* output(int i) const { return out + std::int64_t{first_query + i} * width; }
  __device__ int num_visible(int) const { return seq_len; }
  __device__ int num_keys() const { return seq_len; }
  __device__ const Bf16* keys() const { return qkv + width; }
  __device__ const Bf16* values() const { return qkv + 2 * width; }
  __device__ std::int64_t offset(int t) const { return std::int64_t{t} * 3 * width; }
  template <bool kRest>
  __device__ void copy_box(std::uint32_t to, int part, int column, int token,
                           std::uint32_t barrier) const {
    copy_crop_box(to, kRest ? &maps->rest : &maps->blocks, column, part * num_heads + head, token,
                  crop, barrier);
  }
};

// Tiles of queries of one crop and head lie beside each other, so that blocks read the same keys
// and values at about the same time.
template <int kHeadDim>
struct CropWork {
  using Problem = CropProblem;
  const VisionAttentionParams& p;
  const CropMaps& maps;
  const CropTiles& tiles;

  __device__ int num_problems() const { return tiles.num_problems(p); }
  __device__ Problem problem(int index) const {
    const int width = p.num_heads * kHeadDim;
    const bool full = index < tiles.full_heads * tiles.full.per_head;
    const CropTiles::Size& size = full ? tiles.full : tiles.last;
    if (!full) index -= tiles.full_heads * tiles.full.per_head;
    const int of_all = index / size.per_head + (full ? 0 : tiles.full_heads);
    const int head = of_all % p.num_heads, crop = of_all / p.num_heads;
    const std::int64_t first_token = std::int64_t{crop} * p.seq_len;
    return {.maps = &maps,
            .num_heads = p.num_heads,
            .head = head,
            .crop = crop,
            .qkv = static_cast<const Bf16*>(p.qkv) + first_token * 3 * width + head * kHeadDim,
            .out = static_cast<Bf16*>(p.out) + first_token * width + head * kHeadDim,
            .width = width,
            .seq_len = p.seq_len,
            .first_query = index % size.per_head * size.queries,
            .tile_queries = size.queries};
  }
};

template <int kHeadDim>
__global__ void __launch_bounds__(kFlashThreads<Shape<kHeadDim>>, 1)
    vision_attention_kernel(VisionAttentionParams p, CropTiles tiles,
                            const __grid_constant__ CropMaps maps) {
  extern __shared__ __align__(1024) char raw_shared[];
  let_successor_start();
  const CropWork<kHeadDim> work{p, maps, tiles};
  flash_attention(work, *reinterpret_cast<FlashShared<Shape<kHeadDim>, CropProblem>*>(raw_shared));
}

// Nothing where nothing comes in boxes.
template <int kHeadDim>
Status make_maps(CropMaps& to, const VisionAttentionParams& p) {
  if constexpr (Shape<kHeadDim>::kInBoxes) {
    using Stage = FlashStage<Shape<kHeadDim>>;
    EncodeTiled encode = nullptr;
    GAPLESS_RETURN_IF_ERROR(find_encode_tiled(encode));
    constexpr cuuint64_t kHeadBytes = kHeadDim * sizeof(Bf16);
    const auto heads = 3 * static_cast<cuuint64_t>(p.num_heads);
    const auto tokens = static_cast<cuuint64_t>(p.seq_len);
    const cuuint64_t sizes[4] = {kHeadDim, heads, tokens, static_cast<cuuint64_t>(p.num_crops)};
    const cuuint64_t strides_bytes[3] = {kHeadBytes, heads * kHeadBytes,
                                         tokens * heads * kHeadBytes};
    const cuuint32_t element_strides[4] = {1, 1, 1, 1};
    for (const bool rest : {false, true}) {
      const cuuint32_t columns = rest ? kRestColumns : Stage::kBlockColumns;
      const cuuint32_t box[4] = {columns, 1, kBoxTokens, 1};
      const CUtensorMapSwizzle swizzle = columns == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                         : columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                         : CU_TENSOR_MAP_SWIZZLE_NONE;
      const CUresult result =
          encode(rest ? &to.rest : &to.blocks, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4,
                 const_cast<void*>(p.qkv), sizes, strides_bytes, box, element_strides,
                 CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
      if (result != CUDA_SUCCESS) {
        return make_error(StatusCode::kDeviceError,
                          "vision_attention: cuTensorMapEncodeTiled: error {}",
                          static_cast<int>(result));
      }
    }
  }
  return ok_status();
}

template <int kHeadDim>
Status launch_for(Stream& stream, const VisionAttentionParams& params, int num_multiprocessors) {
  if (params.num_crops == 0) return ok_status();
  const CropTiles tiles = tiles_of(params, Shape<kHeadDim>::kGroups, num_multiprocessors);
  const LaunchShape shape{
      .grid =
          dim3(static_cast<unsigned>(std::min(tiles.num_problems(params), num_multiprocessors))),
      .block = dim3(kFlashThreads<Shape<kHeadDim>>),
      .shared_bytes = sizeof(FlashShared<Shape<kHeadDim>, CropProblem>),
      .registers = FlashRegisters<Shape<kHeadDim>>::kExchanged};
  CropMaps maps = {};
  GAPLESS_RETURN_IF_ERROR(make_maps<kHeadDim>(maps, params));
  return launch("vision_attention", stream, shape, vision_attention_kernel<kHeadDim>, params, tiles,
                maps);
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
