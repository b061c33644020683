// All blocks of the text decoder in a decode step, and its logits, as one launch that reads weights
// and cached keys and values at the speed of memory.
//
// One block per multiprocessor stays for the whole launch:
//   streaming warp   walks, without ever waiting for a result, over everything that no step changes
//                    and this block will need: weights of its tiles, pages of its units; layer
//                    after layer, as far ahead as the ring (stage_ring.cuh) has room.
//   copying warps    where there is no copy engine, copy what the streaming warp asks for (stage_copies.cuh).
//   x warp           from 9 rows on, brings the activations of the products when their counter
//                    says they are there.
//   signal warp      tells the other blocks what this one has written: a fence and an atomic take
//                    up to two microseconds, for which nobody else should wait.
//   computing warps  per layer, in the order of decoder_schedule.h, over which all warps walk. Of parallel
//                    blocks (docs/kernels_decode.md has the sequential ones' table):
//       q, k, v of the block's tiles
//       (q, k, v)    its units of the attention                 signal parts
//       gelu(fc1) of its tiles                                  signal inner
//       (parts)      combine its share of rows and heads        signal attention
//       (inner)      its share of [proj|fc2], columns of fc2
//       (attention)  its share of [proj|fc2], columns of proj: partial sums
//       (sums)       its row: residual, LayerNorm               signal norm
// What is in brackets is waited for. q, k, v and the sums are needed at once: they say themselves
// when they are there (self_announcing.cuh). The others are signalled through counters while there
// are products that need none of them. Up to 8 rows all but the parts say so themselves
// (activations.cuh). In all these waits the ring holds 5 us of what comes next, and memory stays
// busy.
//
// A step of done rows costs a launch: before anything else a block looks whether any row lives, in
// the row states, which no launch of the step writes. So those who stream need not wait for the
// launches ahead. If nobody lives there, the plan's sequences are asked when they are ready, and if
// nobody lives there either, all blocks leave: counters are zeros as they found them, and of scratch
// a launch expects nothing.
//
// The step's plan says which logits are needed (needed_logits.h). A block keeps of the head's tiles those that hold some,
// often none: it then reads nothing of the head's weights and leaves behind the last layer. The x warp finds that out
// while the first layer's weights arrive; the others learn it with what the rows are, long before they come to the head.
//
// Row invariance: a product sums 128 columns in order (row_product.cuh), then every eighth 128, then
// over the even and the odd ones of the eight in order, then both; [proj|fc2] does so in kDecoderColumnRanks shares of the columns,
// then over these in order. The attention: decoder_attention.cuh.
//
// Scratch is written again one layer later. Between a buffer's last reader and its next writer
// there always is something for which the writer waited, directly or through others: a row's sums
// are complete after all blocks' reads of the layer, and norm comes after the sums. The compiler
// follows who knows what, and refuses an order in which this is not so (schedule_fault).
//
// It is compiled for each list of phases, each format of weights and of the cache, and for 8, 16, 32, 64 and
// 128 rows up to kMostRows: decoder_kernel_*.cu. A step of more is several launches.
#pragma once

#include <type_traits>

#include "kernels/cuda/device/decoder_computation.cuh"
#include "kernels/cuda/device/decoder_route.cuh"
#include "kernels/cuda/device/decoder_streams.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/register_exchange.cuh"
#include "kernels/cuda/launch.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// The last block leaves the counters as zeros: all warps of all blocks are through with them.
__device__ inline void finish(DecoderCounters& counters) {
  __threadfence();
  if (atomicAdd(&counters.finished.count, 1u) != gridDim.x - 1) return;
  for (GridCounter& counter : counters.values) counter.count = 0;
  counters.finished.count = 0;
}

// Whether a thread's row lives, one thread to a row: as the row states say, and as the plan says.
__device__ inline bool may_live(const DecoderLaunch& p, int row) {
  if (row >= p.num_rows) return false;
  if (p.rows == nullptr) return true;
  const std::int32_t index = __ldcg(p.rows + row);
  return index >= 0 && __ldcg(&p.row_states[index].done) == 0;
}
__device__ inline bool lives(const DecoderLaunch& p, int row) {
  return row < p.num_rows && __ldcg(&p.sequences[row].num_tokens) != 0;
}

template <typename S, PreparedFormat kFormat, int kRows, typename CacheElement>
__global__ void __launch_bounds__(kDecoderThreads<S, kRows>, 1)
    decoder_kernel(const __grid_constant__ DecoderLaunch p) {
  using Layout = DecoderLayout<S>;
  extern __shared__ char raw_shared[];
  char* base = raw_shared + (128 - shared_address(raw_shared) % 128) % 128;
  char* behind_ring = base + Layout::kRingBytes;
  if constexpr (Layout::kRingBytes == 0) behind_ring += p.ring_bytes;
  auto& small = *reinterpret_cast<DecoderSmall<S>*>(behind_ring + kScratchBytes<S>);
  const int index = static_cast<int>(blockIdx.x), num_blocks = static_cast<int>(gridDim.x);
  const DecoderSizes sizes = sizes_of<S>(p);
  const DecoderBlockState<S> block{p,
                                   shared_address(base),
                                   StageRing(small.ring, kStageSharers<S, kFormat, kRows>),
                                   reinterpret_cast<float*>(behind_ring),
                                   small,
                                   DecoderWork(sizes, small.shares, index, num_blocks)};

  // Where lanes of a warp might have gone apart, shuffles become calls of functions before 9.0, across which a thread keeps less in registers.
  const int warp = of_warp(static_cast<int>(threadIdx.x) / kWarp);
  let_successor_start();
  const int thread = static_cast<int>(threadIdx.x);
  static_assert(kMaxLaunchRows <= kDecoderThreads<S, kRows>);
  const bool row_may_live = may_live(p, thread);
  if (threadIdx.x == 0) {
    small.ring.init(kStageSharers<S, kFormat, kRows>);
    if constexpr (kHasXRing<S, kRows>) small.x_ring.init(kStageSharers<S, kFormat, kRows>);
    small.shares.divide(sizes, index, num_blocks);
    init_barrier(shared_address(&small.rows_ready), kWarp);
    for (std::uint32_t& count : small.arrived) count = 0;
    for (std::uint64_t& barrier : small.written) {
      init_barrier(shared_address(&barrier), kProductWarps);
    }
    if constexpr (S::kHasExperts) init_route_barriers<kRows>(small.experts);
    fence_barrier_init();
  }
  if (of_warp(__syncthreads_or(row_may_live)) == 0) {
    wait_for_predecessor();
    if (of_warp(__syncthreads_or(lives(p, thread))) == 0) return;
  }
  static_assert(kHasCopyEngine || !S::kHasExperts, "the twelfth warp has one thing to do");
  if (warp < kProductWarps) {
    if constexpr (kExchangesRegisters<S, kRows>) {
      take_registers<kComputingRegisters<S, kRows>>();
    }
    Computation<S, kFormat, kRows, CacheElement>(block).run();
  } else {
    if constexpr (kExchangesRegisters<S, kRows>) {
      give_registers<kMovingRegisters<S, kRows>>();
    }
    if (warp == kStreamWarp) {
      Streaming<S, kFormat, kRows, CacheElement>(block).run();
    } else if (warp == kXWarp) {
      wait_for_predecessor();
      load_rows<S, kRows, CacheElement>(p, small.rows);
      if (thread % kWarp == 0 && p.needed_logits != nullptr) {
        small.shares.keep_needed(*p.needed_logits);
      }
      arrive(shared_address(&small.rows_ready));  // each lane what it wrote
      if (!kXFromMemory<kRows> && is_copying_lane()) {
        Bringing<S, kFormat, kRows>(block).run();
      }
      if constexpr (kXWarpCopies<kRows>) {
        small.ring.template serve<kCopyingWarps>(1, small.ring.full);
      }
    } else if (warp == kSignalWarp) {
      wait_for_predecessor();
      if (threadIdx.x % kWarp == 0) Signalling<S, kRows>(block).run();
    } else if constexpr (S::kHasExperts) {
      wait_for_predecessor();
      Routing<kFormat, kRows>(block).run();
    } else if constexpr (kCopyingWarps > 0) {
      small.ring.template serve<kCopyingWarps>(warp - kLastWarp, small.ring.full);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) finish(*p.counters);
}

// One kernel for each number of rows.
template <typename S, PreparedFormat kFormat, typename CacheElement>
Status launch_decoder_kernel(Stream& stream, const DecoderLaunch& given, int num_blocks,
                             int shared_bytes) {
  using Layout = DecoderLayout<S>;
  DecoderLaunch params = given;
  params.ring_bytes = Layout::kRingBytes != 0
                          ? Layout::kRingBytes
                          : decoder_ring_bytes(shared_bytes, Layout::kRestBytes);
  const auto launch_rows = [&](auto rows) -> Status {
    constexpr int kRows = decltype(rows)::value;
    if constexpr (kRows <= kMostRows<S>) {
      return launch("decoder_blocks", stream,
                    {.grid = dim3(static_cast<unsigned>(num_blocks)),
                     .block = dim3(kDecoderThreads<S, kRows>),
                     .shared_bytes = static_cast<std::size_t>(Layout::bytes(params.ring_bytes)),
                     .registers = kExchangesRegisters<S, kRows> ? kStartRegisters : 0},
                    decoder_kernel<S, kFormat, kRows, CacheElement>, params);
    } else {
      return make_error(StatusCode::kInternal, "decoder_blocks: a launch of {} rows",
                        params.num_rows);
    }
  };
  switch (decoder_slice_rows(params.num_rows)) {
    case 8:
      return launch_rows(std::integral_constant<int, 8>{});
    case 16:
      return launch_rows(std::integral_constant<int, 16>{});
    case 32:
      return launch_rows(std::integral_constant<int, 32>{});
    case 64:
      return launch_rows(std::integral_constant<int, 64>{});
    default:
      return launch_rows(std::integral_constant<int, kMaxLaunchRows>{});
  }
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
