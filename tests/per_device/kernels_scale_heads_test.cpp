// Scales of query and value heads by token and position.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/kv_layout.h"
#include "kernels/tau_position.h"
#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

struct Options {
  Activation activation = Activation::kGeluTanh;
  bool bf16_positions = true;
};

class ScaleHeadsTest : public KernelsTest {
 protected:
  struct Problem {
    AttentionHeads heads;
    std::vector<float> qkv;
    TestTensor products, alpha;
    std::vector<std::int32_t> positions;
  };

  Problem make_problem(int num_heads, int head_dim, std::vector<std::int32_t> positions) {
    const AttentionHeads heads{
        .num_heads = num_heads, .num_kv_heads = num_heads, .head_dim = head_dim};
    const auto width = static_cast<std::size_t>(heads.qkv_width());
    return {.heads = heads,
            .qkv = tensor(random_values(positions.size() * width)).host,
            .products = random_tensor(2 * num_heads * width, 1.5f / std::sqrt(1.0f * width)),
            .alpha = random_tensor(num_heads, 0.7f),
            .positions = std::move(positions)};
  }

  static ScaleHeadsParams params_of(const Problem& p, const Options& options) {
    return {.qkv_stride = p.heads.qkv_width(),
            .scales = {.products = {.in = p.heads.qkv_width(), .out = 2 * p.heads.num_heads},
                       .activation = options.activation,
                       .bf16_positions = options.bf16_positions},
            .heads = p.heads};
  }

  // Tokens [begin, begin + count) on the device.
  struct Tokens {
    TestTensor qkv;
    Buffer positions, scratch;
    ScaleHeadsParams params;
  };
  Tokens upload_tokens(const Problem& p, const Options& options, int begin, int count,
                       bool decode) {
    const std::ptrdiff_t width = p.heads.qkv_width();
    Tokens tokens{
        .qkv = tensor({p.qkv.begin() + begin * width, p.qkv.begin() + (begin + count) * width}),
        .positions = upload(std::vector<std::int32_t>(p.positions.begin() + begin,
                                                      p.positions.begin() + begin + count)),
        .scratch = poisoned_bytes(kernels_->scale_heads_scratch_bytes(count, p.heads)),
        .params = params_of(p, options)};
    ScaleHeadsParams& params = tokens.params;
    params.qkv = tokens.qkv.device.data();
    params.positions = tokens.positions.as<std::int32_t>();
    params.scales.products.weight = p.products.dev();
    params.scales.alpha = p.alpha.dev();
    params.num_tokens = count;
    params.decode = decode;
    params.scratch = tokens.scratch.data();
    return tokens;
  }

  std::vector<float> run_device(const Problem& p, const Options& options, int begin, int count) {
    const Tokens tokens = upload_tokens(p, options, begin, count, count <= 8);
    run(kernels_->scale_heads(*stream_, tokens.params));
    return floats(tokens.qkv.device);
  }
  std::vector<float> run_device(const Problem& p, const Options& options = {}) {
    return run_device(p, options, 0, static_cast<int>(p.positions.size()));
  }

  // Queries, keys and values behind scale_rope_and_cache, one token's behind the other; as a decode step has
  // them. Page 0 stays free.
  struct Placed {
    std::vector<float> q, k, v;
  };
  static constexpr int kMaxPosition = 128;
  static std::vector<std::int32_t> some_positions(int count) {
    std::vector<std::int32_t> positions(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) positions[i] = (i * 37 + 11) % kMaxPosition;
    return positions;
  }

  static std::vector<float> angles(int rotary_dim) {
    std::vector<float> table;
    for (int position = 0; position < kMaxPosition; ++position) {
      for (int j = 0; j < rotary_dim / 2; ++j) {
        const double angle = position * std::pow(10000.0, -2.0 * j / rotary_dim);
        table.push_back(static_cast<float>(std::cos(angle)));
        table.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    return table;
  }
  static std::size_t cache_size(const Problem& p, int num_tokens) {
    const int num_pages = 2 + num_tokens / kPageTokens;
    return static_cast<std::size_t>(num_pages * p.heads.kv_layout().page_size());
  }
  static std::vector<std::int32_t> slots_of(int num_tokens) {
    std::vector<std::int32_t> slots;
    for (int t = 0; t < num_tokens; ++t) slots.push_back(kPageTokens + t);
    return slots;
  }
  static Placed placed(const Problem& p, const std::vector<float>& qkv,
                       const std::vector<float>& cache, int num_tokens) {
    Placed result;
    const AttentionHeads& heads = p.heads;
    const std::vector<std::int32_t> slots = slots_of(num_tokens);
    for (int t = 0; t < num_tokens; ++t) {
      const auto row = qkv.begin() + std::ptrdiff_t{t} * heads.qkv_width();
      result.q.insert(result.q.end(), row, row + heads.q_width());
      for (int h = 0; h < heads.num_kv_heads; ++h) {
        const KvLayout layout = heads.kv_layout();
        const auto key = cache.begin() + layout.at(KvPart::kKeys, slots[t], h);
        const auto value = cache.begin() + layout.at(KvPart::kValues, slots[t], h);
        result.k.insert(result.k.end(), key, key + heads.head_dim);
        result.v.insert(result.v.end(), value, value + heads.head_dim);
      }
    }
    return result;
  }

  // The rows of qkv of tokens [begin, begin + count) as they are behind it, and the cache.
  std::pair<std::vector<float>, Buffer> run_placing(const Problem& p, const Options& options,
                                                    int rotary_dim, int begin, int count,
                                                    bool decode, KvFormat format) {
    const Tokens tokens = upload_tokens(p, options, begin, count, decode);
    const Buffer slots = upload(slots_of(count)), table = upload(angles(rotary_dim));
    Buffer cache = poisoned_bytes(cache_size(p, count) * kv_element_bytes(format, dtype()));
    run(kernels_->scale_rope_and_cache(*stream_, tokens.params,
                                       {.qkv = tokens.params.qkv,
                                        .qkv_stride = tokens.params.qkv_stride,
                                        .positions = tokens.params.positions,
                                        .cache_slots = slots.as<std::int32_t>(),
                                        .rope_table = table.as<float>(),
                                        .kv = {cache.data(), format},
                                        .num_tokens = count,
                                        .heads = p.heads,
                                        .rotary_dim = rotary_dim}));
    return {floats(tokens.qkv.device), std::move(cache)};
  }
  Placed place_on_device(const Problem& p, const Options& options, int rotary_dim, int begin,
                         int count, bool decode = true) {
    const auto [qkv, cache] =
        run_placing(p, options, rotary_dim, begin, count, decode, KvFormat::kNative);
    return placed(p, qkv, floats(cache), count);
  }

  static Placed place_in_reference(const Problem& p, const Options& options, int rotary_dim) {
    std::vector<float> qkv = run_reference(p, options);
    const auto count = static_cast<int>(p.positions.size());
    const std::vector<std::int32_t> slots = slots_of(count);
    const std::vector<float> table = angles(rotary_dim);
    std::vector<float> cache(cache_size(p, count));
    reference::rope_and_cache({.qkv = qkv.data(),
                               .qkv_stride = p.heads.qkv_width(),
                               .positions = p.positions.data(),
                               .cache_slots = slots.data(),
                               .rope_table = table.data(),
                               .kv = {cache.data()},
                               .num_tokens = count,
                               .heads = p.heads,
                               .rotary_dim = rotary_dim});
    return placed(p, qkv, cache, count);
  }

  static std::vector<float> run_reference(const Problem& p, const Options& options) {
    std::vector<float> qkv = p.qkv;
    ScaleHeadsParams params = params_of(p, options);
    params.qkv = qkv.data();
    params.positions = p.positions.data();
    params.scales.products.weight = p.products.ref();
    params.scales.alpha = p.alpha.ref();
    params.num_tokens = static_cast<int>(p.positions.size());
    reference::scale_heads(params);
    return qkv;
  }
};

constexpr Options kAllOptions[] = {{Activation::kGeluTanh, true},
                                   {Activation::kGeluErf, true},
                                   {Activation::kGeluTanh, false},
                                   {Activation::kGeluErf, false}};

TEST_F(ScaleHeadsTest, AgreesWithReference) {
  for (const Options& options : kAllOptions) {
    for (const auto& [heads, head_dim] : {std::pair{2, 64}, {3, 16}, {32, 64}}) {
      const Problem p = make_problem(heads, head_dim, {0, 1, 2, 729, 730, 2047, 32767});
      EXPECT_TRUE(rows_close(run_device(p, options), run_reference(p, options), p.heads.qkv_width(),
                             is_f32() ? 2e-5 : 2e-2))
          << heads << " heads";
    }
  }
}

// Each option changes something, so that a mixed-up one shows.
TEST_F(ScaleHeadsTest, OptionsDiffer) {
  const Problem p = make_problem(4, 64, {100, 5000});
  for (const Options& a : kAllOptions) {
    for (const Options& b : kAllOptions) {
      const bool same = a.activation == b.activation && a.bf16_positions == b.bf16_positions;
      if (same || !is_f32()) continue;
      EXPECT_FALSE(rows_close(run_device(p, a), run_reference(p, b), p.heads.qkv_width(), 2e-5));
    }
  }
}

TEST_F(ScaleHeadsTest, KeysStayAsTheyAre) {
  const Problem p = make_problem(4, 64, {3, 900});
  const std::vector<float> qkv = run_device(p);
  int num_changed =
      0;  // of queries and values; a few are 0, or what they are scaled by is nearly 1
  for (std::size_t t = 0; t < 2; ++t) {
    for (std::size_t i = 0; i < 256; ++i) {
      num_changed += qkv[t * 768 + i] != p.qkv[t * 768 + i] ? 1 : 0;
      EXPECT_EQ(qkv[t * 768 + 256 + i], p.qkv[t * 768 + 256 + i]);
      num_changed += qkv[t * 768 + 512 + i] != p.qkv[t * 768 + 512 + i] ? 1 : 0;
    }
  }
  EXPECT_GT(num_changed, 2 * 2 * 256 - 40);
}

// More tokens than are looked at together.
TEST_F(ScaleHeadsTest, TokensDoNotDependOnTheBatch) {
  std::vector<std::int32_t> positions(600);
  for (int i = 0; i < 600; ++i) positions[i] = i * 7 % 600;
  const Problem p = make_problem(2, 64, positions);
  const std::vector<float> all = run_device(p);
  const auto width = static_cast<std::size_t>(p.heads.qkv_width());
  for (const auto& [begin, count] : {std::pair{100, 500}, {250, 20}, {255, 300}}) {
    EXPECT_TRUE(
        bits_equal(run_device(p, {}, begin, count), rows_of(all, width, begin, begin + count)));
  }
  // Few tokens may take another way than many on a GPU; among few it is one.
  const std::vector<float> few = run_device(p, {}, 500, 8);
  EXPECT_TRUE(bits_equal(run_device(p, {}, 503, 1), rows_of(few, width, 3, 4)));
  if (is_f32()) {
    EXPECT_TRUE(bits_equal(few, rows_of(all, width, 500, 508)));
  }
}

// Heads of whole vectors and not, few and many blocks of them, all of a head rotated or a part of it.
TEST_F(ScaleHeadsTest, ScaledRotatedAndCachedAsByTheReference) {
  struct Shape {
    int heads, head_dim, rotary_dim;
  };
  for (const auto& [heads, head_dim, rotary_dim] : {Shape{2, 64, 32},
                                                    {3, 16, 16},
                                                    {5, 8, 8},
                                                    {32, 64, 32},
                                                    {9, 24, 8},
                                                    {4, 64, 32},
                                                    {16, 32, 32},
                                                    {6, 128, 32}}) {
    for (const int count : {1, 4, 5, 16, 33, 64, 65, 100}) {
      const Problem p = make_problem(heads, head_dim, some_positions(count));
      for (const bool decode : {true, false}) {
        const Options options = kAllOptions[static_cast<std::size_t>(count % 4)];
        const Placed actual = place_on_device(p, options, rotary_dim, 0, count, decode);
        const Placed expected = place_in_reference(p, options, rotary_dim);
        const double tolerance = is_f32() ? 2e-5 : 2e-2;
        const auto at = testing::Message() << heads << " heads of " << head_dim << ", " << count
                                           << " tokens, decode " << decode;
        EXPECT_TRUE(rows_close(actual.q, expected.q, p.heads.q_width(), tolerance)) << at;
        EXPECT_TRUE(rows_close(actual.k, expected.k, p.heads.kv_width(), tolerance)) << at;
        EXPECT_TRUE(rows_close(actual.v, expected.v, p.heads.kv_width(), tolerance)) << at;
      }
    }
  }
}

TEST_F(ScaleHeadsTest, PlacedTokensDoNotDependOnTheBatch) {
  constexpr int kCount = 110;
  for (const int num_heads : {6, 8}) {
    const Problem p = make_problem(num_heads, 64, some_positions(kCount));
    for (const bool decode : {true, false}) {
      const int all_of_them = decode ? 64 : kCount;
      const Placed all = place_on_device(p, {}, 32, 0, all_of_them, decode);
      for (const auto& [begin, count] : {std::pair{0, 1}, {all_of_them - 1, 1}, {17, 5}, {3, 40}}) {
        const Placed some = place_on_device(p, {}, 32, begin, count, decode);
        for (const auto plane : {&Placed::q, &Placed::k, &Placed::v}) {
          EXPECT_TRUE(
              bits_equal(some.*plane, rows_of(all.*plane, p.heads.q_width(), begin, begin + count)))
              << begin << " and " << count << " of " << num_heads << " heads, decode " << decode;
        }
      }
    }
  }
}

TEST_F(ScaleHeadsTest, AnFp8CacheHoldsThePlacedOnesRounded) {
  for (const int num_heads : {6, 8}) {
    const Problem p = make_problem(num_heads, 64, some_positions(30));
    for (const bool decode : {true, false}) {
      const auto native = run_placing(p, {}, 32, 0, 30, decode, KvFormat::kNative);
      const auto rounded = run_placing(p, {}, 32, 0, 30, decode, KvFormat::kFp8);
      EXPECT_TRUE(bits_equal(rounded.first, native.first)) << "queries";
      const KvLayout layout = p.heads.kv_layout();
      const std::vector<std::uint8_t> expected = kv_bytes(KvFormat::kFp8, floats(native.second));
      const auto actual = download<std::uint8_t>(rounded.second);
      for (const std::int32_t slot : slots_of(30)) {
        for (int h = 0; h < num_heads; ++h) {
          for (const KvPart part : {KvPart::kKeys, KvPart::kValues}) {
            const auto begin = layout.at(part, slot, h);
            EXPECT_TRUE(std::equal(actual.begin() + begin, actual.begin() + begin + 64,
                                   expected.begin() + begin))
                << "slot " << slot << ", head " << h << " of " << num_heads << ", decode "
                << decode;
          }
        }
      }
    }
  }
}

TEST(TauPosition, ValuesByHand) {
  for (const bool to_bf16 : {false, true}) {
    EXPECT_EQ(tau_position(0.7f, 0, to_bf16), 1.0f);  // ln 1 = 0
    EXPECT_EQ(tau_position(0.0f, 999, to_bf16), 1.0f);
    EXPECT_EQ(tau_position(1e4f, 9, to_bf16), 1.5f);
    EXPECT_EQ(tau_position(-1e4f, 9, to_bf16), 0.5f);
  }
  // sigmoid(ln 3) = 3 / 4.
  EXPECT_FLOAT_EQ(tau_position(1.0f, 2, false), 1.25f);
  // sigmoid(ln 730) = 730 / 731: bfloat16 has a number every 1/128 here.
  EXPECT_FLOAT_EQ(tau_position(1.0f, 729, false), 0.5f + 730.0f / 731);
  EXPECT_EQ(tau_position(1.0f, 729, true), 1.5f);
  EXPECT_EQ(tau_position(1.0f, 29, true), round_to(DType::kBF16, 0.5f + 30.0f / 31));
}

}  // namespace
}  // namespace gapless
