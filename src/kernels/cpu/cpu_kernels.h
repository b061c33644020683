// The CPU backend: float32 or bfloat16 tensors, float32 arithmetic, fast. Every op is one piece of work on a CpuStream, shared with the
// thread pool. The bookkeeping ops (rows, pages) are those of reference/.
#pragma once

#include "kernels/cpu/vector_ops.h"
#include "kernels/reference/reference_kernels.h"

namespace gapless {

class CpuKernels final : public ReferenceKernels {
 public:
  // `ops` lives as long as the process.
  explicit CpuKernels(const cpu::VectorOps& ops) : ops_(ops) {}

  const char* name() const override { return "cpu"; }
  DType activation_dtype() const override { return ops_.dtype; }
  std::size_t fp8_element_bytes() const override { return dtype_bytes(ops_.dtype); }

  Status linear(Stream& stream, const LinearParams& params) override;
  std::size_t int8_bytes(int in, int out) const override;
  Status pack_int8(Stream& stream, const PackInt8Params& params) override;
  Status norm(Stream& stream, const NormParams& params) override;
  Status gate(Stream& stream, const GateParams& params) override;
  Status experts(Stream& stream, const ExpertsParams& params) override;
  Status scale_heads(Stream& stream, const ScaleHeadsParams& params) override;
  Status patchify(Stream& stream, const PatchifyParams& params) override;
  Status vision_attention(Stream& stream, const VisionAttentionParams& params) override;
  Status stitch_and_pool(Stream& stream, const StitchAndPoolParams& params) override;
  Status embed(Stream& stream, const EmbedParams& params) override;
  Status rope_and_cache(Stream& stream, const RopeAndCacheParams& params) override;
  Status paged_attention(Stream& stream, const PagedAttentionParams& params) override;
  Status grammar_masks(Stream& stream, const GrammarMasksParams& params) override;
  Status sample(Stream& stream, const SampleParams& params) override;
  Status top_logprobs(Stream& stream, const TopLogprobsParams& params) override;
  Status decode_regions(Stream& stream, const DecodeRegionsParams& params) override;
  Status fill_random(Stream& stream, const FillRandomParams& params) override;
  Status round_to_fp8(Stream& stream, const RoundToFp8Params& params) override;
  Status rows_to_fp8(Stream& stream, const RowsToFp8Params& params) override;
  Status gather_rows(Stream& stream, const GatherRowsParams& params) override;

  std::size_t sample_scratch_bytes(int max_rows, int vocab) const override;
  std::size_t experts_scratch_bytes(int max_rows, const ExpertSizes& sizes) const override;
  std::size_t scale_heads_scratch_bytes(int max_tokens, const AttentionHeads& heads) const override;
  std::size_t region_scratch_bytes(int max_rows, int dim, int inner_dim,
                                   int max_out) const override;

 private:
  const cpu::VectorOps& ops_;
};

}  // namespace gapless
