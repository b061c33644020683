#include "kernels/reference/reference_kernels.h"

#include "base/clock.h"
#include "kernels/enqueue_on_cpu.h"
#include "kernels/reference/reference_ops.h"

namespace gapless {

Status ReferenceKernels::linear(Stream& stream, const LinearParams& params) {
  if (params.y_dtype != DType::kF32) {
    return invalid_argument("linear: the CPU writes float32 only");
  }
  return enqueue_on_cpu(stream, reference::linear, params);
}

Status ReferenceKernels::norm(Stream& stream, const NormParams& params) {
  return enqueue_on_cpu(stream, reference::norm, params);
}

Status ReferenceKernels::gate(Stream& stream, const GateParams& params) {
  return enqueue_on_cpu(stream, reference::gate, params);
}

Status ReferenceKernels::experts(Stream& stream, const ExpertsParams& params) {
  if (params.half == ExpertsHalf::kFirst) return ok_status();  // the second has all of it
  return enqueue_on_cpu(
      stream, [](const ExpertsParams& p) { reference::experts(p); }, params);
}

Status ReferenceKernels::scale_heads(Stream& stream, const ScaleHeadsParams& params) {
  return enqueue_on_cpu(stream, reference::scale_heads, params);
}

Status ReferenceKernels::patchify(Stream& stream, const PatchifyParams& params) {
  return enqueue_on_cpu(stream, reference::patchify, params);
}

Status ReferenceKernels::vision_attention(Stream& stream, const VisionAttentionParams& params) {
  return enqueue_on_cpu(stream, reference::vision_attention, params);
}

Status ReferenceKernels::stitch_and_pool(Stream& stream, const StitchAndPoolParams& params) {
  return enqueue_on_cpu(stream, reference::stitch_and_pool, params);
}

Status ReferenceKernels::embed(Stream& stream, const EmbedParams& params) {
  return enqueue_on_cpu(
      stream, [](const EmbedParams& p) { reference::embed(p); }, params);
}

Status ReferenceKernels::begin_step(Stream& stream, const BeginStepParams& params) {
  return enqueue_on_cpu(stream, reference::begin_step, params);
}

Status ReferenceKernels::plan_decode(Stream& stream, const PlanDecodeParams& params) {
  return enqueue_on_cpu(stream, reference::plan_decode, params);
}

Status ReferenceKernels::copy_pages(Stream& stream, const CopyPagesParams& params) {
  return enqueue_on_cpu(stream, reference::copy_pages, params);
}

Status ReferenceKernels::rope_and_cache(Stream& stream, const RopeAndCacheParams& params) {
  return enqueue_on_cpu(stream, reference::rope_and_cache, params);
}

Status ReferenceKernels::paged_attention(Stream& stream, const PagedAttentionParams& params) {
  return enqueue_on_cpu(stream, reference::paged_attention, params);
}

Status ReferenceKernels::gather_rows(Stream& stream, const GatherRowsParams& params) {
  return enqueue_on_cpu(stream, reference::gather_rows, params);
}

Status ReferenceKernels::grammar_masks(Stream& stream, const GrammarMasksParams& params) {
  return enqueue_on_cpu(stream, reference::grammar_masks, params);
}

Status ReferenceKernels::sample(Stream& stream, const SampleParams& params) {
  return enqueue_on_cpu(stream, reference::sample, params);
}

Status ReferenceKernels::top_logprobs(Stream& stream, const TopLogprobsParams& params) {
  return enqueue_on_cpu(stream, reference::top_logprobs, params);
}

Status ReferenceKernels::decode_regions(Stream& stream, const DecodeRegionsParams& params) {
  return enqueue_on_cpu(stream, reference::decode_regions, params);
}

Status ReferenceKernels::advance_rows(Stream& stream, const AdvanceRowsParams& params) {
  return enqueue_on_cpu(stream, reference::advance_rows, params);
}

Status ReferenceKernels::fill_random(Stream& stream, const FillRandomParams& params) {
  return enqueue_on_cpu(stream, reference::fill_random, params);
}

Status ReferenceKernels::round_to_fp8(Stream& stream, const RoundToFp8Params& params) {
  return enqueue_on_cpu(stream, reference::round_to_fp8, params);
}

Status ReferenceKernels::rows_to_fp8(Stream& stream, const RowsToFp8Params& params) {
  return enqueue_on_cpu(stream, reference::rows_to_fp8, params);
}

Status ReferenceKernels::stamp_time(Stream& stream, std::uint64_t* stamp) {
  return enqueue_on_cpu(
      stream, [](std::uint64_t* to) { *to = static_cast<std::uint64_t>(host_now_ns()); }, stamp);
}

std::unique_ptr<Kernels> make_reference_kernels() {
  return std::make_unique<ReferenceKernels>();
}

}  // namespace gapless
