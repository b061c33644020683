// The kernels of this folder, one function each: it checks what the kernel cannot do, enqueues it,
// and returns the launch's error with the kernel's name. What each computes is said in kernels.h.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// norm_and_rows.cu
Status norm(Stream& stream, const NormParams& params);
Status gate(Stream& stream, const GateParams& params);
Status gather_rows(Stream& stream, const GatherRowsParams& params);
// to[i] = residual[(first_row + i) % residual_rows] of a linear; `to` is dense.
Status copy_residual(Stream& stream, const LinearParams& params, int first_row, int num_rows,
                     void* to);
// Adds to *count the number of 16-byte words in which a and b differ. `bytes`: a multiple of 16.
Status count_differences(Stream& stream, const void* a, const void* b, std::size_t bytes,
                         unsigned* count);

// experts.cu. A decode step's params.logits are there; they may be the first thing in params.scratch.
Status experts(Stream& stream, const ExpertsParams& params);
std::size_t experts_scratch_bytes(int max_rows, const ExpertSizes& sizes);

// scale_heads.cu. The first fills u: [num_tokens, heads.qkv_width()] T, dense; the second takes the products
// of its rows, t: [num_tokens, 2 * num_heads] T, dense.
Status activate_heads(Stream& stream, const ScaleHeadsParams& params, void* u);
Status scale_heads(Stream& stream, const ScaleHeadsParams& params, const void* t);
// Of u and t, or of sum_head_scales.
std::size_t scale_heads_scratch_bytes(int max_tokens, const AttentionHeads& heads);

// Parts of the products t, which rope_and_cache adds up and scales by.
struct HeadScaleSums {
  const float* parts;  // [num_tokens, num_parts, 2 * num_heads]
  int num_parts;
  HeadScales scales;
};
bool can_sum_head_scales(const ScaleHeadsParams& params);
// In params.scratch. Leaves qkv as it is.
StatusOr<HeadScaleSums> sum_head_scales(Stream& stream, const ScaleHeadsParams& params);

// image_ops.cu
Status patchify(Stream& stream, const PatchifyParams& params);
Status stitch_and_pool(Stream& stream, const StitchAndPoolParams& params);

// embed.cu
Status embed(Stream& stream, const EmbedParams& params);

// step_ops.cu
Status begin_step(Stream& stream, const BeginStepParams& params);
Status plan_decode(Stream& stream, const PlanDecodeParams& params);
Status advance_rows(Stream& stream, const AdvanceRowsParams& params);
Status stamp_time(Stream& stream, std::uint64_t* stamp);
// Whether the current device runs the code of this path.
bool has_step_code();

// kv_cache.cu
// Unless `scales` is nullptr: scales q and v first, as scale_heads does. Without q_norm then.
Status rope_and_cache(Stream& stream, const RopeAndCacheParams& params,
                      const HeadScaleSums* scales = nullptr);
Status copy_pages(Stream& stream, const CopyPagesParams& params);

// vision_attention.cu, prefill_attention.cu, decode_attention.cu
Status vision_attention(Stream& stream, const VisionAttentionParams& params,
                        int num_multiprocessors);
Status prefill_attention(Stream& stream, const PagedAttentionParams& params,
                         int num_multiprocessors);
// `arrivals`: [num_sequences * num_heads] zeros, left as zeros. One launch at a time may use them.
Status decode_attention(Stream& stream, const PagedAttentionParams& params, unsigned* arrivals);
std::size_t decode_attention_scratch_bytes(int max_sequences, int max_context, int num_heads,
                                           int head_dim);

// grammar_masks.cu
Status grammar_masks(Stream& stream, const GrammarMasksParams& params);

// sample.cu
Status sample(Stream& stream, const SampleParams& params);
std::size_t sample_scratch_bytes(int max_rows, int vocab);

// top_logprobs.cu
Status top_logprobs(Stream& stream, const TopLogprobsParams& params);

// regions.cu: picks the values from the heads' logits.
// A head's: those of row i are the sums from sums + i * out on, those of its ranks `rank_stride` apart and added up in order, and the
// bias, unless that is nullptr.
struct RegionLogits {
  const float* sums = nullptr;
  int num_ranks = 1;  // of both heads alike: 1 or kColumnRanks (row_linear.h)
  std::int64_t rank_stride = 0;
  const void* bias = nullptr;  // [out] T
};
// arrived: that of region_products, or nullptr.
Status pick_region_values(Stream& stream, const DecodeRegionsParams& params,
                          const RegionLogits& coord, const RegionLogits& size, unsigned* arrived);

// fill_random.cu
Status fill_random(Stream& stream, const FillRandomParams& params);

// round_fp8.cu
Status round_to_fp8(Stream& stream, const RoundToFp8Params& params);
Status rows_to_fp8(Stream& stream, const RowsToFp8Params& params);
// to[i] = row first_row + i of a product's 8-bit x times its scale, which is exact; `to` is dense.
Status widen_fp8_rows(Stream& stream, const LinearParams& params, int first_row, int num_rows,
                      void* to);

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
