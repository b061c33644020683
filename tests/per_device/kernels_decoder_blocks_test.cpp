// Whole decoder blocks of a decode step, and the head behind them, against the same blocks composed
// of the oracle's ops.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/kv_index.h"
#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

constexpr int kHeadDim = 64, kRotaryDim = 32, kMaxContext = 2048;
constexpr int kPagesPerRow = kMaxContext / kPageTokens;

struct Shape {
  int num_heads = 4;
  int ff_dim = 512;
  int num_blocks = 2;
  int vocab = 536;
  KvFormat kv_format = KvFormat::kNative;
  bool shares_pages = false;  // rows have all pages but their last in common

  int dim() const { return num_heads * kHeadDim; }
  AttentionHeads heads() const {
    return {.num_heads = num_heads, .num_kv_heads = num_heads, .head_dim = kHeadDim};
  }
};

struct Matrix {
  TestTensor weight, bias;
  int in = 0, out = 0;

  LinearWeights dev() const {
    return {.weight = weight.dev(), .bias = bias.dev(), .in = in, .out = out};
  }
  LinearWeights ref() const {
    return {.weight = weight.ref(), .bias = bias.ref(), .in = in, .out = out};
  }
};

struct Norm {
  TestTensor gamma, beta;
};

struct Block {
  Norm ln;
  Matrix qkv, proj, fc1, fc2;
  TestTensor keys, values;
  Buffer prepared_in, prepared_out;
};

// A model, and the rows of a step: row i has cached[i] tokens in shuffled pages; -1: it is done.
// What no row owns is NaN.
struct Problem {
  Shape shape;
  std::vector<Block> blocks;
  Norm post_ln;
  Matrix head;
  PreparedFormat format = PreparedFormat::kNative;  // of the prepared weights
  std::vector<int> cached;
  std::vector<AttentionSequence> sequences;
  std::vector<std::int32_t> positions, cache_slots, page_table;
  bool tells_rows = true;  // the op is told the rows and their states
  std::vector<RowState> row_states;
  std::vector<float> rope_table;
  TestTensor x;
};

struct Result {
  std::vector<float> x, logits;
  std::vector<std::vector<float>> keys, values;  // of each block, the whole cache
};

// The parameter: of the cache.
class DecoderBlocksTest : public KernelsTest, public ::testing::WithParamInterface<KvFormat> {
 protected:
  Matrix matrix(int in, int out) {
    return {.weight = random_tensor(static_cast<std::size_t>(in) * out,
                                    1.0f / std::sqrt(static_cast<float>(in))),
            .bias = random_tensor(out, 0.3f),
            .in = in,
            .out = out};
  }
  Norm norm(int dim) {
    return {.gamma = random_tensor(dim, 0.2f, 1.0f), .beta = random_tensor(dim, 0.2f)};
  }

  // Two matrices become one where the second's columns start at a multiple of 128.
  bool prepares(int dim) const {
    return kernels_->prepared_linear_bytes(dim, dim, PreparedFormat::kNative) != 0 &&
           dim % 128 == 0;
  }

  Buffer prepare(const Matrix& first, const Matrix& second, bool beside, PreparedFormat format) {
    const int in = beside ? first.in + second.in : first.in;
    const int out = beside ? first.out : first.out + second.out;
    Buffer to = poisoned_bytes(kernels_->prepared_linear_bytes(in, out, format));
    if (!prepares(first.in)) return to;
    run(kernels_->prepare_linear(*stream_, {.weights = first.dev(),
                                            .prepared = to.data(),
                                            .format = format,
                                            .total_in = in,
                                            .total_out = out}));
    run(kernels_->prepare_linear(*stream_, {.weights = second.dev(),
                                            .prepared = to.data(),
                                            .format = format,
                                            .total_in = in,
                                            .total_out = out,
                                            .first_out = beside ? 0 : first.out,
                                            .first_in = beside ? first.in : 0}));
    return to;
  }

  Problem make_problem(const Shape& shape, std::vector<int> cached) {
    Problem p;
    p.shape = shape;
    p.shape.kv_format = GetParam();
    p.cached = std::move(cached);
    const int dim = shape.dim(), num_rows = static_cast<int>(p.cached.size());
    place_rows(p);
    for (int i = 0; i < shape.num_blocks; ++i) {
      Block block{.ln = norm(dim),
                  .qkv = matrix(dim, 3 * dim),
                  .proj = matrix(dim, dim),
                  .fc1 = matrix(dim, shape.ff_dim),
                  .fc2 = matrix(shape.ff_dim, dim),
                  .keys = cache(p, 1.5f),
                  .values = cache(p, 1.0f)};
      p.blocks.push_back(std::move(block));
    }
    prepare_blocks(p, PreparedFormat::kNative);
    p.post_ln = norm(dim);
    p.head = matrix(dim, shape.vocab);
    p.x = random_tensor(static_cast<std::size_t>(num_rows) * dim);
    p.rope_table = any_rope_table(kMaxContext, kRotaryDim);
    return p;
  }

  void prepare_blocks(Problem& p, PreparedFormat format) {
    p.format = format;
    for (Block& block : p.blocks) {
      block.prepared_in = prepare(block.qkv, block.fc1, false, format);
      block.prepared_out = prepare(block.proj, block.fc2, true, format);
    }
  }

  // Rows of many sizes, one of zeros, rounded to 8 bits.
  void round_to_fp8(Matrix& m) {
    std::vector<float> weights = m.weight.host;
    for (int row = 0; row < m.out; ++row) {
      const float factor = row == 3 ? 0.0f : std::ldexp(1.0f, -(row % 6));
      for (int i = 0; i < m.in; ++i) weights[static_cast<std::size_t>(row) * m.in + i] *= factor;
    }
    m.weight = tensor(weights);
    run(kernels_->round_to_fp8(
        *stream_, {.weight = m.weight.device.data(), .num_rows = m.out, .row_size = m.in}));
  }

  static int num_pages(const Problem& p) {
    int all = 1, most = 0;
    for (const int cached : p.cached) {
      all += pages_of(cached);
      most = std::max(most, pages_of(cached));
    }
    return p.shape.shares_pages ? 1 + most + static_cast<int>(p.cached.size()) : all;
  }

  void place_rows(Problem& p) {
    std::vector<std::int32_t> free_pages(num_pages(p) - 1);
    std::iota(free_pages.begin(), free_pages.end(), 1);
    std::shuffle(free_pages.begin(), free_pages.end(), random_);
    std::vector<std::int32_t> shared;
    const auto take_page = [&] {
      const std::int32_t page = free_pages.back();
      free_pages.pop_back();
      return page;
    };
    const int num_rows = static_cast<int>(p.cached.size());
    p.page_table.assign(static_cast<std::size_t>(num_rows + 1) * kPagesPerRow, 0);
    p.row_states.resize(static_cast<std::size_t>(num_rows) + 1);
    for (int i = 0; i < num_rows; ++i) {
      const int cached = p.cached[i], seat = num_rows - i;  // not the place in the batch
      std::int32_t* pages = p.page_table.data() + seat * std::int64_t{kPagesPerRow};
      for (int page = 0; page < pages_of(cached); ++page) {
        if (!p.shape.shares_pages || page + 1 == pages_of(cached)) {
          pages[page] = take_page();
          continue;
        }
        const auto n = static_cast<std::size_t>(page);
        if (n == shared.size()) shared.push_back(take_page());
        pages[page] = shared[n];
      }
      const bool done = cached < 0;
      p.row_states[static_cast<std::size_t>(seat)].done = done ? 1 : 0;
      p.sequences.push_back({.row = seat,
                             .first_token = i,
                             .num_tokens = done ? 0 : 1,
                             .num_cached = done ? 0 : cached,
                             .prefix_len = 0});
      p.positions.push_back(done ? 0 : cached);
      p.cache_slots.push_back(
          static_cast<std::int32_t>(done ? i % kPageTokens : kv_slot(pages, cached)));
    }
  }

  static int pages_of(int cached) { return (cached + kPageTokens) / kPageTokens * (cached >= 0); }

  TestTensor cache(const Problem& p, float stddev) {
    std::vector<float> values(
        static_cast<std::size_t>(num_pages(p)) * p.shape.num_heads * kPageTokens * kHeadDim, NAN);
    for (const AttentionSequence& s : p.sequences) {
      const std::int32_t* pages = p.page_table.data() + s.row * std::int64_t{kPagesPerRow};
      for (int position = 0; position < s.num_cached; ++position) {
        for (int h = 0; h < p.shape.num_heads; ++h) {
          float* to = &values[kv_index(kv_slot(pages, position), h, p.shape.num_heads, kHeadDim)];
          if (!std::isnan(*to)) continue;  // shared, and filled in for an earlier row
          const std::vector<float> head = random_values(kHeadDim, stddev);
          std::copy(head.begin(), head.end(), to);
        }
      }
    }
    return kv_tensor(p.shape.kv_format, values);
  }

  DecoderBlocksParams params(const Problem& p, int num_rows) {
    DecoderBlocksParams params;
    params.num_blocks = p.shape.num_blocks;
    params.page_table_stride = kPagesPerRow;
    params.num_sequences = num_rows;
    params.num_tokens = num_rows;
    params.max_context = kMaxContext;
    params.heads = p.shape.heads();
    params.rotary_dim = kRotaryDim;
    params.decode = true;
    return params;
  }

  // Rows [first, first + count) as a step of their own.
  Result run_device(const Problem& p, int first, int count) {
    const int dim = p.shape.dim();
    const auto rows = static_cast<std::size_t>(count);
    DecoderBlocksParams b = params(p, count);
    std::vector<DecoderBlock> blocks;
    std::vector<TestTensor> caches;
    for (const Block& block : p.blocks) {
      caches.push_back(kv_tensor(p.shape.kv_format, block.keys.host));
      caches.push_back(kv_tensor(p.shape.kv_format, block.values.host));
      const bool prepared = prepares(dim);
      blocks.push_back({.norm = {.gamma = block.ln.gamma.dev(), .beta = block.ln.beta.dev()},
                        .qkv = block.qkv.dev(),
                        .proj = block.proj.dev(),
                        .ff = {.up = block.fc1.dev(), .down = block.fc2.dev()},
                        .prepared_in = prepared ? block.prepared_in.data() : nullptr,
                        .prepared_out = prepared ? block.prepared_out.data() : nullptr,
                        .prepared_format = p.format,
                        .kv = {caches.end()[-2].device.data(), caches.end()[-1].device.data(),
                               p.shape.kv_format}});
    }
    const std::size_t head_bytes = kernels_->prepared_linear_bytes(dim, p.shape.vocab, p.format);
    const Buffer head_prepared = poisoned_bytes(head_bytes);
    LinearWeights head_weights = p.head.dev();
    if (head_bytes > 0) {
      run(kernels_->prepare_linear(*stream_, {.weights = head_weights,
                                              .prepared = head_prepared.data(),
                                              .format = p.format,
                                              .total_in = dim,
                                              .total_out = p.shape.vocab}));
      head_weights.prepared = head_prepared.data();
      head_weights.prepared_format = p.format;
    }
    const TestTensor x = tensor({rows_of(p.x.host, dim, first, first + count).begin(),
                                 rows_of(p.x.host, dim, first, first + count).end()});
    std::vector<AttentionSequence> sequences(p.sequences.begin() + first,
                                             p.sequences.begin() + first + count);
    for (int i = 0; i < count; ++i) sequences[i].first_token = i;
    const Buffer sequences_dev = upload(sequences), rope = upload(p.rope_table);
    const Buffer positions = upload(std::vector<std::int32_t>(p.positions.begin() + first,
                                                              p.positions.begin() + first + count));
    const Buffer slots = upload(std::vector<std::int32_t>(p.cache_slots.begin() + first,
                                                          p.cache_slots.begin() + first + count));
    const Buffer pages = upload(p.page_table);
    std::vector<std::int32_t> seats;
    for (const AttentionSequence& sequence : sequences) seats.push_back(sequence.row);
    const Buffer rows_dev = upload(seats), states_dev = upload(p.row_states);
    const Buffer norm_scratch = poisoned(rows * dim), qkv = poisoned(rows * 3 * dim);
    const Buffer attention = poisoned(rows * dim), inner = poisoned(rows * p.shape.ff_dim);
    const Buffer head_norm = poisoned(rows * dim);
    const Buffer logits = poisoned_bytes(rows * p.shape.vocab * sizeof(float));
    const Buffer attention_scratch = poisoned_bytes(
        kernels_->attention_scratch_bytes(count, count, kMaxContext, p.shape.heads()));
    const Buffer block_scratch = poisoned_bytes(
        kernels_->decoder_blocks_scratch_bytes(count, dim, p.shape.ff_dim, p.shape.num_heads));
    const DecoderHead head{.norm = {.gamma = p.post_ln.gamma.dev(), .beta = p.post_ln.beta.dev()},
                           .linear = head_weights,
                           .normed = head_norm.data(),
                           .logits = logits.as<float>()};
    b.blocks = blocks.data();
    b.head = &head;
    b.x = x.device.data();
    b.positions = positions.as<std::int32_t>();
    b.cache_slots = slots.as<std::int32_t>();
    b.rope_table = rope.as<float>();
    b.page_table = pages.as<std::int32_t>();
    b.sequences = sequences_dev.as<AttentionSequence>();
    if (p.tells_rows) {
      b.rows = rows_dev.as<std::int32_t>();
      b.row_states = states_dev.as<RowState>();
    }
    b.norm = norm_scratch.data(), b.qkv = qkv.data();
    b.attention = attention.data(), b.inner = inner.data();
    b.attention_scratch = attention_scratch.data(), b.block_scratch = block_scratch.data();
    run(kernels_->decoder_blocks(*stream_, b));
    Result result{
        .x = floats(x.device), .logits = download<float>(logits), .keys = {}, .values = {}};
    for (std::size_t i = 0; i < caches.size(); i += 2) {
      result.keys.push_back(kv_floats(p.shape.kv_format, caches[i].device));
      result.values.push_back(kv_floats(p.shape.kv_format, caches[i + 1].device));
    }
    return result;
  }

  Result run_reference(const Problem& p) {
    const int dim = p.shape.dim(), num_rows = static_cast<int>(p.cached.size());
    const auto rows = static_cast<std::size_t>(num_rows);
    const std::unique_ptr<Kernels> oracle = make_reference_kernels();
    auto cpu = open_device("cpu");
    auto stream = (*cpu)->create_stream("oracle");
    Result r{.x = p.x.host,
             .logits = std::vector<float>(rows * p.shape.vocab),
             .keys = {},
             .values = {}};
    std::vector<std::vector<std::uint8_t>> caches;
    for (const Block& block : p.blocks) {
      caches.push_back(kv_bytes(p.shape.kv_format, block.keys.host));
      caches.push_back(kv_bytes(p.shape.kv_format, block.values.host));
    }
    std::vector<DecoderBlock> blocks;
    for (std::size_t i = 0; i < p.blocks.size(); ++i) {
      const Block& block = p.blocks[i];
      blocks.push_back({.norm = {.gamma = block.ln.gamma.ref(), .beta = block.ln.beta.ref()},
                        .qkv = block.qkv.ref(),
                        .proj = block.proj.ref(),
                        .ff = {.up = block.fc1.ref(), .down = block.fc2.ref()},
                        .kv = {caches[2 * i].data(), caches[2 * i + 1].data(), p.shape.kv_format}});
    }
    std::vector<float> norm(rows * dim), qkv(rows * 3 * dim), attention(rows * dim),
        inner(rows * p.shape.ff_dim), head_norm(rows * dim);
    const DecoderHead head{.norm = {.gamma = p.post_ln.gamma.ref(), .beta = p.post_ln.beta.ref()},
                           .linear = p.head.ref(),
                           .normed = head_norm.data(),
                           .logits = r.logits.data()};
    DecoderBlocksParams b = params(p, num_rows);
    b.blocks = blocks.data();
    b.head = &head;
    b.x = r.x.data();
    b.positions = p.positions.data();
    b.cache_slots = p.cache_slots.data();
    b.rope_table = p.rope_table.data();
    b.page_table = p.page_table.data();
    b.sequences = p.sequences.data();
    b.norm = norm.data(), b.qkv = qkv.data(), b.attention = attention.data();
    b.inner = inner.data();
    EXPECT_TRUE(oracle->decoder_blocks(**stream, b).ok());
    EXPECT_TRUE((*stream)->synchronize().ok());
    for (std::size_t i = 0; i < caches.size(); ++i) {
      const std::size_t size = p.blocks[i / 2].keys.host.size();
      std::vector<float>& to = (i % 2 == 0 ? r.keys : r.values).emplace_back(size);
      load_kv(p.shape.kv_format, caches[i].data(), 0, to.data(), static_cast<int>(size));
    }
    return r;
  }

  // The new token's keys or values of row i in one block: [heads, head_dim].
  static std::vector<float> new_entry(const Problem& p, const std::vector<float>& cache, int i) {
    std::vector<float> entry;
    for (int h = 0; h < p.shape.num_heads; ++h) {
      const auto at = cache.begin() + kv_index(p.cache_slots[i], h, p.shape.num_heads, kHeadDim);
      entry.insert(entry.end(), at, at + kHeadDim);
    }
    return entry;
  }

  // What earlier tokens left in the cache, and what nobody owns, but not page 0 (done rows may
  // write there).
  static std::vector<float> old_entries(const Problem& p, std::vector<float> cache) {
    cache.erase(cache.begin(), cache.begin() + p.shape.dim() * kPageTokens);
    for (std::size_t i = 0; i < p.cached.size(); ++i) {
      if (p.cached[i] < 0) continue;
      for (int h = 0; h < p.shape.num_heads; ++h) {
        const auto at = cache.begin() - p.shape.dim() * kPageTokens +
                        kv_index(p.cache_slots[i], h, p.shape.num_heads, kHeadDim);
        std::fill(at, at + kHeadDim, 0.0f);
      }
    }
    return cache;
  }

  // All rows together agree with the oracle; some alone, and as the tail of the batch, have the
  // same bits; and so has the whole batch once more.
  void check(const Problem& p, const std::vector<int>& alone) {
    const int dim = p.shape.dim(), vocab = p.shape.vocab;
    const int num_rows = static_cast<int>(p.cached.size());
    const bool fp8 = p.shape.kv_format == KvFormat::kFp8;
    const double loose = is_f32() && !fp8 ? 2e-4 : 2.5e-2;
    // A number that lies between two of e4m3 may become either: an eighth of it.
    const double entry_loose = fp8 ? 0.06 : loose;
    const Result all = run_device(p, 0, num_rows);
    const Result expected = run_reference(p);
    for (int i = 0; i < num_rows; ++i) {
      if (p.cached[i] < 0) continue;
      SCOPED_TRACE("row " + std::to_string(i) + ", cached " + std::to_string(p.cached[i]));
      ASSERT_TRUE(rows_close(rows_of(all.x, dim, i, i + 1), rows_of(expected.x, dim, i, i + 1), dim,
                             loose));
      ASSERT_TRUE(rows_close(rows_of(all.logits, vocab, i, i + 1),
                             rows_of(expected.logits, vocab, i, i + 1), vocab, loose));
      for (int b = 0; b < p.shape.num_blocks; ++b) {
        ASSERT_TRUE(rows_close(new_entry(p, all.keys[b], i), new_entry(p, expected.keys[b], i),
                               kHeadDim, entry_loose));
        ASSERT_TRUE(rows_close(new_entry(p, all.values[b], i), new_entry(p, expected.values[b], i),
                               kHeadDim, entry_loose));
      }
    }
    for (int b = 0; b < p.shape.num_blocks; ++b) {
      ASSERT_TRUE(bits_equal(old_entries(p, all.keys[b]), old_entries(p, p.blocks[b].keys.host)));
      ASSERT_TRUE(
          bits_equal(old_entries(p, all.values[b]), old_entries(p, p.blocks[b].values.host)));
    }
    for (const int first : alone) {
      expect_same_rows(p, run_device(p, first, 1), all, first, 1);
      expect_same_rows(p, run_device(p, first, num_rows - first), all, first, num_rows - first);
    }
    expect_same_rows(p, run_device(p, 0, num_rows), all, 0, num_rows);
  }

  void expect_same_rows(const Problem& p, const Result& some, const Result& all, int first,
                        int count) {
    const int dim = p.shape.dim(), vocab = p.shape.vocab;
    for (int i = 0; i < count; ++i) {
      if (p.cached[first + i] < 0) continue;
      SCOPED_TRACE(std::to_string(count) + " rows, row " + std::to_string(first + i));
      ASSERT_TRUE(bits_equal(rows_of(some.x, dim, i, i + 1),
                             rows_of(all.x, dim, first + i, first + i + 1)));
      ASSERT_TRUE(bits_equal(rows_of(some.logits, vocab, i, i + 1),
                             rows_of(all.logits, vocab, first + i, first + i + 1)));
      for (int b = 0; b < p.shape.num_blocks; ++b) {
        ASSERT_TRUE(bits_equal(new_entry(p, some.keys[b], first + i),
                               new_entry(p, all.keys[b], first + i)));
      }
    }
  }

  // `count` contexts around every edge of pages, units and splits, some rows done.
  std::vector<int> contexts(int count) {
    const std::vector<int> edges = {849, 0,   14,  15,  16,  30,   31,   32,  63,  -1,  64,
                                    127, 128, 129, 143, 144, 2047, 1023, 255, 256, 700, 5};
    std::vector<int> result;
    for (int i = 0; i < count; ++i) {
      const auto n = static_cast<std::size_t>(i);
      result.push_back(n < edges.size() ? edges[n] : static_cast<int>(random_() % 400) - 1);
    }
    return result;
  }
};

TEST_P(DecoderBlocksTest, OneRow) {
  for (const int cached : {0, 15, 16, 31, 32, 127, 128, 850, 2047}) {
    check(make_problem({}, {cached}), {});
  }
}

TEST_P(DecoderBlocksTest, AnyNumberOfRows) {
  for (const int count : {2, 7, 8, 9, 16, 17, 22, 32, 33, 64}) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    check(make_problem({}, contexts(count)), {0, count / 2, count - 1});
  }
}

// So many keys that each of 132 multiprocessors has several batches of them to look up and ask for
// in a layer, and the same again in the next; some rows between have none.
TEST_P(DecoderBlocksTest, ManyKeys) {
  std::vector<int> cached;
  for (int i = 0; i < 40; ++i) cached.push_back(i % 7 == 3 ? -1 : 250 + 17 * i);
  std::fill(cached.begin() + 20, cached.begin() + 25, -1);
  check(make_problem({.num_heads = 8, .ff_dim = 128, .num_blocks = 2, .vocab = 16}, cached),
        {0, 30});
}

// On 132 multiprocessors each one's turns of the ring come and go twice over while it attends:
// whoever follows other stages alone must not take one turn for another.
TEST_P(DecoderBlocksTest, TurnsOfTheRingWithoutActivations) {
  for (const int rows : {12, 40}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    std::vector<int> cached;
    for (int i = 0; i < rows; ++i) cached.push_back(2047 - 3 * i);
    check(make_problem(
              {.num_heads = 16, .ff_dim = 128, .num_blocks = 2, .vocab = 16, .shares_pages = true},
              cached),
          {1});
  }
}

TEST_P(DecoderBlocksTest, OtherWidths) {
  check(make_problem({.num_heads = 2, .ff_dim = 128, .num_blocks = 3, .vocab = 16}, contexts(5)),
        {1});
  check(
      make_problem({.num_heads = 10, .ff_dim = 1152, .num_blocks = 1, .vocab = 3000}, contexts(19)),
      {3});
  // Shapes that a backend may have to compose: an odd number of heads, widths of 32s.
  check(make_problem({.num_heads = 3, .ff_dim = 96, .num_blocks = 2, .vocab = 100}, contexts(9)),
        {0});
}

// Not bit for bit: a backend may multiply in half precision, which has no numbers below 2^-24.
TEST_P(DecoderBlocksTest, WeightsIn8BitsGiveWhatTheirCopiesInTGive) {
  if (!prepares(128)) GTEST_SKIP() << "this backend prepares no weights";
  const std::vector<Shape> shapes = {
      {.num_heads = 2, .ff_dim = 128, .num_blocks = 3, .vocab = 16},
      {.num_heads = 10, .ff_dim = 1152, .num_blocks = 2, .vocab = 3000},
      {.num_heads = 32, .ff_dim = 8192, .num_blocks = 1, .vocab = 2064},
      // On 132 multiprocessors some of the ring's stages end where the ring does.
      {.num_heads = 4, .ff_dim = 4096, .num_blocks = 12, .vocab = 16},
  };
  for (const Shape& shape : shapes) {
    for (const int rows : {1, 9, 20, 33}) {
      Problem p = make_problem(shape, std::vector<int>(rows, 40));
      for (Block& block : p.blocks) {
        for (Matrix* m : {&block.qkv, &block.proj, &block.fc1, &block.fc2}) round_to_fp8(*m);
      }
      round_to_fp8(p.head);
      prepare_blocks(p, PreparedFormat::kNative);
      const Result native = run_device(p, 0, rows);
      prepare_blocks(p, PreparedFormat::kFp8);
      SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(shape.dim()));
      const Result fp8 = run_device(p, 0, rows);
      EXPECT_TRUE(rows_close(fp8.x, native.x, shape.dim(), 5e-3));
      EXPECT_TRUE(rows_close(fp8.logits, native.logits, shape.vocab, 5e-3));
      expect_same_rows(p, run_device(p, rows - 1, 1), fp8, rows - 1, 1);
    }
  }
}

// The first block's new entries depend on x alone: bit for bit the native ones, rounded.
TEST_P(DecoderBlocksTest, NewEntriesAreTheNativeOnesRounded) {
  if (GetParam() == KvFormat::kNative) return;
  for (const int count : {3, 20}) {
    Problem p = make_problem({}, contexts(count));
    const Result fp8 = run_device(p, 0, count);
    p.shape.kv_format = KvFormat::kNative;
    const Result native = run_device(p, 0, count);
    for (int i = 0; i < count; ++i) {
      if (p.cached[i] < 0) continue;
      for (const auto& [actual, unrounded] : {std::pair(&fp8.keys[0], &native.keys[0]),
                                              std::pair(&fp8.values[0], &native.values[0])}) {
        std::vector<float> expected = new_entry(p, *unrounded, i);
        for (float& value : expected) value = round_to_e4m3(value);
        EXPECT_TRUE(bits_equal(new_entry(p, *actual, i), expected)) << "row " << i;
      }
    }
  }
}

// Most blocks of a launch have nothing to do in most steps of a layer, and must not run ahead.
TEST_P(DecoderBlocksTest, FewColumns) {
  const Problem p = make_problem({.num_heads = 2, .ff_dim = 128, .num_blocks = 12, .vocab = 16},
                                 std::vector<int>(64, 40));
  const Result first = run_device(p, 0, 64);
  for (int i = 0; i < 20; ++i) expect_same_rows(p, run_device(p, 0, 64), first, 0, 64);
  for (const float x : first.x) ASSERT_TRUE(std::isfinite(x));
}

// A done row beside live ones touches no page: its page table names pages that do not exist.
TEST_P(DecoderBlocksTest, DoneRowsBesideLiveOnesTouchNoPage) {
  for (const int count : {2, 8, 12, 24, 40}) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    std::vector<int> cached = contexts(count);
    for (int i = 0; i < count; i += 2) cached[static_cast<std::size_t>(i)] = -1;
    cached[1] = 300;
    Problem p = make_problem({}, cached);
    const Result expected = run_device(p, 0, count);
    for (int i = 0; i < count; ++i) {
      if (p.cached[i] >= 0) continue;
      const auto from = p.page_table.begin() + p.sequences[i].row * std::int64_t{kPagesPerRow};
      std::fill(from, from + kPagesPerRow, 1 << 28);
    }
    const Result actual = run_device(p, 0, count);
    expect_same_rows(p, actual, expected, 0, count);
    for (int b = 0; b < p.shape.num_blocks; ++b) {
      EXPECT_TRUE(
          bits_equal(old_entries(p, actual.keys[b]), old_entries(p, p.blocks[b].keys.host)));
      EXPECT_TRUE(
          bits_equal(old_entries(p, actual.values[b]), old_entries(p, p.blocks[b].values.host)));
    }
    expect_same_rows(p, run_device(p, 1, 1), actual, 1, 1);
  }
}

// Nothing is computed for them, and the launches before and after do not notice.
TEST_P(DecoderBlocksTest, AStepOfDoneRowsDoesNothing) {
  for (const int count : {1, 8, 12, 24, 40}) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    const Problem live = make_problem({}, contexts(count));
    const Problem dead = make_problem({}, std::vector<int>(static_cast<std::size_t>(count), -1));
    const Result before = run_device(live, 0, count);
    for (int repeat = 0; repeat < 3; ++repeat) {
      const Result nothing = run_device(dead, 0, count);
      EXPECT_TRUE(bits_equal(nothing.x, dead.x.host));
      for (const float logit : nothing.logits) ASSERT_TRUE(std::isnan(logit)) << "poison";
    }
    expect_same_rows(live, run_device(live, 0, count), before, 0, count);
  }
}

// The rows' states are looked at early and may say less than the plan: the plan has the last word.
TEST_P(DecoderBlocksTest, ThePlanSaysWhoLives) {
  for (const int count : {3, 12}) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    Problem p = make_problem({}, contexts(count));
    const Result expected = run_device(p, 0, count);
    for (RowState& row : p.row_states) row.done = 1;
    expect_same_rows(p, run_device(p, 0, count), expected, 0, count);
    p.tells_rows = false;
    expect_same_rows(p, run_device(p, 0, count), expected, 0, count);
    // Nobody lives, and nobody was told so early.
    Problem dead = make_problem({}, std::vector<int>(static_cast<std::size_t>(count), -1));
    for (RowState& row : dead.row_states) row.done = 0;
    run_device(dead, 0, count);
    p.tells_rows = true;
    expect_same_rows(p, run_device(p, 0, count), expected, 0, count);
  }
}

TEST_P(DecoderBlocksTest, Moondream2) {
  const int rows = is_f32() ? 2 : 5;  // the oracle is slow
  check(make_problem({.num_heads = 32, .ff_dim = 8192, .num_blocks = 1, .vocab = 2064},
                     contexts(rows)),
        {0});
}

INSTANTIATE_TEST_SUITE_P(Formats, DecoderBlocksTest,
                         ::testing::Values(KvFormat::kNative, KvFormat::kFp8), kv_format_name);

}  // namespace
}  // namespace gapless
