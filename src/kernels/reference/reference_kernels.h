// The oracle behind the op table: each op is one piece of work on a CpuStream that calls the plain
// function of reference_ops.h. cpu/ derives from it and replaces the ops that are worth making
// fast; the bookkeeping ops (rows, pages) exist once.
#pragma once

#include <cstddef>

#include "kernels/kernels.h"

namespace gapless {

class ReferenceKernels : public Kernels {
 public:
  const char* name() const override { return "reference"; }
  DType activation_dtype() const override { return DType::kF32; }
  bool multiplies_fp8_experts() const override { return true; }

  Status linear(Stream& stream, const LinearParams& params) override;
  Status norm(Stream& stream, const NormParams& params) override;
  Status gate(Stream& stream, const GateParams& params) override;
  Status experts(Stream& stream, const ExpertsParams& params) override;
  Status scale_heads(Stream& stream, const ScaleHeadsParams& params) override;
  Status patchify(Stream& stream, const PatchifyParams& params) override;
  Status vision_attention(Stream& stream, const VisionAttentionParams& params) override;
  Status stitch_and_pool(Stream& stream, const StitchAndPoolParams& params) override;
  Status embed(Stream& stream, const EmbedParams& params) override;
  Status begin_step(Stream& stream, const BeginStepParams& params) override;
  Status plan_decode(Stream& stream, const PlanDecodeParams& params) override;
  Status copy_pages(Stream& stream, const CopyPagesParams& params) override;
  Status rope_and_cache(Stream& stream, const RopeAndCacheParams& params) override;
  Status paged_attention(Stream& stream, const PagedAttentionParams& params) override;
  Status gather_rows(Stream& stream, const GatherRowsParams& params) override;
  Status grammar_masks(Stream& stream, const GrammarMasksParams& params) override;
  Status sample(Stream& stream, const SampleParams& params) override;
  Status top_logprobs(Stream& stream, const TopLogprobsParams& params) override;
  Status decode_regions(Stream& stream, const DecodeRegionsParams& params) override;
  Status advance_rows(Stream& stream, const AdvanceRowsParams& params) override;
  Status fill_random(Stream& stream, const FillRandomParams& params) override;
  Status round_to_fp8(Stream& stream, const RoundToFp8Params& params) override;
  Status rows_to_fp8(Stream& stream, const RowsToFp8Params& params) override;
  Status stamp_time(Stream& stream, std::uint64_t* stamp) override;

  std::size_t attention_scratch_bytes(int, int, int, const AttentionHeads&) const override {
    return 0;
  }
  std::size_t sample_scratch_bytes(int, int) const override { return 0; }
  std::size_t experts_scratch_bytes(int, const ExpertSizes&) const override { return 0; }
  std::size_t scale_heads_scratch_bytes(int, const AttentionHeads&) const override { return 0; }
  std::size_t region_scratch_bytes(int, int, int, int) const override { return 0; }
};

}  // namespace gapless
