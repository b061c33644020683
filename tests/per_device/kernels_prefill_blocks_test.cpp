// Decoder blocks of a prefill of which only some tokens' results are wanted, against the same
// prefill of which all are.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/kv_index.h"
#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

constexpr int kHeadDim = 64, kNumHeads = 4, kDim = kNumHeads * kHeadDim, kFfDim = 512;
constexpr int kRotaryDim = 32, kMaxContext = 1024, kNumBlocks = 2;
constexpr AttentionHeads kAttentionHeads{
    .num_heads = kNumHeads, .num_kv_heads = kNumHeads, .head_dim = kHeadDim};

struct Matrix {
  TestTensor weight, bias;
  Fp8Buffers fp8;
  LinearWeights dev;
};

struct Block {
  TestTensor gamma, beta;
  Matrix qkv, proj, fc1, fc2;
};

struct Result {
  std::vector<float> x, wanted;
  std::vector<std::vector<float>> caches;  // of each block
};

// The parameter: products of rows in 8 bits.
class PrefillBlocksTest : public KernelsTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    KernelsTest::SetUp();
    for (int i = 0; i < kNumBlocks; ++i) {
      blocks_.push_back({.gamma = random_tensor(kDim, 0.2f, 1.0f),
                         .beta = random_tensor(kDim, 0.2f),
                         .qkv = matrix(kDim, 3 * kDim),
                         .proj = matrix(kDim, kDim),
                         .fc1 = matrix(kDim, kFfDim),
                         .fc2 = matrix(kFfDim, kDim)});
      // As a model has it: attention's output stays as it is.
      if (!GetParam()) continue;
      for (Matrix* m : {&blocks_.back().qkv, &blocks_.back().fc1, &blocks_.back().fc2}) to_fp8(*m);
    }
  }

  Matrix matrix(int in, int out) {
    Matrix m{.weight = random_tensor(static_cast<std::size_t>(in) * out,
                                     1.0f / std::sqrt(static_cast<float>(in))),
             .bias = random_tensor(out, 0.3f),
             .fp8 = {},
             .dev = {}};
    m.dev = {.weight = m.weight.dev(), .bias = m.bias.dev(), .in = in, .out = out};
    return m;
  }

  void to_fp8(Matrix& m) {
    m.fp8 = rows_to_fp8(m.weight, m.dev.in);
    m.dev.fp8 = m.fp8.values.data();
    m.dev.fp8_scales = m.fp8.scales.as<float>();
  }

  // Sequences of so many tokens, packed; half of each is a prefix that sees itself. embeddings:
  // [their tokens, kDim]. The wanted tokens' results come in an order of their own; without any,
  // all of x is the result.
  Result prefill(const std::vector<int>& lengths, const std::vector<float>& embeddings,
                 const std::vector<std::int32_t>& wanted) {
    std::vector<AttentionSequence> sequences;
    std::vector<std::int32_t> positions, slots, pages;
    const int pages_per_row = kMaxContext / kPageTokens;
    int num_pages = 1;
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      pages.resize((s + 1) * static_cast<std::size_t>(pages_per_row));
      std::int32_t* own = pages.data() + s * static_cast<std::size_t>(pages_per_row);
      const int num_own = (lengths[s] + kPageTokens - 1) / kPageTokens;
      std::iota(own, own + num_own, num_pages);
      num_pages += num_own;
      sequences.push_back({.row = static_cast<int>(s),
                           .first_token = static_cast<int>(positions.size()),
                           .num_tokens = lengths[s],
                           .num_cached = 0,
                           .prefix_len = lengths[s] / 2});
      for (int position = 0; position < lengths[s]; ++position) {
        positions.push_back(position);
        slots.push_back(static_cast<std::int32_t>(kv_slot(own, position)));
      }
    }
    const int num_tokens = static_cast<int>(positions.size());
    const int num_wanted = static_cast<int>(wanted.size());
    const auto rows = static_cast<std::size_t>(std::max(num_tokens, num_wanted));
    const auto cache_size =
        static_cast<std::size_t>(num_pages * kAttentionHeads.kv_layout().page_size());
    std::vector<DecoderBlock> blocks;
    std::vector<Buffer> caches;
    for (const Block& block : blocks_) {
      caches.push_back(poisoned(cache_size));
      blocks.push_back({.norm = {.gamma = block.gamma.dev(), .beta = block.beta.dev()},
                        .qkv = block.qkv.dev,
                        .proj = block.proj.dev,
                        .ff = {.up = block.fc1.dev, .down = block.fc2.dev},
                        .kv = {caches.back().data()}});
    }
    const TestTensor x = tensor(embeddings);
    const Buffer positions_dev = upload(positions), slots_dev = upload(slots);
    const Buffer pages_dev = upload(pages), sequences_dev = upload(sequences);
    const Buffer rope = upload(any_rope_table(kMaxContext, kRotaryDim)),
                 wanted_dev = upload(wanted);
    const Buffer wanted_x = poisoned(static_cast<std::size_t>(num_wanted) * kDim);
    const Buffer norm = poisoned(rows * kDim), qkv = poisoned(rows * 3 * kDim);
    const Buffer attention = poisoned(rows * kDim), inner = poisoned(rows * kFfDim);
    const Buffer scales = poisoned_bytes(rows * sizeof(float));
    const int num_sequences = static_cast<int>(sequences.size());
    const Buffer scratch = poisoned_bytes(
        kernels_->attention_scratch_bytes(num_tokens, num_sequences, kMaxContext, kAttentionHeads));

    DecoderBlocksParams p;
    p.blocks = blocks.data(), p.num_blocks = kNumBlocks;
    p.x = x.device.data();
    p.positions = positions_dev.as<std::int32_t>();
    p.cache_slots = slots_dev.as<std::int32_t>();
    p.rope_table = rope.as<float>();
    p.page_table = pages_dev.as<std::int32_t>(), p.page_table_stride = pages_per_row;
    p.sequences = sequences_dev.as<AttentionSequence>(), p.num_sequences = num_sequences;
    p.num_tokens = num_tokens;
    p.max_new_tokens = std::max(2, *std::max_element(lengths.begin(), lengths.end()));
    p.max_context = kMaxContext;
    p.heads = kAttentionHeads, p.rotary_dim = kRotaryDim;
    if (num_wanted > 0) {
      p.wanted_tokens = wanted_dev.as<std::int32_t>();
      p.num_wanted = num_wanted, p.wanted_x = wanted_x.data();
    }
    p.norm = norm.data(), p.qkv = qkv.data(), p.attention = attention.data();
    p.inner = inner.data(), p.row_scales = scales.as<float>();
    p.attention_scratch = scratch.data();
    run(kernels_->decoder_blocks(*stream_, p));
    Result result{.x = floats(x.device), .wanted = floats(wanted_x), .caches = {}};
    for (const Buffer& cache : caches) result.caches.push_back(floats(cache));
    return result;
  }

  void check(const std::vector<int>& lengths, const std::vector<std::int32_t>& wanted) {
    const auto num_tokens =
        static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), 0));
    const std::vector<float> embeddings = random_values(num_tokens * kDim);
    const Result all = prefill(lengths, embeddings, {});
    const Result some = prefill(lengths, embeddings, wanted);
    ASSERT_TRUE(none_poison(some.wanted));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const auto token = static_cast<std::size_t>(wanted[i]);
      EXPECT_TRUE(
          bits_equal(rows_of(some.wanted, kDim, i, i + 1), rows_of(all.x, kDim, token, token + 1)))
          << "token " << token << " of " << lengths.size() << " sequences";
    }
    for (std::size_t i = 0; i < all.caches.size(); ++i) {
      EXPECT_TRUE(bits_equal(some.caches[i], all.caches[i])) << "cache " << i;
    }
  }

  std::vector<Block> blocks_;
};

TEST_P(PrefillBlocksTest, WantedTokensAreTheSameBitsAsAmongAll) {
  check({2}, {1});
  check({37}, {36});
  check({150, 3, 40}, {149, 152, 192});
  // Any tokens in any order, and more than there are: what is padded names one again.
  check({5, 20}, {24, 0, 4, 11, 4});
  check({3}, {2, 0, 0, 0, 0, 0, 0, 0});
  check({770, 770}, {769, 1539});
}

INSTANTIATE_TEST_SUITE_P(Products, PrefillBlocksTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "fp8" : "native"; });

}  // namespace
}  // namespace gapless
