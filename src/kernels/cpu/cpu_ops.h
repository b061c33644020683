// The fast ops as plain calls that return when the work is done, spread over the thread pool.
// Shapes, meaning and row invariance: kernels.h. `ops` is the instruction set to use, and the element
// type T; `dtype` is T.
#pragma once

#include "kernels/cpu/vector_ops.h"
#include "kernels/kernels.h"

namespace gapless::cpu {

// linear.cpp
void linear(const VectorOps& ops, const LinearParams& params);
void pack_int8(DType dtype, const PackInt8Params& params);
void norm(const VectorOps& ops, const NormParams& params);
void gate(const VectorOps& ops, const GateParams& params);

// experts.cpp; scratch: experts_scratch_bytes()
void experts(const VectorOps& ops, const ExpertsParams& params);
std::size_t experts_scratch_bytes(int max_rows, const ExpertSizes& sizes);

// scale_heads.cpp; scratch: scale_heads_scratch_bytes()
void scale_heads(const VectorOps& ops, const ScaleHeadsParams& params);
std::size_t scale_heads_scratch_bytes(int max_tokens, const AttentionHeads& heads);

// vision.cpp
void patchify(DType dtype, const PatchifyParams& params);
void stitch_and_pool(DType dtype, const StitchAndPoolParams& params);

// attention.cpp; head_dim at most kMaxHeadDim
void vision_attention(const VectorOps& ops, const VisionAttentionParams& params);
void paged_attention(const VectorOps& ops, const PagedAttentionParams& params);
void rope_and_cache(const VectorOps& ops, const RopeAndCacheParams& params);

// embed.cpp; at most kMaxRegionFeatures features per encoder
void embed(const VectorOps& ops, const EmbedParams& params);

// regions.cpp; scratch: region_scratch_bytes()
void decode_regions(const VectorOps& ops, const DecodeRegionsParams& params);
std::size_t region_scratch_bytes(int max_rows, int dim, int inner_dim, int max_out);

// grammar_masks.cpp
void grammar_masks(const GrammarMasksParams& params);

// sampling.cpp; scratch: sample_scratch_bytes()
void sample(const SampleParams& params);
std::size_t sample_scratch_bytes(int max_rows, int vocab);

// top_logprobs.cpp
void top_logprobs(const TopLogprobsParams& params);

// random.cpp
void fill_random(DType dtype, const FillRandomParams& params);

// fp8_rows.cpp; numbers in 8 bits are kept as T, their scales multiplied in
void round_to_fp8(DType dtype, const RoundToFp8Params& params);
void rows_to_fp8(DType dtype, const RowsToFp8Params& params);

// gather_rows.cpp
void gather_rows(DType dtype, const GatherRowsParams& params);

}  // namespace gapless::cpu
