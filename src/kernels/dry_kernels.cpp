#include "kernels/dry_kernels.h"

#include <utility>

namespace gapless {
namespace {

// Sizes from the kernels that it stands for; its ops do nothing.
class DryKernels final : public Kernels {
 public:
  explicit DryKernels(std::unique_ptr<Kernels> sizes) : sizes_(std::move(sizes)) {}

  const char* name() const override { return sizes_->name(); }
  const char* path() const override { return sizes_->path(); }
  DType activation_dtype() const override { return sizes_->activation_dtype(); }
  std::size_t fp8_element_bytes() const override { return sizes_->fp8_element_bytes(); }
  bool multiplies_fp8_experts() const override { return sizes_->multiplies_fp8_experts(); }

  std::size_t prepared_linear_bytes(int total_in, int total_out,
                                    PreparedFormat format) const override {
    return sizes_->prepared_linear_bytes(total_in, total_out, format);
  }
  std::size_t int8_bytes(int in, int out) const override { return sizes_->int8_bytes(in, out); }
  Status pack_int8(Stream&, const PackInt8Params&) override { return ok_status(); }
  std::size_t attention_scratch_bytes(int max_tokens, int max_sequences, int max_context,
                                      const AttentionHeads& heads) const override {
    return sizes_->attention_scratch_bytes(max_tokens, max_sequences, max_context, heads);
  }
  std::size_t decoder_blocks_scratch_bytes(int max_rows, int dim, int ff_dim,
                                           const AttentionHeads& heads, int max_context,
                                           const ExpertSizes& experts) const override {
    return sizes_->decoder_blocks_scratch_bytes(max_rows, dim, ff_dim, heads, max_context, experts);
  }
  std::size_t sample_scratch_bytes(int max_rows, int vocab) const override {
    return sizes_->sample_scratch_bytes(max_rows, vocab);
  }
  std::size_t experts_scratch_bytes(int max_rows, const ExpertSizes& sizes) const override {
    return sizes_->experts_scratch_bytes(max_rows, sizes);
  }
  std::size_t scale_heads_scratch_bytes(int max_tokens,
                                        const AttentionHeads& heads) const override {
    return sizes_->scale_heads_scratch_bytes(max_tokens, heads);
  }
  std::size_t region_scratch_bytes(int max_rows, int dim, int inner_dim,
                                   int max_out) const override {
    return sizes_->region_scratch_bytes(max_rows, dim, inner_dim, max_out);
  }
  Status check_fast_decoder(const DecoderBlocksParams& params) const override {
    return sizes_->check_fast_decoder(params);
  }

  Status prepare_linear(Stream&, const PrepareLinearParams&) override { return ok_status(); }
  Status restore_linear(Stream&, const RestoreLinearParams&) override { return ok_status(); }
  Status decoder_blocks(Stream&, const DecoderBlocksParams&) override { return ok_status(); }
  Status linear(Stream&, const LinearParams&) override { return ok_status(); }
  Status norm(Stream&, const NormParams&) override { return ok_status(); }
  Status patchify(Stream&, const PatchifyParams&) override { return ok_status(); }
  Status vision_attention(Stream&, const VisionAttentionParams&) override { return ok_status(); }
  Status stitch_and_pool(Stream&, const StitchAndPoolParams&) override { return ok_status(); }
  Status embed(Stream&, const EmbedParams&) override { return ok_status(); }
  Status begin_step(Stream&, const BeginStepParams&) override { return ok_status(); }
  Status plan_decode(Stream&, const PlanDecodeParams&) override { return ok_status(); }
  Status copy_pages(Stream&, const CopyPagesParams&) override { return ok_status(); }
  Status rope_and_cache(Stream&, const RopeAndCacheParams&) override { return ok_status(); }
  Status paged_attention(Stream&, const PagedAttentionParams&) override { return ok_status(); }
  Status gate(Stream&, const GateParams&) override { return ok_status(); }
  Status experts(Stream&, const ExpertsParams&) override { return ok_status(); }
  Status scale_heads(Stream&, const ScaleHeadsParams&) override { return ok_status(); }
  Status gather_rows(Stream&, const GatherRowsParams&) override { return ok_status(); }
  Status grammar_masks(Stream&, const GrammarMasksParams&) override { return ok_status(); }
  Status sample(Stream&, const SampleParams&) override { return ok_status(); }
  Status top_logprobs(Stream&, const TopLogprobsParams&) override { return ok_status(); }
  Status decode_regions(Stream&, const DecodeRegionsParams&) override { return ok_status(); }
  Status advance_rows(Stream&, const AdvanceRowsParams&) override { return ok_status(); }
  Status fill_random(Stream&, const FillRandomParams&) override { return ok_status(); }
  Status round_to_fp8(Stream&, const RoundToFp8Params&) override { return ok_status(); }
  Status rows_to_fp8(Stream&, const RowsToFp8Params&) override { return ok_status(); }
  Status stamp_time(Stream&, std::uint64_t*) override { return ok_status(); }

 private:
  const std::unique_ptr<Kernels> sizes_;
};

// Of the device's kind, for their sizes.
StatusOr<std::unique_ptr<Kernels>> make_kernels_for_sizes(Device& device, Compute compute) {
  if (device.kind() == DeviceKind::kCuda) return make_dry_cuda_kernels(device);
  GAPLESS_ASSIGN_OR_RETURN(const ComputeChoice choice,
                           choose_cpu_compute(compute, this_processor()));
  return make_cpu_kernels(choice.dtype);
}

}  // namespace

StatusOr<std::unique_ptr<Kernels>> make_dry_kernels(Device& device, Compute compute) {
  GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<Kernels> sizes, make_kernels_for_sizes(device, compute));
  return make_dry_kernels(std::move(sizes));
}

std::unique_ptr<Kernels> make_dry_kernels(std::unique_ptr<Kernels> sizes) {
  return std::make_unique<DryKernels>(std::move(sizes));
}

}  // namespace gapless
