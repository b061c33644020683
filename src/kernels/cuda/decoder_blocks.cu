// The host's side of a decode step's one launch (device/decoder_kernel.cuh).
#include <algorithm>

#include "kernels/cuda/decoder_blocks.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/decoder_attention.cuh"
#include "kernels/cuda/device/decoder_block.cuh"
#include "kernels/cuda/device/decoder_grouped_attention.cuh"
#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/decoder_scales.cuh"
#include "kernels/cuda/device/turn_product.cuh"
#include "kernels/cuda/expert_route.h"
#include "kernels/one_launch_decoder.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

template <typename S, PreparedFormat kFormat, typename CacheElement>
Status launch_decoder_kernel(Stream& stream, const DecoderLaunch& params, int num_blocks,
                             int shared_bytes);

namespace {

using Parallel = OneLaunchDecoder::Parallel;
using Sequential = OneLaunchDecoder::Sequential;
using Experts = OneLaunchDecoder::Experts;

static_assert(OneLaunchDecoder::kMaxLayers == kMaxDecoderLayers);
static_assert(OneLaunchDecoder::kWidthMultiple == kProductColumns);
static_assert(Parallel::kHeadDim == ParallelDecoder::kHeadDim);
static_assert(Parallel::kMaxDim == kMaxDecoderDim<ParallelDecoder>);
static_assert(Parallel::kMaxContext == kMaxDecoderContext);
static_assert(Parallel::kRotaryMultiple == 2 * kVector);
static_assert(Sequential::kHeadDim == SequentialDecoder::kHeadDim);
static_assert(Sequential::kMaxDim == kMaxDecoderDim<SequentialDecoder>);
static_assert(Sequential::kMaxGroup == kMaxGroup);
static_assert(Experts::kMaxLayers == kMaxExpertLayers);
static_assert(Experts::kHeadDim == ExpertsDecoder::kHeadDim);
static_assert(Experts::kMaxDim == kMaxDecoderDim<ExpertsDecoder>);
static_assert(Experts::kMaxExperts == kRouteExperts);
static_assert(Experts::kMaxChoices == kRouteChoices);
static_assert(Experts::kExpertsMultiple == kTileRows);
static_assert(Experts::kChoicesMultiple == kDecoderColumnRanks);
// Both lie in the same place (kPassRowBytes).
static_assert(Experts::kMaxInner <= Experts::kMaxDim);

// Of the paths that decoder_kernel_experts_*.cu are compiled for.
constexpr bool kHasExpertsKernel = kPath.has_warpgroups;

template <typename S>
constexpr std::size_t copies(Value value) {
  return static_cast<std::size_t>(copies_of(S::kSchedule, value));
}

// Units of a context of up to `max_context` tokens, whatever the elements of the cache.
template <typename S>
constexpr int max_units_of(int max_context) {
  constexpr int kKeys = UnitShape<S, Bf16>::kKeys;
  return S::kIsSequential || S::kHasExperts ? (max_context + kKeys - 1) / kKeys : kMaxUnits;
}

// Rows that a launch takes: as many as its kernels are compiled for. Of more than 64 each row has a block, and units are of even
// size.
template <typename S>
int rows_of_launch(const AttentionHeads& heads, int dim, int ff_dim, int num_multiprocessors) {
  const DecoderSizes sizes{.dim = dim, .q_width = heads.q_width(), .ff_dim = ff_dim};
  const bool takes_more_than_64 = num_multiprocessors >= kMostRows<S> && has_even_units(sizes);
  return takes_more_than_64 ? kMostRows<S> : std::min(kMostRows<S>, 64);
}

// Where the scratch's arrays lie, each value of the schedule as often as it needs.
struct ScratchLayout {
  std::size_t norm = 0, ff_norm = 0, wide = 0, qkv = 0, sums = 0, ff_sums = 0, scale_parts = 0,
              logit_parts = 0, choices = 0, softmax = 0, outputs = 0, total = 0;

  template <typename S>
  static ScratchLayout of(int max_rows, int dim, int ff_dim, const AttentionHeads& heads,
                          int max_context, int num_experts, int num_blocks) {
    // They lie side by side.
    static_assert(copies<S>(Value::kAttention) == copies<S>(Value::kInner) &&
                  (!S::kIsSequential || copies<S>(Value::kInnerRest) == copies<S>(Value::kInner)));
    const auto rows = static_cast<std::size_t>(decoder_slice_rows(max_rows));
    const auto d = static_cast<std::size_t>(dim);
    const auto wide_columns = static_cast<std::size_t>(heads.q_width() + ff_dim);
    const std::size_t parts = copies<S>(Value::kParts) * rows *
                              static_cast<std::size_t>(heads.num_heads) *
                              static_cast<std::size_t>(max_units_of<S>(max_context));
    const std::size_t sums_bytes = kDecoderColumnRanks * rows * d * sizeof(float);
    ScratchLayout layout;
    layout.norm = layout.take(copies<S>(Value::kNorm) * rows * d * sizeof(Bf16));
    layout.wide = layout.take(copies<S>(Value::kInner) * rows * wide_columns * sizeof(Bf16));
    layout.qkv = layout.take(copies<S>(Value::kQkv) * rows *
                             static_cast<std::size_t>(heads.qkv_width()) * sizeof(Bf16));
    layout.sums = layout.take(copies<S>(Value::kSums) * sums_bytes);
    if constexpr (S::kIsSequential) {
      layout.ff_norm = layout.take(copies<S>(Value::kFfNorm) * rows * d * sizeof(Bf16));
      layout.ff_sums = layout.take(copies<S>(Value::kFfSums) * sums_bytes);
    }
    if constexpr (S::kHasExperts) {
      layout.ff_sums =
          layout.take(copies<S>(Value::kFfSums) * kRouteChoices * rows * d * sizeof(float));
      layout.logit_parts = layout.take(2 * (d / kProductColumns) * rows *
                                       static_cast<std::size_t>(num_experts) * sizeof(float));
      layout.choices = layout.take(2 * rows * kRouteChoices * sizeof(std::uint32_t));
      const int num_parts = num_blocks * scale_parts_per_block(heads.qkv_width(), num_blocks);
      layout.scale_parts =
          layout.take(copies<S>(Value::kQkv) * rows *
                      static_cast<std::size_t>(num_parts * 2 * heads.num_heads) * sizeof(float));
    }
    layout.softmax = layout.take(parts * sizeof(float2));
    layout.outputs = layout.take(parts * S::kHeadDim * sizeof(float));
    return layout;
  }

 private:
  std::size_t take(std::size_t bytes) {
    const std::size_t at = total;
    total += (bytes + 255) / 256 * 256;
    return at;
  }
};

DecoderLayer make_layer(const DecoderBlock& block, const AttentionHeads& heads) {
  const std::size_t values_at =
      static_cast<std::size_t>(heads.kv_layout().in_page(KvPart::kValues, 0, 0)) *
      kv_element_bytes(block.kv.format, DType::kBF16);
  return {.input_weights = static_cast<const char*>(block.prepared_in),
          .output_weights = static_cast<const char*>(block.prepared_out),
          .gamma = static_cast<const Bf16*>(block.norm.gamma),
          .beta = static_cast<const Bf16*>(block.norm.beta),
          .qkv_bias = static_cast<const Bf16*>(block.qkv.bias),
          .fc1_bias = static_cast<const Bf16*>(block.ff.up.bias),
          .proj_bias = static_cast<const Bf16*>(block.proj.bias),
          .fc2_bias = static_cast<const Bf16*>(block.ff.down.bias),
          .pages = block.kv.pages,
          .values = static_cast<char*>(block.kv.pages) + values_at};
}

SequentialLayer make_own(const DecoderBlock& block) {
  return {.ff_gamma = static_cast<const Bf16*>(block.ff_norm.gamma),
          .q_gamma = static_cast<const Bf16*>(block.q_norm.gamma),
          .k_gamma = static_cast<const Bf16*>(block.k_norm.gamma)};
}

ExpertLayer make_expert_layer(const DecoderBlock& block) {
  return {.up_weights = static_cast<const char*>(block.prepared_experts.up),
          .down_weights = static_cast<const char*>(block.prepared_experts.down),
          .router = static_cast<const Bf16*>(block.ff.router.weight),
          .router_bias = static_cast<const Bf16*>(block.ff.router.bias),
          .scale_products = static_cast<const Bf16*>(block.head_scales.products.weight),
          .alpha = static_cast<const Bf16*>(block.head_scales.alpha)};
}

template <typename... Args>
Status no(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kUnavailable, format, std::forward<Args>(args)...);
}

}  // namespace

Status check_decoder_kernel(const DecoderBlocksParams& params, int num_multiprocessors) {
  const DecoderBlocksParams& p = params;
  if (!p.decode || p.num_sequences != p.num_tokens) return no("it is not a decode step");
  GAPLESS_RETURN_IF_ERROR(check_one_launch_decoder(params));
  const bool is_small = kOneRowPerBlock && num_multiprocessors < kSharingSlice;
  const int max_rows = is_small ? num_multiprocessors : kMaxSeats;
  if (p.num_tokens < 1 || p.num_tokens > max_rows) {
    return no("{} rows, more than {}", p.num_tokens, max_rows);
  }
  const DecoderBlock& first = p.blocks[0];
  for (int i = 0; i < p.num_blocks; ++i) {
    const DecoderBlock& b = p.blocks[i];
    if (b.prepared_in == nullptr || b.prepared_out == nullptr ||
        b.prepared_format != first.prepared_format) {
      return no("its weights are not prepared");
    }
    const bool has_experts = b.ff.kind == FeedForwardKind::kExperts;
    if (has_experts && !kHasExpertsKernel)
      return no("it has experts, and only path 9.0a takes them");
    if (has_experts && (b.prepared_experts.up == nullptr || b.prepared_experts.down == nullptr)) {
      return no("the weights of its experts are not prepared");
    }
  }
  if (p.head != nullptr && (p.head->linear.prepared == nullptr ||
                            p.head->linear.prepared_format != first.prepared_format)) {
    return no("the weights of its logits are not prepared");
  }
  return ok_status();
}

namespace {

// A launch's share of a step's rows, from `first` on: a multiple of kSharingSlice unless it is the only one, or rows share nothing.
void take_rows(const DecoderBlocksParams& params, int first, int count, DecoderLaunch& p) {
  p.num_rows = count;
  p.x = static_cast<Bf16*>(params.x) + std::int64_t{first} * p.dim;
  p.sequences = params.sequences + first;
  p.shared_prefixes = params.shared_prefixes == nullptr ? nullptr : params.shared_prefixes + first;
  p.rows = params.rows == nullptr ? nullptr : params.rows + first;
  if (params.head != nullptr) p.logits = params.head->logits + std::int64_t{first} * p.vocab;
}

template <typename S>
Status launch_blocks(Stream& stream, const DecoderBlocksParams& params, void* counters,
                     const CudaAttributes& device) {
  const DecoderBlock& last = params.blocks[params.num_blocks - 1];
  const int dim = last.qkv.in;
  const int ff_dim = last.ff.inner() * (S::kHasExperts ? last.ff.experts_per_token : 1);
  const int most_rows = rows_of_launch<S>(params.heads, dim, ff_dim, device.num_multiprocessors);
  const ScratchLayout layout =
      ScratchLayout::of<S>(std::min(params.num_tokens, most_rows), dim, ff_dim, params.heads,
                           params.max_context, last.ff.num_experts, device.num_multiprocessors);
  auto* scratch = static_cast<char*>(params.block_scratch);
  DecoderLaunch p = {};
  p.num_layers = params.num_blocks;
  for (int i = 0; i < params.num_blocks; ++i)
    p.layers[i] = make_layer(params.blocks[i], params.heads);
  p.dim = dim;
  p.ff_dim = ff_dim;
  p.num_heads = params.heads.num_heads;
  p.rotary_dim = params.rotary_dim;
  p.eps = params.blocks[0].norm.eps;
  p.row_states = params.row_states;
  p.page_table = params.page_table;
  p.page_table_stride = params.page_table_stride;
  p.rope_table = params.rope_table;
  p.norm = reinterpret_cast<Bf16*>(scratch + layout.norm);
  p.wide = reinterpret_cast<Bf16*>(scratch + layout.wide);
  p.qkv = reinterpret_cast<Bf16*>(scratch + layout.qkv);
  p.sums = reinterpret_cast<float*>(scratch + layout.sums);
  p.part_softmax = reinterpret_cast<float2*>(scratch + layout.softmax);
  p.part_outputs = reinterpret_cast<float*>(scratch + layout.outputs);
  p.counters = static_cast<DecoderCounters*>(counters);
  if constexpr (S::kIsSequential) {
    SequentialLaunch& own = p.sequential;
    for (int i = 0; i < params.num_blocks; ++i) own.layers[i] = make_own(params.blocks[i]);
    own.num_kv_heads = params.heads.num_kv_heads;
    own.max_units = max_units_of<S>(params.max_context);
    own.ff_norm = reinterpret_cast<Bf16*>(scratch + layout.ff_norm);
    own.ff_sums = reinterpret_cast<float*>(scratch + layout.ff_sums);
  }
  if constexpr (S::kHasExperts) {
    ExpertsLaunch& own = p.experts;
    own.first_with_experts = params.num_blocks;
    for (int i = params.num_blocks - 1; i >= 0; --i) {
      own.layers[i] = make_expert_layer(params.blocks[i]);
      if (params.blocks[i].ff.kind == FeedForwardKind::kExperts) own.first_with_experts = i;
    }
    own.num_experts = last.ff.num_experts;
    own.experts_per_token = last.ff.experts_per_token;
    own.inner = last.ff.inner();
    own.max_units = max_units_of<S>(params.max_context);
    own.parts_per_block =
        scale_parts_per_block(params.heads.qkv_width(), device.num_multiprocessors);
    own.bf16_positions = last.head_scales.bf16_positions;
    own.ff_sums = reinterpret_cast<float*>(scratch + layout.ff_sums);
    own.scale_parts = reinterpret_cast<float*>(scratch + layout.scale_parts);
    own.logit_parts = reinterpret_cast<float*>(scratch + layout.logit_parts);
    own.choices = reinterpret_cast<std::uint32_t*>(scratch + layout.choices);
    own.chosen = params.chosen_experts;
  }
  if (params.head != nullptr) {
    const DecoderHead& head = *params.head;
    p.head_weights = static_cast<const char*>(head.linear.prepared);
    p.head_gamma = static_cast<const Bf16*>(head.norm.gamma);
    p.head_beta = static_cast<const Bf16*>(head.norm.beta);
    p.head_bias = static_cast<const Bf16*>(head.linear.bias);
    p.vocab = head.linear.out;
    p.needed_logits = head.needed;
  }
  const bool fp8_weights = params.blocks[0].prepared_format == PreparedFormat::kFp8;
  const bool fp8_cache = params.blocks[0].kv.format == KvFormat::kFp8;
  auto launch_kernel = fp8_weights ? launch_decoder_kernel<S, PreparedFormat::kFp8, Bf16>
                                   : launch_decoder_kernel<S, PreparedFormat::kNative, Bf16>;
  if constexpr (!S::kHasExperts) {
    if (fp8_cache) {
      launch_kernel = fp8_weights ? launch_decoder_kernel<S, PreparedFormat::kFp8, E4m3>
                                  : launch_decoder_kernel<S, PreparedFormat::kNative, E4m3>;
    }
  }
  // Launches follow each other, so all have the same scratch and counters.
  for (int first = 0; first < params.num_tokens; first += most_rows) {
    take_rows(params, first, std::min(most_rows, params.num_tokens - first), p);
    GAPLESS_RETURN_IF_ERROR(
        launch_kernel(stream, p, device.num_multiprocessors, device.shared_bytes));
  }
  return ok_status();
}

}  // namespace

Status decoder_blocks(Stream& stream, const DecoderBlocksParams& params, void* counters,
                      const CudaAttributes& device) {
  if (params.blocks[0].residual == Residual::kSequential) {
    return launch_blocks<SequentialDecoder>(stream, params, counters, device);
  }
  if constexpr (kHasExpertsKernel) {
    if (params.blocks[params.num_blocks - 1].ff.kind == FeedForwardKind::kExperts) {
      return launch_blocks<ExpertsDecoder>(stream, params, counters, device);
    }
  }
  return launch_blocks<ParallelDecoder>(stream, params, counters, device);
}

std::size_t decoder_blocks_scratch_bytes(int max_rows, int dim, int ff_dim,
                                         const AttentionHeads& heads, int max_context,
                                         const ExpertSizes& experts, int num_multiprocessors) {
  const auto bytes = [&]<typename S, typename Limits>(int wide) -> std::size_t {
    if (max_context > Limits::kMaxContext || dim > Limits::kMaxDim) return 0;
    const int rows = std::min(max_rows, rows_of_launch<S>(heads, dim, wide, num_multiprocessors));
    return ScratchLayout::of<S>(rows, dim, wide, heads, max_context, experts.num_experts,
                                num_multiprocessors)
        .total;
  };
  switch (heads.head_dim) {
    case Parallel::kHeadDim:
      if (experts.num_experts > 0 && !kHasExpertsKernel) return 0;
      return experts.num_experts > 0 ? bytes.template operator()<ExpertsDecoder, Experts>(
                                           experts.inner * experts.experts_per_token)
                                     : bytes.template operator()<ParallelDecoder, Parallel>(ff_dim);
    case Sequential::kHeadDim:
      return bytes.template operator()<SequentialDecoder, Sequential>(ff_dim);
    default:
      return 0;
  }
}

std::size_t decoder_blocks_counter_bytes() {
  return sizeof(DecoderCounters);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
