// The route warp of decoder_kernel.cuh: which experts each row of a layer chose, and what this block does for them.
//
// Every block works that out for itself, from the router's logits, which announce themselves: no launch and no wait between
// blocks lies before the experts' weights. The other warps read the route behind route_ready, and say through layer_read that
// they are through with a layer; the warp follows them layer by layer, so it finds no logits of an earlier one.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/decoder_block.cuh"
#include "kernels/cuda/device/decoder_experts.cuh"
#include "kernels/cuda/device/expert_choice.cuh"
#include "kernels/cuda/device/grid_counters.cuh"
#include "kernels/cuda/device/self_announcing.cuh"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

template <int kRows>
__device__ __forceinline__ void init_route_barriers(ExpertsSmall<true>& small) {
  init_barrier(shared_address(&small.route_ready), 1);
  init_barrier(shared_address(&small.layer_read), kProductWarps + kRouteCounters<kRows>);
}

template <int kRows>
class Routing {
  using Small = ExpertsSmall<true>;

 public:
  __device__ explicit Routing(const DecoderBlockState<ExpertsDecoder>& block)
      : block_(block), p_(block.p), small_(block.small.experts) {}

  __device__ void run() const {
    wait_barrier(shared_address(&block_.small.rows_ready), 0);
    for (int l = 0; l < p_.num_layers; ++l) {
      if (l > 0) wait_barrier(shared_address(&small_.layer_read), (l - 1) & 1);
      if (!has_experts(p_, l)) continue;
      find(l);
      __syncwarp();
      if (threadIdx.x % kWarp == 0) arrive(shared_address(&small_.route_ready));
    }
  }

 private:
  __device__ __forceinline__ void find(int l) const {
    const int lane = threadIdx.x % kWarp;
    ExpertRoute& route = small_.route;
    if (l == 0) {
      // Memory is as an earlier launch left it.
      if (lane == 0) {
        wait_for_count(block_.counter(Value::kQkv), block_.template count_of<Value::kQkv>(0));
      }
      __syncwarp();
    }
    for (int first = 0; first < p_.num_rows; first += Small::kLogitRows) {
      load_logits(l, first);
      for (int i = 0; i < Small::kLogitRows && first + i < p_.num_rows; ++i) choose(first + i, i);
      __syncwarp();  // the next rows' logits come to the same place
    }
    route.make_passes<kPassRows<kRows>>(p_.num_rows, p_.experts.num_experts, WarpLanes());
    const int block = static_cast<int>(blockIdx.x), num_blocks = static_cast<int>(gridDim.x);
    if (lane == 0) route.up = route.share_of(expert_up(p_).tiles, block, num_blocks);
    if (lane == 1) route.down = route.share_of(expert_down(p_).tiles, block, num_blocks);
    if (block == 0 && p_.experts.chosen != nullptr) count_chosen();
  }

  __device__ bool lives(int row) const { return block_.small.rows.num_keys[row] > 0; }

  // Of the rows from `first` on, to shared memory. Nobody needs those of rows that are done.
  __device__ __forceinline__ void load_logits(int l, int first) const {
    constexpr int kLanesPerRow = kWarp / Small::kLogitRows;
    static_assert(kLanesPerRow * kVector == kRouteExperts);
    const int lane = threadIdx.x % kWarp;
    const int i = lane / kLanesPerRow, expert = lane % kLanesPerRow * kVector;
    const int row = first + i;
    const bool exists = row < p_.num_rows && lives(row) && expert < p_.experts.num_experts;
    const Bf16* from = qkv_of<ExpertsDecoder>(p_, l) +
                       qkv_numbers<ExpertsDecoder>(p_, exists ? row : 0) + (exists ? expert : 0);
    uint4 logits = {};
    bool complete;
    do {
      complete = true;
      if (exists) {
        logits = load_announced(from);
        complete = all_written<Bf16>(logits);
      }
    } while (!complete);
    __syncwarp();
    *reinterpret_cast<uint4*>(&small_.logits[i][expert]) = logits;
    __syncwarp();
  }

  // For whoever asks how many experts a step reads.
  __device__ void count_chosen() const {
    const int lane = threadIdx.x % kWarp;
    int live = 0;
    for (int row = lane; row < p_.num_rows; row += kWarp) live += lives(row) ? 1 : 0;
    live = __reduce_add_sync(kFullWarp, live);
    if (lane != 0) return;
    // Layers of a launch follow each other, and nobody else writes there.
    ChosenExperts& chosen = *p_.experts.chosen;
    chosen.layers[live] += 1;
    chosen.experts[live] += static_cast<std::uint64_t>(small_.route.num_experts);
  }

  // For a row, whose logits are the i-th.
  __device__ __forceinline__ void choose(int row, int i) const {
    const int lane = threadIdx.x % kWarp, count = p_.experts.experts_per_token;
    ExpertRoute& route = small_.route;
    const bool has_any = lives(row);
    std::uint64_t all = 0;
    ExpertChoice choice = {};
    if (has_any) {
      choice = choose_experts<kRouteExperts>(small_.logits[i], p_.experts.num_experts, count);
      const std::uint64_t own = lane < count ? std::uint64_t{1} << choice.expert : 0;
      const auto low = static_cast<unsigned>(own), high = static_cast<unsigned>(own >> 32);
      all = static_cast<std::uint64_t>(__reduce_or_sync(kFullWarp, high)) << 32 |
            __reduce_or_sync(kFullWarp, low);
    }
    if (lane == 0) route.chosen[row] = all;
    __syncwarp();
    if (has_any && lane < count) route.weights[route.pair_of(row, choice.expert)] = choice.weight;
  }

  const DecoderBlockState<ExpertsDecoder>& block_;
  const DecoderLaunch& p_;
  Small& small_;
};

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
