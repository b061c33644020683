#include "bench/cuda_experts.h"

#include <random>
#include <set>
#include <string>
#include <vector>

#include "bench/moondream2_shapes.h"
#include "kernels/dense_ops.h"

namespace gapless::bench {
namespace {

constexpr int kExpertInner = 1024, kNumExperts = 64, kPerToken = 8;
constexpr int kExpertLayers = 4;  // 0.8 GB each: more than the L2 holds, also of one row's experts

// Logits in bfloat16 of a route where every row has its own kPerToken experts, all equally likely.
struct Routes {
  std::vector<std::uint16_t> logits;
  int num_touched = 0;
};

Routes make_routes(int rows, std::mt19937& random) {
  constexpr std::uint16_t kOne = 0x3f80;
  Routes routes{.logits = std::vector<std::uint16_t>(static_cast<std::size_t>(rows) * kNumExperts)};
  std::set<int> touched;
  for (int row = 0; row < rows; ++row) {
    std::set<int> chosen;
    while (chosen.size() < kPerToken) chosen.insert(static_cast<int>(random() % kNumExperts));
    for (const int e : chosen)
      routes.logits[static_cast<std::size_t>(row * kNumExperts + e)] = kOne;
    touched.merge(chosen);
  }
  routes.num_touched = static_cast<int>(touched.size());
  return routes;
}

FeedForward expert_weights(CudaBench& b) {
  const float stddev = 0.02f;
  const std::int64_t up = std::int64_t{kNumExperts} * 2 * kExpertInner * kDim;
  return {.kind = FeedForwardKind::kExperts,
          .activation = Activation::kGeluErf,
          .up_offset = 1,
          .up = {.weight = b.noise(up, stddev), .in = kDim, .out = 2 * kExpertInner},
          .down = {.weight = b.noise(up / 2, stddev), .in = kExpertInner, .out = kDim},
          .num_experts = kNumExperts,
          .experts_per_token = kPerToken};
}

// Rows in 8 bits, one behind the other.
const void* rows_in_8_bits(CudaBench& b, const void* rows, int num_rows, int width,
                           const float*& scales) {
  void* const values = b.allocate(static_cast<std::size_t>(num_rows) * width);
  auto* const own =
      static_cast<float*>(b.allocate(static_cast<std::size_t>(num_rows) * sizeof(float)));
  require(b.kernels().rows_to_fp8(b.stream(), {.x = rows,
                                               .x_stride = width,
                                               .y = values,
                                               .y_stride = width,
                                               .scales = own,
                                               .num_rows = num_rows,
                                               .dim = width}));
  scales = own;
  return values;
}

void bench_rows(CudaBench& b, const std::string& what, const std::vector<FeedForward>& layers,
                int rows, bool in_8_bits, std::mt19937& random) {
  std::vector<const void*> logits;
  double touched = 0;
  for (int i = 0; i < kExpertLayers; ++i) {
    const Routes routes = make_routes(rows, random);
    logits.push_back(b.upload(routes.logits));
    touched += routes.num_touched;
  }
  const void* x = b.noise(std::int64_t{rows} * kDim);
  void* y = b.noise(std::int64_t{rows} * kDim);
  ExpertsParams params{
      .x = x, .residual = y, .y = y, .num_rows = rows, .decode = rows <= 64 && !in_8_bits};
  if (in_8_bits) {
    params.x_fp8 = rows_in_8_bits(b, x, rows, kDim, params.x_scales);
    params.x_fp8_stride = kDim;
  }
  params.scratch =
      b.allocate(b.kernels().experts_scratch_bytes(rows, {.dim = kDim,
                                                          .inner = kExpertInner,
                                                          .num_experts = kNumExperts,
                                                          .experts_per_token = kPerToken}));
  const Spread spread = b.time(kExpertLayers, [&] {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      params.ff = layers[i];
      params.logits = logits[i];
      GAPLESS_RETURN_IF_ERROR(b.kernels().experts(b.stream(), params));
    }
    return ok_status();
  });
  const double one = 3.0 * kExpertInner * kDim;
  b.print(what + ", rows " + std::to_string(rows), spread,
          (in_8_bits ? 1 : 2) * one * touched / kExpertLayers, 2 * one * kPerToken * rows);
}

void bench_feed_forward(CudaBench& b) {
  std::vector<FeedForward> layers;
  for (int i = 0; i < kExpertLayers; ++i) layers.push_back(expert_weights(b));
  std::mt19937 random(1);
  for (const int rows : {1, 2, 4, 8, 16, 32, 64, 770}) {
    bench_rows(b, "experts", layers, rows, false, random);
  }
  if (b.kernels().multiplies_fp8_experts()) {
    for (FeedForward& ff : layers) {
      for (LinearWeights* first : {&ff.up, &ff.down}) {
        first->fp8 = rows_in_8_bits(b, first->weight, kNumExperts * first->out, first->in,
                                    first->fp8_scales);
      }
    }
    for (const int rows : {1, 64, 770}) {
      bench_rows(b, "experts in 8 bits", layers, rows, true, random);
    }
  }
  b.free_all();
}

void bench_head_scales(CudaBench& b) {
  constexpr int kWidth = 3 * kDim;
  const AttentionHeads heads{.num_heads = kHeads, .num_kv_heads = kHeads, .head_dim = kHeadDim};
  const HeadScales scales{.products = weights(b, kWidth, 2 * kHeads), .alpha = b.noise(kHeads)};
  const auto* table = b.upload(std::vector<float>(kMaxContext * kRotaryDim, 0.6f));
  for (const int rows : {1, 32, 64}) {
    const auto count = static_cast<std::size_t>(rows);
    void* qkv = b.noise(std::int64_t{rows} * kWidth);
    const auto* positions = b.upload(std::vector<std::int32_t>(count, kContext));
    const auto* slots = b.upload(seats(rows));
    const KvLayer kv{b.noise((rows / kPageTokens + 1) * heads.kv_layout().page_size())};
    void* scratch = b.allocate(b.kernels().scale_heads_scratch_bytes(rows, heads));
    repeat(b, "heads scaled, rotated and cached, rows " + std::to_string(rows),
           2.0 * 2 * kHeads * kWidth + 4.0 * rows * kWidth, [&] {
             return b.kernels().scale_rope_and_cache(b.stream(),
                                                     {.qkv = qkv,
                                                      .qkv_stride = kWidth,
                                                      .positions = positions,
                                                      .scales = scales,
                                                      .num_tokens = rows,
                                                      .heads = heads,
                                                      .decode = true,
                                                      .scratch = scratch},
                                                     {.qkv = qkv,
                                                      .qkv_stride = kWidth,
                                                      .positions = positions,
                                                      .cache_slots = slots,
                                                      .rope_table = table,
                                                      .kv = kv,
                                                      .num_tokens = rows,
                                                      .heads = heads,
                                                      .rotary_dim = kRotaryDim});
           });
  }
  b.free_all();
}

}  // namespace

void bench_experts(CudaBench& b) {
  bench_feed_forward(b);
  bench_head_scales(b);
}

}  // namespace gapless::bench
