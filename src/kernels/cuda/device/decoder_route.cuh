// The route warp of decoder_kernel.cuh: which experts each row of a layer chose, and what this block does for them.
//
// The router's logits are no product of the computing warps: the route is wanted early, and its weights are few, and in bfloat16
// whatever the others are. A route warp multiplies a unit, 16 experts and 128 columns, as soon as the layer's norm is there, with
// weights that it has by then, and announces a part of each sum. A row's logits are added up, in the order of the columns, by one
// block, which announces whom the row chose: to choose for a row takes as long as a wait between blocks, so no block does it for many.
// Then every block works out for itself who chose whom.
//
// The other warps read the route behind route_ready, and say through layer_read that they are through with a layer; the warp
// follows them layer by layer. By then they have waited for all parts of the layer before, which blocks announce when they have
// read its choices: so logits and choices of that layer are read, and memory is empty where this one's come. The first layer has no
// experts, and who has waited for its parts knows that all blocks have emptied theirs.
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
  init_barrier(shared_address(&small.choices_read), 1);
  init_barrier(shared_address(&small.route_ready), 1);
  init_barrier(shared_address(&small.layer_read), kProductWarps + kRouteCounters<kRows>);
  init_barrier(shared_address(&small.logits_emptied), 1);
}

template <PreparedFormat kFormat, int kRows>
class Routing {
  using Small = ExpertsSmall<true>;
  static constexpr int kSteps = kProductColumns / 16;

 public:
  __device__ explicit Routing(const DecoderBlockState<ExpertsDecoder>& block)
      : block_(block), p_(block.p), small_(block.small.experts) {}

  __device__ void run() const {
    const std::int64_t words = std::int64_t{2} * num_chunks() * kRows * p_.experts.num_experts;
    empty(reinterpret_cast<std::uint32_t*>(p_.experts.logit_parts), static_cast<int>(words));
    empty(p_.experts.choices, 2 * p_.num_rows * kRouteChoices);
    __syncwarp();
    if (lane() == 0) arrive(shared_address(&small_.logits_emptied));
    wait_barrier(shared_address(&block_.small.rows_ready), 0);
    for (int l = 0; l < p_.num_layers; ++l) {
      if (l > 0) wait_barrier(shared_address(&small_.layer_read), (l - 1) & 1);
      if (!has_experts(p_, l)) continue;
      make_logits(l);
      find(l);
      __syncwarp();
      if (lane() == 0) arrive(shared_address(&small_.route_ready));
    }
  }

 private:
  __device__ static int lane() { return threadIdx.x % kWarp; }
  __device__ int num_chunks() const { return p_.dim / kProductColumns; }
  // Of the layer's parity: of 128 columns and a row the logits of all experts.
  __device__ __forceinline__ float* part_of(int layer, int chunk, int row) const {
    const int at = (layer % 2 * num_chunks() + chunk) * kRows + row;
    return p_.experts.logit_parts + std::int64_t{at} * p_.experts.num_experts;
  }

  __device__ __forceinline__ std::uint32_t* choices_of(int layer, int row) const {
    return p_.experts.choices + (layer % 2 * p_.num_rows + row) * kRouteChoices;
  }

  // This block's share of so many words.
  __device__ __forceinline__ static void empty(std::uint32_t* words, int count) {
    for (int i = blockIdx.x * kWarp + lane(); i < count; i += gridDim.x * kWarp) {
      asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(words + i), "r"(kNotWritten)
                   : "memory");
    }
  }

  // Weights as A fragments: those of this lane, of 16 experts.
  struct RouterTile {
    std::uint32_t a[kSteps][4];

    __device__ __forceinline__ void load(const Bf16* from, int dim) {
      const int row = lane() / 4, column = lane() % 4 * 2;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::int64_t at =
              std::int64_t{row + i % 2 * 8} * dim + step * 16 + column + i / 2 * 8;
          a[step][i] = __ldg(reinterpret_cast<const unsigned*>(from + at));
        }
      }
      if constexpr (kFormat == PreparedFormat::kFp8) {
        // Activations are in half precision.
#pragma unroll
        for (auto& fragment : a) {
#pragma unroll
          for (std::uint32_t& pair : fragment) {
            float low, high;
            unpack_bf16x2(pair, low, high);
            pair = pack_half2(low, high);
          }
        }
      }
    }
  };

  // This block's units of the layer's logits.
  __device__ __forceinline__ void make_logits(int l) const {
    const int tiles = p_.experts.num_experts / kTileRows, num_units = tiles * num_chunks();
    const Bf16* numbers = norm_of<ExpertsDecoder, kFormat, kRows>(p_, l).data();
    bool waits = !kXFromMemory<kRows>;
#pragma unroll 1
    for (int unit = blockIdx.x; unit < num_units; unit += gridDim.x) {
      const int tile = unit % tiles, chunk = unit / tiles;
      RouterTile weights;
      weights.load(p_.experts.layers[l].router + std::int64_t{tile} * kTileRows * p_.dim +
                       chunk * kProductColumns,
                   p_.dim);
      if (waits) {
        if (lane() == 0) {
          wait_for_count(block_.counter(Value::kNorm), block_.template count_of<Value::kNorm>(l));
        }
        __syncwarp();
        waits = false;
      }
#pragma unroll 1
      for (int first = 0; first < p_.num_rows; first += 8) {
        multiply(weights, numbers, l, tile, chunk, first);
      }
    }
  }

  // Times rows from `first` on.
  __device__ __forceinline__ void multiply(const RouterTile& weights, const Bf16* numbers, int l,
                                           int tile, int chunk, int first) const {
    const int own_row = first + lane() / 4;
    const bool exists = own_row < p_.num_rows;
    const Bf16* from = numbers + chunk * (kRows * kProductColumns) +
                       fragment_index<kRows>(exists ? own_row : 0, lane() % 4 * 2);
    uint4 pairs[kSteps / 2];
    bool complete;
    do {
      complete = true;
#pragma unroll
      for (int i = 0; i < kSteps / 2; ++i) {
        pairs[i] = uint4{};
        if (exists) pairs[i] = load_pair_of_steps<kRows>(from + i * 256);
        if constexpr (kXFromMemory<kRows>) complete = complete && all_written<Bf16>(pairs[i]);
      }
    } while (!complete);
    __syncwarp();
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < kSteps / 2; ++i) {
      mma_of<kFormat>(sums, weights.a[2 * i], pairs[i].x, pairs[i].y);
      mma_of<kFormat>(sums, weights.a[2 * i + 1], pairs[i].z, pairs[i].w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first + lane() % 4 * 2 + i % 2;
      const int expert = tile * kTileRows + lane() / 4 + i / 2 * 8;
      if (row >= p_.num_rows) continue;
      announce_value(part_of(l, chunk, row) + expert, part_of(l + 1, chunk, row) + expert, sums[i]);
    }
  }

  __device__ __forceinline__ void find(int l) const {
#pragma unroll 1
    for (int row = blockIdx.x; row < p_.num_rows; row += gridDim.x) {
      if (!lives(row)) continue;
      load_logits(l, row);
      choose(l, row);
      __syncwarp();
    }
    load_choices(l);
    if (lane() == 0) arrive(shared_address(&small_.choices_read));
    ExpertRoute& route = small_.route;
    route.make_passes<kPassRows<kRows, kFormat>>(p_.num_rows, p_.experts.num_experts, WarpLanes());
    const int block = static_cast<int>(blockIdx.x), num_blocks = static_cast<int>(gridDim.x);
    const bool is_up = lane() == 0;
    const int tiles = is_up ? expert_up(p_).tiles : expert_down(p_).tiles;
    if (lane() < 2) (is_up ? route.up : route.down) = route.share_of(tiles, block, num_blocks);
    if (block == 0 && p_.experts.chosen != nullptr) count_chosen();
  }

  __device__ bool lives(int row) const {
    return block_.small.rows.num_keys[row] > 0;
  }

  // For whoever asks how many experts a step reads.
  __device__ void count_chosen() const {
    int live = 0;
    for (int row = lane(); row < p_.num_rows; row += kWarp) live += lives(row) ? 1 : 0;
    live = __reduce_add_sync(kFullWarp, live);
    if (lane() != 0) return;
    // Layers of a launch follow each other, and nobody else writes there.
    ChosenExperts& chosen = *p_.experts.chosen;
    chosen.layers[live] += 1;
    chosen.experts[live] += static_cast<std::uint64_t>(small_.route.num_experts);
  }

  // Of a row, to shared memory. A lane has four experts, and of the parts every other one.
  __device__ __forceinline__ void load_logits(int l, int row) const {
    constexpr int kMostParts = kMaxDecoderDim<ExpertsDecoder> / kProductColumns / 2;
    const int expert = lane() % 16 * 4, first = lane() / 16;
    const bool exists = expert < p_.experts.num_experts;
    uint4 parts[kMostParts];
    bool complete;
    do {
      complete = true;
#pragma unroll
      for (int i = 0; i < kMostParts; ++i) {
        const int chunk = first + 2 * i;
        parts[i] = uint4{};
        if (exists && chunk < num_chunks())
          parts[i] = load_announced(part_of(l, chunk, row) + expert);
        complete = complete && all_written<float>(parts[i]);
      }
    } while (!complete);
    __syncwarp();
    float sums[4] = {};
#pragma unroll
    for (const uint4& part : parts) {
      sums[0] += __uint_as_float(part.x);
      sums[1] += __uint_as_float(part.y);
      sums[2] += __uint_as_float(part.z);
      sums[3] += __uint_as_float(part.w);
    }
    const Bf16* bias = p_.experts.layers[l].router_bias;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] += __shfl_xor_sync(kFullWarp, sums[i], 16);
      if (exists && bias != nullptr) sums[i] += __bfloat162float(bias[expert + i]);
    }
    if (first == 0) {
      *reinterpret_cast<uint2*>(&small_.logits[expert]) =
          uint2{pack_bf16x2(sums[0], sums[1]), pack_bf16x2(sums[2], sums[3])};
    }
    __syncwarp();
  }

  // For a row, whose logits are there.
  __device__ __forceinline__ void choose(int l, int row) const {
    const int count = p_.experts.experts_per_token;
    const ExpertChoice choice =
        choose_experts<kRouteExperts>(small_.logits, p_.experts.num_experts, count);
    if (lane() >= count) return;
    const std::uint32_t word =
        __float_as_uint(choice.weight) | static_cast<std::uint32_t>(choice.expert);
    announce_value(choices_of(l, row) + lane(), choices_of(l + 1, row) + lane(), word);
  }

  // Of all rows, to shared memory. A row is two lanes', who have half of what it chose each.
  __device__ __forceinline__ void load_choices(int l) const {
    constexpr int kHalf = kRouteChoices / 2;
    static_assert(kHalf * sizeof(std::uint32_t) == sizeof(uint4));
    ExpertRoute& route = small_.route;
    const int half = lane() % 2;
    const bool has_half = half * kHalf < p_.experts.experts_per_token;
#pragma unroll 1
    for (int first = 0; first < p_.num_rows; first += kWarp / 2) {
      const int row = first + lane() / 2;
      const bool exists = row < p_.num_rows;
      const bool chose = exists && has_half && lives(row);
      uint4 words;
      do {
        words = chose ? load_announced(choices_of(l, row) + half * kHalf) : uint4{};
      } while (!all_written<float>(words));
      __syncwarp();
      const std::uint32_t own[kHalf] = {words.x, words.y, words.z, words.w};
      std::uint32_t low = 0, high = 0;
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        const std::uint32_t bit = chose ? 1u << own[i] % 32 : 0;
        (own[i] % 64 < 32 ? low : high) |= bit;
      }
      low |= __shfl_xor_sync(kFullWarp, low, 1);
      high |= __shfl_xor_sync(kFullWarp, high, 1);
      if (exists && half == 0) {
        route.chosen[row] = static_cast<std::uint64_t>(high) << 32 | low;
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; chose && i < kHalf; ++i) {
        const int expert = static_cast<int>(own[i] % 64);
        route.weights[route.pair_of(row, expert)] = __uint_as_float(own[i] & 0xffff0000u);
      }
    }
    __syncwarp();
  }

  const DecoderBlockState<ExpertsDecoder>& block_;
  const DecoderLaunch& p_;
  Small& small_;
};

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
