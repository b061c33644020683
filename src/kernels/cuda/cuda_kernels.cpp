#include "kernels/cuda/cuda_kernels.h"

#include <algorithm>

#include "base/limits.h"
#include "base/log.h"
#include "kernels/cuda/decoder_blocks.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/prepared_linear.h"
#include "kernels/cuda/region_products.h"
#include "kernels/cuda/row_linear.h"
#include "kernels/dense_ops.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

// Decode attention of the largest batch, 32 heads in Moondream.
constexpr int kMaxDecodeHeads = 128;
constexpr std::size_t kArrivalsBytes = sizeof(unsigned) * kMaxSeats * kMaxDecodeHeads;
static_assert(kArrivalsBytes % 256 == 0);  // the other counters behind it stay aligned
constexpr std::size_t kRegionCounterBytes = 256;

std::size_t counter_bytes() {
  return kArrivalsBytes + kRegionCounterBytes + cuda::decoder_blocks_counter_bytes();
}

// decode_regions' scratch: the normalised hidden state, the hidden layers of both heads, then both heads' logits.
std::size_t round_up_256(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

std::size_t inner_bytes(int rows, int inner) {
  return round_up_256(static_cast<std::size_t>(rows) * static_cast<std::size_t>(inner) *
                      dtype_bytes(DType::kBF16));
}

std::size_t logits_bytes(int rows, int out) {
  return round_up_256(static_cast<std::size_t>(rows) * static_cast<std::size_t>(out) *
                      sizeof(float));
}

}  // namespace

StatusOr<std::unique_ptr<Kernels>> CudaKernels::create(Device& device,
                                                       const CudaAttributes& attributes) {
  if (device.kind() != DeviceKind::kCuda) {
    return make_error(StatusCode::kInvalidArgument, "CUDA kernels need a CUDA device");
  }
  GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<cuda::MatrixLinear> matrix_linear,
                           cuda::MatrixLinear::create(device));
  GAPLESS_ASSIGN_OR_RETURN(Buffer counters, device.allocate(counter_bytes()));
  GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device.create_stream("kernels start"));
  GAPLESS_RETURN_IF_ERROR(stream->fill_bytes(counters.data(), 0, counter_bytes()));
  GAPLESS_RETURN_IF_ERROR(stream->synchronize());
  return std::unique_ptr<Kernels>(
      new CudaKernels(std::move(matrix_linear), std::move(counters), attributes));
}

StatusOr<std::unique_ptr<Kernels>> CudaKernels::create_dry(Device& device,
                                                           const CudaAttributes& attributes) {
  const std::size_t bytes = counter_bytes() + cuda::MatrixLinear::device_bytes();
  GAPLESS_ASSIGN_OR_RETURN(Buffer own, device.allocate(bytes));
  return std::unique_ptr<Kernels>(new CudaKernels(nullptr, std::move(own), attributes));
}

Status CudaKernels::linear(Stream& stream, const LinearParams& params) {
  if (params.num_rows == 0) return ok_status();
  if (!params.decode && cuda::MatrixLinear::supports(params)) {
    return matrix_linear_->run(stream, params);
  }
  if (params.x_scales != nullptr) {
    return invalid_argument("linear: no product of {} rows in 8 bits, {} -> {}", params.num_rows,
                            params.weights.in, params.weights.out);
  }
  const cuda::RowLinearJob job{.linear = params, .gate = {}};
  return cuda::row_linear(stream, &job, 1, attributes_.num_multiprocessors);
}

Status CudaKernels::linear_pair(Stream& stream, const LinearParams& first,
                                const LinearParams& second) {
  const auto joins = [&](const LinearParams& one) {
    return one.decode && one.num_rows > 0 && one.num_rows == first.num_rows &&
           one.weights.restore.prepared == nullptr && one.x_scales == nullptr;
  };
  if (!joins(first) || !joins(second)) return Kernels::linear_pair(stream, first, second);
  const cuda::RowLinearJob jobs[] = {{.linear = first, .gate = {}}, {.linear = second, .gate = {}}};
  return cuda::row_linear(stream, jobs, 2, attributes_.num_multiprocessors);
}

std::size_t CudaKernels::prepared_linear_bytes(int total_in, int total_out,
                                               PreparedFormat format) const {
  return cuda::prepared_linear_bytes(total_in, total_out, format);
}

Status CudaKernels::prepare_linear(Stream& stream, const PrepareLinearParams& params) {
  return cuda::prepare_linear(stream, params);
}

Status CudaKernels::restore_linear(Stream& stream, const RestoreLinearParams& params) {
  return cuda::restore_linear(stream, params);
}

Status CudaKernels::tune_linear(Stream& stream, const LinearParams& params,
                                std::span<const int> row_counts) {
  if (params.decode || !cuda::MatrixLinear::supports(params)) return ok_status();
  return matrix_linear_->tune(stream, params, row_counts);
}

Status CudaKernels::norm(Stream& stream, const NormParams& params) {
  return cuda::norm(stream, params);
}

Status CudaKernels::gate(Stream& stream, const GateParams& params) {
  return cuda::gate(stream, params);
}

Status CudaKernels::experts(Stream& stream, const ExpertsParams& params) {
  if (params.logits != nullptr || !params.decode) return cuda::experts(stream, params);
  if (params.half != ExpertsHalf::kSecond) {
    LinearParams router =
        dense_linear(*this, params.x, params.ff.router, params.scratch, params.num_rows);
    router.decode = true;
    GAPLESS_RETURN_IF_ERROR(linear(stream, router));
  }
  ExpertsParams with_logits = params;
  with_logits.logits = params.scratch;
  return cuda::experts(stream, with_logits);
}

Status CudaKernels::scale_heads(Stream& stream, const ScaleHeadsParams& params) {
  GAPLESS_RETURN_IF_ERROR(cuda::activate_heads(stream, params, params.scratch));
  void* const t =
      static_cast<char*>(params.scratch) + static_cast<std::size_t>(params.num_tokens) *
                                               static_cast<std::size_t>(params.heads.qkv_width()) *
                                               dtype_bytes(DType::kBF16);
  LinearParams product =
      dense_linear(*this, params.scratch, params.scales.products, t, params.num_tokens);
  product.decode = params.decode;
  GAPLESS_RETURN_IF_ERROR(linear(stream, product));
  return cuda::scale_heads(stream, params, t);
}

Status CudaKernels::scale_rope_and_cache(Stream& stream, const ScaleHeadsParams& scale,
                                         const RopeAndCacheParams& rope) {
  // Heads are normalised behind their scaling.
  if (rope.q_norm.gamma != nullptr || !cuda::can_sum_head_scales(scale)) {
    return Kernels::scale_rope_and_cache(stream, scale, rope);
  }
  GAPLESS_ASSIGN_OR_RETURN(const cuda::HeadScaleSums sums, cuda::sum_head_scales(stream, scale));
  return cuda::rope_and_cache(stream, rope, &sums);
}

Status CudaKernels::patchify(Stream& stream, const PatchifyParams& params) {
  return cuda::patchify(stream, params);
}

Status CudaKernels::vision_attention(Stream& stream, const VisionAttentionParams& params) {
  return cuda::vision_attention(stream, params, attributes_.num_multiprocessors);
}

Status CudaKernels::stitch_and_pool(Stream& stream, const StitchAndPoolParams& params) {
  return cuda::stitch_and_pool(stream, params);
}

Status CudaKernels::embed(Stream& stream, const EmbedParams& params) {
  return cuda::embed(stream, params);
}

Status CudaKernels::begin_step(Stream& stream, const BeginStepParams& params) {
  return cuda::begin_step(stream, params);
}

Status CudaKernels::plan_decode(Stream& stream, const PlanDecodeParams& params) {
  return cuda::plan_decode(stream, params);
}

Status CudaKernels::copy_pages(Stream& stream, const CopyPagesParams& params) {
  return cuda::copy_pages(stream, params);
}

Status CudaKernels::rope_and_cache(Stream& stream, const RopeAndCacheParams& params) {
  return cuda::rope_and_cache(stream, params);
}

Status CudaKernels::paged_attention(Stream& stream, const PagedAttentionParams& params) {
  if (params.max_new_tokens > 1) {
    return cuda::prefill_attention(stream, params, attributes_.num_multiprocessors);
  }
  if (params.num_sequences > kMaxSeats || params.heads.num_heads > kMaxDecodeHeads) {
    return invalid_argument("paged_attention: a decode step has at most {} sequences and {} heads",
                            kMaxSeats, kMaxDecodeHeads);
  }
  return cuda::decode_attention(stream, params, counters_dev_.as<unsigned>());
}

Status CudaKernels::decoder_blocks(Stream& stream, const DecoderBlocksParams& params) {
  if (!cuda::check_decoder_kernel(params, attributes_.num_multiprocessors).ok()) {
    return Kernels::decoder_blocks(stream, params);
  }
  return cuda::decoder_blocks(
      stream, params, counters_dev_.as<char>() + kArrivalsBytes + kRegionCounterBytes, attributes_);
}

Status CudaKernels::check_fast_decoder(const DecoderBlocksParams& params) const {
  return cuda::check_decoder_kernel(params, attributes_.num_multiprocessors);
}

Status CudaKernels::gather_rows(Stream& stream, const GatherRowsParams& params) {
  return cuda::gather_rows(stream, params);
}

Status CudaKernels::grammar_masks(Stream& stream, const GrammarMasksParams& params) {
  return cuda::grammar_masks(stream, params);
}

Status CudaKernels::sample(Stream& stream, const SampleParams& params) {
  return cuda::sample(stream, params);
}

Status CudaKernels::top_logprobs(Stream& stream, const TopLogprobsParams& params) {
  return cuda::top_logprobs(stream, params);
}

StatusOr<const void*> CudaKernels::normalise_regions(Stream& stream,
                                                     const DecodeRegionsParams& params) {
  const void* x = params.hidden;
  for (const NormWeights& weights : params.weights.norms) {
    if (weights.gamma == nullptr) continue;
    GAPLESS_RETURN_IF_ERROR(
        cuda::norm(stream, dense_norm(x, weights, params.scratch, params.dim, params.num_rows)));
    x = params.scratch;
  }
  return x;
}

// Loading a model records its steps, so it is then that the log says why not.
bool CudaKernels::heads_are_one_launch(const RegionDecoderWeights& weights) {
  if constexpr (cuda::kPath.has_warpgroups) {
    const Status taken = cuda::check_region_products(weights);
    if (!taken.ok() && !told_of_heads_) {
      log_info("each layer of the region heads is a launch, because {}", taken.message());
      told_of_heads_ = true;
    }
    return taken.ok();
  }
  return false;
}

Status CudaKernels::decode_regions(Stream& stream, const DecodeRegionsParams& params) {
  if (params.num_rows == 0) return ok_status();
  const RegionDecoderWeights& w = params.weights;
  GAPLESS_ASSIGN_OR_RETURN(const void* const x, normalise_regions(stream, params));
  auto* coord_inner = static_cast<char*>(params.scratch) + inner_bytes(params.num_rows, params.dim);
  char* size_inner = coord_inner + inner_bytes(params.num_rows, w.coord_fc1.out);
  auto* coord_logits =
      reinterpret_cast<float*>(size_inner + inner_bytes(params.num_rows, w.size_fc1.out));
  const bool two_layers = w.coord_fc1.out > 0;
  if constexpr (cuda::kPath.has_warpgroups) {
    if (two_layers && params.num_rows <= cuda::kMaxRegionProductRows && heads_are_one_launch(w)) {
      const auto stride_of = [&](const LinearWeights& head) {
        return static_cast<std::int64_t>(params.num_rows) * head.out;
      };
      const std::int64_t coord_stride = stride_of(w.coord_fc2), size_stride = stride_of(w.size_fc2);
      float* const size_logits = coord_logits + cuda::kRegionRanks * coord_stride;
      void* const gathered = size_logits + cuda::kRegionRanks * size_stride;
      auto* const arrived = reinterpret_cast<unsigned*>(counters_dev_.as<char>() + kArrivalsBytes);
      GAPLESS_RETURN_IF_ERROR(cuda::region_products(
          stream,
          {.x = x,
           .gathered = gathered,
           .heads = {{w.coord_fc1, w.coord_fc2, coord_inner, coord_logits, params.coord_id},
                     {w.size_fc1, w.size_fc2, size_inner, size_logits, params.size_id}},
           .tokens = params.tokens,
           .rows = params.rows,
           .row_states = params.row_states,
           .num_rows = params.num_rows,
           .arrived = arrived},
          attributes_.num_multiprocessors));
      return cuda::pick_region_values(
          stream, params, {coord_logits, cuda::kRegionRanks, coord_stride, w.coord_fc2.bias},
          {size_logits, cuda::kRegionRanks, size_stride, w.size_fc2.bias}, arrived);
    }
  }
  auto job = [&](const LinearWeights& weights, const void* from, void* y, bool first,
                 std::int32_t token_id) {
    cuda::RowLinearJob result;
    result.linear = {.x = from,
                     .x_stride = weights.in,
                     .weights = weights,
                     .y = y,
                     .y_stride = weights.out,
                     .y_dtype = first ? DType::kBF16 : DType::kF32,
                     .num_rows = params.num_rows,
                     .activation = first ? Activation::kGeluTanh : Activation::kNone,
                     .decode = true};
    result.gate = {.tokens = params.tokens,
                   .rows = params.rows,
                   .row_states = params.row_states,
                   .num_rows = params.num_rows,
                   .token_id = token_id};
    return result;
  };
  if (two_layers) {
    const cuda::RowLinearJob hidden[] = {job(w.coord_fc1, x, coord_inner, true, params.coord_id),
                                         job(w.size_fc1, x, size_inner, true, params.size_id)};
    GAPLESS_RETURN_IF_ERROR(cuda::row_linear(stream, hidden, 2, attributes_.num_multiprocessors));
  }
  auto* size_logits = reinterpret_cast<float*>(reinterpret_cast<char*>(coord_logits) +
                                               logits_bytes(params.num_rows, w.coord_fc2.out));
  const cuda::RowLinearJob logits[] = {
      job(w.coord_fc2, two_layers ? coord_inner : x, coord_logits, false, params.coord_id),
      job(w.size_fc2, two_layers ? size_inner : x, size_logits, false, params.size_id)};
  GAPLESS_RETURN_IF_ERROR(cuda::row_linear(stream, logits, 2, attributes_.num_multiprocessors));
  return cuda::pick_region_values(stream, params, {.sums = coord_logits}, {.sums = size_logits},
                                  nullptr);
}

Status CudaKernels::advance_rows(Stream& stream, const AdvanceRowsParams& params) {
  return cuda::advance_rows(stream, params);
}

Status CudaKernels::fill_random(Stream& stream, const FillRandomParams& params) {
  return cuda::fill_random(stream, params);
}

Status CudaKernels::round_to_fp8(Stream& stream, const RoundToFp8Params& params) {
  return cuda::round_to_fp8(stream, params);
}

Status CudaKernels::rows_to_fp8(Stream& stream, const RowsToFp8Params& params) {
  return cuda::rows_to_fp8(stream, params);
}

Status CudaKernels::stamp_time(Stream& stream, std::uint64_t* stamp) {
  return cuda::stamp_time(stream, stamp);
}

std::size_t CudaKernels::attention_scratch_bytes(int, int max_sequences, int max_context,
                                                 const AttentionHeads& heads) const {
  // A prefill needs none.
  return cuda::decode_attention_scratch_bytes(std::min(max_sequences, kMaxSeats), max_context,
                                              heads.num_heads, heads.head_dim);
}

std::size_t CudaKernels::decoder_blocks_scratch_bytes(int max_rows, int dim, int ff_dim,
                                                      const AttentionHeads& heads, int max_context,
                                                      const ExpertSizes& experts) const {
  return cuda::decoder_blocks_scratch_bytes(max_rows, dim, ff_dim, heads, max_context, experts,
                                            attributes_.num_multiprocessors);
}

std::size_t CudaKernels::sample_scratch_bytes(int max_rows, int vocab) const {
  return cuda::sample_scratch_bytes(max_rows, vocab);
}

std::size_t CudaKernels::experts_scratch_bytes(int max_rows, const ExpertSizes& sizes) const {
  return cuda::experts_scratch_bytes(max_rows, sizes);
}

std::size_t CudaKernels::scale_heads_scratch_bytes(int max_tokens,
                                                   const AttentionHeads& heads) const {
  return cuda::scale_heads_scratch_bytes(max_tokens, heads);
}

std::size_t CudaKernels::region_scratch_bytes(int max_rows, int dim, int inner_dim,
                                              int max_out) const {
  // Few rows have partial sums instead, and are gathered.
  const int few_rows = std::min(max_rows, cuda::kMaxRegionProductRows);
  const int num_sums = std::max(max_rows, cuda::kRegionRanks * few_rows);
  return inner_bytes(max_rows, dim) + 2 * inner_bytes(max_rows, inner_dim) +
         2 * logits_bytes(num_sums, max_out) + inner_bytes(few_rows, dim);
}

StatusOr<std::unique_ptr<Kernels>> make_kernels(Device& device, const CudaAttributes& attributes) {
  return CudaKernels::create(device, attributes);
}

StatusOr<std::unique_ptr<Kernels>> make_dry_kernels(Device& device,
                                                    const CudaAttributes& attributes) {
  return CudaKernels::create_dry(device, attributes);
}

bool has_code() {
  return has_step_code();
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
