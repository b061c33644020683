#include "bench/cuda_experts.h"

#include <random>
#include <set>
#include <string>
#include <vector>

#include "bench/moondream2_shapes.h"

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

void bench_feed_forward(CudaBench& b) {
  std::vector<FeedForward> layers;
  for (int i = 0; i < kExpertLayers; ++i) layers.push_back(expert_weights(b));
  std::mt19937 random(1);
  for (const int rows : {1, 2, 4, 8, 16, 32, 64, 770}) {
    std::vector<const void*> logits;
    double touched = 0;
    for (int i = 0; i < kExpertLayers; ++i) {
      const Routes routes = make_routes(rows, random);
      logits.push_back(b.upload(routes.logits));
      touched += routes.num_touched;
    }
    const void* x = b.noise(std::int64_t{rows} * kDim);
    void* y = b.noise(std::int64_t{rows} * kDim);
    void* scratch =
        b.allocate(b.kernels().experts_scratch_bytes(rows, {.dim = kDim,
                                                            .inner = kExpertInner,
                                                            .num_experts = kNumExperts,
                                                            .experts_per_token = kPerToken}));
    const Spread spread = b.time(kExpertLayers, [&] {
      for (std::size_t i = 0; i < layers.size(); ++i) {
        GAPLESS_RETURN_IF_ERROR(b.kernels().experts(b.stream(), {.x = x,
                                                                 .residual = y,
                                                                 .y = y,
                                                                 .num_rows = rows,
                                                                 .ff = layers[i],
                                                                 .decode = rows <= 64,
                                                                 .logits = logits[i],
                                                                 .scratch = scratch}));
      }
      return ok_status();
    });
    const double one = 3.0 * kExpertInner * kDim;
    b.print("experts, rows " + std::to_string(rows), spread, 2 * one * touched / kExpertLayers,
            2 * one * kPerToken * rows);
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
