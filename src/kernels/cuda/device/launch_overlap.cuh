// Launch overlap (programmatic dependent launch). Every kernel of this folder may be started while
// its predecessor still runs. In return it calls
//   * wait_for_predecessor before it touches what an earlier kernel writes or reads. Every kernel
//     waits, even one with nothing to do, so each kernel's completion implies that of all before it.
//   * let_successor_start as soon as it likes: the successor waits for this kernel's completion
//     anyway.
// Fourteen kernels read before they wait: norm, row_linear, decoder_kernel, split_product and embed_step weights, which no step writes, decoder_kernel
// also the row states (DecoderBlocksParams), decode_attention the cache and prefill_attention the sequences (their files say why they may),
// summarize, behind grammar_masks, logits and row states, few_row_experts' second kernel the router's logits and the sequences, for its route
// and its weights, grouped_product's second one tiles and rows that the first has counted (in 8 bits tiles alone, and rows_to_fp8 between the two started when the first had waited), sample row states and a short list's logits, region_products
// row states, and pick_region_values, behind region_products, these and tokens: a kernel before any of the last six waits before it lets its successor start, so
// whoever made these is through (of several that one follows, all must have let it start). Experts' add, behind grouped_product, reads choices: it starts when the
// second product has, so the first has waited. Rows of weights that a step restores are multiplied by a row_linear launched without overlap
// (LaunchShape::overlaps).
//
// On paths without it a kernel starts when its predecessor is through (launch.h), and both are
// nothing.
#pragma once

#include "kernels/cuda/cuda_path.h"

namespace gapless {

__device__ __forceinline__ void wait_for_predecessor() {
  if constexpr (cuda::kPath.has_copy_engine) asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ void let_successor_start() {
  if constexpr (cuda::kPath.has_copy_engine) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  }
}

}  // namespace gapless
