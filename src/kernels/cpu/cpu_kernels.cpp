#include "kernels/cpu/cpu_kernels.h"

#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/enqueue_on_cpu.h"
#include "kernels/int8_layout.h"

namespace gapless {
namespace {

Status check_head_dim(const char* op, int head_dim) {
  if (head_dim >= 1 && head_dim <= cpu::kMaxHeadDim) return ok_status();
  return invalid_argument("{}: head size {} is not between 1 and {}", op, head_dim,
                          cpu::kMaxHeadDim);
}

}  // namespace

Status CpuKernels::linear(Stream& stream, const LinearParams& params) {
  if (params.y_dtype != DType::kF32 && params.y_dtype != ops_.dtype) {
    return invalid_argument("linear: this CPU backend writes float32 only");
  }
  LinearParams product = params;
  if (params.x_scales != nullptr) product.weights.weight = params.weights.fp8;
  return enqueue_on_cpu(
      stream, [&ops = ops_](const LinearParams& p) { cpu::linear(ops, p); }, product);
}

std::size_t CpuKernels::int8_bytes(int in, int out) const {
  return in <= kMaxInt8In ? Int8Layout{in, out}.bytes() : 0;
}

Status CpuKernels::pack_int8(Stream& stream, const PackInt8Params& params) {
  return enqueue_on_cpu(
      stream, [dtype = ops_.dtype](const PackInt8Params& p) { cpu::pack_int8(dtype, p); }, params);
}

Status CpuKernels::norm(Stream& stream, const NormParams& params) {
  return enqueue_on_cpu(
      stream,
      [&ops = ops_](const NormParams& p) {
        if (p.y_scales == nullptr) return cpu::norm(ops, p);
        NormParams exact = p;
        if (p.exact_y != nullptr) exact.y = p.exact_y, exact.y_stride = p.dim;
        cpu::norm(ops, exact);
        cpu::rows_to_fp8(ops.dtype, {.x = exact.y,
                                     .x_stride = exact.y_stride,
                                     .y = p.y,
                                     .y_stride = p.y_stride,
                                     .scales = p.y_scales,
                                     .num_rows = p.num_rows,
                                     .dim = p.dim});
      },
      params);
}

Status CpuKernels::gate(Stream& stream, const GateParams& params) {
  return enqueue_on_cpu(
      stream, [&ops = ops_](const GateParams& p) { cpu::gate(ops, p); }, params);
}

Status CpuKernels::experts(Stream& stream, const ExpertsParams& params) {
  if (params.half == ExpertsHalf::kFirst) return ok_status();  // the second has all of it
  return enqueue_on_cpu(
      stream, [&ops = ops_](const ExpertsParams& p) { cpu::experts(ops, p); }, params);
}

Status CpuKernels::scale_heads(Stream& stream, const ScaleHeadsParams& params) {
  return enqueue_on_cpu(
      stream, [&ops = ops_](const ScaleHeadsParams& p) { cpu::scale_heads(ops, p); }, params);
}

Status CpuKernels::patchify(Stream& stream, const PatchifyParams& params) {
  return enqueue_on_cpu(
      stream, [dtype = ops_.dtype](const PatchifyParams& p) { cpu::patchify(dtype, p); }, params);
}

Status CpuKernels::vision_attention(Stream& stream, const VisionAttentionParams& params) {
  GAPLESS_RETURN_IF_ERROR(check_head_dim("vision_attention", params.head_dim));
  return enqueue_on_cpu(
      stream, [&ops = ops_](const VisionAttentionParams& p) { cpu::vision_attention(ops, p); },
      params);
}

Status CpuKernels::stitch_and_pool(Stream& stream, const StitchAndPoolParams& params) {
  return enqueue_on_cpu(
      stream,
      [dtype = ops_.dtype](const StitchAndPoolParams& p) { cpu::stitch_and_pool(dtype, p); },
      params);
}

Status CpuKernels::embed(Stream& stream, const EmbedParams& params) {
  for (const int num_features : {params.region.coord_encoder.in, params.region.size_encoder.in}) {
    if (num_features > kMaxRegionFeatures) {
      return invalid_argument("embed: {} region features, at most {} are supported", num_features,
                              kMaxRegionFeatures);
    }
  }
  return enqueue_on_cpu(
      stream, [&ops = ops_](const EmbedParams& p) { cpu::embed(ops, p); }, params);
}

Status CpuKernels::rope_and_cache(Stream& stream, const RopeAndCacheParams& params) {
  GAPLESS_RETURN_IF_ERROR(check_head_dim("rope_and_cache", params.heads.head_dim));
  return enqueue_on_cpu(
      stream, [&ops = ops_](const RopeAndCacheParams& p) { cpu::rope_and_cache(ops, p); }, params);
}

Status CpuKernels::paged_attention(Stream& stream, const PagedAttentionParams& params) {
  GAPLESS_RETURN_IF_ERROR(check_head_dim("paged_attention", params.heads.head_dim));
  return enqueue_on_cpu(
      stream, [&ops = ops_](const PagedAttentionParams& p) { cpu::paged_attention(ops, p); },
      params);
}

Status CpuKernels::grammar_masks(Stream& stream, const GrammarMasksParams& params) {
  return enqueue_on_cpu(stream, cpu::grammar_masks, params);
}

Status CpuKernels::sample(Stream& stream, const SampleParams& params) {
  return enqueue_on_cpu(stream, cpu::sample, params);
}

Status CpuKernels::top_logprobs(Stream& stream, const TopLogprobsParams& params) {
  return enqueue_on_cpu(stream, cpu::top_logprobs, params);
}

Status CpuKernels::decode_regions(Stream& stream, const DecodeRegionsParams& params) {
  return enqueue_on_cpu(
      stream, [&ops = ops_](const DecodeRegionsParams& p) { cpu::decode_regions(ops, p); }, params);
}

Status CpuKernels::fill_random(Stream& stream, const FillRandomParams& params) {
  return enqueue_on_cpu(
      stream, [dtype = ops_.dtype](const FillRandomParams& p) { cpu::fill_random(dtype, p); },
      params);
}

Status CpuKernels::round_to_fp8(Stream& stream, const RoundToFp8Params& params) {
  return enqueue_on_cpu(
      stream, [dtype = ops_.dtype](const RoundToFp8Params& p) { cpu::round_to_fp8(dtype, p); },
      params);
}

Status CpuKernels::rows_to_fp8(Stream& stream, const RowsToFp8Params& params) {
  return enqueue_on_cpu(
      stream, [dtype = ops_.dtype](const RowsToFp8Params& p) { cpu::rows_to_fp8(dtype, p); },
      params);
}

Status CpuKernels::gather_rows(Stream& stream, const GatherRowsParams& params) {
  return enqueue_on_cpu(
      stream, [dtype = ops_.dtype](const GatherRowsParams& p) { cpu::gather_rows(dtype, p); },
      params);
}

std::size_t CpuKernels::sample_scratch_bytes(int max_rows, int vocab) const {
  return cpu::sample_scratch_bytes(max_rows, vocab);
}

std::size_t CpuKernels::experts_scratch_bytes(int max_rows, const ExpertSizes& sizes) const {
  return cpu::experts_scratch_bytes(max_rows, sizes);
}

std::size_t CpuKernels::scale_heads_scratch_bytes(int max_tokens,
                                                  const AttentionHeads& heads) const {
  return cpu::scale_heads_scratch_bytes(max_tokens, heads);
}

std::size_t CpuKernels::region_scratch_bytes(int max_rows, int dim, int inner_dim,
                                             int max_out) const {
  return cpu::region_scratch_bytes(max_rows, dim, inner_dim, max_out);
}

std::unique_ptr<Kernels> make_cpu_kernels(DType dtype) {
  return std::make_unique<CpuKernels>(cpu::vector_ops(dtype));
}

}  // namespace gapless
