// Attention of one tile of queries over a range of keys, by warpgroup products with a running
// softmax.
//
// A block has kGroups warpgroups; each takes kGroupQueries queries of one head, its queries and its
// output in registers. Keys and values come in tiles of kKeyTile through kStages shared-memory
// stages that all warpgroups fill and read together. Barriers, not __syncthreads, join them: they
// drift apart, so that one's softmax runs while another's products do. A block goes on to its next
// tile of queries, if it has one, without a stop: the first keys and values and the queries are
// under way before the one at hand is done.
//
// In shared memory 8 elements of all keys of a tile lie together (a plane: 16 bytes per key), which
// is the layout of products without swizzling, for keys and for values. Planes are 16 bytes further
// apart than they are long, so that copies of one key's neighbouring elements hit different banks.
//
// Keys and values that are e4m3 in memory become bfloat16 on their way: they are loaded into
// registers a tile early, and stored where the copies of bfloat16 would have put them.
//
// The width kHeadDim is any multiple of 8. Where it is not one of 16 (72), the last product over it
// has zeros as queries and, so that they stay zero, a plane of zeros beside the keys; nothing is
// padded in memory.
//
// Row invariance: a query's sums run over key tiles that start at multiples of kKeyTile of its
// sequence. A tile that it does not see leaves its maximum, sum and output untouched, bit for bit.
#pragma once

#include <type_traits>
#include <utility>

#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/kv_element.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace gapless {

inline constexpr int kGroupThreads = 4 * kWarp;
inline constexpr int kGroupQueries = 64;
inline constexpr int kKeyTile = 64;
inline constexpr int kStages = 6;
inline constexpr int kAhead = 3;  // tiles asked for before they are needed

template <int kHeadDim>
struct FlashShared {
  static constexpr int kPlaneBytes = (kKeyTile + 1) * 16;
  static constexpr int kValuePlanes = kHeadDim / kVector;
  static constexpr int kKeyPlanes = (kValuePlanes + 1) / 2 * 2;
  static constexpr int kKeyBytes = kKeyPlanes * kPlaneBytes;
  static constexpr int kValueBytes = kValuePlanes * kPlaneBytes;
  alignas(16) char keys[kStages][kKeyBytes];
  alignas(16) char values[kStages][kValueBytes];
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
};

// What a kernel says about its work (Work) and each tile of queries in it (Problem).
//   int num_problems()               a block takes blockIdx.x, then every gridDim.x-th
//   Problem problem(int index)
// Queries of a problem are numbered from 0; a later one sees at least as many keys as an earlier
// one.
//   bool has_query(int i)            false: i lies past the end
//   const Bf16* query(int i)         its kHeadDim elements
//   Bf16* output(int i)
//   int num_visible(int i)           it sees keys 0..num_visible-1
//   int num_keys()                   keys that any query of the tile sees; 0: nothing to do
//   keys(), values()                 of type const Bf16* or const E4m3*
//   std::int64_t offset(int t)       of key t < num_keys() from keys(), of its value from values()

// A tile's place among the stages, and how often the stages have been gone through.
struct StageCursor {
  int stage = 0;
  int parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// The same in all lanes, and by this the compiler knows it.
__device__ __forceinline__ int uniform(int value) {
  return __shfl_sync(kFullWarp, value, 0);
}

template <typename Problem>
__device__ __forceinline__ int num_key_tiles(const Problem& problem) {
  return uniform((problem.num_keys() + kKeyTile - 1) / kKeyTile);
}

// This thread's part in copying a block's tiles, one problem's after the other's: kRounds keys and
// values of a tile, every kRowThreads-th 16 bytes of each.
template <int kHeadDim, int kGroups, typename Work>
class TileCopier {
  using Shared = FlashShared<kHeadDim>;
  using Problem = typename Work::Problem;
  using Element = std::remove_cvref_t<decltype(*std::declval<Problem>().keys())>;
  static constexpr bool kConverts = !std::is_same_v<Element, Bf16>;
  static constexpr int kChunks = kHeadDim / kVector;
  static constexpr int kRowThreads = kChunks < 8 ? kChunks : 8;
  static constexpr int kRoundKeys = kGroups * kGroupThreads / kRowThreads;
  static constexpr int kRounds = (kKeyTile + kRoundKeys - 1) / kRoundKeys;
  static constexpr int kRowPieces = (kChunks + kRowThreads - 1) / kRowThreads;
  static constexpr int kPlaneBytes = Shared::kPlaneBytes;

 public:
  __device__ __forceinline__ TileCopier(const Work& work, Shared& shared)
      : work_(work), shared_(shared) {
    const int chunk = threadIdx.x % kRowThreads;
    in_row_ = chunk * kVector;
    to_ = chunk * kPlaneBytes + first_key() * 16 + shared_address(shared.keys[0]);
    begin(blockIdx.x);
    if constexpr (kConverts) load();
  }

  // Enqueues the next tile, if there is one; its `full` barrier completes with every thread's
  // arrival.
  __device__ __forceinline__ void copy() {
    if (kConverts ? !loaded_ : index_ >= work_.num_problems()) return;
    wait_barrier(shared_address(shared_.empty) + cursor_.stage * 8, cursor_.parity ^ 1);
    const std::uint32_t to_keys = to_ + cursor_.stage * Shared::kKeyBytes;
    const std::uint32_t to_values =
        to_ + kStages * Shared::kKeyBytes + cursor_.stage * Shared::kValueBytes;
    const std::uint32_t full = shared_address(shared_.full) + cursor_.stage * 8;
    cursor_.advance();
    if constexpr (kConverts) {
      for_pieces([&](int round, int piece) {
        const int to = place(round, piece);
        store_shared_16(to_keys + to, as_bf16(raw_keys_[round][piece]));
        store_shared_16(to_values + to, as_bf16(raw_values_[round][piece]));
      });
      fence_for_wgmma();
      arrive(full);
      load();
    } else {
      for_pieces([&](int round, int piece) {
        const int to = place(round, piece);
        const std::int64_t from = element(round, piece);
        copy_async_16(to_keys + to, problem_.keys() + from, is_key(round));
        copy_async_16(to_values + to, problem_.values() + from, is_key(round));
      });
      arrive_after_copies(full);
      go_on();
    }
  }

 private:
  using Raw = typename KvVector<Element>::Raw;

  __device__ __forceinline__ static uint4 as_bf16(const Raw& raw) {
    float values[kVector];
    KvVector<Element>::unpack(raw, values);
    return pack(values);
  }

  // body(round, piece) for this thread's parts of a tile.
  template <typename Body>
  __device__ __forceinline__ void for_pieces(const Body& body) const {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (!has_part(round)) continue;
#pragma unroll
      for (int piece = 0; piece < kRowPieces; ++piece) {
        const int chunks_left = kChunks - piece * kRowThreads;
        if (chunks_left < kRowThreads && in_row_ >= chunks_left * kVector) continue;
        body(round, piece);
      }
    }
  }
  // In a stage's keys and values, and in those of the problem.
  __device__ __forceinline__ static int place(int round, int piece) {
    return round * kRoundKeys * 16 + piece * kRowThreads * kPlaneBytes;
  }
  __device__ __forceinline__ std::int64_t element(int round, int piece) const {
    return rows_[round] + in_row_ + piece * kRowThreads * kVector;
  }
  __device__ __forceinline__ bool is_key(int round) const {
    return key_ + round * kRoundKeys < problem_.num_keys();
  }

  // The next tile into registers; zeros behind the last key.
  __device__ __forceinline__ void load() {
    loaded_ = index_ < work_.num_problems();
    if (!loaded_) return;
    for_pieces([&](int round, int piece) {
      const std::int64_t from = element(round, piece);
      const bool valid = is_key(round);
      raw_keys_[round][piece] =
          valid ? *reinterpret_cast<const Raw*>(problem_.keys() + from) : Raw{};
      raw_values_[round][piece] =
          valid ? *reinterpret_cast<const Raw*>(problem_.values() + from) : Raw{};
    });
    go_on();
  }

  __device__ __forceinline__ void go_on() {
    key_ += kKeyTile;
    if (--tiles_left_ == 0) {
      begin(index_ + gridDim.x);
    } else {
      find_rows();
    }
  }

  __device__ __forceinline__ static int first_key() {
    return static_cast<int>(threadIdx.x) / kRowThreads;
  }
  __device__ __forceinline__ static bool has_part(int round) {
    const int keys_left = kKeyTile - round * kRoundKeys;
    return keys_left >= kRoundKeys || threadIdx.x < keys_left * kRowThreads;
  }

  // From the first problem at or behind `index` that has keys.
  __device__ __forceinline__ void begin(int index) {
    for (index_ = index; index_ < work_.num_problems(); index_ += gridDim.x) {
      problem_ = work_.problem(index_);
      tiles_left_ = num_key_tiles(problem_);
      if (tiles_left_ > 0) break;
    }
    key_ = first_key();
    if (index_ < work_.num_problems()) find_rows();
  }

  // A tile ahead, because a problem may have to look them up.
  __device__ __forceinline__ void find_rows() {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (!has_part(round)) continue;
      const int key = key_ + round * kRoundKeys;
      rows_[round] = problem_.offset(key < problem_.num_keys() ? key : 0);
    }
  }

  const Work& work_;
  Shared& shared_;
  Problem problem_;
  int index_, tiles_left_;
  int key_;  // of the first round
  int in_row_;
  std::uint32_t to_;
  std::int64_t rows_[kRounds];
  StageCursor cursor_;
  // Where elements are converted: the tile that copy() stores next.
  bool loaded_ = false;
  Raw raw_keys_[kConverts ? kRounds : 1][kRowPieces],
      raw_values_[kConverts ? kRounds : 1][kRowPieces];
};

// The A fragments of one warp's 16 queries.
template <int kHeadDim>
struct QueryFragments {
  static constexpr int kSteps = (kHeadDim + 15) / 16;
  std::uint32_t steps[kSteps][4];

  template <typename Problem>
  __device__ void load(const Problem& problem, int first) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = first + lane / 4 + half * 8;
      const bool valid = problem.has_query(i);
      const Bf16* from = valid ? problem.query(i) : nullptr;
#pragma unroll
      for (int part = 0; part < 2 * kSteps; ++part) {
        const bool exists = valid && part * 8 < kHeadDim;
        steps[part / 2][half + part % 2 * 2] =
            exists ? *reinterpret_cast<const std::uint32_t*>(from + part * 8 + (lane % 4) * 2) : 0u;
      }
    }
  }
};

// scores = Q K^T of one warpgroup, enqueued.
template <int kHeadDim>
__device__ __forceinline__ void multiply_keys(float (&scores)[kKeyTile / 2],
                                              const QueryFragments<kHeadDim>& queries,
                                              std::uint32_t keys) {
  constexpr int kPlaneBytes = FlashShared<kHeadDim>::kPlaneBytes;
  const std::uint64_t operand = wgmma_operand(keys, kPlaneBytes, 128);
#pragma unroll
  for (int step = 0; step < QueryFragments<kHeadDim>::kSteps; ++step) {
    wgmma_async<false>(scores, queries.steps[step], operand + (step * 2 * kPlaneBytes >> 4),
                       step > 0);
  }
}

// output += P V of one warpgroup, enqueued.
template <int kHeadDim>
__device__ __forceinline__ void multiply_values(float (&output)[kHeadDim / 2],
                                                const std::uint32_t (&p)[kKeyTile / 16][4],
                                                std::uint32_t values) {
  const std::uint64_t operand = wgmma_operand(values, 128, FlashShared<kHeadDim>::kPlaneBytes);
#pragma unroll
  for (int step = 0; step < kKeyTile / 16; ++step) {
    wgmma_async<true>(output, p[step], operand + (step * 256 >> 4), true);
  }
}

// Running softmax of one warp's 16 queries: per lane two (lane/4 and lane/4 + 8).
struct RunningSoftmax {
  float largest[2] = {-INFINITY, -INFINITY};  // of the scaled scores, in powers of two
  float sum[2] = {0, 0};                      // this lane's share

  // Turns scores into the A fragments of P; `keep` is what the output so far is worth. The first
  // tile must hold a key that the query sees.
  __device__ __forceinline__ void absorb(float (&scores)[kKeyTile / 2],
                                         std::uint32_t (&p)[kKeyTile / 16][4], float (&keep)[2],
                                         float scale) {
    // Several chains each, so that one does not wait for its own last result.
    float highest[2][2], sums[2][2] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) highest[i / 2][i % 2] = scores[i];
#pragma unroll
    for (int i = 4; i < kKeyTile / 2; ++i) {
      float& h = highest[i / 2 % 2][i % 2];
      h = fmaxf(h, scores[i]);
    }
    float reference[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float tile_largest = warp_max<4>(fmaxf(highest[half][0], highest[half][1]));
      reference[half] = fmaxf(largest[half], tile_largest * scale);
      keep[half] = power_of_two(largest[half] - reference[half]);
      largest[half] = reference[half];
    }
#pragma unroll
    for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = n * 4 + half * 2;
        const float a = power_of_two(scores[i] * scale - reference[half]);
        const float b = power_of_two(scores[i + 1] * scale - reference[half]);
        sums[half][0] += a;
        sums[half][1] += b;
        p[n / 2][half + n % 2 * 2] = pack_bf16x2(a, b);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] = sum[half] * keep[half] + (sums[half][0] + sums[half][1]);
    }
  }
};

// Keys of the tile start at first_key; `num_visible` are the lane's two queries'.
__device__ __forceinline__ void hide_keys(float (&scores)[kKeyTile / 2],
                                          const int (&num_visible)[2], int first_key) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kKeyTile / 2; ++i) {
    const int key = first_key + i / 4 * 8 + (lane % 4) * 2 + i % 2;
    if (key >= num_visible[i / 2 % 2]) scores[i] = -INFINITY;
  }
}

template <int kHeadDim, int kGroups>
__device__ __forceinline__ void start_stages(FlashShared<kHeadDim>& shared) {
  using Shared = FlashShared<kHeadDim>;
  if (threadIdx.x < kStages) {
    init_barrier(shared_address(&shared.full[threadIdx.x]), kGroups * kGroupThreads);
    init_barrier(shared_address(&shared.empty[threadIdx.x]), kGroups * kGroupThreads / kWarp);
  }
  if constexpr (Shared::kKeyPlanes != Shared::kValuePlanes) {
    constexpr int kVectors = Shared::kPlaneBytes / 16;
    for (int i = threadIdx.x; i < kStages * kVectors; i += kGroups * kGroupThreads) {
      char* plane = shared.keys[i / kVectors] + Shared::kValuePlanes * Shared::kPlaneBytes;
      reinterpret_cast<uint4*>(plane)[i % kVectors] = uint4{0, 0, 0, 0};
    }
  }
  fence_for_wgmma();
  __syncthreads();
}

template <int kHeadDim, typename Problem>
__device__ __forceinline__ void store_output(const Problem& problem, int first_query,
                                             const float (&output)[kHeadDim / 2],
                                             const RunningSoftmax& softmax) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float inverse = 1.0f / warp_sum<4>(softmax.sum[half]);
    const int i = first_query + lane / 4 + half * 8;
    if (!problem.has_query(i)) continue;
    Bf16* to = problem.output(i) + (lane % 4) * 2;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      *reinterpret_cast<std::uint32_t*>(to + n * 8) =
          pack_bf16x2(output[n * 4 + half * 2] * inverse, output[n * 4 + half * 2 + 1] * inverse);
    }
  }
}

template <int kHeadDim, int kGroups, typename Work>
__device__ __forceinline__ void flash_attention(const Work& work, FlashShared<kHeadDim>& shared) {
  using Shared = FlashShared<kHeadDim>;
  const int warp = uniform(static_cast<int>(threadIdx.x) / kWarp);
  const int lane = threadIdx.x % kWarp;
  const int group_first = warp / 4 * kGroupQueries;
  const int first_query = warp * 16;
  const float scale = kLog2E * rsqrtf(static_cast<float>(kHeadDim));

  start_stages<kHeadDim, kGroups>(shared);
  TileCopier<kHeadDim, kGroups, Work> copier(work, shared);
#pragma unroll
  for (int tile = 0; tile < kAhead; ++tile) copier.copy();
  QueryFragments<kHeadDim> queries;
  auto load_queries_of = [&](int index) {
    if (index < work.num_problems()) queries.load(work.problem(index), first_query);
  };
  load_queries_of(blockIdx.x);
  StageCursor cursor;
  for (int index = blockIdx.x; index < work.num_problems(); index += gridDim.x) {
    const auto problem = work.problem(index);
    const int num_tiles = num_key_tiles(problem);
    int num_visible[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = first_query + lane / 4 + half * 8;
      num_visible[half] = problem.has_query(i) ? problem.num_visible(i) : problem.num_keys();
    }
    const bool group_works = problem.has_query(group_first);
    const int all_visible = group_works ? problem.num_visible(group_first) : problem.num_keys();

    float output[kHeadDim / 2] = {};
    RunningSoftmax softmax;
    for (int tile = 0; tile < num_tiles; ++tile) {
      wait_barrier(shared_address(shared.full) + cursor.stage * 8, cursor.parity);
      fence_for_wgmma();
      float scores[kKeyTile / 2];
      wgmma_fence();
      multiply_keys<kHeadDim>(scores, queries,
                              shared_address(shared.keys) + cursor.stage * Shared::kKeyBytes);
      wgmma_commit();
      copier.copy();
      wgmma_wait<0>();
      if (tile + 1 == num_tiles) load_queries_of(index + gridDim.x);
      if ((tile + 1) * kKeyTile > all_visible) hide_keys(scores, num_visible, tile * kKeyTile);
      std::uint32_t p[kKeyTile / 16][4];
      float keep[2];
      softmax.absorb(scores, p, keep, scale);
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) output[i] *= keep[i / 2 % 2];
      wgmma_fence();
      multiply_values<kHeadDim>(output, p,
                                shared_address(shared.values) + cursor.stage * Shared::kValueBytes);
      wgmma_commit();
      wgmma_wait<0>();
      if (lane == 0) arrive(shared_address(shared.empty) + cursor.stage * 8);
      cursor.advance();
    }
    if (num_tiles > 0) {
      store_output<kHeadDim>(problem, first_query, output, softmax);
    } else {
      load_queries_of(index + gridDim.x);
    }
  }
}

}  // namespace gapless
