// The kernels of src/kernels/cuda at the shapes of Moondream 2 (experts: 3), each with its ceiling.
//   cuda_kernels_bench [--json FILE] [--commit COMMIT] [name ...]
// Names: linear attention sample top_logprobs vision prefill step small experts grammar_masks; all when none is named.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "bench/cuda_bench.h"
#include "bench/cuda_experts.h"
#include "bench/cuda_grammar_masks.h"
#include "bench/cuda_small_kernels.h"
#include "bench/moondream2_shapes.h"
#include "kernels/dense_ops.h"

namespace gapless::bench {
namespace {

constexpr int kVisionFfDim = 4352, kVisionLayers = 27, kVisionHeads = 16;
constexpr std::int64_t kColdBytes = 256 << 20;  // more than the L2 holds

// Lays parts out as one matrix: below each other, or (`side_by_side`) beside each other.
LinearWeights prepared(CudaBench& b, const std::vector<LinearWeights>& parts, bool side_by_side) {
  LinearWeights whole{.weight = nullptr, .bias = nullptr, .in = 0, .out = 0};
  for (const LinearWeights& part : parts) {
    whole.in = side_by_side ? whole.in + part.in : part.in;
    whole.out = side_by_side ? part.out : whole.out + part.out;
  }
  whole.bias = b.noise(whole.out);
  void* to =
      b.allocate(b.kernels().prepared_linear_bytes(whole.in, whole.out, PreparedFormat::kNative));
  whole.prepared = to;
  int in = 0, out = 0;
  for (const LinearWeights& part : parts) {
    require(b.kernels().prepare_linear(b.stream(), {.weights = part,
                                                    .prepared = to,
                                                    .total_in = whole.in,
                                                    .total_out = whole.out,
                                                    .first_out = out,
                                                    .first_in = in}));
    (side_by_side ? in : out) += side_by_side ? part.in : part.out;
  }
  return whole;
}

LinearParams linear(const LinearWeights& w, const void* x, void* y, int rows, bool decode) {
  return {.x = x,
          .x_stride = w.in,
          .weights = w,
          .y = y,
          .y_stride = w.out,
          .num_rows = rows,
          .decode = decode};
}

double linear_bytes(const LinearWeights& w, int rows) {
  return 2.0 * w.in * w.out + 2.0 * rows * (w.in + w.out);
}

double linear_ops(const LinearWeights& w, int rows) {
  return 2.0 * w.in * w.out * rows;
}

void bench_linear(CudaBench& b) {
  struct Shape {
    const char* name;
    int in, out;
    bool gelu, residual, f32;
  };
  const Shape shapes[] = {{"qkv", kDim, 3 * kDim, false, false, false},
                          {"proj", kDim, kDim, false, true, false},
                          {"fc1", kDim, kFfDim, true, false, false},
                          {"fc2", kFfDim, kDim, false, true, false},
                          {"lm_head", kDim, kVocab, false, false, true},
                          {"qkv|fc1", kDim, 3 * kDim + kFfDim, true, false, false},
                          {"proj|fc2", kDim + kFfDim, kDim, false, true, false}};
  for (const Shape& s : shapes) {
    const std::int64_t bytes = 2LL * s.in * s.out;
    const int copies = static_cast<int>(std::max<std::int64_t>(4, kColdBytes / bytes));
    std::vector<LinearWeights> w;
    for (int i = 0; i < copies; ++i) w.push_back(weights(b, s.in, s.out));
    const void* x = b.noise(64LL * s.in);
    void* y = b.noise(128LL * s.out);
    for (const bool is_prepared : {false, true}) {
      if (is_prepared) {
        for (LinearWeights& one : w) one = prepared(b, {one}, false);
      }
      for (const int rows : {1, 8, 16, 32, 64}) {
        const Spread spread = b.time(copies, [&] {
          for (const LinearWeights& one : w) {
            LinearParams p = linear(one, x, y, rows, true);
            if (s.gelu) p.activation = Activation::kGeluTanh;
            if (s.f32) p.y_dtype = DType::kF32;
            if (s.residual) p.residual = y, p.residual_stride = s.out, p.residual_rows = rows;
            GAPLESS_RETURN_IF_ERROR(b.kernels().linear(b.stream(), p));
          }
          return ok_status();
        });
        b.print(std::string(is_prepared ? "decode " : "decode, plain ") + s.name + ", rows " +
                    std::to_string(rows),
                spread, linear_bytes(w[0], rows), 0);
      }
    }
    b.free_all();
  }
}

// A cache of `layers` layers for `rows` sequences of up to max_context tokens, pages in order.
struct Cache {
  std::vector<KvLayer> layers;
  std::int32_t* page_table = nullptr;
  int pages_per_row = 0;

  Cache(CudaBench& b, int num_layers, int rows, int max_context) {
    pages_per_row = (max_context + kPageTokens - 1) / kPageTokens;
    const KvLayout layout{.num_heads = kHeads, .head_dim = kHeadDim};
    const std::int64_t elements = (1LL + rows * pages_per_row) * layout.page_size();
    for (int i = 0; i < num_layers; ++i) layers.push_back({b.noise(elements)});
    std::vector<std::int32_t> table;
    for (int i = 0; i < rows * pages_per_row; ++i) table.push_back(1 + i);
    page_table = b.upload(table);
  }
};

PagedAttentionParams attention(const Cache& cache, int layer, const void* qkv, void* out,
                               const AttentionSequence* sequences, int num_sequences,
                               int num_tokens, int max_new_tokens, void* scratch) {
  return {.qkv = qkv,
          .qkv_stride = 3 * kDim,
          .out = out,
          .out_stride = kDim,
          .kv = cache.layers[static_cast<std::size_t>(layer)],
          .page_table = cache.page_table,
          .page_table_stride = cache.pages_per_row,
          .sequences = sequences,
          .num_sequences = num_sequences,
          .num_tokens = num_tokens,
          .max_new_tokens = max_new_tokens,
          .max_context = kMaxContext,
          .heads = {.num_heads = kHeads, .num_kv_heads = kHeads, .head_dim = kHeadDim},
          .scratch = scratch};
}

void* attention_scratch(CudaBench& b, int rows) {
  return b.allocate(b.kernels().attention_scratch_bytes(
      rows, rows, kMaxContext,
      {.num_heads = kHeads, .num_kv_heads = kHeads, .head_dim = kHeadDim}));
}

void bench_decode_attention(CudaBench& b) {
  for (const int rows : {1, 8, 32, 64}) {
    Cache cache(b, kLayers, rows, 1024);
    std::vector<AttentionSequence> sequences;
    for (int i = 0; i < rows; ++i) sequences.push_back({i, i, 1, kContext - 1, 0});
    const auto* sequences_dev = b.upload(sequences);
    const void* qkv = b.noise(rows * 3LL * kDim);
    void* out = b.noise(rows * std::int64_t{kDim});
    void* scratch = attention_scratch(b, rows);
    const Spread spread = b.time(kLayers, [&] {
      for (int layer = 0; layer < kLayers; ++layer) {
        GAPLESS_RETURN_IF_ERROR(b.kernels().paged_attention(
            b.stream(), attention(cache, layer, qkv, out, sequences_dev, rows, rows, 1, scratch)));
      }
      return ok_status();
    });
    b.print("decode attention, context 850, rows " + std::to_string(rows), spread,
            4.0 * rows * kContext * kDim, 0);
    b.free_all();
  }
}

// Normal-looking float logits of the given size.
float* make_logits(CudaBench& b, int rows) {
  const LinearWeights w = weights(b, kDim, kVocab);
  const void* x = b.noise(rows * std::int64_t{kDim}, 2.5f);
  auto* logits =
      static_cast<float*>(b.allocate(sizeof(float) * static_cast<std::size_t>(rows) * kVocab));
  LinearParams p = linear(w, x, logits, rows, true);
  p.y_dtype = DType::kF32;
  require(b.kernels().linear(b.stream(), p));
  return logits;
}

SampleParams sample_params(const float* logits, const std::int32_t* rows_dev,
                           const RowState* states, std::int32_t* tokens, float* logprobs, int rows,
                           void* scratch) {
  return {.logits = logits,
          .logits_stride = kVocab,
          .rows = rows_dev,
          .row_states = states,
          .tokens = tokens,
          .logprobs = logprobs,
          .num_rows = rows,
          .vocab = kVocab,
          .scratch = scratch};
}

void bench_top_logprobs(CudaBench& b) {
  for (const int rows : {1, 32}) {
    const float* logits = make_logits(b, rows);
    const auto* rows_dev = b.upload(seats(rows));
    auto* top = static_cast<TopLogprob*>(
        b.allocate(sizeof(TopLogprob) * kMaxTopLogprobs * static_cast<std::size_t>(rows)));
    for (const int count : {0, 1, 5, 20}) {
      std::vector<RowState> states = row_states(rows, 0, 1);
      for (RowState& state : states) state.sampling.num_top_logprobs = count;
      const auto* states_dev = b.upload(states);
      repeat(b, fmt::format("top_logprobs {}, rows {}", count, rows),
             count > 0 ? 4.0 * kVocab * rows : 0, [&] {
               return b.kernels().top_logprobs(b.stream(), {.logits = logits,
                                                            .logits_stride = kVocab,
                                                            .rows = rows_dev,
                                                            .row_states = states_dev,
                                                            .top = top,
                                                            .num_rows = rows,
                                                            .vocab = kVocab});
             });
    }
    b.free_all();
  }
}

void bench_sample(CudaBench& b) {
  struct Setting {
    const char* name;
    float temperature, top_p;
    bool adjusts = false;
  };
  for (const int rows : {1, 8, 32}) {
    const float* logits = make_logits(b, rows);
    const auto* rows_dev = b.upload(seats(rows));
    auto* tokens = static_cast<std::int32_t*>(b.allocate(256));
    auto* logprobs = static_cast<float*>(b.allocate(256));
    void* scratch = b.allocate(b.kernels().sample_scratch_bytes(rows, kVocab));
    // Every fifth token was used, every third is biased.
    const std::int64_t stride = token_memory_stride(kVocab);
    const auto entries = static_cast<std::size_t>(rows) * static_cast<std::size_t>(stride);
    std::vector<std::uint16_t> uses(entries);
    std::vector<float> biases(entries);
    for (std::size_t i = 0; i < entries; ++i) {
      uses[i] = i % 5 == 0 ? 1 : 0;
      biases[i] = i % 3 == 0 ? -0.5f : 0.0f;
    }
    const TokenMemory memory{b.upload(uses), b.upload(biases), stride};
    for (const Setting& s : {Setting{"greedy", 0, 1}, Setting{"T 0.5 top_p 0.3", 0.5f, 0.3f},
                             Setting{"T 1 top_p 0.9", 1, 0.9f}, Setting{"T 1", 1, 1},
                             Setting{"greedy with penalties", 0, 1, true},
                             Setting{"T 1 with penalties", 1, 1, true}}) {
      std::vector<RowState> rows_host = row_states(rows, s.temperature, s.top_p);
      if (s.adjusts) {
        for (RowState& row : rows_host) {
          row.flags |= kRowAdjustsLogits;
          row.sampling.repetition_penalty = 1.1f;
          row.sampling.frequency_penalty = 0.5f;
        }
      }
      const auto* states = b.upload(rows_host);
      SampleParams params =
          sample_params(logits, rows_dev, states, tokens, logprobs, rows, scratch);
      params.token_memory = memory;
      // Uses, biases, and the adjusted logits on their way to the draw.
      const double more = s.adjusts ? 10.0 : 0.0;
      repeat(b, fmt::format("sample {}, rows {}", s.name, rows),
             (4.0 + more) * rows * kVocab + rows * sizeof(RowState),
             [&] { return b.kernels().sample(b.stream(), params); });
    }
    b.free_all();
  }
}

NormWeights norm(CudaBench& b, int dim) {
  return {.gamma = b.noise(dim), .beta = b.noise(dim)};
}

Status run_norm(CudaBench& b, const NormWeights& n, const void* x, void* y, int rows, int dim) {
  return b.kernels().norm(b.stream(), dense_norm(x, n, y, dim, rows));
}

void bench_vision(CudaBench& b) {
  struct Layer {
    NormWeights ln1, ln2;
    LinearWeights qkv, proj, fc1, fc2;
  };
  std::vector<Layer> layers;
  for (int i = 0; i < kVisionLayers; ++i) {
    layers.push_back({norm(b, kVisionDim), norm(b, kVisionDim),
                      weights(b, kVisionDim, 3 * kVisionDim), weights(b, kVisionDim, kVisionDim),
                      weights(b, kVisionDim, kVisionFfDim), weights(b, kVisionFfDim, kVisionDim)});
  }
  constexpr int kMaxCrops = 26;
  constexpr std::int64_t kMaxRowsOfCrops = std::int64_t{kMaxCrops} * kPatches;
  void* x = b.noise(kMaxRowsOfCrops * kVisionDim);
  void* n = b.noise(kMaxRowsOfCrops * kVisionDim);
  void* qkv = b.noise(kMaxRowsOfCrops * 3 * kVisionDim);
  void* h = b.noise(kMaxRowsOfCrops * kVisionFfDim);
  void* x2 = b.noise(kMaxRowsOfCrops * kVisionDim);

  auto with_residual = [](LinearParams p, const void* residual) {
    p.residual = residual, p.residual_stride = p.y_stride, p.residual_rows = p.num_rows;
    return p;
  };
  auto with_gelu = [](LinearParams p) {
    p.activation = Activation::kGeluTanh;
    return p;
  };
  auto qkv_of = [&](const Layer& l, int rows) { return linear(l.qkv, n, qkv, rows, false); };
  auto proj_of = [&](const Layer& l, int rows) {
    return with_residual(linear(l.proj, n, x2, rows, false), x);
  };
  auto fc1_of = [&](const Layer& l, int rows) {
    return with_gelu(linear(l.fc1, n, h, rows, false));
  };
  auto fc2_of = [&](const Layer& l, int rows) {
    return with_residual(linear(l.fc2, h, x, rows, false), x2);
  };
  for (const int crops : {1, 2, 5, 13, 26}) {
    const int rows = crops * kPatches;
    auto attend = [&] {
      return b.kernels().vision_attention(b.stream(), {.qkv = qkv,
                                                       .out = n,
                                                       .num_crops = crops,
                                                       .seq_len = kPatches,
                                                       .num_heads = kVisionHeads,
                                                       .head_dim = kVisionDim / kVisionHeads});
    };
    const std::string suffix = ", crops " + std::to_string(crops);
    const double attention_ops = 4.0 * rows * kPatches * kVisionDim;
    b.print("vision attention" + suffix,
            b.time(8,
                   [&] {
                     for (int i = 0; i < 8; ++i) GAPLESS_RETURN_IF_ERROR(attend());
                     return ok_status();
                   }),
            0, attention_ops);

    b.print("vision layer norm" + suffix,
            b.time(kVisionLayers,
                   [&] {
                     for (const Layer& l : layers) {
                       GAPLESS_RETURN_IF_ERROR(run_norm(b, l.ln1, x, n, rows, kVisionDim));
                     }
                     return ok_status();
                   }),
            4.0 * rows * kVisionDim, 0);
    auto product = [&](const char* name, auto params_of) {
      require(b.kernels().tune_linear(b.stream(), params_of(layers[0], rows), {&rows, 1}));
      const Spread spread = b.time(kVisionLayers, [&] {
        for (const Layer& layer : layers) {
          GAPLESS_RETURN_IF_ERROR(b.kernels().linear(b.stream(), params_of(layer, rows)));
        }
        return ok_status();
      });
      b.print(std::string("vision ") + name + suffix, spread, 0,
              linear_ops(params_of(layers[0], rows).weights, rows));
    };
    product("qkv", qkv_of);
    product("proj", proj_of);
    product("fc1", fc1_of);
    product("fc2", fc2_of);

    const Spread all = b.time(1, [&] {
      for (const Layer& layer : layers) {
        GAPLESS_RETURN_IF_ERROR(run_norm(b, layer.ln1, x, n, rows, kVisionDim));
        GAPLESS_RETURN_IF_ERROR(b.kernels().linear(b.stream(), qkv_of(layer, rows)));
        GAPLESS_RETURN_IF_ERROR(attend());
        GAPLESS_RETURN_IF_ERROR(b.kernels().linear(b.stream(), proj_of(layer, rows)));
        GAPLESS_RETURN_IF_ERROR(run_norm(b, layer.ln2, x2, n, rows, kVisionDim));
        GAPLESS_RETURN_IF_ERROR(b.kernels().linear(b.stream(), fc1_of(layer, rows)));
        GAPLESS_RETURN_IF_ERROR(b.kernels().linear(b.stream(), fc2_of(layer, rows)));
      }
      return ok_status();
    });
    double ops = kVisionLayers * attention_ops;
    for (const Layer& l : layers) {
      for (const LinearWeights* w : {&l.qkv, &l.proj, &l.fc1, &l.fc2}) ops += linear_ops(*w, rows);
    }
    b.print("vision encoder, 27 layers" + suffix, all, 0, ops);
  }
  b.free_all();
}

// The text decoder's layers over shared activations.
struct TextModel {
  struct Layer {
    NormWeights ln;
    LinearWeights qkv, proj, fc1, fc2;
  };
  // What a decode step reads.
  struct DecodeLayer {
    NormWeights ln;
    LinearWeights qkv, proj, fc1, fc2;  // one by one
    LinearWeights first, second;        // qkv and fc1, proj and fc2 as one product each
  };
  std::vector<Layer> layers;
  std::vector<DecodeLayer> decode_layers;
  NormWeights post_ln;
  LinearWeights lm_head;
  const float* rope_table;
  void *x, *n, *qkv, *attended, *h, *wide, *x2;

  TextModel(CudaBench& b, int max_tokens) {
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back({norm(b, kDim), weights(b, kDim, 3 * kDim), weights(b, kDim, kDim),
                        weights(b, kDim, kFfDim), weights(b, kFfDim, kDim)});
    }
    post_ln = norm(b, kDim);
    lm_head = weights(b, kDim, kVocab);
    rope_table = b.upload(std::vector<float>(kMaxContext * 32, 0.6f));
    const std::int64_t tokens = max_tokens;
    x = b.noise(tokens * kDim), n = b.noise(tokens * kDim), qkv = b.noise(tokens * 3 * kDim);
    attended = b.noise(tokens * kDim), h = b.noise(tokens * kFfDim);
    wide = b.noise(tokens * (3 * kDim + kFfDim));
    x2 = b.noise(tokens * kDim);
  }

  void prepare(CudaBench& b) {
    for (const Layer& l : layers) {
      decode_layers.push_back({l.ln, prepared(b, {l.qkv}, false), prepared(b, {l.proj}, false),
                               prepared(b, {l.fc1}, false), prepared(b, {l.fc2}, false),
                               prepared(b, {l.qkv, l.fc1}, false),
                               prepared(b, {l.proj, l.fc2}, true)});
    }
    lm_head = prepared(b, {lm_head}, false);
  }

  // The parallel block as two products. The attention's result takes the place of v, beside h.
  Status run_fused(CudaBench& b, const Cache& cache, const std::int32_t* positions,
                   const std::int32_t* slots, const PagedAttentionParams& attend, int rows) {
    constexpr int kWide = 3 * kDim + kFfDim;
    auto* both = static_cast<std::uint16_t*>(wide) + 2 * kDim;
    for (std::size_t i = 0; i < decode_layers.size(); ++i) {
      const DecodeLayer& layer = decode_layers[i];
      GAPLESS_RETURN_IF_ERROR(run_norm(b, layer.ln, x, n, rows, kDim));
      LinearParams p = linear(layer.first, n, wide, rows, true);
      p.activation = Activation::kGeluTanh;
      p.activation_begin = 3 * kDim;
      GAPLESS_RETURN_IF_ERROR(b.kernels().linear(b.stream(), p));
      GAPLESS_RETURN_IF_ERROR(b.kernels().rope_and_cache(
          b.stream(), {.qkv = wide,
                       .qkv_stride = kWide,
                       .positions = positions,
                       .cache_slots = slots,
                       .rope_table = rope_table,
                       .kv = cache.layers[i],
                       .num_tokens = rows,
                       .heads = {.num_heads = kHeads, .num_kv_heads = kHeads, .head_dim = kHeadDim},
                       .rotary_dim = 32}));
      PagedAttentionParams a = attend;
      a.kv = cache.layers[i];
      a.qkv = wide, a.qkv_stride = kWide, a.out = both, a.out_stride = kWide;
      GAPLESS_RETURN_IF_ERROR(b.kernels().paged_attention(b.stream(), a));
      p = linear(layer.second, both, x, rows, true);
      p.x_stride = kWide;
      p.residual = x, p.residual_stride = kDim, p.residual_rows = rows;
      GAPLESS_RETURN_IF_ERROR(b.kernels().linear(b.stream(), p));
    }
    return ok_status();
  }

  // The products of a prefill of so many tokens.
  void tune(CudaBench& b, int tokens) {
    const Layer& l = layers[0];
    auto with_residual = [&](LinearParams p) {
      p.residual = x, p.residual_stride = kDim, p.residual_rows = tokens;
      return p;
    };
    LinearParams fc1 = linear(l.fc1, n, h, tokens, false);
    fc1.activation = Activation::kGeluTanh;
    for (const LinearParams& p : {linear(l.qkv, n, qkv, tokens, false), fc1,
                                  with_residual(linear(l.proj, attended, x2, tokens, false)),
                                  with_residual(linear(l.fc2, h, x2, tokens, false))}) {
      require(b.kernels().tune_linear(b.stream(), p, {&tokens, 1}));
    }
  }

  Status run(CudaBench& b, const Cache& cache, const std::int32_t* positions,
             const std::int32_t* slots, const PagedAttentionParams& attend, int tokens,
             bool decode) {
    return decode ? run_layers(b, decode_layers, cache, positions, slots, attend, tokens, true)
                  : run_layers(b, layers, cache, positions, slots, attend, tokens, false);
  }

  template <typename Layers>
  Status run_layers(CudaBench& b, const Layers& all, const Cache& cache,
                    const std::int32_t* positions, const std::int32_t* slots,
                    const PagedAttentionParams& attend, int tokens, bool decode) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto& layer = all[i];
      GAPLESS_RETURN_IF_ERROR(run_norm(b, layer.ln, x, n, tokens, kDim));
      GAPLESS_RETURN_IF_ERROR(
          b.kernels().linear(b.stream(), linear(layer.qkv, n, qkv, tokens, decode)));
      GAPLESS_RETURN_IF_ERROR(b.kernels().rope_and_cache(
          b.stream(), {.qkv = qkv,
                       .qkv_stride = 3 * kDim,
                       .positions = positions,
                       .cache_slots = slots,
                       .rope_table = rope_table,
                       .kv = cache.layers[i],
                       .num_tokens = tokens,
                       .heads = {.num_heads = kHeads, .num_kv_heads = kHeads, .head_dim = kHeadDim},
                       .rotary_dim = 32}));
      PagedAttentionParams a = attend;
      a.kv = cache.layers[i];
      GAPLESS_RETURN_IF_ERROR(b.kernels().paged_attention(b.stream(), a));
      void* middle = decode ? x : x2;
      LinearParams p = linear(layer.proj, attended, middle, tokens, decode);
      p.residual = x, p.residual_stride = kDim, p.residual_rows = tokens;
      GAPLESS_RETURN_IF_ERROR(b.kernels().linear(b.stream(), p));
      p = linear(layer.fc1, n, h, tokens, decode);
      p.activation = Activation::kGeluTanh;
      GAPLESS_RETURN_IF_ERROR(b.kernels().linear(b.stream(), p));
      p = linear(layer.fc2, h, x, tokens, decode);
      p.residual = middle, p.residual_stride = kDim, p.residual_rows = tokens;
      GAPLESS_RETURN_IF_ERROR(b.kernels().linear(b.stream(), p));
    }
    return ok_status();
  }
};

void bench_prefill(CudaBench& b) {
  constexpr int kTokens = 770, kPrefix = 730;
  TextModel model(b, 8 * kTokens);
  for (const int sequences : {1, 4, 8}) {
    Cache cache(b, kLayers, sequences, 1024);
    std::vector<AttentionSequence> list;
    std::vector<std::int32_t> positions, slots;
    for (int s = 0; s < sequences; ++s) {
      list.push_back({s, s * kTokens, kTokens, 0, kPrefix});
      for (int t = 0; t < kTokens; ++t) {
        positions.push_back(t);
        slots.push_back((1 + s * cache.pages_per_row) * kPageTokens + t);
      }
    }
    const int tokens = sequences * kTokens;
    model.tune(b, tokens);
    const PagedAttentionParams attend = attention(
        cache, 0, model.qkv, model.attended, b.upload(list), sequences, tokens, kTokens, nullptr);
    const auto* positions_dev = b.upload(positions);
    const auto* slots_dev = b.upload(slots);
    const std::string suffix = ", " + std::to_string(sequences) + " x 770 tokens";
    const double pairs = 1.0 * kPrefix * kPrefix + (kTokens - kPrefix) * (kPrefix + 20.5);
    b.print("prefill attention" + suffix,
            b.time(kLayers,
                   [&] {
                     for (int i = 0; i < kLayers; ++i) {
                       PagedAttentionParams a = attend;
                       a.kv = cache.layers[static_cast<std::size_t>(i)];
                       GAPLESS_RETURN_IF_ERROR(b.kernels().paged_attention(b.stream(), a));
                     }
                     return ok_status();
                   }),
            0, 4.0 * sequences * pairs * kDim);
    const double per_layer =
        4.0 * sequences * pairs * kDim + 2.0 * tokens * (4.0 * kDim + 2.0 * kFfDim) * kDim;
    b.print("prefill, 24 layers" + suffix,
            b.time(1,
                   [&] {
                     return model.run(b, cache, positions_dev, slots_dev, attend, tokens, false);
                   }),
            0, kLayers * per_layer);
  }
  b.free_all();
}

void bench_step(CudaBench& b) {
  TextModel model(b, 64);
  const void* wte = model.lm_head.weight;
  model.prepare(b);
  const double weight_bytes =
      2.0 * kLayers * (4.0 * kDim + 2.0 * kFfDim) * kDim + 2.0 * kDim * kVocab;
  for (const int rows : {1, 8, 32, 64}) {
    Cache cache(b, kLayers, rows, 1024);
    auto* states = b.upload(row_states(rows, 0, 1));
    const auto* rows_dev = b.upload(seats(rows));
    auto ints = [&] { return static_cast<std::int32_t*>(b.allocate(256)); };
    std::int32_t *positions = ints(), *slots = ints(), *index = ints(), *tokens = ints();
    auto* sequences = static_cast<AttentionSequence*>(b.allocate(64 * sizeof(AttentionSequence)));
    auto* logprobs = static_cast<float*>(b.allocate(256));
    auto* outputs = static_cast<StepOutput*>(b.allocate(64 * sizeof(StepOutput)));
    auto* logits = static_cast<float*>(b.allocate(sizeof(float) * 64 * kVocab));
    void* scratch = attention_scratch(b, rows);
    void* sample_scratch = b.allocate(b.kernels().sample_scratch_bytes(rows, kVocab));
    const LinearWeights encoder{.weight = wte, .bias = nullptr, .in = 256, .out = kDim};
    const LinearWeights size_encoder{.weight = wte, .bias = nullptr, .in = 512, .out = kDim};
    const PagedAttentionParams attend =
        attention(cache, 0, model.qkv, model.attended, sequences, rows, rows, 1, scratch);
    for (const bool fused : {false, true}) {
      const Spread spread = b.time(1, [&] {
        Kernels& k = b.kernels();
        Stream& s = b.stream();
        GAPLESS_RETURN_IF_ERROR(k.plan_decode(s, {.rows = rows_dev,
                                                  .row_states = states,
                                                  .page_table = cache.page_table,
                                                  .page_table_stride = cache.pages_per_row,
                                                  .num_rows = rows,
                                                  .positions = positions,
                                                  .cache_slots = slots,
                                                  .sequences = sequences,
                                                  .input_index = index}));
        GAPLESS_RETURN_IF_ERROR(k.embed(s, {.inputs = &states->input,
                                            .input_stride_bytes = sizeof(RowState),
                                            .index = index,
                                            .wte = wte,
                                            .image_embeddings = wte,
                                            .region = {encoder, size_encoder, wte, wte},
                                            .out = model.x,
                                            .num_tokens = rows,
                                            .dim = kDim,
                                            .vocab = kVocab}));
        GAPLESS_RETURN_IF_ERROR(fused ? model.run_fused(b, cache, positions, slots, attend, rows)
                                      : model.run(b, cache, positions, slots, attend, rows, true));
        GAPLESS_RETURN_IF_ERROR(run_norm(b, model.post_ln, model.x, model.n, rows, kDim));
        LinearParams head = linear(model.lm_head, model.n, logits, rows, true);
        head.y_dtype = DType::kF32;
        GAPLESS_RETURN_IF_ERROR(k.linear(s, head));
        GAPLESS_RETURN_IF_ERROR(k.sample(
            s, sample_params(logits, rows_dev, states, tokens, logprobs, rows, sample_scratch)));
        return k.advance_rows(s, {.rows = rows_dev,
                                  .tokens = tokens,
                                  .logprobs = logprobs,
                                  .values = logprobs,
                                  .row_states = states,
                                  .outputs = outputs,
                                  .num_rows = rows,
                                  .coord_id = -1,
                                  .size_id = -1});
      });
      b.print(std::string(fused ? "decode step, two products a layer" : "decode step") + ", rows " +
                  std::to_string(rows),
              spread, weight_bytes + 4.0 * kLayers * rows * kContext * kDim, 0);
    }
  }
  b.free_all();
}

int run(int argc, char** argv) {
  struct Entry {
    const char* name;
    void (*bench)(CudaBench&);
  };
  const Entry entries[] = {{"linear", bench_linear},   {"attention", bench_decode_attention},
                           {"sample", bench_sample},   {"top_logprobs", bench_top_logprobs},
                           {"vision", bench_vision},   {"prefill", bench_prefill},
                           {"step", bench_step},       {"small", bench_small_kernels},
                           {"experts", bench_experts}, {"grammar_masks", bench_grammar_masks}};
  std::string json, commit;
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    std::string* const value = argument == "--json"     ? &json
                               : argument == "--commit" ? &commit
                                                        : nullptr;
    if (value == nullptr) {
      names.push_back(argument);
    } else if (++i < argc) {
      *value = argv[i];
    }
  }
  CudaBench b("cuda");
  CudaBench::print_header();
  for (const Entry& entry : entries) {
    const bool named = std::find(names.begin(), names.end(), entry.name) != names.end();
    if (names.empty() || named) entry.bench(b);
  }
  if (!json.empty()) require(b.write(json, commit));
  return 0;
}

}  // namespace
}  // namespace gapless::bench

int main(int argc, char** argv) {
  return gapless::bench::run(argc, argv);
}
