// Whole decoder blocks of a decode step, and the head behind them, against the same blocks composed
// of the oracle's ops.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kv_index.h"
#include "kernels/prepared_parts.h"
#include "tests/per_device/kernels_fixture.h"

namespace gapless::decoder_blocks {

struct Shape {
  int num_heads = 4;
  int ff_dim = 512;
  int num_blocks = 2;
  int vocab = 536;
  KvFormat kv_format = KvFormat::kNative;
  bool shares_pages = false;  // rows have all pages but their last in common
  int head_dim = 64;
  int num_kv_heads = 0;  // 0: as many as query heads
  int rotary_dim = 32;
  int max_context = 2048;
  // Sequential blocks have RMS norms, a gated feed-forward and no biases. The others have LayerNorms, a dense one
  // and all biases.
  bool is_sequential = false;
  bool normalises_heads = false;
  int width = 0;  // 0: that of all heads together
  // From block first_with_experts on so many experts, experts_per_token of them for a row; 0: none. A token's are as wide together as a
  // dense feed-forward. Heads then are scaled.
  int num_experts = 0, experts_per_token = 8, first_with_experts = 0;

  bool has_experts(int block) const { return num_experts > 0 && block >= first_with_experts; }
  int expert_dim() const { return ff_dim / experts_per_token; }
  int dim() const { return width != 0 ? width : num_heads * head_dim; }
  int up_dim() const { return is_sequential ? 2 * ff_dim : ff_dim; }
  int pages_per_row() const { return max_context / kPageTokens; }
  AttentionHeads heads() const {
    return {.num_heads = num_heads,
            .num_kv_heads = num_kv_heads != 0 ? num_kv_heads : num_heads,
            .head_dim = head_dim};
  }
};

struct Matrix {
  TestTensor weight, bias;
  int in = 0, out = 0;

  bool has_bias() const { return !bias.host.empty(); }

  LinearWeights dev() const {
    return {
        .weight = weight.dev(), .bias = has_bias() ? bias.dev() : nullptr, .in = in, .out = out};
  }
  LinearWeights ref() const {
    return {
        .weight = weight.ref(), .bias = has_bias() ? bias.ref() : nullptr, .in = in, .out = out};
  }
};

struct Norm {
  TestTensor gamma, beta;  // an empty beta: an RMS norm; an empty gamma: none

  NormWeights dev() const {
    return {.kind = kind(),
            .gamma = gamma.host.empty() ? nullptr : gamma.dev(),
            .beta = beta.host.empty() ? nullptr : beta.dev()};
  }
  NormWeights ref() const {
    return {.kind = kind(),
            .gamma = gamma.host.empty() ? nullptr : gamma.ref(),
            .beta = beta.host.empty() ? nullptr : beta.ref()};
  }

 private:
  NormKind kind() const { return beta.host.empty() ? NormKind::kRms : NormKind::kLayer; }
};

struct Block {
  Norm norm, ff_norm, q_norm, k_norm;
  Matrix qkv, proj, up, down;  // of experts: all of them, one behind the other
  TestTensor cache;
  Buffer prepared_in, prepared_out;
  Matrix router, scales;  // without outputs: none
  TestTensor alpha;
  Buffer prepared_up, prepared_down;  // of experts
};

// Rows about one picture have their first pages in common, but for their last one.
struct Picture {
  int number = -1;  // -1: one of the row's own
  int num_pages = 0;
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
  std::vector<Picture> pictures;            // of each row, or empty
  std::vector<std::int32_t> planned_table;  // the page table that the step's plan sees
  bool tells_prefixes = true;               // the op is told which rows begin with the same pages
  bool tells_rows = true;                   // the op is told the rows and their states
  std::vector<RowState> row_states;
  std::vector<float> rope_table;
  TestTensor x;
};

struct Result {
  std::vector<float> x, logits;
  std::vector<std::vector<float>> caches;  // of each block
  std::uint64_t num_chosen = 0;            // experts that the rows of layers chose
};

// The parameter: of the cache.
class BlocksTest : public KernelsTest, public ::testing::WithParamInterface<KvFormat> {
 protected:
  Matrix matrix(const Shape& shape, int in, int out) {
    return {.weight = random_tensor(static_cast<std::size_t>(in) * out,
                                    1.0f / std::sqrt(static_cast<float>(in))),
            .bias = shape.is_sequential ? TestTensor{} : random_tensor(out, 0.3f),
            .in = in,
            .out = out};
  }
  Matrix expert_matrices(const Shape& shape, int in, int out) {
    const auto size = static_cast<std::size_t>(shape.num_experts) * in * out;
    return {.weight = random_tensor(size, 1.0f / std::sqrt(static_cast<float>(in))),
            .bias = {},
            .in = in,
            .out = out};
  }
  Norm norm(const Shape& shape, int dim) {
    return {.gamma = random_tensor(dim, 0.2f, 1.0f),
            .beta = shape.is_sequential ? TestTensor{} : random_tensor(dim, 0.2f)};
  }

  struct Dev {
    const void* operator()(const TestTensor& tensor) const { return tensor.dev(); }
    auto operator()(const auto& part) const { return part.dev(); }
  };
  struct Ref {
    const void* operator()(const TestTensor& tensor) const { return tensor.ref(); }
    auto operator()(const auto& part) const { return part.ref(); }
  };

  // Addresses of one side, of the test's tensors or the oracle's.
  template <typename Of>
  static DecoderBlock describe(const Shape& shape, const Block& block, const Of& of) {
    DecoderBlock described{.norm = of(block.norm),
                           .qkv = of(block.qkv),
                           .proj = of(block.proj),
                           .ff = {.up = of(block.up), .down = of(block.down)}};
    if (shape.is_sequential) {
      described.residual = Residual::kSequential;
      described.ff_norm = of(block.ff_norm);
      described.q_norm = of(block.q_norm), described.k_norm = of(block.k_norm);
      described.ff.kind = FeedForwardKind::kGated;
      described.ff.activation = Activation::kSilu;
    }
    if (shape.num_experts > 0) {
      described.head_scales = {.products = of(block.scales), .alpha = of(block.alpha)};
    }
    if (block.router.out > 0) {
      described.ff.kind = FeedForwardKind::kExperts;
      described.ff.activation = Activation::kGeluErf;
      described.ff.up_offset = 1;
      described.ff.num_experts = shape.num_experts;
      described.ff.experts_per_token = shape.experts_per_token;
      described.ff.router = of(block.router);
    }
    return described;
  }

  // Two matrices become one where the second's columns start at a multiple of 128.
  bool prepares(int dim) const {
    return kernels_->prepared_linear_bytes(dim, dim, PreparedFormat::kNative) != 0 &&
           dim % 128 == 0;
  }

  // Where a step is composed of ops, which have tests of their own, it does not take all numbers of rows, widths and
  // repeats that a launch of its own has to be shown with: `composed` are enough there.
  template <typename T>
  T of_launch(T launch, T composed) const {
    return prepares(128) ? std::move(launch) : std::move(composed);
  }
  using Counts = std::vector<int>;

  Buffer prepare(const Matrix& first, const Matrix& second, bool beside, PreparedFormat format,
                 bool halves_alternate = false) {
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
                                            .first_in = beside ? first.in : 0,
                                            .halves_alternate = halves_alternate}));
    return to;
  }

  Problem make_problem(const Shape& shape, std::vector<int> cached,
                       std::vector<Picture> pictures = {}) {
    Problem p;
    p.shape = shape;
    p.pictures = std::move(pictures);
    p.shape.kv_format = GetParam();
    p.cached = std::move(cached);
    const int dim = shape.dim(), num_rows = static_cast<int>(p.cached.size());
    place_rows(p);
    for (int i = 0; i < shape.num_blocks; ++i) {
      Block block{.norm = norm(shape, dim),
                  .ff_norm = {},
                  .q_norm = {},
                  .k_norm = {},
                  .qkv = matrix(shape, dim, shape.heads().qkv_width()),
                  .proj = matrix(shape, shape.heads().q_width(), dim),
                  .up = matrix(shape, dim, shape.up_dim()),
                  .down = matrix(shape, shape.ff_dim, dim),
                  .cache = cache(p),
                  .prepared_in = {},
                  .prepared_out = {}};
      if (shape.num_experts > 0) {
        // Small enough that no scale is nearly 0, which would make a head's rounding errors large beside it.
        const int width = shape.heads().qkv_width();
        block.scales = {
            .weight = random_tensor(static_cast<std::size_t>(width) * 2 * shape.num_heads,
                                    0.3f / std::sqrt(static_cast<float>(width))),
            .bias = {},
            .in = width,
            .out = 2 * shape.num_heads};
        block.alpha = random_tensor(shape.num_heads, 0.5f);
      }
      if (shape.has_experts(i)) {
        block.router = matrix(shape, dim, shape.num_experts);
        block.up = expert_matrices(shape, dim, 2 * shape.expert_dim());
        block.down = expert_matrices(shape, shape.expert_dim(), dim);
      }
      if (shape.is_sequential) block.ff_norm = norm(shape, dim);
      if (shape.normalises_heads) {
        block.q_norm = norm(shape, shape.head_dim), block.k_norm = norm(shape, shape.head_dim);
      }
      p.blocks.push_back(std::move(block));
    }
    prepare_blocks(p, PreparedFormat::kNative);
    p.post_ln = norm(shape, dim);
    p.head = matrix(shape, dim, shape.vocab);
    p.x = random_tensor(static_cast<std::size_t>(num_rows) * dim);
    p.rope_table = any_rope_table(shape.max_context, shape.rotary_dim);
    return p;
  }

  void prepare_blocks(Problem& p, PreparedFormat format) {
    p.format = format;
    for (Block& block : p.blocks) {
      if (p.shape.num_experts > 0) {
        prepare_with_experts(p.shape, format, block);
        continue;
      }
      block.prepared_in = prepare(block.qkv, block.up, false, format, p.shape.is_sequential);
      block.prepared_out = prepare(block.proj, block.down, true, format);
    }
  }

  void prepare_with_experts(const Shape& shape, PreparedFormat format, Block& block) {
    if (!prepares(shape.dim())) return;
    const DecoderBlock described = describe(shape, block, Dev());
    const bool dense = described.ff.kind != FeedForwardKind::kExperts;
    const std::size_t element_bytes = dtype_bytes(kernels_->activation_dtype());
    std::vector<PreparedPart> parts;
    if (dense) {
      const auto four = prepared_parts(described);
      parts.assign(four.begin(), four.end());
    } else {
      parts = prepared_expert_parts(described, element_bytes);
    }
    for (const PreparedPart& part : parts) {
      Buffer& to = part.matrix == PreparedMatrix::kIn          ? block.prepared_in
                   : part.matrix == PreparedMatrix::kOut       ? block.prepared_out
                   : part.matrix == PreparedMatrix::kExpertsUp ? block.prepared_up
                                                               : block.prepared_down;
      if (to.data() == nullptr || part.first_out + part.first_in == 0) {
        to = poisoned_bytes(kernels_->prepared_linear_bytes(part.total_in, part.total_out, format));
      }
      run(kernels_->prepare_linear(*stream_, {.weights = part.weights,
                                              .prepared = to.data(),
                                              .format = format,
                                              .total_in = part.total_in,
                                              .total_out = part.total_out,
                                              .first_out = part.first_out,
                                              .first_in = part.first_in,
                                              .halves_alternate = part.halves_alternate}));
    }
  }

  // Rows of many sizes, one of zeros, rounded to 8 bits.
  void round_to_fp8(Matrix& m) {
    std::vector<float> weights = m.weight.host;
    const int num_rows = static_cast<int>(weights.size()) / m.in;  // of all experts
    for (int row = 0; row < num_rows; ++row) {
      const float factor = row == 3 ? 0.0f : std::ldexp(1.0f, -(row % 6));
      for (int i = 0; i < m.in; ++i) weights[static_cast<std::size_t>(row) * m.in + i] *= factor;
    }
    m.weight = tensor(weights);
    run(kernels_->round_to_fp8(
        *stream_, {.weight = m.weight.device.data(), .num_rows = num_rows, .row_size = m.in}));
  }

  static int num_pages(const Problem& p) {
    int all = 1;
    std::map<int, int> common;  // by picture
    for (int i = 0; i < static_cast<int>(p.cached.size()); ++i) {
      const int pages = pages_of(p.cached[static_cast<std::size_t>(i)]);
      const Picture picture = picture_of(p, i);
      const int num_common = std::min(picture.num_pages, std::max(pages - 1, 0));
      all += pages - num_common;
      common[picture.number] = std::max(common[picture.number], num_common);
    }
    for (const auto& [number, pages] : common) all += pages;
    return all;
  }

  void place_rows(Problem& p) {
    std::vector<std::int32_t> free_pages(num_pages(p) - 1);
    std::iota(free_pages.begin(), free_pages.end(), 1);
    std::shuffle(free_pages.begin(), free_pages.end(), random_);
    std::map<int, std::vector<std::int32_t>> shared;  // by picture
    const auto take_page = [&] {
      const std::int32_t page = free_pages.back();
      free_pages.pop_back();
      return page;
    };
    const int num_rows = static_cast<int>(p.cached.size());
    p.page_table.assign(static_cast<std::size_t>(num_rows + 1) * p.shape.pages_per_row(), 0);
    p.row_states.resize(static_cast<std::size_t>(num_rows) + 1);
    for (int i = 0; i < num_rows; ++i) {
      const int cached = p.cached[i], seat = num_rows - i;  // not the place in the batch
      std::int32_t* pages = p.page_table.data() + seat * std::int64_t{p.shape.pages_per_row()};
      for (int page = 0; page < pages_of(cached); ++page) {
        const Picture picture = picture_of(p, i);
        if (page >= picture.num_pages || page + 1 == pages_of(cached)) {
          pages[page] = take_page();
          continue;
        }
        const auto n = static_cast<std::size_t>(page);
        std::vector<std::int32_t>& common = shared[picture.number];
        if (n == common.size()) common.push_back(take_page());
        pages[page] = common[n];
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
    p.planned_table = p.page_table;
  }

  static Picture picture_of(const Problem& p, int row) {
    if (p.shape.shares_pages) return {.number = 0, .num_pages = p.shape.pages_per_row()};
    return p.pictures.empty() ? Picture() : p.pictures[static_cast<std::size_t>(row)];
  }

  // What the plan of such a step says.
  static std::vector<SharedPrefix> shared_prefixes(const Problem& p,
                                                   std::span<const AttentionSequence> sequences) {
    const std::size_t count = sequences.size();
    std::vector<std::int32_t> rows, positions(count), slots(count), index(count);
    std::vector<RowState> states(p.row_states.size());
    for (const AttentionSequence& sequence : sequences) {
      rows.push_back(sequence.row);
      RowState& state = states[static_cast<std::size_t>(sequence.row)];
      state.position = sequence.num_cached;
      state.done = sequence.num_tokens == 0 ? 1 : 0;
    }
    std::vector<AttentionSequence> planned(count);
    std::vector<SharedPrefix> prefixes(count);
    auto cpu = open_device("cpu");
    auto stream = (*cpu)->create_stream("plan");
    EXPECT_TRUE(make_reference_kernels()
                    ->plan_decode(**stream, {.rows = rows.data(),
                                             .row_states = states.data(),
                                             .page_table = p.planned_table.data(),
                                             .page_table_stride = p.shape.pages_per_row(),
                                             .num_rows = static_cast<int>(count),
                                             .positions = positions.data(),
                                             .cache_slots = slots.data(),
                                             .sequences = planned.data(),
                                             .input_index = index.data(),
                                             .shared_prefixes = prefixes.data()})
                    .ok());
    EXPECT_TRUE((*stream)->synchronize().ok());
    return prefixes;
  }

  static int pages_of(int cached) { return (cached + kPageTokens) / kPageTokens * (cached >= 0); }

  static constexpr KvPart kParts[] = {KvPart::kKeys, KvPart::kValues};

  TestTensor cache(const Problem& p) {
    const KvLayout layout = p.shape.heads().kv_layout();
    std::vector<float> values(static_cast<std::size_t>(num_pages(p) * layout.page_size()), NAN);
    for (const KvPart part : kParts) {
      for (const AttentionSequence& s : p.sequences) {
        const std::int32_t* pages =
            p.page_table.data() + s.row * std::int64_t{p.shape.pages_per_row()};
        for (int position = 0; position < s.num_cached; ++position) {
          for (int h = 0; h < layout.num_heads; ++h) {
            float* to = &values[layout.at(part, kv_slot(pages, position), h)];
            if (!std::isnan(*to)) continue;  // shared, and filled in for an earlier row
            const std::vector<float> head =
                random_values(layout.head_dim, part == KvPart::kKeys ? 1.5f : 1.0f);
            std::copy(head.begin(), head.end(), to);
          }
        }
      }
    }
    return kv_tensor(p.shape.kv_format, values);
  }

  DecoderBlocksParams params(const Problem& p, int num_rows) {
    DecoderBlocksParams params;
    params.num_blocks = p.shape.num_blocks;
    params.page_table_stride = p.shape.pages_per_row();
    params.num_sequences = num_rows;
    params.num_tokens = num_rows;
    params.max_context = p.shape.max_context;
    params.heads = p.shape.heads();
    params.rotary_dim = p.shape.rotary_dim;
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
      caches.push_back(kv_tensor(p.shape.kv_format, block.cache.host));
      const bool prepared = prepares(dim);
      DecoderBlock described = describe(p.shape, block, Dev());
      if (block.router.out > 0 && prepared) {
        described.prepared_experts = {block.prepared_up.data(), block.prepared_down.data()};
      }
      described.prepared_in = prepared ? block.prepared_in.data() : nullptr;
      described.prepared_out = prepared ? block.prepared_out.data() : nullptr;
      described.prepared_format = p.format;
      described.kv = {caches.back().device.data(), p.shape.kv_format};
      blocks.push_back(described);
    }
    // What a launch takes it must run: nothing is composed behind a test's back.
    const bool has_launch = std::string(kernels_->name()) == "cuda";
    if (has_launch && expects_launch_) {
      DecoderBlocksParams asked = params(p, count);
      asked.blocks = blocks.data();
      EXPECT_TRUE(kernels_->check_fast_decoder(asked).ok())
          << kernels_->check_fast_decoder(asked).to_string();
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
    const Buffer prefixes = upload(shared_prefixes(p, sequences));
    const Buffer sequences_dev = upload(sequences), rope = upload(p.rope_table);
    const Buffer positions = upload(std::vector<std::int32_t>(p.positions.begin() + first,
                                                              p.positions.begin() + first + count));
    const Buffer slots = upload(std::vector<std::int32_t>(p.cache_slots.begin() + first,
                                                          p.cache_slots.begin() + first + count));
    const Buffer pages = upload(p.page_table);
    std::vector<std::int32_t> seats;
    for (const AttentionSequence& sequence : sequences) seats.push_back(sequence.row);
    const Buffer rows_dev = upload(seats), states_dev = upload(p.row_states);
    const auto qkv_columns = static_cast<std::size_t>(std::max(p.shape.heads().qkv_width(), dim));
    const auto wide = static_cast<std::size_t>(std::max(p.shape.heads().q_width(), dim));
    const Buffer norm_scratch = poisoned(rows * dim), qkv = poisoned(rows * qkv_columns);
    const Buffer attention = poisoned(rows * wide), inner = poisoned(rows * p.shape.up_dim() * 2);
    const Buffer head_norm = poisoned(rows * dim);
    const Buffer logits = poisoned_bytes(rows * p.shape.vocab * sizeof(float));
    const Buffer attention_scratch = poisoned_bytes(std::max(
        kernels_->attention_scratch_bytes(count, count, p.shape.max_context, p.shape.heads()),
        kernels_->scale_heads_scratch_bytes(count, p.shape.heads())));
    const ExpertSizes experts{.dim = dim,
                              .inner = p.shape.expert_dim(),
                              .num_experts = p.shape.num_experts,
                              .experts_per_token = p.shape.experts_per_token};
    const Buffer op_scratch = poisoned_bytes(
        p.shape.num_experts > 0 ? kernels_->experts_scratch_bytes(count, experts) : 0);
    const Buffer num_chosen = upload(std::vector<ChosenExperts>(1));
    b.op_scratch = op_scratch.data();
    b.chosen_experts = num_chosen.as<ChosenExperts>();
    const Buffer block_scratch = poisoned_bytes(kernels_->decoder_blocks_scratch_bytes(
        count, dim, p.shape.ff_dim, p.shape.heads(), p.shape.max_context, experts));
    const Buffer needed = upload(std::vector<StepLogits>{needed_.value_or(StepLogits())});
    const DecoderHead head{.norm = p.post_ln.dev(),
                           .linear = head_weights,
                           .normed = head_norm.data(),
                           .logits = logits.as<float>(),
                           .needed = needed_ ? needed.as<StepLogits>() : nullptr};
    b.blocks = blocks.data();
    b.head = &head;
    b.x = x.device.data();
    b.positions = positions.as<std::int32_t>();
    b.cache_slots = slots.as<std::int32_t>();
    b.rope_table = rope.as<float>();
    b.page_table = pages.as<std::int32_t>();
    b.sequences = sequences_dev.as<AttentionSequence>();
    if (p.tells_prefixes) b.shared_prefixes = prefixes.as<SharedPrefix>();
    const bool lives = std::ranges::any_of(
        sequences, [](const AttentionSequence& row) { return row.num_tokens > 0; });
    const Buffer any_lives = upload(std::vector<std::uint32_t>{lives ? 1u : 0u});
    b.any_lives = any_lives.as<std::uint32_t>();
    if (p.tells_rows) {
      b.rows = rows_dev.as<std::int32_t>();
      b.row_states = states_dev.as<RowState>();
    }
    b.norm = norm_scratch.data(), b.qkv = qkv.data();
    b.attention = attention.data(), b.inner = inner.data();
    b.attention_scratch = attention_scratch.data(), b.block_scratch = block_scratch.data();
    run_blocks(b);
    Result result{
        .x = floats(x.device), .logits = download<float>(logits), .caches = {}, .num_chosen = 0};
    for (const std::uint64_t some : download<ChosenExperts>(num_chosen).front().experts) {
      result.num_chosen += some;
    }
    for (const TestTensor& cache : caches) {
      result.caches.push_back(kv_floats(p.shape.kv_format, cache.device));
    }
    return result;
  }

  // The op, or what it is composed of, in a graph.
  void run_blocks(const DecoderBlocksParams& b) {
    if (!composes_in_graph_) return run(kernels_->decoder_blocks(*stream_, b));
    ASSERT_TRUE(stream_->begin_capture().ok());
    const Status status = kernels_->Kernels::decoder_blocks(*stream_, b);
    ASSERT_TRUE(status.ok()) << status.to_string();
    const auto graph = stream_->end_capture();
    ASSERT_TRUE(graph.ok()) << graph.status().to_string();
    run(stream_->launch(**graph));
  }

  // factors: unless empty, what x is multiplied by.
  Result run_reference(const Problem& p, const std::vector<float>& factors = {}) {
    const int dim = p.shape.dim(), num_rows = static_cast<int>(p.cached.size());
    const auto rows = static_cast<std::size_t>(num_rows);
    const std::unique_ptr<Kernels> oracle = make_reference_kernels();
    auto cpu = open_device("cpu");
    auto stream = (*cpu)->create_stream("oracle");
    Result r{.x = p.x.host, .logits = std::vector<float>(rows * p.shape.vocab), .caches = {}};
    for (std::size_t i = 0; i < factors.size(); ++i) r.x[i] *= factors[i];
    std::vector<std::vector<std::uint8_t>> caches;
    for (const Block& block : p.blocks) {
      caches.push_back(kv_bytes(p.shape.kv_format, block.cache.host));
    }
    std::vector<DecoderBlock> blocks;
    for (std::size_t i = 0; i < p.blocks.size(); ++i) {
      const Block& block = p.blocks[i];
      blocks.push_back(describe(p.shape, block, Ref()));
      blocks.back().kv = {caches[i].data(), p.shape.kv_format};
    }
    const AttentionHeads heads = p.shape.heads();
    std::vector<float> norm(rows * dim), qkv(rows * std::max(heads.qkv_width(), dim)),
        attention(rows * std::max(heads.q_width(), dim)), inner(rows * p.shape.up_dim() * 2),
        head_norm(rows * dim);
    const DecoderHead head{.norm = p.post_ln.ref(),
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
      const std::size_t size = p.blocks[i].cache.host.size();
      std::vector<float>& to = r.caches.emplace_back(size);
      load_kv(p.shape.kv_format, caches[i].data(), 0, to.data(), static_cast<int>(size));
    }
    return r;
  }

  // The new token's keys or values of row i in one block: [heads, head_dim].
  static std::vector<float> new_entry(const Problem& p, const std::vector<float>& cache,
                                      KvPart part, int i) {
    const KvLayout layout = p.shape.heads().kv_layout();
    std::vector<float> entry;
    for (int h = 0; h < layout.num_heads; ++h) {
      const auto at = cache.begin() + layout.at(part, p.cache_slots[i], h);
      entry.insert(entry.end(), at, at + layout.head_dim);
    }
    return entry;
  }

  // A head's scale may be the difference of two numbers that are nearly equal. What is left of its values then is measured as if it
  // were a tenth as large as heads are in the mean.
  static double least_head_norm(const Shape& shape, const std::vector<float>& values) {
    if (shape.num_experts == 0) return 0;
    double squares = 0;
    for (const float value : values) squares += static_cast<double>(value) * value;
    return 0.1 * std::sqrt(squares * shape.head_dim / static_cast<double>(values.size()));
  }

  // What earlier tokens left in the cache, and what nobody owns, but not page 0 (done rows may
  // write there).
  static std::vector<float> old_entries(const Problem& p, std::vector<float> cache) {
    const KvLayout layout = p.shape.heads().kv_layout();
    for (std::size_t i = 0; i < p.cached.size(); ++i) {
      if (p.cached[i] < 0) continue;
      for (const KvPart part : kParts) {
        for (int h = 0; h < layout.num_heads; ++h) {
          const auto at = cache.begin() + layout.at(part, p.cache_slots[i], h);
          std::fill(at, at + layout.head_dim, 0.0f);
        }
      }
    }
    cache.erase(cache.begin(), cache.begin() + layout.page_size());
    return cache;
  }

  static void expect_old_entries_kept(const Problem& p, const Result& result) {
    for (int b = 0; b < p.shape.num_blocks; ++b) {
      ASSERT_TRUE(
          bits_equal(old_entries(p, result.caches[b]), old_entries(p, p.blocks[b].cache.host)));
    }
  }

  // All rows together agree with the oracle; some alone, and as the tail of the batch, have the
  // same bits; and so has the whole batch once more.
  void check(const Problem& p, const std::vector<int>& alone) {
    const int dim = p.shape.dim(), vocab = p.shape.vocab;
    const int num_rows = static_cast<int>(p.cached.size());
    const bool fp8 = p.shape.kv_format == KvFormat::kFp8;
    const double loose = fp8 ? fp8_tolerance_ : is_f32() ? 2e-4 : 2.5e-2;
    // A number that lies between two of e4m3 may become either: an eighth of it.
    const double entry_loose = fp8 ? 0.07 : loose;
    const Result all = run_device(p, 0, num_rows);
    const Result expected = run_reference(p);
    const std::vector<bool> is_sure = rows_with_a_sure_route(p, expected, loose);
    for (int i = 0; i < num_rows; ++i) {
      if (p.cached[i] < 0 || !is_sure[i]) continue;
      SCOPED_TRACE("row " + std::to_string(i) + ", cached " + std::to_string(p.cached[i]));
      ASSERT_TRUE(rows_close(rows_of(all.x, dim, i, i + 1), rows_of(expected.x, dim, i, i + 1), dim,
                             loose));
      ASSERT_TRUE(rows_close(rows_of(all.logits, vocab, i, i + 1),
                             rows_of(expected.logits, vocab, i, i + 1), vocab, loose));
      for (int b = 0; b < p.shape.num_blocks; ++b) {
        const auto entry = [&](const Result& result, KvPart part) {
          return new_entry(p, result.caches[b], part, i);
        };
        ASSERT_TRUE(rows_close(entry(all, KvPart::kKeys), entry(expected, KvPart::kKeys),
                               p.shape.head_dim, entry_loose));
        const std::vector<float> values = entry(expected, KvPart::kValues);
        ASSERT_TRUE(rows_close(entry(all, KvPart::kValues), values, p.shape.head_dim, entry_loose,
                               least_head_norm(p.shape, values)));
      }
    }
    ASSERT_NO_FATAL_FAILURE(expect_old_entries_kept(p, all));
    for (const int first : alone) {
      expect_same_rows(p, run_device(p, first, 1), all, first, 1);
      expect_same_rows(p, run_device(p, first, num_rows - first), all, first, num_rows - first);
    }
    expect_same_rows(p, run_device(p, 0, num_rows), all, 0, num_rows);
  }

  // In bfloat16 a row may choose other experts than in float32, where two logits are close. Rows are compared with the oracle whose
  // results stay if x is changed a little.
  std::vector<bool> rows_with_a_sure_route(const Problem& p, const Result& expected, double loose) {
    const auto num_rows = p.cached.size(), dim = static_cast<std::size_t>(p.shape.dim());
    std::vector<bool> is_sure(num_rows, true);
    if (p.shape.num_experts == 0 || is_f32()) return is_sure;
    for (int repeat = 0; repeat < 5; ++repeat) {
      std::vector<float> factors = random_values(static_cast<int>(num_rows * dim), 0.012f, 1.0f);
      Result changed = run_reference(p, factors);
      for (std::size_t i = 0; i < num_rows; ++i) {
        if (p.cached[i] < 0) continue;
        is_sure[i] = is_sure[i] && bool{rows_close(rows_of(changed.x, dim, i, i + 1),
                                                   rows_of(expected.x, dim, i, i + 1), dim, loose)};
      }
    }
    num_sure_rows_ += static_cast<int>(std::ranges::count(is_sure, true));
    num_rows_ += static_cast<int>(num_rows);
    return is_sure;
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
        for (const KvPart part : kParts) {
          ASSERT_TRUE(bits_equal(new_entry(p, some.caches[b], part, first + i),
                                 new_entry(p, all.caches[b], part, first + i)));
        }
      }
    }
  }

  // Steps that need all logits, some, or none, one behind the other: what is needed has the bits that it has among all,
  // and so has everything else that a step leaves behind. What lies far from it is not touched.
  void check_needed_logits(const Shape& shape, int count) {
    const Problem p = make_problem(shape, contexts(count));
    const int dim = shape.dim(), vocab = shape.vocab;
    const Result all = run_device(p, 0, count);
    std::vector<std::vector<std::int32_t>> steps = {
        {0, 5}, {}, {vocab - 1}, {}, {vocab - 1, 2, vocab / 2, 17}, {0, 5}};
    for (const std::vector<std::int32_t>& tokens : steps) {
      SCOPED_TRACE(std::to_string(count) + " rows, " + std::to_string(tokens.size()) + " tokens");
      needed_ = StepLogits();
      for (const std::int32_t token : tokens) needed_->add(token);
      const Result some = run_device(p, 0, count);
      for (int i = 0; i < count; ++i) {
        if (p.cached[i] < 0) continue;
        ASSERT_TRUE(bits_equal(rows_of(some.x, dim, i, i + 1), rows_of(all.x, dim, i, i + 1)));
        for (int b = 0; b < p.shape.num_blocks; ++b) {
          for (const KvPart part : kParts) {
            ASSERT_TRUE(bits_equal(new_entry(p, some.caches[b], part, i),
                                   new_entry(p, all.caches[b], part, i)));
          }
        }
        const auto logits = rows_of(some.logits, vocab, i, i + 1);
        const auto expected = rows_of(all.logits, vocab, i, i + 1);
        for (const std::int32_t token : tokens) {
          ASSERT_TRUE(bits_equal(logits.subspan(token, 1), expected.subspan(token, 1)))
              << "row " << i << ", token " << token;
        }
        if (tokens.empty()) {
          ASSERT_TRUE(all_poison(logits)) << "row " << i;
        }
        if (tokens.size() == 2) {
          ASSERT_TRUE(all_poison(logits.subspan(32))) << "row " << i;
        }
      }
      needed_ = StepLogits{.all = 1};
      expect_same_rows(p, run_device(p, 0, count), all, 0, count);
    }
    needed_.reset();
    expect_same_rows(p, run_device(p, 0, count), all, 0, count);
  }

  // A done row beside live ones touches no page: its page table names pages that do not exist.
  void check_done_rows_touch_no_page(const Shape& shape, int count) {
    std::vector<int> cached = contexts(count);
    for (int i = 0; i < count; i += 2) cached[static_cast<std::size_t>(i)] = -1;
    cached[1] = 300;
    Problem p = make_problem(shape, cached);
    const Result expected = run_device(p, 0, count);
    for (int i = 0; i < count; ++i) {
      if (p.cached[i] >= 0) continue;
      const auto from =
          p.page_table.begin() + p.sequences[i].row * std::int64_t{p.shape.pages_per_row()};
      std::fill(from, from + p.shape.pages_per_row(), 1 << 28);
    }
    const Result actual = run_device(p, 0, count);
    expect_same_rows(p, actual, expected, 0, count);
    expect_old_entries_kept(p, actual);
    expect_same_rows(p, run_device(p, 1, 1), actual, 1, 1);
  }

  // Not bit for bit: a backend may multiply in half precision, which has no numbers below 2^-24.
  void check_weights_in_8_bits(const Shape& shape, int rows) {
    Problem p = make_problem(shape, std::vector<int>(static_cast<std::size_t>(rows), 40));
    for (Block& block : p.blocks) {
      for (Matrix* m : {&block.qkv, &block.proj, &block.up, &block.down}) round_to_fp8(*m);
    }
    round_to_fp8(p.head);
    prepare_blocks(p, PreparedFormat::kNative);
    const Result native = run_device(p, 0, rows);
    prepare_blocks(p, PreparedFormat::kFp8);
    const Result fp8 = run_device(p, 0, rows);
    EXPECT_TRUE(rows_close(fp8.x, native.x, shape.dim(), 5e-3));
    EXPECT_TRUE(rows_close(fp8.logits, native.logits, shape.vocab, 5e-3));
    expect_same_rows(p, run_device(p, rows - 1, 1), fp8, rows - 1, 1);
  }

  // So many keys that each of 132 multiprocessors has several batches of them to look up and ask for
  // in a layer, and the same again in the next; some rows between have none.
  static std::vector<int> many_keys() {
    std::vector<int> cached;
    for (int i = 0; i < 40; ++i) cached.push_back(i % 7 == 3 ? -1 : 250 + 17 * i);
    std::fill(cached.begin() + 20, cached.begin() + 25, -1);
    return cached;
  }

  // `count` contexts around every edge of pages, units and splits, some rows done.
  std::vector<int> contexts(int count) {
    const std::vector<int> edges = {849, 0,   14,  15,  16,  30,   31,   32,  63,  -1,  64,
                                    127, 128, 129, 143, 144, 2047, 1023, 255, 256, 700, 5};
    std::vector<int> result;
    for (int i = 0; i < count; ++i) {
      const auto n = static_cast<std::size_t>(i);
      // Many rows are short: caches of all of them are compared.
      const unsigned longest = n < 64 ? 400 : 80;
      result.push_back(n < edges.size() ? edges[n] : static_cast<int>(random_() % longest) - 1);
    }
    return result;
  }

  // Rows that were compared with the oracle, of so many.
  int num_sure_rows_ = 0, num_rows_ = 0;
  bool expects_launch_ = false;  // on CUDA, of every step
  bool composes_in_graph_ = false;
  std::optional<StepLogits> needed_;
  // Of rows and logits, with an 8-bit cache: numbers between two of e4m3 may become either.
  double fp8_tolerance_ = 2.5e-2;
};

}  // namespace gapless::decoder_blocks
