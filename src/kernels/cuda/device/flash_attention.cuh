// Attention of tiles of queries over ranges of keys, by matrix products (attention_products.cuh) with
// a running softmax.
//
// A block has some computing warpgroups; each takes kGroupQueries queries of one head, its queries
// and its output in registers (in boxes queries stay in shared memory). Four more warps bring keys and
// values, in tiles of kKeyTile (flash_stages.cuh). Barriers, not __syncthreads, join them: warpgroups drift apart, so that one's
// softmax runs while another's products do. A block goes on to its next tile of queries, if it has
// one, without a stop: its first keys and values and its queries are under way before the one at
// hand is done, and where they lie was worked out for all of them at once.
//
// The softmax: weights are powers of two of a score's distance to a reference, which is the largest
// score so far or up to kSlack below it, so that the output rarely has to be scaled anew.
//
// A head of 72 is not a multiple of a product's 16: its last eight columns have zeros as queries
// and, so that those stay zero, zeros beside the keys; nothing is padded in memory.
//
// Row invariance: a query's sums run over key tiles that start at multiples of kKeyTile of its
// sequence. A tile that it does not see leaves its reference, sum and output untouched, bit for
// bit, and so does a factor of one.
#pragma once

#include "kernels/cuda/device/attention_products.cuh"
#include "kernels/cuda/device/flash_stages.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/register_exchange.cuh"

namespace gapless {

template <typename Shape>
inline constexpr int kFlashThreads = kFlashWarps<Shape>* kWarp;

// Registers of a thread, where they are exchanged: at the start as many as all can have, then those who compute take what
// those who bring keys give.
template <typename Shape>
struct FlashRegisters {
  static constexpr int kStart = (64 << 10) / kFlashThreads<Shape> / 8 * 8;
  static constexpr int kProducing = Shape::kGroups == 4 || Shape::kInBoxes ? 32 : 56;
  static constexpr int kComputing = (kStart + (kStart - kProducing) / Shape::kGroups) / 8 * 8;
  static_assert(!kHasRegisterExchange || kComputing <= 255);
  // LaunchShape::registers.
  static constexpr int kExchanged = kHasRegisterExchange ? kStart : 0;
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
// In boxes the last two are not asked for, but
//   int first_query                  query 0 is this token
//   void copy_box<kRest>(to, part, column, token, barrier)
//                                    of queries (part 0), keys (1) or values (2) of kBoxTokens tokens as many columns
//                                    as a block of FlashStage has; kRest: kRestColumns. Zeros outside of the head and
//                                    behind the last token.

// Running softmax of one warp's 16 queries: per lane two (lane/4 and lane/4 + 8).
template <typename Shape>
struct RunningSoftmax {
  static constexpr int kKeyTile = Shape::kKeyTile;
  // A weight is at most 2^kSlack, and as exact as one below 1.
  static constexpr float kSlack = 8;
  float reference[2] = {-INFINITY, -INFINITY};  // of the scaled scores, in powers of two
  float sum[2] = {};                            // of the lane's keys

  // Turns scores into the A fragments of P, and scales the output so far when it has to. The first
  // tile must hold a key that the query sees.
  __device__ __forceinline__ void absorb(float (&scores)[kKeyTile / 2],
                                         std::uint32_t (&p)[kKeyTile / 16][4],
                                         FlashOutput<Shape>& output, float scale) {
    // Several chains, so that one does not wait for its own last result.
    float highest[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) highest[i / 2][i % 2] = scores[i];
#pragma unroll
    for (int i = 4; i < kKeyTile / 2; ++i) {
      float& h = highest[i / 2 % 2][i % 2];
      h = fmaxf(h, scores[i]);
    }
    const float lane_highest[2] = {fmaxf(highest[0][0], highest[0][1]) * scale,
                                   fmaxf(highest[1][0], highest[1][1]) * scale};
    if (__any_sync(kFullWarp, lane_highest[0] > reference[0] + kSlack ||
                                  lane_highest[1] > reference[1] + kSlack)) {
      float keep[2];  // what was summed so far is worth
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float largest = warp_max<4>(lane_highest[half]);
        const float next = largest > reference[half] + kSlack ? largest : reference[half];
        keep[half] = power_of_two(reference[half] - next);
        reference[half] = next;
        sum[half] *= keep[half];
      }
      output.scale(keep);
    }
    float more[2][2] = {};
#pragma unroll
    for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = n * 4 + half * 2;
        const float first = power_of_two(scores[i] * scale - reference[half]);
        const float second = power_of_two(scores[i + 1] * scale - reference[half]);
        p[n / 2][half + n % 2 * 2] = pack_bf16x2(first, second);
        more[half][0] += first;
        more[half][1] += second;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) sum[half] += more[half][0] + more[half][1];
  }
};

template <typename Shape, typename Problem>
__device__ __forceinline__ void store_output(const Problem& problem, int first_query,
                                             const FlashOutput<Shape>& output,
                                             const RunningSoftmax<Shape>& softmax) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float inverse = 1.0f / warp_sum<4>(softmax.sum[half]);
    const int i = first_query + lane / 4 + half * 8;
    if (!problem.has_query(i)) continue;
    Bf16* to = problem.output(i) + (lane % 4) * 2;
#pragma unroll
    for (int n = 0; n < Shape::kHeadDim / 8; ++n) {
      *reinterpret_cast<std::uint32_t*>(to + n * 8) = output.columns(n, half, inverse);
    }
  }
}

// One computing warp's part of all tiles of queries of its block.
template <typename Shape, typename Problem>
class Attender {
  using Shared = FlashShared<Shape, Problem>;
  using Stage = FlashStage<Shape>;
  static constexpr int kHeadDim = Shape::kHeadDim, kKeyTile = Shape::kKeyTile;

 public:
  __device__ Attender(Shared& shared, int warp) : shared_(shared), kept_first_query_(warp * 16) {}

  // The listed problems.
  __device__ __forceinline__ void run(const typename Shared::NumProblems& num_problems) {
    if constexpr (Shape::kInBoxes) {
      const int group = first_query() / kGroupQueries;
      for (int i = 0; i < num_problems.get(); ++i) {
        wait_barrier(shared_address(&shared_.queries_full[group]), num_problems_++ & 1);
        attend(shared_.problems[i], shared_address(shared_.queries[group]), [&] {
          if (threadIdx.x % kWarp == 0) arrive(shared_address(&shared_.queries_empty[group]));
        });
      }
    } else {
      QueryFragments<kHeadDim> queries;
      queries.load(shared_.problems[0], first_query());
      for (int i = 0; i < num_problems.get(); ++i) {
        const Problem& next = shared_.problems[i + 1 < num_problems.get() ? i + 1 : i];
        attend(shared_.problems[i], queries, [&] { queries.load(next, first_query()); });
      }
    }
  }

 private:
  // Calls leave_queries() when it needs them no more.
  template <typename Queries, typename Leave>
  __device__ __forceinline__ void attend(const Problem& problem, const Queries& queries,
                                         const Leave& leave_queries) {
    const int num_tiles = num_key_tiles<Shape>(problem);
    const int group_first = first_query() / kGroupQueries * kGroupQueries;
    if (num_tiles == 0 || !problem.has_query(group_first)) {
      leave_queries();
      for (int tile = 0; tile < num_tiles; ++tile) {
        wait_for(turn_);
        leave();
      }
      return;
    }
    const int all_visible = uniform(problem.num_visible(group_first));
    const float scale = kLog2E * rsqrtf(static_cast<float>(kHeadDim));

    FlashOutput<Shape> output;
    RunningSoftmax<Shape> softmax;
    wait_for(turn_);
    for (int tile = 0; tile < num_tiles; ++tile) {
      const std::uint32_t stage =
          shared_address(shared_.stages) + turn_ % Shared::kStages * Stage::kBytes;
      float scores[kKeyTile / 2];
      begin_products();
      multiply_keys<Shape>(scores, queries, stage);
      end_products();
      wait_for_products();
      if (tile + 1 == num_tiles) leave_queries();
      if ((tile + 1) * kKeyTile > all_visible) hide_keys(problem, scores, tile * kKeyTile);
      std::uint32_t p[kKeyTile / 16][4];
      softmax.absorb(scores, p, output, scale);
      begin_products();
      multiply_values<Shape>(output, p, stage);
      end_products();
      if (tile + 1 < num_tiles) wait_for(turn_ + 1);
      wait_for_products();
      leave();
    }
    store_output<Shape>(problem, first_query(), output, softmax);
  }

  // Keys of the tile start at first_key.
  __device__ __forceinline__ void hide_keys(const Problem& problem, float (&scores)[kKeyTile / 2],
                                            int first_key) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first_query() + lane / 4 + half * 8;
      const int num_visible =
          problem.has_query(query) ? problem.num_visible(query) : problem.num_keys();
#pragma unroll
      for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = first_key + n * 8 + lane % 4 * 2 + i;
          if (key >= num_visible) scores[n * 4 + half * 2 + i] = -INFINITY;
        }
      }
    }
  }

  // Of all tiles, number `turn`.
  __device__ __forceinline__ void wait_for(unsigned turn) const {
    wait_barrier(shared_address(shared_.full) + turn % Shared::kStages * 8,
                 turn / Shared::kStages & 1);
  }
  __device__ __forceinline__ void leave() {
    if (threadIdx.x % kWarp == 0) {
      arrive(shared_address(shared_.empty) + turn_ % Shared::kStages * 8);
    }
    ++turn_;
  }

  // Of the warp's queries in a tile. A thread keeps it where it has registers enough.
  __device__ int first_query() const {
    if constexpr (kHasRegisterExchange) return kept_first_query_;
    return static_cast<int>(threadIdx.x) / kWarp * 16;
  }

  Shared& shared_;
  const int kept_first_query_;
  unsigned turn_ = 0;          // tiles so far
  unsigned num_problems_ = 0;  // in boxes
};

// Its problems blockIdx.x, + gridDim.x, ..., as many as fit, from number `first` on: how many.
// For the whole block, which waits for each other before and after.
template <typename Shape, typename Work>
__device__ __forceinline__ int list_problems(const Work& work,
                                             FlashShared<Shape, typename Work::Problem>& shared,
                                             int first) {
  constexpr int kProblems = FlashShared<Shape, typename Work::Problem>::kProblems;
  const int index = first + static_cast<int>(threadIdx.x * gridDim.x);
  __syncthreads();
  if (threadIdx.x < kProblems && index < work.num_problems()) {
    shared.problems[threadIdx.x] = work.problem(index);
  }
  __syncthreads();
  const int step = static_cast<int>(gridDim.x);
  return min(kProblems, (work.num_problems() - first + step - 1) / step);
}

// A block of kFlashThreads<Shape>. It waits for the launch's predecessor when it knows what its problems are, so `work` must say that
// without what the predecessor writes.
template <typename Shape, typename Work>
__device__ __forceinline__ void flash_attention(
    const Work& work, FlashShared<Shape, typename Work::Problem>& shared) {
  using Problem = typename Work::Problem;
  using Registers = FlashRegisters<Shape>;
  static_assert(sizeof(shared) <=
                (kHasWarpgroupProducts ? cuda::kLargestSharedBytes : cuda::kSmallestSharedBytes));
  constexpr int kComputingWarps = Shape::kGroups * 4;
  shared.start();
  auto for_all_problems = [&](auto& warp) {
    using Shared = FlashShared<Shape, Problem>;
    const int step = Shared::kProblems * static_cast<int>(gridDim.x);
    typename Shared::FirstProblem first(shared.counts);
    typename Shared::NumProblems num_problems(shared.counts);
    for (first.set(blockIdx.x); first.get() < work.num_problems(); first.set(first.get() + step)) {
      num_problems.set(list_problems<Shape>(work, shared, first.get()));
      wait_for_predecessor();
      warp.run(num_problems);
    }
    wait_for_predecessor();  // who has no problem, too
  };
  const int warp = uniform(static_cast<int>(threadIdx.x) / kWarp);
  if (warp < kComputingWarps) {
    take_registers<Registers::kComputing>();
    Attender<Shape, Problem> attender(shared, warp);
    for_all_problems(attender);
  } else {
    give_registers<Registers::kProducing>();
    const int producer = warp - kComputingWarps;
    if constexpr (!Shape::kInBoxes) {
      TileProducer<Shape, Problem> tiles(shared, producer);
      for_all_problems(tiles);
    } else if (producer == 0) {
      TileBoxProducer<Shape, Problem> tiles(shared);
      for_all_problems(tiles);
    } else {
      QueryBoxProducer<Shape, Problem> queries(shared, producer == 1);
      for_all_problems(queries);
    }
  }
}

}  // namespace gapless
