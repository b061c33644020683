// What the warps of a block of decoder_kernel.cuh share.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/decoder_products.cuh"
#include "kernels/cuda/device/decoder_units.cuh"
#include "kernels/cuda/device/experts_small.cuh"
#include "kernels/cuda/device/register_exchange.cuh"
#include "kernels/cuda/device/row_product.cuh"
#include "kernels/cuda/device/stage_ring.cuh"
#include "kernels/cuda/device/turn_product.cuh"
#include "kernels/cuda/device/warp_count.cuh"
#include "kernels/cuda/ring_space.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

inline constexpr int kStreamWarp = kProductWarps;
inline constexpr int kXWarp = kProductWarps + 1;
inline constexpr int kSignalWarp = kProductWarps + 2;
// A twelfth warp finds the route of a decoder with experts, copies where there is no copy engine, and is there where registers
// change hands between groups of four warps. Elsewhere there is none.
inline constexpr int kLastWarp = kProductWarps + 3;
inline constexpr int kRouteWarp = kLastWarp;
// Warps that copy what the streaming warp asks for (stage_copies.cuh). Up to 8 rows the second is the x warp, which then has nothing
// else to do; from 9 rows on it is a thirteenth, and threads have 128 registers instead of 168.
inline constexpr int kCopyingWarps = kHasCopyEngine ? 0 : 2;
template <int kRows>
inline constexpr bool kXWarpCopies = kXFromMemory<kRows>&& kCopyingWarps > 0;
template <typename S, int kRows>
inline constexpr int kDecoderThreads = (kProductWarps + 3 +
                                        (kHasRegisterExchange || S::kHasExperts ? 1 : 0) +
                                        kCopyingWarps - (kXWarpCopies<kRows> ? 1 : 0)) *
                                       kWarp;
// Of a thread. All together may be no more than at the start. What does not fit lies in memory, and
// is far away after every wait for another block, which empties the first-level cache. So divided,
// eight bytes at most of up to 32 rows lie there, but for decoders with experts. Up to 8 rows of a parallel
// decoder those of the start are enough; the compiler makes slower code of more.
inline constexpr int kStartRegisters = 168;  // that many each of 12 warps can have
template <typename S>
constexpr int computing_registers(int rows) {
  if (S::kHasExperts) return rows == 64 ? 216 : 192;
  if (S::kIsSequential) return rows == 64 ? 208 : rows == 8 ? 200 : 192;
  return rows >= 64 ? 216 : rows == 8 ? kStartRegisters : 184;
}
template <typename S, int kRows>
inline constexpr int kComputingRegisters = computing_registers<S>(kRows);
template <typename S, int kRows>
inline constexpr int kMovingRegisters = 3 * kStartRegisters - 2 * kComputingRegisters<S, kRows>;
template <typename S, int kRows>
inline constexpr bool kExchangesRegisters =
    kHasRegisterExchange&& kComputingRegisters<S, kRows> != kStartRegisters;

// A thread has 128 registers.
template <int kRows>
inline constexpr bool kHasFewRegisters = kCopyingWarps > 0 && !kXWarpCopies<kRows>;

// Of computing warps: the layer, which of its products, and where a unit of that begins.
using ComputingCounts = WarpCounts<kProductWarps, 3>;

// What computing warps use between two products, each its share, is the reduce buffer: a unit's queries, and of sequential blocks
// what a new token adds to the cache.
template <typename S>
inline constexpr int kScratchBytes =
    S::kIsSequential && !kHasRegisterExchange ? kProductWarps * kGroupScratchBytes : kReduceBytes;

template <typename S>
struct DecoderSmall : ComputingCounts {
  RingControl ring;
  XRingControl x_ring;
  std::uint64_t rows_ready;  // mbarrier: `rows` is written
  // mbarriers: the computing warps have written it
  std::uint64_t written[ScheduleOf<S>::kNumValues];
  TileShares shares;
  float norm[kWarp];
  AttentionRows rows;
  std::uint32_t arrived[kRingStages];  // units of parts (GroupPartMerger)
  [[no_unique_address]] ExpertsSmall<S::kHasExperts> experts;
};

// Shared memory of a block, in bytes from its 128-byte aligned start: the ring, then the rest. The
// ring takes all that the device has, which the compiler knows where a path has one kind of device.
template <typename S>
struct DecoderLayout {
  static constexpr int kRestBytes = kScratchBytes<S> + static_cast<int>(sizeof(DecoderSmall<S>));
  static constexpr int kSmallestRingBytes = decoder_ring_bytes(kSmallestSharedBytes, kRestBytes);
  static constexpr int kLargestRingBytes = decoder_ring_bytes(kLargestSharedBytes, kRestBytes);

  // 0: as the launch says (DecoderLaunch::ring_bytes).
  static constexpr int kRingBytes = kPath.has_warpgroups ? kLargestRingBytes : 0;

  static constexpr int bytes(int ring_bytes) { return ring_bytes + kRestBytes + kStageAlignment; }
};

// Small GPUs have fewer multiprocessors than a step has rows: a block then has each gridDim.x-th.
// Those of 9.0a have enough (check_decoder_kernel).
inline constexpr bool kOneRowPerBlock = kPath.has_warpgroups;

// As the kernel's code has them.
template <typename S>
constexpr bool has_expected_copies() {
  return copies_of(S::kSchedule, Value::kQkv) == 2 && copies_of(S::kSchedule, Value::kSums) == 2 &&
         copies_of(S::kSchedule, Value::kParts) == 1;
}
static_assert(has_expected_copies<ParallelDecoder>());
static_assert(has_expected_copies<SequentialDecoder>());
static_assert(has_expected_copies<ExpertsDecoder>());
static_assert(copies_of(SequentialDecoder::kSchedule, Value::kFfSums) == 2);
static_assert(copies_of(ExpertsDecoder::kSchedule, Value::kFfSums) == 2);

// A set of rows that share units lies in a slice, and so in one launch.
static_assert(kMostRows<ParallelDecoder> % kSharingSlice == 0 ||
              !kSharesUnits<ParallelDecoder, kMostRows<ParallelDecoder>, Bf16>);

// Everything that warps of a block share.
template <typename S>
struct DecoderBlockState {
  const DecoderLaunch& p;
  std::uint32_t ring_data;
  StageRing ring;
  float* reduce_buffer;
  DecoderSmall<S>& small;
  DecoderWork work;

  // What computing warps ask. (Where registers are not exchanged they keep none of it from phase to phase.)
  __device__ __forceinline__ DecoderWork computing_work() const {
    if constexpr (kHasRegisterExchange) return work;
    return DecoderWork(sizes_of<S>(afresh(p.dim), afresh(p.ff_dim), afresh(p.vocab),
                                   afresh(p.num_heads), afresh(key_heads<S>(p))),
                       small.shares, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  }
  __device__ int ring_bytes() const {
    int bytes = DecoderLayout<S>::kRingBytes;
    if constexpr (DecoderLayout<S>::kRingBytes == 0) bytes = p.ring_bytes;
    return bytes;
  }
  // The activations' ring lies behind that of the stages.
  template <PreparedFormat kFormat, int kRows>
  __device__ int stage_bytes() const {
    return ring_bytes() - kXRingBytes<S, kFormat, kRows>;
  }
  template <PreparedFormat kFormat, int kRows>
  __device__ XRingOf<kRows> x_ring() const {
    return XRingOf<kRows>(small.x_ring, ring_data + stage_bytes<kFormat, kRows>());
  }
  __device__ GridCounter& counter(Value value) const {
    return p.counters->values[static_cast<int>(value)];
  }
  // What the counter of a value shows when all have counted a turn.
  template <Value kValue>
  __device__ unsigned count_of(int turn) const {
    const int blocks_with_row =
        kOneRowPerBlock ? p.num_rows : min(p.num_rows, static_cast<int>(gridDim.x));
    return (turn + 1) * computing_work().template counting_blocks<S, kValue>(blocks_with_row);
  }
  __device__ std::uint32_t written(Value value) const {
    return shared_address(&small.written[static_cast<int>(value)]);
  }
  // Whether this block counts what a phase of a layer writes. A layer leaves nothing to a head that
  // is not there.
  template <Value kValue, bool kFewRows>
  __device__ bool counts(int layer) const {
    using Of = ScheduleOf<S>;
    if constexpr (kValue == Value::kNone) return false;
    if (!Of::template counted<kValue, kFewRows>(Of::template turn_written<kValue>(layer)))
      return false;
    if (!computing_work().template counts<S, kValue>(p.num_rows)) return false;
    return !Of::in(Of::kCarried, kValue) || layer + 1 < p.num_layers || p.head_weights != nullptr;
  }
};

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
