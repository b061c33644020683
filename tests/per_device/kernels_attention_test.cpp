#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/kv_index.h"
#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

constexpr int kMaxContext = 2048;
constexpr int kPagesPerRow = kMaxContext / kPageTokens;

struct SequenceShape {
  int num_cached = 0;
  int num_tokens = 0;
  int prefix_len = 0;

  int context() const { return num_cached + num_tokens; }
};

// Sequences whose keys and values lie in shuffled pages. Whatever no sequence owns stays NaN: the
// tail of a last page, the trash page, and the page numbers past the end of a sequence (page 0).
struct PagedContext {
  AttentionHeads heads;
  std::vector<SequenceShape> shapes;
  std::vector<AttentionSequence> sequences;
  std::vector<std::int32_t> page_table;  // row of sequence s: rows[s]
  std::vector<float> cache;
  std::vector<float> qkv;  // [tokens of all sequences, stride]
  std::int64_t qkv_stride = 0;
  int num_tokens = 0;
};

// The parameter: of the cache.
class PagedAttentionTest : public KernelsTest, public ::testing::WithParamInterface<KvFormat> {
 protected:
  PagedContext make_context(int num_heads, std::vector<SequenceShape> shapes, int head_dim = 64,
                            int group_size = 1) {
    PagedContext c;
    c.heads = {
        .num_heads = num_heads, .num_kv_heads = num_heads / group_size, .head_dim = head_dim};
    const KvLayout layout = c.heads.kv_layout();
    c.shapes = std::move(shapes);
    int num_pages = 1;
    for (const SequenceShape& s : c.shapes) num_pages += pages_of(s.context());
    std::vector<std::int32_t> free_pages(num_pages - 1);
    std::iota(free_pages.begin(), free_pages.end(), 1);
    std::shuffle(free_pages.begin(), free_pages.end(), random_);

    const std::size_t num_rows = c.shapes.size() + 3;
    c.page_table.assign(num_rows * kPagesPerRow, 0);
    c.cache.assign(static_cast<std::size_t>(num_pages * layout.page_size()), NAN);
    for (std::size_t i = 0; i < c.shapes.size(); ++i) {
      const SequenceShape& s = c.shapes[i];
      const auto row = static_cast<std::int32_t>(num_rows - 1 - i);
      c.sequences.push_back({.row = row,
                             .first_token = c.num_tokens,
                             .num_tokens = s.num_tokens,
                             .num_cached = s.num_cached,
                             .prefix_len = s.prefix_len});
      c.num_tokens += s.num_tokens;
      std::int32_t* pages = c.page_table.data() + row * std::int64_t{kPagesPerRow};
      for (int page = 0; page < pages_of(s.context()); ++page) {
        pages[page] = free_pages.back();
        free_pages.pop_back();
      }
      for (int position = 0; position < s.context(); ++position) {
        const std::int64_t slot = kv_slot(pages, position);
        for (int h = 0; h < layout.num_heads; ++h) {
          fill_random(&c.cache[layout.at(KvPart::kKeys, slot, h)], head_dim, 1.5f);
          fill_random(&c.cache[layout.at(KvPart::kValues, slot, h)], head_dim, 1.0f);
        }
      }
    }
    c.qkv_stride = c.heads.qkv_width() + 8;
    c.qkv = random_values(static_cast<std::size_t>(c.num_tokens) * c.qkv_stride, 1.5f);
    return c;
  }

  static int pages_of(int tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

  void fill_random(float* to, int head_dim, float stddev) {
    const std::vector<float> values = random_values(head_dim, stddev);
    std::copy(values.begin(), values.end(), to);
  }

  struct OnDevice {
    TestTensor qkv, cache;
    Buffer page_table;
    KvFormat format;
  };

  OnDevice upload_context(const PagedContext& c) {
    return {.qkv = tensor(c.qkv),
            .cache = kv_tensor(GetParam(), c.cache),
            .page_table = upload(c.page_table),
            .format = GetParam()};
  }

  PagedAttentionParams params(const PagedContext& c) {
    PagedAttentionParams p;
    p.qkv_stride = c.qkv_stride;
    p.out_stride = c.heads.q_width();
    p.page_table_stride = kPagesPerRow;
    p.heads = c.heads;
    p.max_context = kMaxContext;
    return p;
  }

  // Runs `sequences` (of the context, perhaps altered); their tokens keep their place in qkv and
  // out. num_tokens: of the launch; 0: all of the context.
  std::vector<float> run_device(const PagedContext& c, const OnDevice& d,
                                const std::vector<AttentionSequence>& sequences, bool decode,
                                int num_tokens = 0) {
    PagedAttentionParams p = params(c);
    const int num_sequences = static_cast<int>(sequences.size());
    const Buffer sequences_dev = upload(sequences);
    const Buffer out = poisoned(static_cast<std::size_t>(c.num_tokens) * p.out_stride);
    p.max_new_tokens = decode ? 1 : 2;
    for (const AttentionSequence& s : sequences) {
      p.max_new_tokens = std::max(p.max_new_tokens, s.num_tokens);
    }
    const Buffer scratch = poisoned_bytes(
        kernels_->attention_scratch_bytes(c.num_tokens, num_sequences, kMaxContext, c.heads));
    p.qkv = d.qkv.dev();
    p.kv = {d.cache.device.data(), d.format};
    p.page_table = d.page_table.as<std::int32_t>();
    p.sequences = sequences_dev.as<AttentionSequence>();
    p.num_sequences = num_sequences;
    p.num_tokens = num_tokens > 0 ? num_tokens : c.num_tokens;
    p.out = out.data();
    p.scratch = scratch.data();
    run(kernels_->paged_attention(*stream_, p));
    return floats(out);
  }

  std::vector<float> run_reference(const PagedContext& c, const OnDevice& d) {
    PagedAttentionParams p = params(c);
    std::vector<float> out(static_cast<std::size_t>(c.num_tokens) * p.out_stride, 0.0f);
    std::vector<std::uint8_t> cache = kv_bytes(d.format, d.cache.host);
    p.qkv = d.qkv.ref();
    p.kv = {cache.data(), d.format};
    p.page_table = c.page_table.data();
    p.sequences = c.sequences.data();
    p.num_sequences = static_cast<int>(c.sequences.size());
    p.num_tokens = c.num_tokens;
    p.out = out.data();
    reference::paged_attention(p);
    return out;
  }

  // All sequences together agree with the oracle, and each one alone has the same bits; so has a
  // native cache that holds the same numbers.
  void check(const PagedContext& c, bool decode) {
    const OnDevice d = upload_context(c);
    const std::vector<float> together = run_device(c, d, c.sequences, decode);
    const std::vector<float> expected = run_reference(c, d);
    const int width = c.heads.q_width();
    OnDevice native = upload_context(c);
    native.cache = tensor(d.cache.host);
    native.format = KvFormat::kNative;
    const std::vector<float> from_native = run_device(c, native, c.sequences, decode);
    for (std::size_t i = 0; i < c.sequences.size(); ++i) {
      const AttentionSequence& s = c.sequences[i];
      if (s.num_tokens == 0) continue;
      const auto rows = [&](const std::vector<float>& values) {
        return rows_of(values, width, s.first_token, s.first_token + s.num_tokens);
      };
      EXPECT_TRUE(rows_close(rows(together), rows(expected), width, tolerance()))
          << "sequence " << i;
      EXPECT_TRUE(bits_equal(rows(from_native), rows(together))) << "sequence " << i << " native";
      const std::vector<float> alone = run_device(c, d, {s}, decode);
      EXPECT_TRUE(bits_equal(rows(alone), rows(together))) << "sequence " << i << " alone";
    }
  }
};

TEST_P(PagedAttentionTest, DecodeAtEveryKindOfContextLength) {
  // {cached, new}: contexts of 1, around a page, around 64 and 128, a full context, a done row.
  check(make_context(4, {{0, 1},
                         {14, 1},
                         {15, 1},
                         {16, 1},
                         {62, 1},
                         {63, 1},
                         {64, 1},
                         {127, 1},
                         {128, 1},
                         {849, 1},
                         {0, 0},
                         {1030, 1},
                         {2047, 1}}),
        true);
}

TEST_P(PagedAttentionTest, DecodeWithTheHeadsOfMoondream2) {
  check(make_context(32, {{759, 1}, {3, 1}, {0, 0}}), true);
}

TEST_P(PagedAttentionTest, DecodeOfOneRow) {
  check(make_context(4, {{850, 1}}), true);
}

TEST_P(PagedAttentionTest, DecodeOfDoneRowsOnlyRuns) {
  const PagedContext c = make_context(4, {{0, 0}, {0, 0}});
  run_device(c, upload_context(c), c.sequences, true);
}

TEST_P(PagedAttentionTest, PrefillOfAnImageAndItsPrompt) {
  check(make_context(4, {{0, 760, 730}}), false);
}

TEST_P(PagedAttentionTest, PrefillOfAMixedPack) {
  check(make_context(4, {{0, 17, 0},      // text only
                         {0, 130, 70},    // an image and a prompt
                         {730, 12, 730},  // a prompt behind a cached image
                         {15, 3, 0},      // crosses a page
                         {0, 0, 0},       // done
                         {2046, 2, 730},  // ends at the limit
                         {40, 1, 0},      // one token
                         {0, 1, 0}}),
        false);
}

TEST_P(PagedAttentionTest, PrefixEdges) {
  check(make_context(4, {{0, 20, 1},    // a prefix of one is causal
                         {0, 20, 20},   // nothing but prefix
                         {0, 33, 32},   // one causal token behind it
                         {10, 15, 20},  // the prefix ends inside the new tokens
                         {20, 5, 20},   // and just before them
                         {19, 5, 20},   // and one after their start
                         {0, 10, 20},   // the new tokens end inside the prefix
                         {0, 65, 64}}),
        false);
}

TEST_P(PagedAttentionTest, PrefillWithTheHeadsOfMoondream2) {
  check(make_context(32, {{0, 40, 35}, {5, 20, 0}}), false);
}

// More tiles of queries than multiprocessors with a list of 32 each: blocks go on to a second list.
TEST_P(PagedAttentionTest, PrefillOfVeryManyTiles) {
  std::vector<SequenceShape> sequences;
  for (int i = 0; i < 70; ++i) sequences.push_back({i % 3, 1 + i % 2, 0});
  check(make_context(64, sequences, 32), false);
}

// A query's bits do not depend on how many of its sequence's tokens were computed in earlier
// launches: a prefix-cache hit and a miss give the same answer. Nor on the queries beside it, which
// are others then: with large scores the highest one of a query is often found late, and what its
// computation does about that must not touch its neighbours.
TEST_P(PagedAttentionTest, QueriesDoNotDependOnHowMuchWasCached) {
  for (const float factor : {1.0f, 8.0f}) {
    SCOPED_TRACE("queries times " + std::to_string(factor));
    PagedContext c = make_context(4, {{0, 200, 150}});
    for (float& query : c.qkv) query *= factor;
    const OnDevice d = upload_context(c);
    const std::vector<float> whole = run_device(c, d, c.sequences, false);
    for (const int num_cached : {150, 151, 160, 197, 199}) {
      AttentionSequence rest = c.sequences[0];
      rest.first_token = num_cached;
      rest.num_cached = num_cached;
      rest.num_tokens = 200 - num_cached;
      const std::vector<float> suffix = run_device(c, d, {rest}, false);
      EXPECT_TRUE(bits_equal(rows_of(suffix, c.heads.q_width(), num_cached, 200),
                             rows_of(whole, c.heads.q_width(), num_cached, 200)))
          << num_cached << " cached";
    }
  }
}

// Launches of other numbers of tokens may take other tiles of queries: here on a device of 132 multiprocessors those of 4, 3,
// 2 and 1 times 64.
TEST_P(PagedAttentionTest, QueriesDoNotDependOnTheirTile) {
  const PagedContext c = make_context(64, {{0, 400, 150}});
  const OnDevice d = upload_context(c);
  const std::vector<float> whole = run_device(c, d, c.sequences, false);
  for (const int num_cached : {30, 170, 290, 399}) {
    AttentionSequence rest = c.sequences[0];
    rest.first_token = num_cached;
    rest.num_cached = num_cached;
    rest.num_tokens = 400 - num_cached;
    const std::vector<float> suffix = run_device(c, d, {rest}, false, rest.num_tokens);
    EXPECT_TRUE(bits_equal(rows_of(suffix, c.heads.q_width(), num_cached, 400),
                           rows_of(whole, c.heads.q_width(), num_cached, 400)))
        << num_cached << " cached";
  }
}

TEST_P(PagedAttentionTest, OtherHeadSizes) {
  for (const int head_dim : {32, 128}) {
    SCOPED_TRACE(std::to_string(head_dim));
    check(make_context(2, {{849, 1}, {0, 1}, {0, 0}, {300, 1}}, head_dim), true);
    check(make_context(2, {{0, 130, 70}, {730, 12, 730}, {0, 0, 0}, {40, 1, 0}}, head_dim), false);
  }
}

TEST_P(PagedAttentionTest, GroupedQueries) {
  for (const int head_dim : {64, 128}) {
    SCOPED_TRACE(std::to_string(head_dim));
    check(make_context(8, {{849, 1}, {0, 1}, {0, 0}, {300, 1}}, head_dim, 4), true);
    check(make_context(8, {{0, 130, 0}, {730, 12, 730}, {0, 0, 0}, {40, 1, 0}}, head_dim, 4),
          false);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, PagedAttentionTest,
                         ::testing::Values(KvFormat::kNative, KvFormat::kFp8), kv_format_name);

}  // namespace
}  // namespace gapless
