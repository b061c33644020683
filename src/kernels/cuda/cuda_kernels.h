// The op table on an NVIDIA GPU, by one path (cuda_path.h): T is bfloat16.
#pragma once

#include "kernels/cuda/cuda_path.h"
#include "kernels/cuda/matrix_linear.h"
#include "kernels/cuda/path_choice.h"
#include "kernels/kernels.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// One per device. Its device memory (a cuBLASLt workspace, counters of decode kernels) is taken
// at creation. Ops of two streams of one device must not overlap: they share that memory. Threads:
// one at a time.
class CudaKernels : public Kernels {
 public:
  static StatusOr<std::unique_ptr<Kernels>> create(Device& device,
                                                   const CudaAttributes& attributes);
  // For their sizes (dry_kernels.h): no op may be called. Needs no GPU.
  static StatusOr<std::unique_ptr<Kernels>> create_dry(Device& device,
                                                       const CudaAttributes& attributes);

  const char* name() const override { return "cuda"; }
  const char* path() const override { return kPath.name; }
  DType activation_dtype() const override { return DType::kBF16; }

  Status linear(Stream& stream, const LinearParams& params) override;
  Status linear_pair(Stream& stream, const LinearParams& first,
                     const LinearParams& second) override;
  std::size_t prepared_linear_bytes(int total_in, int total_out,
                                    PreparedFormat format) const override;
  Status prepare_linear(Stream& stream, const PrepareLinearParams& params) override;
  Status restore_linear(Stream& stream, const RestoreLinearParams& params) override;
  Status tune_linear(Stream& stream, const LinearParams& params,
                     std::span<const int> row_counts) override;
  Status norm(Stream& stream, const NormParams& params) override;
  Status gate(Stream& stream, const GateParams& params) override;
  Status experts(Stream& stream, const ExpertsParams& params) override;
  bool multiplies_fp8_experts() const override { return cuda::kPath.has_warpgroups; }
  Status scale_heads(Stream& stream, const ScaleHeadsParams& params) override;
  Status scale_rope_and_cache(Stream& stream, const ScaleHeadsParams& scale,
                              const RopeAndCacheParams& rope) override;
  Status patchify(Stream& stream, const PatchifyParams& params) override;
  Status vision_attention(Stream& stream, const VisionAttentionParams& params) override;
  Status stitch_and_pool(Stream& stream, const StitchAndPoolParams& params) override;
  Status embed(Stream& stream, const EmbedParams& params) override;
  Status begin_step(Stream& stream, const BeginStepParams& params) override;
  Status plan_decode(Stream& stream, const PlanDecodeParams& params) override;
  Status copy_pages(Stream& stream, const CopyPagesParams& params) override;
  Status rope_and_cache(Stream& stream, const RopeAndCacheParams& params) override;
  Status paged_attention(Stream& stream, const PagedAttentionParams& params) override;
  Status decoder_blocks(Stream& stream, const DecoderBlocksParams& params) override;
  Status check_fast_decoder(const DecoderBlocksParams& params) const override;
  Status gather_rows(Stream& stream, const GatherRowsParams& params) override;
  Status grammar_masks(Stream& stream, const GrammarMasksParams& params) override;
  Status sample(Stream& stream, const SampleParams& params) override;
  Status top_logprobs(Stream& stream, const TopLogprobsParams& params) override;
  Status decode_regions(Stream& stream, const DecodeRegionsParams& params) override;
  Status advance_rows(Stream& stream, const AdvanceRowsParams& params) override;
  Status fill_random(Stream& stream, const FillRandomParams& params) override;
  Status round_to_fp8(Stream& stream, const RoundToFp8Params& params) override;
  Status rows_to_fp8(Stream& stream, const RowsToFp8Params& params) override;
  std::size_t fp8_element_bytes() const override { return 1; }
  Status stamp_time(Stream& stream, std::uint64_t* stamp) override;

  std::size_t attention_scratch_bytes(int max_tokens, int max_sequences, int max_context,
                                      const AttentionHeads& heads) const override;
  std::size_t decoder_blocks_scratch_bytes(int max_rows, int dim, int ff_dim,
                                           const AttentionHeads& heads, int max_context,
                                           const ExpertSizes& experts) const override;
  std::size_t sample_scratch_bytes(int max_rows, int vocab) const override;
  std::size_t experts_scratch_bytes(int max_rows, const ExpertSizes& sizes) const override;
  std::size_t scale_heads_scratch_bytes(int max_tokens, const AttentionHeads& heads) const override;
  std::size_t region_scratch_bytes(int max_rows, int dim, int inner_dim,
                                   int max_out) const override;

 private:
  CudaKernels(std::unique_ptr<MatrixLinear> matrix_linear, Buffer counters,
              const CudaAttributes& attributes)
      : matrix_linear_(std::move(matrix_linear)),
        counters_dev_(std::move(counters)),
        attributes_(attributes) {}

  // The hidden state as the region heads read it.
  static StatusOr<const void*> normalise_regions(Stream& stream, const DecodeRegionsParams& params);
  // Where they have two layers and few rows.
  bool heads_are_one_launch(const RegionDecoderWeights& weights);

  std::unique_ptr<MatrixLinear> matrix_linear_;
  Buffer counters_dev_;  // of decode_attention, region_products, decoder_blocks; zeros between ops
  const CudaAttributes attributes_;
  bool told_of_heads_ = false;
};

// What a path gives to whoever chooses among them (cuda_paths.cpp).
StatusOr<std::unique_ptr<Kernels>> make_kernels(Device& device, const CudaAttributes& attributes);
// Whether the build holds code of this path that the current device runs.
bool has_code();

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
