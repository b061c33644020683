// Activations on their way from those who make them to the products of decoder_kernel.cuh, through
// memory.
//
// Up to 8 rows they announce themselves (self_announcing.cuh), and computing warps read them
// straight into registers: a row is too short to gain from anything else, and its way is as short
// as can be. More rows are counted (grid_counters.cuh) and come into shared memory first, for all
// warps of a block.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/fp8_tile.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/row_product.cuh"
#include "kernels/cuda/device/self_announcing.cuh"

namespace gapless {

template <int kRows>
inline constexpr bool kXFromMemory = kRows == 8;

// Activations that products read lie in the order in which lanes load them as B fragments: per 128
// columns, per 8 rows, per step of 16 columns, per lane 4 elements (mma.cuh). So 128 columns are
// one contiguous piece, and a warp's load of a fragment has no bank conflicts. Where they are read
// from memory, a lane has the elements of two steps side by side: 16 bytes.
template <int kRows>
__device__ __forceinline__ int fragment_index(int row, int column) {
  constexpr int kSteps = kXFromMemory<kRows> ? 2 : 1;
  const int block = column / kProductColumns * (kRows / 8) + row / 8;
  const int step = column % kProductColumns / 16, k = column % 16;
  const int lane = row % 8 * 4 + k % 8 / 2;
  return block * (8 * kProductColumns) + step / kSteps * (kSteps * 128) + lane * (kSteps * 4) +
         step % kSteps * 4 + k / 8 * 2 + k % 2;
}

// For products of warpgroups (warpgroup_product.cuh): per 128 columns, per 8 rows, per 8 columns an atom
// of wgmma.cuh.
template <int kRows>
__device__ __forceinline__ unsigned atom_index(unsigned row, unsigned column) {
  const unsigned block = column / kProductColumns * (kRows / 8) + row / 8;
  return block * (8 * kProductColumns) + column % kProductColumns / 8 * 64 + row % 8 * 8 +
         column % 8;
}

// One layer's, of `columns` columns, to be multiplied by weights of a format; kInAtoms: by warpgroups.
template <PreparedFormat kFormat, int kRows, bool kInAtoms = false>
class Activations {
 public:
  __device__ Activations(Bf16* memory, int columns, int layer)
      : half_(memory + offset(columns, layer)), other_half_(memory + offset(columns, layer + 1)) {}

  __device__ const Bf16* data() const { return half_; }

  // Two columns, the first of them even.
  __device__ void store_pair(int row, int column, float low, float high) const {
    const std::uint32_t values = pack_activations<kFormat>(low, high);
    const int at = index(row, column);
    auto* to = reinterpret_cast<std::uint32_t*>(half_ + at);
    if constexpr (kXFromMemory<kRows>) {
      announce_value(to, reinterpret_cast<std::uint32_t*>(other_half_ + at), values);
    } else {
      *to = values;
    }
  }

  // Four columns, the first of them a multiple of four. In atoms they are neighbours.
  __device__ void store_four(int row, int column, const float (&numbers)[4]) const {
    static_assert(kInAtoms);
    *reinterpret_cast<uint2*>(half_ + index(row, column)) =
        uint2{pack_activations<kFormat>(numbers[0], numbers[1]),
              pack_activations<kFormat>(numbers[2], numbers[3])};
  }

  // Eight columns, the first of them a multiple of eight.
  __device__ void store_eight(int row, int column, const float (&numbers)[8]) const {
    if constexpr (kInAtoms) {
      *reinterpret_cast<uint4*>(half_ + index(row, column)) =
          uint4{pack_activations<kFormat>(numbers[0], numbers[1]),
                pack_activations<kFormat>(numbers[2], numbers[3]),
                pack_activations<kFormat>(numbers[4], numbers[5]),
                pack_activations<kFormat>(numbers[6], numbers[7])};
    } else {
#pragma unroll
      for (int i = 0; i < 8; i += 2) store_pair(row, column + i, numbers[i], numbers[i + 1]);
    }
  }

  __device__ void store(int row, int column, float number) const {
    const Bf16 value =
        __ushort_as_bfloat16(static_cast<unsigned short>(pack_activations<kFormat>(number, 0)));
    const int at = index(row, column);
    if constexpr (kXFromMemory<kRows>) {
      announce_value(half_ + at, other_half_ + at, value);
    } else {
      half_[at] = value;
    }
  }

 private:
  __device__ static int index(int row, int column) {
    if constexpr (kInAtoms) {
      return static_cast<int>(
          atom_index<kRows>(static_cast<unsigned>(row), static_cast<unsigned>(column)));
    }
    return fragment_index<kRows>(row, column);
  }
  __device__ static std::int64_t offset(int columns, int layer) {
    return kXFromMemory<kRows> ? std::int64_t{layer % 2} * kRows * columns : 0;
  }

  Bf16* half_;
  Bf16* other_half_;
};

// This lane's B fragments of 128 columns of up to 8 rows.
struct MemoryFragments {
  static constexpr int kPairs = kProductColumns / 32;  // of steps
  uint4 pairs[kPairs];

  // A lane without a row has zeros.
  __device__ __forceinline__ void load(const Bf16* activations, int chunk, bool has_row) {
    const Bf16* from =
        activations + chunk * (8 * kProductColumns) + threadIdx.x % kWarp * (16 / sizeof(Bf16));
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      pairs[i] = has_row ? load_announced(from + i * 256) : uint4{};
    }
  }
  __device__ __forceinline__ bool complete() const {
    bool result = true;
#pragma unroll
    for (const uint4& pair : pairs) result = result && all_written<Bf16>(pair);
    return result;
  }
};

}  // namespace gapless
