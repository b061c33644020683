// Keys and values on their way into the products of flash_attention.cuh: stages in shared memory,
// and the warps that fill them.
//
// The producing warps take turns, a tile each: a warp asks for all of its tile, waits until it is
// there, and says so; meanwhile the others ask for theirs. It waits itself because what copies
// wrote needs a fence before products read it, and the fence belongs to who wrote. So the warps
// that compute neither copy nor fence.
//
// In a stage a key's elements are rows of 128 bytes (a head of 32: 64), in blocks of 64 (32)
// columns of all keys of the tile, swizzled (wgmma.cuh). A copy of neighbouring elements of one key
// is then written at once; in 16-byte pieces that lie apart, shared memory would take each piece by
// itself. Eight columns that are left over (a head of 72) are such pieces, in a plane of their own.
//
// Keys and values that are e4m3 in memory become bfloat16 on their way.
//
// Or the copy engine brings all of it in boxes, queries too (FlashShape::kInBoxes): one thread asks for
// tiles, another for queries, and neither waits for what it asked for. Left-over columns are boxes of
// their own, planes too.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/kv_element.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/warp_count.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace gapless {

inline constexpr int kProducers = 4;  // warps
template <typename Shape>
inline constexpr int kFlashWarps = Shape::kGroups * 4 + kProducers;

// Groups: computing warpgroups. KeyTile: keys of a tile, a multiple of 32; with wgmma of 64. InBoxes: only with wgmma.
template <int HeadDim, int Groups, int KeyTile, bool InBoxes = false>
struct FlashShape {
  static constexpr bool kInBoxes = InBoxes;
  static constexpr int kHeadDim = HeadDim;
  static constexpr int kGroups = Groups;
  static constexpr int kKeyTile = KeyTile;
};

inline constexpr int kGroupQueries = 64;
inline constexpr int kBoxTokens = 64;
inline constexpr int kRestColumns = 8;

// Where things lie in a stage.
template <typename Shape>
struct FlashStage {
  static constexpr int kKeyTile = Shape::kKeyTile;
  static constexpr int kBlockColumns = Shape::kHeadDim < 64 ? 32 : 64;
  static constexpr int kRowBytes = kBlockColumns * 2;
  static constexpr int kBlocks = Shape::kHeadDim / kBlockColumns;
  static constexpr int kBlockBytes = kKeyTile * kRowBytes;
  static constexpr int kPlaneBytes = kKeyTile * 16;
  static constexpr bool kHasRest = Shape::kHeadDim % kBlockColumns != 0;
  static_assert(!kHasRest || Shape::kHeadDim % kBlockColumns == 8);

  static constexpr int kKeys = 0;
  static constexpr int kValues = kBlocks * kBlockBytes;
  // The left-over columns; behind those of keys a plane of zeros completes the last product.
  static constexpr int kKeyRest = 2 * kValues;
  static constexpr int kValueRest = kKeyRest + (kHasRest ? 2 * kPlaneBytes : 0);
  static constexpr int kBytes = kValueRest + (kHasRest ? kPlaneBytes : 0);
  // What is copied, and not zeros.
  static constexpr int kCopiedBytes = kBytes - (kHasRest ? kPlaneBytes : 0);
  static_assert(kBytes % 1024 == 0);
};

// Where a group's queries lie that come in boxes.
template <typename Shape>
struct FlashQueries {
  using Stage = FlashStage<Shape>;
  static constexpr int kBlockBytes = kGroupQueries * Stage::kRowBytes;
  static constexpr int kPlaneBytes = kGroupQueries * 16;
  // A plane, and one of zeros.
  static constexpr int kRest = Stage::kBlocks * kBlockBytes;
  static constexpr int kZeros = kRest + kPlaneBytes;
  static constexpr int kBytes = kRest + (Stage::kHasRest ? 2 * kPlaneBytes : 0);
  static constexpr int kCopiedBytes = kBytes - (Stage::kHasRest ? kPlaneBytes : 0);
  static_assert(kBytes % 1024 == 0);
};

// One block's; Problem: flash_attention.cuh. It begins at a multiple of 1024 bytes.
template <typename Shape, typename Problem>
struct FlashShared {
  using Stage = FlashStage<Shape>;
  static constexpr bool kInBoxes = Shape::kInBoxes;
  static constexpr int kStageBudget =
      cuda::kPath.has_warpgroups ? 200 << 10 : cuda::kSmallestSharedBytes - (8 << 10);
  // Of a producer that waits for its tile: two where they fit.
  static constexpr int kOwnStages = 2 * kProducers * Stage::kBytes <= kStageBudget ? 2 : 1;
  static constexpr int kFittingStages = kStageBudget / Stage::kBytes;
  static constexpr int kStages = !kInBoxes            ? kProducers * kOwnStages
                                 : kFittingStages < 4 ? kFittingStages
                                                      : 4;
  static_assert(kStages * Stage::kBytes <= kStageBudget);
  static constexpr int kProblems = 32;

  alignas(1024) char stages[kStages][Stage::kBytes];
  char queries[kInBoxes ? Shape::kGroups : 1][kInBoxes ? FlashQueries<Shape>::kBytes : 16];
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
  std::uint64_t queries_full[Shape::kGroups];  // these two: in boxes
  std::uint64_t queries_empty[Shape::kGroups];
  alignas(16) Problem problems[kProblems];  // of the block, the next ones
  // Of each warp: the first of these, and how many there are.
  using Counts = WarpCounts<kFlashWarps<Shape>, 2>;
  using FirstProblem = typename Counts::template Count<0>;
  using NumProblems = typename Counts::template Count<1>;
  Counts counts;

  // The whole block.
  __device__ void start() {
    if (threadIdx.x < kStages) {
      init_barrier(shared_address(&full[threadIdx.x]), kInBoxes ? 1 : kWarp);
      init_barrier(shared_address(&empty[threadIdx.x]), Shape::kGroups * 4);
    }
    if (kInBoxes && threadIdx.x < Shape::kGroups) {
      init_barrier(shared_address(&queries_full[threadIdx.x]), 1);
      init_barrier(shared_address(&queries_empty[threadIdx.x]), 4);
    }
    if constexpr (kInBoxes) fence_barrier_init();
    if constexpr (Stage::kHasRest) {
      if constexpr (kInBoxes) {
        for (int i = threadIdx.x; i < Shape::kGroups * kGroupQueries; i += blockDim.x) {
          char* zeros = queries[i / kGroupQueries] + FlashQueries<Shape>::kZeros;
          reinterpret_cast<uint4*>(zeros)[i % kGroupQueries] = uint4{};
        }
      }
      for (int i = threadIdx.x; i < kStages * Shape::kKeyTile; i += blockDim.x) {
        char* zeros = stages[i / Shape::kKeyTile] + Stage::kKeyRest + Stage::kPlaneBytes;
        reinterpret_cast<uint4*>(zeros)[i % Shape::kKeyTile] = uint4{};
      }
      publish_shared_to_engines();
    }
    __syncthreads();
  }
};

template <typename Shape, typename Problem>
__device__ __forceinline__ int num_key_tiles(const Problem& problem) {
  return uniform((problem.num_keys() + Shape::kKeyTile - 1) / Shape::kKeyTile);
}

// One producing warp.
template <typename Shape, typename Problem>
class TileProducer {
  using Shared = FlashShared<Shape, Problem>;
  using Stage = FlashStage<Shape>;
  using Element = std::remove_cvref_t<decltype(*std::declval<Problem>().keys())>;
  static constexpr int kKeyTile = Shape::kKeyTile;
  // Neighbouring lanes take neighbouring chunks (16 bytes in a stage) of a key's row.
  static constexpr int kRowChunks = Stage::kRowBytes / 16;
  static constexpr int kKeysAtOnce = kWarp / kRowChunks;

 public:
  __device__ TileProducer(Shared& shared, int producer)
      : shared_(shared), producer_(producer), tile_(producer) {}

  // All tiles of the listed problems that are this warp's.
  __device__ void run(const typename Shared::NumProblems& num_problems) {
    for (int i = 0; i < num_problems.get(); ++i) {
      const Problem& problem = shared_.problems[i];
      const int num_tiles = num_key_tiles<Shape>(problem);
      for (; tile_ < num_tiles; tile_ += kProducers) fill(problem, tile_ * kKeyTile);
      tile_ -= num_tiles;
    }
  }

 private:
  // The next of its stages.
  __device__ void fill(const Problem& problem, int first_key) {
    constexpr unsigned kOwnStages = Shared::kOwnStages;
    const unsigned stage = turn_ % kOwnStages * kProducers + producer_;
    wait_barrier(shared_address(&shared_.empty[stage]), (turn_ / kOwnStages & 1) ^ 1);
    ++turn_;
    const std::uint32_t to = shared_address(shared_.stages[stage]);
    const int lane = threadIdx.x % kWarp;
    const int chunk = lane % kRowChunks;
#pragma unroll
    for (int block = 0; block < Stage::kBlocks; ++block) {
      copy_keys<kKeyTile / kKeysAtOnce>(
          problem, first_key, lane / kRowChunks, kKeysAtOnce,
          block * Stage::kBlockColumns + chunk * kVector, [&](int key) {
            const int at =
                key * Stage::kRowBytes + (chunk ^ wgmma_swizzle<Stage::kRowBytes>(key)) * 16;
            const std::uint32_t in_block = to + block * Stage::kBlockBytes + at;
            return Place{in_block + Stage::kKeys, in_block + Stage::kValues};
          });
    }
    if constexpr (Stage::kHasRest) {
      copy_keys<kKeyTile / kWarp>(
          problem, first_key, lane, kWarp, Stage::kBlocks * Stage::kBlockColumns, [&](int key) {
            return Place{to + Stage::kKeyRest + key * 16, to + Stage::kValueRest + key * 16};
          });
    }
    if constexpr (std::is_same_v<Element, Bf16>) {
      commit_async_copies();
      wait_async_copies<0>();
    }
    publish_shared_to_engines();
    arrive(shared_address(&shared_.full[stage]));
  }

  struct Place {
    std::uint32_t key, value;
  };

  // Eight elements from `element` on of the tile's keys `key`, + key_step, ... (kCount of them);
  // zeros behind the last key. place(key): where they go.
  template <int kCount, typename PlaceOf>
  __device__ __forceinline__ static void copy_keys(const Problem& problem, int first_key, int key,
                                                   int key_step, int element,
                                                   const PlaceOf& place) {
    constexpr int kAtOnce = kCount < 4 ? kCount : 4;
    for (int round = 0; round < kCount; round += kAtOnce) {
      std::int64_t from[kAtOnce];
      bool valid[kAtOnce];
      Place to[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int k = key + (round + i) * key_step;
        valid[i] = first_key + k < problem.num_keys();
        from[i] = problem.offset(valid[i] ? first_key + k : 0) + element;
        to[i] = place(k);
      }
      copy(problem, from, valid, to);
    }
  }

  template <int kCount>
  __device__ __forceinline__ static void copy(const Problem& problem,
                                              const std::int64_t (&from)[kCount],
                                              const bool (&valid)[kCount],
                                              const Place (&to)[kCount]) {
    if constexpr (std::is_same_v<Element, Bf16>) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        copy_async_16(to[i].key, problem.keys() + from[i], valid[i]);
        copy_async_16(to[i].value, problem.values() + from[i], valid[i]);
      }
    } else {
      using Raw = typename KvVector<Element>::Raw;
      Raw keys[kCount], values[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        keys[i] = valid[i] ? *reinterpret_cast<const Raw*>(problem.keys() + from[i]) : Raw{};
        values[i] = valid[i] ? *reinterpret_cast<const Raw*>(problem.values() + from[i]) : Raw{};
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        store_shared_16(to[i].key, as_bf16(keys[i]));
        store_shared_16(to[i].value, as_bf16(values[i]));
      }
    }
  }

  template <typename Raw>
  __device__ __forceinline__ static uint4 as_bf16(const Raw& raw) {
    float values[kVector];
    KvVector<Element>::unpack(raw, values);
    return pack(values);
  }

  Shared& shared_;
  const unsigned producer_;
  int tile_;           // the next one that is its own, in the problem at hand
  unsigned turn_ = 0;  // tiles so far
};

// The warp that asks for tiles in boxes.
template <typename Shape, typename Problem>
class TileBoxProducer {
  using Shared = FlashShared<Shape, Problem>;
  using Stage = FlashStage<Shape>;

 public:
  __device__ explicit TileBoxProducer(Shared& shared) : shared_(shared) {}

  // All tiles of the listed problems.
  __device__ void run(const typename Shared::NumProblems& num_problems) {
    for (int i = 0; i < num_problems.get(); ++i) {
      const Problem& problem = shared_.problems[i];
      const int num_tiles = num_key_tiles<Shape>(problem);
      for (int tile = 0; tile < num_tiles; ++tile, ++turn_) {
        const unsigned stage = turn_ % Shared::kStages;
        wait_barrier(shared_address(&shared_.empty[stage]), (turn_ / Shared::kStages & 1) ^ 1);
        if (threadIdx.x % kWarp == 0) {
          ask(problem, tile * Shape::kKeyTile, shared_address(shared_.stages[stage]),
              shared_address(&shared_.full[stage]));
        }
        __syncwarp();
      }
    }
  }

 private:
  __device__ __forceinline__ static void ask(const Problem& problem, int first_key,
                                             std::uint32_t to, std::uint32_t full) {
    arrive_expecting(full, Stage::kCopiedBytes);
    for (int key = 0; key < Shape::kKeyTile; key += kBoxTokens) {
      const int token = first_key + key, in_block = key * Stage::kRowBytes;
#pragma unroll
      for (int block = 0; block < Stage::kBlocks; ++block) {
        problem.template copy_box<false>(to + Stage::kKeys + block * Stage::kBlockBytes + in_block,
                                         1, block * Stage::kBlockColumns, token, full);
        problem.template copy_box<false>(
            to + Stage::kValues + block * Stage::kBlockBytes + in_block, 2,
            block * Stage::kBlockColumns, token, full);
      }
      if constexpr (Stage::kHasRest) {
        constexpr int kFirst = Stage::kBlocks * Stage::kBlockColumns;
        problem.template copy_box<true>(to + Stage::kKeyRest + key * 16, 1, kFirst, token, full);
        problem.template copy_box<true>(to + Stage::kValueRest + key * 16, 2, kFirst, token, full);
      }
    }
  }

  Shared& shared_;
  unsigned turn_ = 0;  // tiles so far
};

// The warp that asks for queries in boxes. Others that have nothing to do go the same way (`asks` false).
template <typename Shape, typename Problem>
class QueryBoxProducer {
  using Shared = FlashShared<Shape, Problem>;
  using Stage = FlashStage<Shape>;
  using Queries = FlashQueries<Shape>;

 public:
  __device__ QueryBoxProducer(Shared& shared, bool asks) : shared_(shared), asks_(asks) {}

  // Those of the listed problems.
  __device__ void run(const typename Shared::NumProblems& num_problems) {
    if (!asks_) return;
    for (int i = 0; i < num_problems.get(); ++i, ++turn_) {
      const Problem& problem = shared_.problems[i];
      for (int group = 0; group < Shape::kGroups; ++group) {
        wait_barrier(shared_address(&shared_.queries_empty[group]), (turn_ & 1) ^ 1);
        if (threadIdx.x % kWarp == 0) {
          ask(problem, problem.first_query + group * kGroupQueries,
              shared_address(shared_.queries[group]), shared_address(&shared_.queries_full[group]));
        }
        __syncwarp();
      }
    }
  }

 private:
  __device__ __forceinline__ static void ask(const Problem& problem, int token, std::uint32_t to,
                                             std::uint32_t full) {
    static_assert(kGroupQueries == kBoxTokens);
    arrive_expecting(full, Queries::kCopiedBytes);
#pragma unroll
    for (int block = 0; block < Stage::kBlocks; ++block) {
      problem.template copy_box<false>(to + block * Queries::kBlockBytes, 0,
                                       block * Stage::kBlockColumns, token, full);
    }
    if constexpr (Stage::kHasRest) {
      problem.template copy_box<true>(to + Queries::kRest, 0, Stage::kBlocks * Stage::kBlockColumns,
                                      token, full);
    }
  }

  Shared& shared_;
  const bool asks_;
  unsigned turn_ = 0;  // problems so far
};

}  // namespace gapless
