// Decoder blocks of every description, as prefill and as decode steps, against a transformer written
// out in plain loops that knows neither pages nor ops.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/kv_index.h"
#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

constexpr int kMaxContext = 256, kPagesPerRow = kMaxContext / kPageTokens, kNumBlocks = 2;

struct Description {
  std::string name;
  int dim = 128;
  AttentionHeads heads{.num_heads = 2, .num_kv_heads = 2, .head_dim = 64};
  int rotary_dim = 64;
  int ff_dim = 192;
  Residual residual = Residual::kSequential;
  NormKind norm = NormKind::kRms;
  FeedForwardKind ff = FeedForwardKind::kGated;
  bool qk_norm = false;
  bool biases = false;
  // From block first_with_experts on so many experts of ff_dim each.
  int num_experts = 0, experts_per_token = 0, first_with_experts = 0;
  bool scales_heads = false;
  // Weights are rounded to 8 bits, and a prefill's rows but for those of proj and routers.
  bool fp8 = false;

  bool has_experts(std::size_t block) const {
    return num_experts > 0 && static_cast<int>(block) >= first_with_experts;
  }
};

void PrintTo(const Description& d, std::ostream* os) {
  *os << d.name;
}

struct Matrix {
  TestTensor weight, bias;  // an empty bias: none
  Fp8Buffers fp8 = {};      // of weights in 8 bits
  int in = 0, out = 0;
};

struct Norm {
  TestTensor gamma, beta;
};

struct Block {
  Norm norm, ff_norm, q_norm, k_norm;
  Matrix qkv, proj, up, down;  // of experts: all of them, one behind the other
  Matrix router, scales;       // without outputs: none
  TestTensor alpha;
};

using Rows = std::vector<std::vector<double>>;

// Rows of `width` numbers as rows_to_fp8 leaves them.
template <typename T>
std::vector<T> rounded_to_fp8(const std::vector<T>& rows, int width) {
  std::vector<float> values(rows.begin(), rows.end());
  std::vector<float> scales(rows.size() / static_cast<std::size_t>(width));
  reference::rows_to_fp8({.x = values.data(),
                          .x_stride = width,
                          .y = values.data(),
                          .y_stride = width,
                          .scales = scales.data(),
                          .num_rows = static_cast<int>(scales.size()),
                          .dim = width});
  return {values.begin(), values.end()};
}

// The model of the headline: vectors of doubles, full attention with a causal mask.
class PlainTransformer {
 public:
  PlainTransformer(const Description& d, const std::vector<Block>& blocks,
                   const std::vector<float>& rope_table)
      : d_(d), blocks_(blocks), rope_table_(rope_table) {}

  // [tokens, dim] in and out; token t has position t. Those up to num_prefilled are a prefill's.
  Rows run(Rows x, std::size_t num_prefilled) const {
    for (const Block& block : blocks_) {
      Rows normed = x;
      for (auto& row : normed) row = norm(block.norm, row, d_.norm, 1e-5);
      Rows read = normed;
      for (std::size_t t = 0; t < num_prefilled; ++t) read[t] = as_products_read(read[t], true);
      const Rows attended = attention(block, read);
      for (std::size_t t = 0; t < x.size(); ++t) {
        const std::vector<double> projected = product(block.proj, attended[t]);
        add(projected, x[t]);
        const std::vector<double> ff_in = d_.residual == Residual::kParallel
                                              ? normed[t]
                                              : norm(block.ff_norm, x[t], d_.norm, 1e-5);
        add(feed_forward(block, ff_in, t < num_prefilled), x[t]);
      }
    }
    return x;
  }

 private:
  static void add(const std::vector<double>& from, std::vector<double>& to) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  }

  std::vector<double> as_products_read(const std::vector<double>& row, bool is_prefilled) const {
    return d_.fp8 && is_prefilled ? rounded_to_fp8(row, static_cast<int>(row.size())) : row;
  }

  static std::vector<double> product(const Matrix& m, const std::vector<double>& x, int which = 0) {
    std::vector<double> y(static_cast<std::size_t>(m.out));
    for (int o = 0; o < m.out; ++o) {
      y[o] = m.bias.host.empty() ? 0 : m.bias.host[o];
      const std::size_t row = (static_cast<std::size_t>(which) * m.out + o) * m.in;
      for (int i = 0; i < m.in; ++i) y[o] += double{m.weight.host[row + i]} * x[i];
    }
    return y;
  }

  static std::vector<double> norm(const Norm& n, std::vector<double> x, NormKind kind, double eps) {
    const auto size = static_cast<double>(x.size());
    if (kind == NormKind::kLayer) {
      const double mean = std::accumulate(x.begin(), x.end(), 0.0) / size;
      for (double& value : x) value -= mean;
    }
    double squares = 0;
    for (const double value : x) squares += value * value;
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] *= n.gamma.host[i] / std::sqrt(squares / size + eps);
      if (kind == NormKind::kLayer) x[i] += n.beta.host[i];
    }
    return x;
  }

  static double gelu_tanh(double x) {
    return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  }

  std::vector<double> mixed_experts(const Block& block, const std::vector<double>& exact_x,
                                    bool is_prefilled) const {
    const std::vector<double> logits = product(block.router, exact_x);
    const std::vector<double> x = as_products_read(exact_x, is_prefilled);
    std::vector<int> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return logits[a] > logits[b]; });
    order.resize(static_cast<std::size_t>(d_.experts_per_token));
    double sum = 0;
    for (const int e : order) sum += std::exp(logits[e]);
    std::vector<double> y(x.size());
    for (const int e : order) {
      const std::vector<double> up = product(block.up, x, e);
      std::vector<double> inner(static_cast<std::size_t>(d_.ff_dim));
      for (int i = 0; i < d_.ff_dim; ++i) {
        inner[i] = 0.5 * up[i] * (1 + std::erf(up[i] / std::sqrt(2))) * (up[d_.ff_dim + i] + 1);
      }
      const std::vector<double> out = product(block.down, as_products_read(inner, is_prefilled), e);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] += std::exp(logits[e]) / sum * out[i];
    }
    return y;
  }

  void scale_heads(const Block& block, std::vector<double>& qkv, std::size_t position) const {
    std::vector<double> u = qkv;
    for (double& value : u) value = gelu_tanh(value);
    const std::vector<double> t = product(block.scales, u);
    const int size = d_.heads.head_dim, heads = d_.heads.num_heads;
    for (int h = 0; h < heads; ++h) {
      const double slope = block.alpha.host[h] * std::log(static_cast<double>(position) + 1);
      const double by_position =
          round_to(DType::kBF16, static_cast<float>(0.5 + 1 / (1 + std::exp(-slope))));
      for (int i = 0; i < size; ++i) {
        qkv[h * size + i] *= std::tanh(t[h]) + by_position;
        qkv[(2 * heads + h) * size + i] *= std::tanh(t[heads + h]) + by_position;
      }
    }
  }

  std::vector<double> feed_forward(const Block& block, const std::vector<double>& x,
                                   bool is_prefilled) const {
    if (block.router.out > 0) return mixed_experts(block, x, is_prefilled);
    const std::vector<double> up = product(block.up, as_products_read(x, is_prefilled));
    std::vector<double> inner(static_cast<std::size_t>(d_.ff_dim));
    for (int i = 0; i < d_.ff_dim; ++i) {
      const double a = up[i];
      if (d_.ff == FeedForwardKind::kGated) {
        inner[i] = a / (1 + std::exp(-a)) * up[d_.ff_dim + i];
      } else {
        inner[i] = gelu_tanh(a);
      }
    }
    return product(block.down, as_products_read(inner, is_prefilled));
  }

  // A head of q or k of the token at `position`.
  std::vector<double> turned_head(const Norm& n, std::vector<double> head, int position) const {
    if (d_.qk_norm) head = norm(n, head, NormKind::kRms, 1e-6);
    const int half = d_.rotary_dim / 2;
    for (int j = 0; j < half; ++j) {
      const double cosine = rope_table_[(position * half + j) * 2];
      const double sine = rope_table_[(position * half + j) * 2 + 1];
      const double a = head[j], b = head[j + half];
      head[j] = a * cosine - b * sine;
      head[j + half] = a * sine + b * cosine;
    }
    return head;
  }

  Rows attention(const Block& block, const Rows& normed) const {
    const int size = d_.heads.head_dim, group = d_.heads.num_heads / d_.heads.num_kv_heads;
    Rows qkv;
    for (const auto& row : normed) qkv.push_back(product(block.qkv, row));
    for (std::size_t t = 0; d_.scales_heads && t < qkv.size(); ++t) scale_heads(block, qkv[t], t);
    auto head_at = [&](std::size_t token, int head) {
      const auto begin = qkv[token].begin() + head * size;
      return std::vector<double>(begin, begin + size);
    };
    Rows out(normed.size());
    for (std::size_t t = 0; t < normed.size(); ++t) {
      for (int h = 0; h < d_.heads.num_heads; ++h) {
        const auto q = turned_head(block.q_norm, head_at(t, h), static_cast<int>(t));
        const int kv_head = d_.heads.num_heads + h / group;
        std::vector<double> weights, mean(static_cast<std::size_t>(size));
        for (std::size_t s = 0; s <= t; ++s) {
          const auto k = turned_head(block.k_norm, head_at(s, kv_head), static_cast<int>(s));
          weights.push_back(
              std::exp(std::inner_product(q.begin(), q.end(), k.begin(), 0.0) / std::sqrt(size)));
        }
        const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (std::size_t s = 0; s <= t; ++s) {
          const auto v = head_at(s, kv_head + d_.heads.num_kv_heads);
          for (int i = 0; i < size; ++i) mean[i] += weights[s] / sum * v[i];
        }
        out[t].insert(out[t].end(), mean.begin(), mean.end());
      }
    }
    return out;
  }

  const Description& d_;
  const std::vector<Block>& blocks_;
  const std::vector<float>& rope_table_;
};

class DescribedBlocksTest : public KernelsTest, public ::testing::WithParamInterface<Description> {
 protected:
  void SetUp() override {
    KernelsTest::SetUp();
    const Description& d = GetParam();
    const int up_out = d.ff == FeedForwardKind::kGated ? 2 * d.ff_dim : d.ff_dim;
    for (int i = 0; i < kNumBlocks; ++i) {
      blocks_.push_back({.norm = norm(d.dim),
                         .ff_norm = norm(d.dim),
                         .q_norm = norm(d.heads.head_dim),
                         .k_norm = norm(d.heads.head_dim),
                         .qkv = matrix(d.dim, d.heads.qkv_width()),
                         .proj = matrix(d.heads.q_width(), d.dim),
                         .up = matrix(d.dim, up_out),
                         .down = matrix(d.ff_dim, d.dim),
                         .router = {},
                         .scales = {},
                         .alpha = {}});
      Block& block = blocks_.back();
      if (d.has_experts(static_cast<std::size_t>(i))) {
        block.up = expert_matrices(d.dim, 2 * d.ff_dim);
        block.down = expert_matrices(d.ff_dim, d.dim);
        block.router = matrix(d.dim, d.num_experts);
        block.router.bias = random_tensor(d.num_experts, 0.3f);
      }
      if (d.scales_heads) {
        block.scales = matrix(d.heads.qkv_width(), 2 * d.heads.num_heads);
        block.scales.bias = {};
        block.alpha = random_tensor(d.heads.num_heads, 0.5f);
      }
      if (d.fp8) {
        for (Matrix* m : {&block.qkv, &block.up, &block.down}) to_fp8(*m);
      }
      caches_.push_back(poisoned(cache_elements()));
    }
    rope_table_ = any_rope_table(kMaxContext, d.rotary_dim);
    rope_dev_ = upload(rope_table_);
    std::vector<std::int32_t> pages(2 * kPagesPerRow, 0);
    for (int page = 0; page < kPagesPerRow; ++page) {
      pages[kPagesPerRow + page] = 1 + (page * 5) % kPagesPerRow;  // row 1, out of order
    }
    pages_ = pages;
    pages_dev_ = upload(pages);
  }

  Matrix matrix(int in, int out) {
    Matrix m{.weight = random_tensor(static_cast<std::size_t>(in) * out,
                                     1.0f / std::sqrt(static_cast<float>(in))),
             .bias = {},
             .in = in,
             .out = out};
    if (GetParam().biases) m.bias = random_tensor(out, 0.3f);
    return m;
  }
  Matrix expert_matrices(int in, int out) {
    const auto size = static_cast<std::size_t>(GetParam().num_experts) * in * out;
    return {.weight = random_tensor(size, 1.0f / std::sqrt(static_cast<float>(in))),
            .bias = {},
            .in = in,
            .out = out};
  }
  void to_fp8(Matrix& m) {
    m.weight = tensor(rounded_to_fp8(m.weight.host, m.in));
    m.fp8 = rows_to_fp8(m.weight, m.in);
  }
  Norm norm(int dim) {
    return {.gamma = random_tensor(dim, 0.2f, 1.0f), .beta = random_tensor(dim, 0.2f)};
  }
  std::size_t cache_elements() const {
    return static_cast<std::size_t>((1 + kPagesPerRow) * GetParam().heads.kv_layout().page_size());
  }

  static LinearWeights dev(const Matrix& m) {
    return {.weight = m.weight.dev(),
            .bias = m.bias.host.empty() ? nullptr : m.bias.dev(),
            .in = m.in,
            .out = m.out,
            .fp8 = m.fp8.values.data(),
            .fp8_scales = m.fp8.scales.as<float>()};
  }
  NormWeights dev(const Norm& n) const {
    const bool layer = GetParam().norm == NormKind::kLayer;
    return {
        .kind = GetParam().norm, .gamma = n.gamma.dev(), .beta = layer ? n.beta.dev() : nullptr};
  }
  static NormWeights head_norm(const Norm& n) {
    return {.kind = NormKind::kRms, .gamma = n.gamma.dev(), .eps = 1e-6f};
  }

  std::vector<DecoderBlock> device_blocks() {
    const Description& d = GetParam();
    std::vector<DecoderBlock> blocks;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const Block& block = blocks_[i];
      DecoderBlock b{.residual = d.residual,
                     .norm = dev(block.norm),
                     .qkv = dev(block.qkv),
                     .proj = dev(block.proj),
                     .ff = {.kind = d.ff,
                            .activation = d.ff == FeedForwardKind::kGated ? Activation::kSilu
                                                                          : Activation::kGeluTanh,
                            .up = dev(block.up),
                            .down = dev(block.down)},
                     .kv = {caches_[i].data()}};
      if (d.has_experts(i)) {
        b.ff.kind = FeedForwardKind::kExperts;
        b.ff.activation = Activation::kGeluErf;
        b.ff.up_offset = 1;
        b.ff.num_experts = d.num_experts;
        b.ff.experts_per_token = d.experts_per_token;
        b.ff.router = dev(block.router);
      }
      if (d.scales_heads) {
        b.head_scales = {.products = dev(block.scales), .alpha = block.alpha.dev()};
      }
      if (d.residual == Residual::kSequential) b.ff_norm = dev(block.ff_norm);
      if (d.qk_norm) b.q_norm = head_norm(block.q_norm), b.k_norm = head_norm(block.k_norm);
      blocks.push_back(b);
    }
    return blocks;
  }

  // Tokens [first, first + count) of the sequence, whose earlier ones are in the cache: as a prefill, or a
  // decode step of one token. `wanted`: those of them, counted from `first`, whose results come back.
  std::vector<float> run_tokens(const std::vector<float>& embeddings, int first, int count,
                                bool decode, const std::vector<std::int32_t>& wanted = {}) {
    const Description& d = GetParam();
    const auto dim = static_cast<std::size_t>(d.dim);
    const auto rows =
        static_cast<std::size_t>(std::max<int>(count, static_cast<int>(wanted.size())));
    const TestTensor x =
        tensor({embeddings.begin() + first * d.dim, embeddings.begin() + (first + count) * d.dim});
    std::vector<std::int32_t> positions(static_cast<std::size_t>(count)), slots;
    std::iota(positions.begin(), positions.end(), first);
    for (const std::int32_t position : positions) {
      slots.push_back(static_cast<std::int32_t>(kv_slot(pages_.data() + kPagesPerRow, position)));
    }
    const std::vector<AttentionSequence> sequence = {
        {.row = 1, .first_token = 0, .num_tokens = count, .num_cached = first, .prefix_len = 0}};
    const Buffer positions_dev = upload(positions), slots_dev = upload(slots);
    const Buffer sequence_dev = upload(sequence), wanted_dev = upload(wanted);
    const Buffer wanted_x = poisoned(wanted.size() * dim);
    const Buffer norm = poisoned(rows * dim);
    const Buffer qkv = poisoned(rows * std::max(d.heads.qkv_width(), d.dim));
    const Buffer attention = poisoned(rows * std::max(d.heads.q_width(), d.dim));
    const Buffer inner = poisoned_bytes(
        std::max(rows * 2 * static_cast<std::size_t>(d.ff_dim) * dtype_bytes(dtype()),
                 kernels_->scale_heads_scratch_bytes(count, d.heads)));
    const Buffer scratch =
        poisoned_bytes(std::max(kernels_->attention_scratch_bytes(count, 1, kMaxContext, d.heads),
                                kernels_->scale_heads_scratch_bytes(count, d.heads)));
    const ExpertSizes experts{.dim = d.dim,
                              .inner = d.ff_dim,
                              .num_experts = d.num_experts,
                              .experts_per_token = d.experts_per_token};
    const Buffer op_scratch =
        poisoned_bytes(kernels_->experts_scratch_bytes(static_cast<int>(rows), experts));
    const std::vector<DecoderBlock> blocks = device_blocks();
    DecoderBlocksParams p;
    p.blocks = blocks.data(), p.num_blocks = kNumBlocks;
    p.x = x.device.data();
    p.positions = positions_dev.as<std::int32_t>(), p.cache_slots = slots_dev.as<std::int32_t>();
    p.rope_table = rope_dev_.as<float>();
    p.page_table = pages_dev_.as<std::int32_t>(), p.page_table_stride = kPagesPerRow;
    p.sequences = sequence_dev.as<AttentionSequence>(), p.num_sequences = 1;
    p.num_tokens = count;
    p.max_new_tokens = decode ? 1 : std::max(2, count);
    p.max_context = kMaxContext;
    p.heads = d.heads, p.rotary_dim = d.rotary_dim, p.decode = decode;
    if (!wanted.empty()) {
      p.wanted_tokens = wanted_dev.as<std::int32_t>();
      p.num_wanted = static_cast<int>(wanted.size()), p.wanted_x = wanted_x.data();
    }
    p.norm = norm.data(), p.qkv = qkv.data(), p.attention = attention.data();
    p.inner = inner.data(), p.attention_scratch = scratch.data();
    p.op_scratch = op_scratch.data();
    const Buffer row_scales = poisoned_bytes(rows * sizeof(float));
    const Buffer router_rows = poisoned(rows * dim);
    if (d.fp8) p.row_scales = row_scales.as<float>(), p.router_rows = router_rows.data();
    run(kernels_->decoder_blocks(*stream_, p));
    return wanted.empty() ? floats(x.device) : floats(wanted_x);
  }

  std::vector<Block> blocks_;
  std::vector<Buffer> caches_;  // of each block
  std::vector<float> rope_table_;
  std::vector<std::int32_t> pages_;
  Buffer rope_dev_, pages_dev_;
};

TEST_P(DescribedBlocksTest, PrefillAndDecodeAreThePlainTransformer) {
  const Description& d = GetParam();
  if (d.experts_per_token < d.num_experts && !is_f32()) {
    GTEST_SKIP()
        << "in bfloat16 a token may choose other experts; kernels_experts_test.cpp chooses exactly";
  }
  if (d.fp8 && !kernels_->multiplies_fp8_experts()) {
    GTEST_SKIP() << "experts in 8 bits: this path has none";
  }
  // In 8 bits a number next to the middle of two is rounded to the one or the other, an eighth apart.
  const double tolerance = is_f32() ? (d.fp8 ? 1e-2 : 1e-4) : (d.fp8 ? 5e-2 : 2.5e-2);
  constexpr int kPrompt = 37, kDecoded = 3, kTokens = kPrompt + kDecoded;
  const std::vector<float> embeddings = tensor(random_values(kTokens * d.dim)).host;
  Rows x;
  for (int t = 0; t < kTokens; ++t) {
    x.emplace_back(embeddings.begin() + t * d.dim, embeddings.begin() + (t + 1) * d.dim);
  }
  const Rows expected = PlainTransformer(d, blocks_, rope_table_).run(x, kPrompt);
  const auto close = [&](std::span<const float> actual, int token) {
    std::vector<float> row(expected[token].begin(), expected[token].end());
    return rows_close(actual, row, d.dim, tolerance);
  };
  const auto dim = static_cast<std::size_t>(d.dim);
  const std::vector<float> prefill = run_tokens(embeddings, 0, kPrompt, false);
  for (int t = 0; t < kPrompt; ++t) {
    ASSERT_TRUE(close(rows_of(prefill, dim, t, t + 1), t)) << "token " << t;
  }
  for (int t = kPrompt; t < kTokens; ++t) {
    ASSERT_TRUE(close(run_tokens(embeddings, t, 1, true), t)) << "decoded token " << t;
  }
  // Some tokens alone, and the tail behind a cached head: the same bits.
  const std::vector<float> wanted = run_tokens(embeddings, 0, kPrompt, false, {36, 0, 5});
  EXPECT_TRUE(bits_equal(rows_of(wanted, dim, 0, 1), rows_of(prefill, dim, 36, 37)));
  EXPECT_TRUE(bits_equal(rows_of(wanted, dim, 1, 2), rows_of(prefill, dim, 0, 1)));
  EXPECT_TRUE(bits_equal(rows_of(wanted, dim, 2, 3), rows_of(prefill, dim, 5, 6)));
  const std::vector<float> tail = run_tokens(embeddings, 20, kPrompt - 20, false);
  EXPECT_TRUE(bits_equal(tail, rows_of(prefill, dim, 20, kPrompt)));
}

const Description kMoondream3{.name = "moondream3",
                              .rotary_dim = 32,
                              .ff_dim = 64,
                              .residual = Residual::kParallel,
                              .norm = NormKind::kLayer,
                              .ff = FeedForwardKind::kDense,
                              .biases = true,
                              .num_experts = 8,
                              .experts_per_token = 3,
                              .first_with_experts = 1,
                              .scales_heads = true};
const Description kSequentialExperts{
    .name = "sequential_all_experts", .num_experts = 4, .experts_per_token = 4};
const Description kParallelExperts{.name = "parallel_all_experts",
                                   .residual = Residual::kParallel,
                                   .norm = NormKind::kLayer,
                                   .num_experts = 4,
                                   .experts_per_token = 4,
                                   .scales_heads = true};

Description in_8_bits(Description of) {
  of.name += "_fp8";
  of.fp8 = true;
  return of;
}

// Each thing that tells the families apart, alone and together.
INSTANTIATE_TEST_SUITE_P(
    Models, DescribedBlocksTest,
    ::testing::Values(Description{.name = "moondream2",
                                  .rotary_dim = 32,
                                  .residual = Residual::kParallel,
                                  .norm = NormKind::kLayer,
                                  .ff = FeedForwardKind::kDense,
                                  .biases = true},
                      Description{.name = "llama3",
                                  .dim = 256,
                                  .heads = {.num_heads = 4, .num_kv_heads = 1, .head_dim = 64}},
                      Description{.name = "qwen3",
                                  .dim = 128,  // narrower than its heads, as in Qwen3 0.6B
                                  .heads = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 128},
                                  .rotary_dim = 128,
                                  .qk_norm = true},
                      Description{.name = "sequential_layer_norm_dense",
                                  .norm = NormKind::kLayer,
                                  .ff = FeedForwardKind::kDense,
                                  .biases = true},
                      kMoondream3, kSequentialExperts, kParallelExperts, in_8_bits(kMoondream3),
                      in_8_bits(kParallelExperts), in_8_bits(kSequentialExperts),
                      Description{.name = "scaled_heads",
                                  .rotary_dim = 32,
                                  .residual = Residual::kParallel,
                                  .norm = NormKind::kLayer,
                                  .ff = FeedForwardKind::kDense,
                                  .biases = true,
                                  .scales_heads = true},
                      Description{.name = "parallel_rms_gated_no_bias",
                                  .residual = Residual::kParallel},
                      Description{.name = "parallel_grouped",
                                  .dim = 192,  // wider than its heads
                                  .heads = {.num_heads = 2, .num_kv_heads = 1, .head_dim = 64},
                                  .rotary_dim = 32,
                                  .residual = Residual::kParallel,
                                  .norm = NormKind::kLayer,
                                  .qk_norm = true,
                                  .biases = true}),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace gapless
