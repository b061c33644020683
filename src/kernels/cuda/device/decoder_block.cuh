// What the warps of a block of decoder_kernel.cuh share.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/decoder_attention.cuh"
#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/decoder_products.cuh"
#include "kernels/cuda/device/row_product.cuh"
#include "kernels/cuda/device/stage_ring.cuh"

namespace gapless::cuda {

inline constexpr int kStreamWarp = kProductWarps;
inline constexpr int kXWarp = kProductWarps + 1;
inline constexpr int kSignalWarp = kProductWarps + 2;
// Registers change hands between groups of four warps: one has nothing else to do.
inline constexpr int kDecoderThreads = (kProductWarps + 4) * kWarp;
// Of a thread. All together may be no more than at the start. What does not fit lies in memory, and
// is far away after every wait for another block, which empties the first-level cache. So divided,
// nothing of up to 32 rows lies there. Up to 8 rows those of the start are enough; the compiler
// makes slower code of more.
inline constexpr int kStartRegisters = 168;  // that many each of 12 warps can have
template <int kRows>
inline constexpr int kComputingRegisters = kRows == 64  ? 216
                                           : kRows == 8 ? kStartRegisters
                                                        : 192;
template <int kRows>
inline constexpr int kMovingRegisters = 3 * kStartRegisters - 2 * kComputingRegisters<kRows>;
template <int kRows>
inline constexpr bool kExchangesRegisters = kComputingRegisters<kRows> != kStartRegisters;

// What computing warps tell the signal warp, in the order of a layer.
enum Written { kQkv, kParts, kInner, kAttention, kSums, kNorm, kNumWritten };

struct DecoderSmall {
  RingControl ring;
  std::uint64_t rows_ready;            // mbarrier: `rows` is written
  std::uint64_t written[kNumWritten];  // mbarriers: the computing warps have written it
  float norm[kWarp];
  AttentionRows rows;
};

// Shared memory of a block, in bytes from its 128-byte aligned start.
struct DecoderLayout {
  static constexpr int kBudget = (227 << 10) - 128;  // of a multiprocessor
  static constexpr int kRingBytes =
      (kBudget - kReduceBytes - static_cast<int>(sizeof(DecoderSmall))) / 128 * 128;
  static constexpr int kReduce = kRingBytes;
  static constexpr int kSmall = kReduce + kReduceBytes;
  static constexpr int kBytes = kSmall + static_cast<int>(sizeof(DecoderSmall)) + 128;
};

// Everything that warps of a block share.
struct DecoderBlockState {
  const DecoderLaunch& p;
  std::uint32_t ring_data;
  StageRing ring;
  float* reduce_buffer;
  DecoderSmall& small;
  DecoderWork work;
};

}  // namespace gapless::cuda
