#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/kv_layout.h"
#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

std::vector<float> rope_table(int max_context, int rotary_dim) {
  std::vector<float> table;
  for (int position = 0; position < max_context; ++position) {
    for (int j = 0; j < rotary_dim / 2; ++j) {
      const double angle = position * std::pow(10000.0, -2.0 * j / rotary_dim);
      table.push_back(static_cast<float>(std::cos(angle)));
      table.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return table;
}

class RopeAndCacheTest : public KernelsTest, public ::testing::WithParamInterface<int> {};

TEST_P(RopeAndCacheTest, AgreesWithReferenceAndTouchesNothingElse) {
  constexpr int kHeadDim = 64, kRotaryDim = 32, kNumPages = 9;
  const int num_heads = GetParam();
  const int width = num_heads * kHeadDim;
  // First and last position, both sides of a page boundary, and a slot of the trash page.
  const std::vector<std::int32_t> positions = {0, 1, 15, 16, 2047, 730, 0};
  const std::vector<std::int32_t> slots = {48, 49, 63, 128, 143, 16, 3};
  const int num_tokens = static_cast<int>(positions.size());
  const std::vector<float> table = rope_table(2048, kRotaryDim);

  RopeAndCacheParams p;
  p.qkv_stride = 3 * width + 8;
  p.num_tokens = num_tokens;
  p.heads = {.num_heads = num_heads, .num_kv_heads = num_heads, .head_dim = kHeadDim};
  p.rotary_dim = kRotaryDim;
  const TestTensor qkv = random_tensor(static_cast<std::size_t>(num_tokens) * p.qkv_stride);
  const KvLayout layout = p.heads.kv_layout();
  const auto cache_size = static_cast<std::size_t>(kNumPages * layout.page_size());

  std::vector<float> expected_qkv = qkv.host, expected_cache(cache_size, NAN);
  p.qkv = expected_qkv.data(), p.rope_table = table.data();
  p.positions = positions.data(), p.cache_slots = slots.data();
  p.kv = {expected_cache.data()};
  reference::rope_and_cache(p);

  const Buffer positions_dev = upload(positions), slots_dev = upload(slots);
  const Buffer table_dev = upload(table), cache_dev = poisoned(cache_size);
  p.qkv = qkv.device.data(), p.rope_table = table_dev.as<float>();
  p.positions = positions_dev.as<std::int32_t>(), p.cache_slots = slots_dev.as<std::int32_t>();
  p.kv = {cache_dev.data()};
  run(kernels_->rope_and_cache(*stream_, p));

  const std::vector<float> actual_qkv = floats(qkv.device);
  for (int t = 0; t < num_tokens; ++t) {
    const auto q = rows_of(actual_qkv, p.qkv_stride, t, t + 1).first(width);
    const auto expected_q = rows_of(expected_qkv, p.qkv_stride, t, t + 1).first(width);
    EXPECT_TRUE(rows_close(q, expected_q, kHeadDim, tolerance())) << "q of token " << t;
  }
  const std::vector<float> cache = floats(cache_dev);
  std::vector<bool> written(cache_size, false);
  for (int t = 0; t < num_tokens; ++t) {
    // A backend may leave a trash slot as it is. If it writes it, then what belongs there.
    const auto first_key = static_cast<std::size_t>(layout.at(KvPart::kKeys, slots[t], 0));
    if (KvLayout::is_trash(slots[t]) && is_poison(cache[first_key])) continue;
    for (int h = 0; h < num_heads; ++h) {
      const auto key = static_cast<std::size_t>(layout.at(KvPart::kKeys, slots[t], h));
      const auto value = static_cast<std::size_t>(layout.at(KvPart::kValues, slots[t], h));
      EXPECT_TRUE(rows_close(std::span(cache).subspan(key, kHeadDim),
                             std::span(expected_cache).subspan(key, kHeadDim), kHeadDim,
                             tolerance()));
      EXPECT_TRUE(bits_equal(std::span(cache).subspan(value, kHeadDim),
                             std::span(expected_cache).subspan(value, kHeadDim)));
      // The second half passes through unturned.
      EXPECT_TRUE(bits_equal(
          std::span(cache).subspan(key + kRotaryDim, kHeadDim - kRotaryDim),
          std::span(qkv.host).subspan(t * p.qkv_stride + width + h * kHeadDim + kRotaryDim,
                                      kHeadDim - kRotaryDim)));
      for (const std::size_t at : {key, value}) {
        std::fill_n(written.begin() + static_cast<std::ptrdiff_t>(at), kHeadDim, true);
      }
    }
  }
  for (std::size_t i = 0; i < cache_size; ++i) {
    ASSERT_EQ(!written[i], is_poison(cache[i])) << "element " << i;
  }
}

// Bit for bit what the same op leaves in a native cache, rounded; and what the oracle says wherever
// that does not depend on the rounding of a rotation.
TEST_P(RopeAndCacheTest, AnFp8CacheHoldsTheNativeOneRounded) {
  constexpr int kHeadDim = 64, kNumPages = 3;
  const int num_heads = GetParam(), width = num_heads * kHeadDim;
  const std::vector<std::int32_t> positions = {0, 1, 15, 16, 730}, slots = {16, 17, 31, 32, 40};
  const int num_tokens = static_cast<int>(positions.size());
  const KvLayout layout{.num_heads = num_heads, .head_dim = kHeadDim};
  const auto cache_size = static_cast<std::size_t>(kNumPages * layout.page_size());
  const Buffer positions_dev = upload(positions), slots_dev = upload(slots);
  // Elements in vectors; one at a time; and one at a time because of the stride.
  for (const auto& [rotary_dim, padding] : {std::pair(32, 8), std::pair(24, 8), std::pair(32, 3)}) {
    SCOPED_TRACE(std::to_string(rotary_dim) + " rotated, stride +" + std::to_string(padding));
    const std::vector<float> table = rope_table(800, rotary_dim);
    const Buffer table_dev = upload(table);
    RopeAndCacheParams p;
    p.qkv_stride = 3 * width + padding;
    p.num_tokens = num_tokens;
    p.heads = {.num_heads = num_heads, .num_kv_heads = num_heads, .head_dim = kHeadDim};
    p.rotary_dim = rotary_dim;
    // Small numbers, ordinary ones, and some that saturate.
    std::vector<float> values = random_values(static_cast<std::size_t>(num_tokens) * p.qkv_stride);
    for (float& value : values) value *= std::exp2(static_cast<float>(random_() % 24) - 13.0f);

    std::vector<Buffer> caches;
    for (const KvFormat format : {KvFormat::kNative, KvFormat::kFp8}) {
      const TestTensor qkv = tensor(values);
      caches.push_back(poisoned_bytes(cache_size * kv_element_bytes(format, dtype())));
      p.qkv = qkv.device.data(), p.rope_table = table_dev.as<float>();
      p.positions = positions_dev.as<std::int32_t>();
      p.cache_slots = slots_dev.as<std::int32_t>();
      p.kv = {caches.back().data(), format};
      run(kernels_->rope_and_cache(*stream_, p));
    }
    const auto actual = download<std::uint8_t>(caches[1]);
    EXPECT_TRUE(actual == kv_bytes(KvFormat::kFp8, floats(caches[0])));

    std::vector<float> host = tensor(values).host;
    std::vector<std::uint8_t> expected(cache_size, kPoison);
    p.qkv = host.data(), p.rope_table = table.data();
    p.positions = positions.data(), p.cache_slots = slots.data();
    p.kv = {expected.data(), KvFormat::kFp8};
    reference::rope_and_cache(p);
    int num_saturated = 0;
    for (int t = 0; t < num_tokens; ++t) {
      for (int h = 0; h < num_heads; ++h) {
        const std::int64_t key = layout.at(KvPart::kKeys, slots[t], h);
        const std::int64_t value = layout.at(KvPart::kValues, slots[t], h);
        for (int d = 0; d < kHeadDim; ++d) {
          ASSERT_EQ(actual[value + d], expected[value + d]);
          if (d >= rotary_dim) {
            ASSERT_EQ(actual[key + d], expected[key + d]);
          }
          num_saturated += (actual[value + d] & 0x7f) == 0x7e ? 1 : 0;
        }
      }
    }
    EXPECT_GT(num_saturated, 0);
  }
}

// 8 query heads on 2 key heads, each normalised before it turns: what the oracle says, and the same
// bits for a token alone.
TEST_F(KernelsTest, RopeAndCacheOfGroupedNormalisedHeads) {
  for (const int head_dim : {64, 128}) {
    SCOPED_TRACE(std::to_string(head_dim));
    constexpr int kNumPages = 4;
    const AttentionHeads heads{.num_heads = 8, .num_kv_heads = 2, .head_dim = head_dim};
    const std::vector<std::int32_t> positions = {0, 5, 730, 12, 799}, slots = {17, 18, 31, 32, 63};
    const int num_tokens = static_cast<int>(positions.size());
    const std::vector<float> table = rope_table(800, head_dim);
    const TestTensor q_gamma = random_tensor(head_dim, 0.3f, 1.0f);
    const TestTensor k_gamma = random_tensor(head_dim, 0.3f, 1.0f);
    RopeAndCacheParams p;
    p.qkv_stride = heads.qkv_width() + 8;
    p.num_tokens = num_tokens;
    p.heads = heads;
    p.rotary_dim = head_dim;
    const auto weights = [](const void* gamma) {
      return NormWeights{.kind = NormKind::kRms, .gamma = gamma, .eps = 1e-6f};
    };
    const TestTensor qkv = random_tensor(static_cast<std::size_t>(num_tokens) * p.qkv_stride, 2.0f);
    const KvLayout layout = heads.kv_layout();
    const auto cache_size = static_cast<std::size_t>(kNumPages * layout.page_size());

    std::vector<float> expected_qkv = qkv.host, expected_cache(cache_size, NAN);
    p.qkv = expected_qkv.data(), p.rope_table = table.data();
    p.q_norm = weights(q_gamma.ref()), p.k_norm = weights(k_gamma.ref());
    p.positions = positions.data(), p.cache_slots = slots.data();
    p.kv = {expected_cache.data()};
    reference::rope_and_cache(p);

    const Buffer positions_dev = upload(positions), slots_dev = upload(slots);
    const Buffer table_dev = upload(table);
    p.rope_table = table_dev.as<float>();
    p.q_norm = weights(q_gamma.dev()), p.k_norm = weights(k_gamma.dev());
    struct Run {
      std::vector<float> qkv, cache;
    };
    // Tokens [first, first + count) in a launch of their own.
    auto run_tokens = [&](int first, int count) {
      const TestTensor rows = tensor(qkv.host);
      const Buffer cache = poisoned(cache_size);
      p.qkv = static_cast<char*>(rows.device.data()) +
              static_cast<std::size_t>(first) * p.qkv_stride * dtype_bytes(dtype());
      p.positions = positions_dev.as<std::int32_t>() + first;
      p.cache_slots = slots_dev.as<std::int32_t>() + first;
      p.kv = {cache.data()};
      p.num_tokens = count;
      run(kernels_->rope_and_cache(*stream_, p));
      return Run{floats(rows.device), floats(cache)};
    };
    const Run all = run_tokens(0, num_tokens), alone = run_tokens(3, 1);
    for (int t = 0; t < num_tokens; ++t) {
      EXPECT_TRUE(rows_close(rows_of(all.qkv, p.qkv_stride, t, t + 1).first(heads.q_width()),
                             rows_of(expected_qkv, p.qkv_stride, t, t + 1).first(heads.q_width()),
                             head_dim, tolerance()))
          << "q of token " << t;
      for (int h = 0; h < heads.num_kv_heads; ++h) {
        const auto key = static_cast<std::size_t>(layout.at(KvPart::kKeys, slots[t], h));
        const auto value = static_cast<std::size_t>(layout.at(KvPart::kValues, slots[t], h));
        EXPECT_TRUE(rows_close(std::span(all.cache).subspan(key, head_dim),
                               std::span(expected_cache).subspan(key, head_dim), head_dim,
                               tolerance()));
        EXPECT_TRUE(bits_equal(std::span(all.cache).subspan(value, head_dim),
                               std::span(expected_cache).subspan(value, head_dim)));
        if (t != 3) continue;
        EXPECT_TRUE(bits_equal(std::span(alone.cache).subspan(key, head_dim),
                               std::span(all.cache).subspan(key, head_dim)));
      }
    }
    EXPECT_TRUE(bits_equal(rows_of(alone.qkv, p.qkv_stride, 3, 4).first(heads.q_width()),
                           rows_of(all.qkv, p.qkv_stride, 3, 4).first(heads.q_width())));
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, RopeAndCacheTest, ::testing::Values(4, 32));

TEST_F(KernelsTest, CopyPagesCopiesKeysAndValuesOfEveryLayer) {
  constexpr int kNumPages = 7, kNumLayers = 3;
  constexpr std::size_t kPageBytes = 2 * 2 * kPageTokens * 64 * 2;
  std::vector<std::uint8_t> cache(kNumLayers * kNumPages * kPageBytes);
  for (auto& byte : cache) byte = static_cast<std::uint8_t>(random_());
  // Three entries, of which the step uses two.
  const std::vector<PageCopy> copies = {{1, 5}, {2, 6}, {3, 4}};
  const std::vector<std::int32_t> num_copies = {2};

  std::vector<std::uint8_t> expected = cache;
  for (std::size_t layer = 0; layer < kNumLayers; ++layer) {
    for (int i = 0; i < 2; ++i) {
      auto page = [&](std::int32_t number) {
        return expected.begin() +
               static_cast<std::ptrdiff_t>((layer * kNumPages + number) * kPageBytes);
      };
      std::copy_n(page(copies[i].from), kPageBytes, page(copies[i].to));
    }
  }
  const Buffer cache_dev = upload(cache), copies_dev = upload(copies);
  const Buffer num_dev = upload(num_copies);
  run(kernels_->copy_pages(*stream_, {.kv_base = cache_dev.data(),
                                      .page_bytes = kPageBytes,
                                      .num_pages = kNumPages,
                                      .num_layers = kNumLayers,
                                      .copies = copies_dev.as<PageCopy>(),
                                      .num_copies = num_dev.as<std::int32_t>(),
                                      .max_copies = 3}));
  EXPECT_TRUE(download<std::uint8_t>(cache_dev) == expected);
}

}  // namespace
}  // namespace gapless
