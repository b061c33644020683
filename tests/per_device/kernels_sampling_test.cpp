#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "kernels/sampling_uniform.h"
#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// What one launch samples from. Row i of the batch sits on seat seats[i].
struct Batch {
  int vocab = 0;
  std::vector<float> logits;  // [rows, vocab + pad]
  std::vector<std::int32_t> seats;
  std::vector<RowState> states;
  std::vector<AutomatonState> automata;
  std::vector<std::uint8_t> token_classes;  // of states that have classes
  std::vector<std::uint32_t> host_masks, grammar_masks;
  int mask_words = 0;
  bool behind_grammar_masks = false;
  // Token memory, [seats, memory_stride()]; empty: none. The entries of seats without
  // kRowAdjustsLogits are rubbish that would win.
  std::vector<std::uint16_t> uses;
  std::vector<float> biases;

  static constexpr int kPad = 4;
  int stride() const { return vocab + kPad; }
  const float* row(std::size_t i) const { return logits.data() + i * stride(); }
  float* row(std::size_t i) { return logits.data() + i * stride(); }
  std::int64_t memory_stride() const { return token_memory_stride(vocab); }
  reference::RowMemory memory_of(std::int32_t seat) const {
    if (uses.empty()) return {};
    return {uses.data() + seat * memory_stride(), biases.data() + seat * memory_stride()};
  }
};

class SamplingTest : public KernelsTest {
 protected:
  struct Result {
    std::vector<std::int32_t> tokens;
    std::vector<float> logprobs;
    std::vector<TokenConfidence> confidences;
  };

  // num_rows live rows on shuffled seats, normal logits, default sampling.
  Batch make_batch(int num_rows, int vocab, float stddev = 3.0f) {
    Batch b;
    b.vocab = vocab;
    b.logits = random_values(static_cast<std::size_t>(num_rows) * b.stride(), stddev);
    b.states.resize(num_rows + 3);
    b.seats.resize(num_rows);
    for (int i = 0; i < num_rows; ++i) {
      b.seats[i] = num_rows + 2 - i;
      // The padding of a row would win every argmax.
      std::fill_n(b.row(i) + vocab, Batch::kPad, 1e30f);
      b.states[b.seats[i]].sampling.seed = 1000 + i;
      b.states[b.seats[i]].num_generated = 7 * i;
    }
    b.mask_words = (vocab + 31) / 32;
    b.host_masks.assign(static_cast<std::size_t>(num_rows) * b.mask_words, 0);
    b.grammar_masks = b.host_masks;
    return b;
  }

  Result run_device(const Batch& b) {
    const int num_rows = static_cast<int>(b.seats.size());
    const Buffer logits = upload(b.logits), seats = upload(b.seats), states = upload(b.states);
    const Buffer automata = upload(b.automata), masks = upload(b.host_masks);
    const Buffer token_classes = upload(b.token_classes);
    const Buffer grammar_masks = upload(b.grammar_masks);
    const Buffer uses = upload(b.uses), biases = upload(b.biases);
    const Buffer tokens = poisoned_bytes((num_rows + 1) * sizeof(std::int32_t));
    const Buffer logprobs = poisoned_bytes((num_rows + 1) * sizeof(float));
    const Buffer confidences = poisoned_bytes(num_rows * sizeof(TokenConfidence));
    const Buffer scratch = poisoned_bytes(kernels_->sample_scratch_bytes(num_rows, b.vocab));
    run(kernels_->sample(*stream_, {.logits = logits.as<float>(),
                                    .logits_stride = b.stride(),
                                    .rows = seats.as<std::int32_t>(),
                                    .row_states = states.as<RowState>(),
                                    .automata = automata.as<AutomatonState>(),
                                    .token_classes = token_classes.as<std::uint8_t>(),
                                    .host_masks = masks.as<std::uint32_t>(),
                                    .host_mask_stride = b.mask_words,
                                    .grammar_masks = grammar_masks.as<std::uint32_t>(),
                                    .behind_grammar_masks = b.behind_grammar_masks,
                                    .token_memory = {.uses = uses.as<std::uint16_t>(),
                                                     .biases = biases.as<float>(),
                                                     .stride = b.memory_stride()},
                                    .tokens = tokens.as<std::int32_t>(),
                                    .logprobs = logprobs.as<float>(),
                                    .confidences = confidences.as<TokenConfidence>(),
                                    .num_rows = num_rows,
                                    .vocab = b.vocab,
                                    .scratch = scratch.data()}));
    Result result{download<std::int32_t>(tokens), download<float>(logprobs),
                  download<TokenConfidence>(confidences)};
    EXPECT_EQ(result.tokens.back(), -1) << "wrote past the last row";
    EXPECT_TRUE(is_poison(result.logprobs.back())) << "wrote past the last row";
    result.tokens.pop_back();
    result.logprobs.pop_back();
    return result;
  }

  // Gives every seat a memory: of those that adjust a third of the tokens biased, some used, some in
  // the prompt; of the others one that would win.
  void remember_tokens(Batch& b) {
    const std::size_t stride = static_cast<std::size_t>(b.memory_stride());
    b.uses.assign(b.states.size() * stride, 0);
    b.biases.assign(b.states.size() * stride, 0);
    for (std::size_t seat = 0; seat < b.states.size(); ++seat) {
      const bool adjusts = (b.states[seat].flags & kRowAdjustsLogits) != 0;
      for (int token = 0; token < b.vocab; ++token) {
        const std::uint64_t draw = random_();
        std::uint16_t& uses = b.uses[seat * stride + token];
        float& bias = b.biases[seat * stride + token];
        if (!adjusts) {
          uses = 0xffff;
          bias = 100.0f * static_cast<float>(draw % 2);
          continue;
        }
        if (draw % 3 == 0) bias = static_cast<float>(draw >> 8 & 0xff) / 32.0f - 4.0f;
        if (draw % 5 == 0) uses |= kTokenInPrompt;
        if (draw % 7 == 0) uses |= static_cast<std::uint16_t>(1 + (draw >> 20) % 3);
      }
    }
  }

  // One live row with these logits.
  Batch one_row(std::vector<float> logits) {
    Batch b = make_batch(1, static_cast<int>(logits.size()));
    std::copy(logits.begin(), logits.end(), b.row(0));
    return b;
  }
  static RowState& state_of(Batch& b, std::size_t i = 0) { return b.states[b.seats[i]]; }
  std::int32_t token_of(const Batch& b) { return run_device(b).tokens[0]; }

  // Every row's token is the oracle's; where rounding in a running sum may decide, a neighbour's
  // answer passes too, but rarely. The logprob is that of the token chosen.
  void expect_reference(const Batch& b) {
    const Result actual = run_device(b);
    int num_exact = 0;
    const int num_rows = static_cast<int>(b.seats.size());
    for (int i = 0; i < num_rows; ++i) {
      const RowState& row = b.states[b.seats[i]];
      const std::size_t mask_at = std::size_t(i) * b.mask_words;
      const std::uint32_t* mask = (row.flags & kRowHostMask) != 0 ? b.host_masks.data() + mask_at
                                  : row.grammar != kNoGrammar     ? b.grammar_masks.data() + mask_at
                                                                  : nullptr;
      const double u = sampling_uniform(row.sampling.seed, row.num_generated);
      auto sample = [&](const RowState& state, double at) {
        return reference::sample_row(b.row(i), b.vocab, state,
                                     {b.automata.data(), b.token_classes.data()}, mask, at,
                                     b.memory_of(b.seats[i]));
      };
      const reference::SampledToken exact = sample(row, u);
      num_exact += exact.token == actual.tokens[i];
      std::set<std::int32_t> accepted = {exact.token};
      for (const double shift : {-1e-6, 0.0, 1e-6}) {
        for (const float nudge : {-1e-6f, 0.0f, 1e-6f}) {
          RowState state = row;
          if (row.sampling.top_p < 1) state.sampling.top_p = row.sampling.top_p + nudge;
          if (row.sampling.min_p > 0) state.sampling.min_p = row.sampling.min_p * (1 + 4 * nudge);
          accepted.insert(sample(state, std::clamp(u + shift, 0.0, 1.0 - 1e-9)).token);
        }
      }
      EXPECT_TRUE(accepted.contains(actual.tokens[i]))
          << "row " << i << ": " << actual.tokens[i] << ", expected " << exact.token;
      if (exact.token == actual.tokens[i]) {
        EXPECT_NEAR(actual.logprobs[i], exact.logprob, 1e-4 + 1e-6 * std::abs(exact.logprob));
      }
    }
    EXPECT_GE(num_exact, num_rows - 1 - num_rows / 50);
  }
};

TEST_F(SamplingTest, GreedyTakesTheLargestLogitAndTheLowestIdAmongEquals) {
  Batch b = make_batch(33, 4096);
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    // Two, or three, equal winners in different places.
    const std::size_t first = (i * 131) % 4000;
    b.row(i)[first] = b.row(i)[first + 5] = b.row(i)[4095] = 50;
  }
  const Result result = run_device(b);
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    EXPECT_EQ(result.tokens[i], static_cast<std::int32_t>((i * 131) % 4000));
  }
  expect_reference(b);
}

TEST_F(SamplingTest, GreedyAtTheEdgesOfTheVocabulary) {
  for (const int vocab : {1, 2, 31, 33, 1024, 51200, 1 << 18}) {
    for (const int winner : {0, vocab / 2, vocab - 1}) {
      Batch b = make_batch(1, vocab);
      b.row(0)[winner] = 99;
      EXPECT_EQ(token_of(b), winner) << "vocabulary of " << vocab;
    }
  }
}

TEST_F(SamplingTest, LogprobIsBeforeMasksAndTemperature) {
  Batch b = one_row({1, 2, 3, 4});
  RowState& row = state_of(b);
  row.num_denied_ids = 1;
  row.denied_ids[0] = 3;
  row.sampling.temperature = 0.001f;
  row.sampling.top_k = 1;
  const Result result = run_device(b);
  EXPECT_EQ(result.tokens[0], 2);
  // log(e^3 / (e + e^2 + e^3 + e^4))
  EXPECT_NEAR(result.logprobs[0], -1.4401897f, 1e-5f);
}

TEST_F(SamplingTest, SampledTokensAgreeWithReference) {
  struct Filters {
    float temperature, top_p, min_p;
    std::int32_t top_k;
  };
  const Filters filters[] = {{1, 1, 0, 0},        {0.5f, 0.3f, 0, 0},  {0.2f, 0.9f, 0, 0},
                             {1.5f, 0.9f, 0, 40}, {1, 1, 0.05f, 0},    {2, 0.95f, 0.02f, 50},
                             {1, 1, 0, 1},        {0.7f, 1, 0, 5},     {5, 0.999f, 0, 0},
                             {0, 0.5f, 0, 0},     {1, 0.5f, 0.5f, 3},  {1, 1e-6f, 0, 0},
                             {100, 1, 0, 0},      {0.01f, 0.99f, 0, 0}};
  for (const int vocab : {7, 100, 4096}) {
    Batch b = make_batch(64, vocab);
    for (std::size_t i = 0; i < b.seats.size(); ++i) {
      const Filters& f = filters[i % std::size(filters)];
      RowState& row = state_of(b, i);
      row.sampling.temperature = f.temperature, row.sampling.top_p = f.top_p,
      row.sampling.min_p = f.min_p;
      row.sampling.top_k = f.top_k;
      if (i % 5 == 0) {  // many equal logits: their order decides
        for (int t = 0; t < vocab; ++t) b.row(i)[t] = std::round(b.row(i)[t]);
      }
    }
    SCOPED_TRACE(vocab);
    expect_reference(b);
  }
}

// Moondream's, Qwen3's, and the largest.
TEST_F(SamplingTest, SampledTokensAgreeWithReferenceAtFullVocabularies) {
  for (const int vocab : {51200, 151936, 1 << 18}) {
    SCOPED_TRACE(vocab);
    Batch b = make_batch(14, vocab);
    const float top_p[] = {1, 0.3f, 0.9f, 0.99f, 1, 1, 0.9999f};
    for (std::size_t i = 0; i < b.seats.size(); ++i) {
      RowState& row = state_of(b, i);
      row.sampling.temperature = i % 2 == 0 ? 1.0f : 0.5f;
      row.sampling.top_p = top_p[i % std::size(top_p)];
      row.sampling.top_k = i % 7 == 4 ? 1000 : 0;
      row.sampling.min_p = i % 7 == 5 ? 0.001f : 0.0f;
    }
    expect_reference(b);
  }
}

// All equal: token floor(u * vocab). Every weight is the largest there is, so sums are too.
TEST_F(SamplingTest, FlatLogitsReachEveryToken) {
  for (const int vocab : {512, 1 << 16, 1 << 18}) {
    SCOPED_TRACE(vocab);
    // A CPU takes seconds for 64 rows of so many.
    const int num_rows = vocab > 1 << 16 && is_f32() ? 16 : 64;
    Batch b = make_batch(num_rows, vocab);
    for (std::size_t i = 0; i < b.seats.size(); ++i) {
      std::fill_n(b.row(i), vocab, 2.5f);
      state_of(b, i).sampling.temperature = 1;
    }
    expect_reference(b);
    const Result result = run_device(b);
    const std::set<std::int32_t> tokens(result.tokens.begin(), result.tokens.end());
    EXPECT_GT(tokens.size(), static_cast<std::size_t>(num_rows) * 50 / 64);
    EXPECT_GT(*tokens.rbegin(), vocab * 3 / 4);
  }
}

TEST_F(SamplingTest, FiltersKeepAtLeastOneToken) {
  Batch b = one_row({1, 5, 2, 5, 3});
  RowState& row = state_of(b);
  row.sampling.temperature = 1;
  for (int generated = 0; generated < 20; ++generated) {
    row.num_generated = generated;
    row.sampling.top_p = 0, row.sampling.min_p = 0;
    EXPECT_EQ(token_of(b), 1);
    row.sampling.top_p = -1;
    EXPECT_EQ(token_of(b), 1);
    row.sampling.top_p = 1, row.sampling.top_k = 1;
    EXPECT_EQ(token_of(b), 1);
    row.sampling.top_k = 0, row.sampling.min_p = 2;
    EXPECT_EQ(token_of(b), 1);
    row.sampling.min_p = 1;  // both fives, and nothing else
    const std::int32_t token = token_of(b);
    EXPECT_TRUE(token == 1 || token == 3) << token;
    row.sampling.min_p = 0, row.sampling.top_k = 2;
    const std::int32_t of_two = token_of(b);
    EXPECT_TRUE(of_two == 1 || of_two == 3) << of_two;
    row.sampling.top_k = 0;
  }
}

// top_p is a bound on what comes before a token, inclusive: p = 1/4 each.
TEST_F(SamplingTest, TopPKeepsTheTokenThatStartsWithinIt) {
  Batch b = make_batch(64, 4);
  for (const auto& [top_p, num_kept] : {std::pair{0.2f, 1}, {0.3f, 2}, {0.6f, 3}, {0.9f, 4}}) {
    for (std::size_t i = 0; i < b.seats.size(); ++i) {
      std::fill_n(b.row(i), 4, 1.0f);
      state_of(b, i).sampling.temperature = 1;
      state_of(b, i).sampling.top_p = top_p;
    }
    const Result result = run_device(b);
    const std::set<std::int32_t> seen(result.tokens.begin(), result.tokens.end());
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(num_kept)) << "top_p " << top_p;
    EXPECT_EQ(*seen.rbegin(), num_kept - 1) << "top_p " << top_p;
  }
}

// Two equal logits and two that weigh nothing: what lies exactly on a bound is kept.
TEST_F(SamplingTest, TheFiltersBoundsAreInclusive) {
  Batch b = make_batch(64, 4);
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    const float logits[] = {0, 0, -100, -100};
    std::copy_n(logits, 4, b.row(i));
    state_of(b, i).sampling.temperature = 1;
  }
  const std::set<std::int32_t> both = {0, 1};
  const auto drawn = [&](float top_p, float min_p) {
    for (std::size_t i = 0; i < b.seats.size(); ++i) {
      state_of(b, i).sampling.top_p = top_p, state_of(b, i).sampling.min_p = min_p;
    }
    const Result result = run_device(b);
    return std::set<std::int32_t>(result.tokens.begin(), result.tokens.end());
  };
  EXPECT_EQ(drawn(0.5f, 0), both) << "half of the probability comes before the second token";
  EXPECT_EQ(drawn(1, 1), both) << "both are as likely as the likeliest";
}

TEST_F(SamplingTest, DrawsFollowTheDistribution) {
  constexpr int kVocab = 16, kRows = 64, kLaunches = 160;
  Batch b = make_batch(kRows, kVocab, 1.0f);
  for (int i = 1; i < kRows; ++i) std::copy_n(b.row(0), kVocab, b.row(i));
  std::vector<int> counts(kVocab, 0);
  for (int launch = 0; launch < kLaunches; ++launch) {
    for (int i = 0; i < kRows; ++i) {
      RowState& row = state_of(b, i);
      row.sampling.temperature = 0.8f;
      row.num_generated = launch;
    }
    for (const std::int32_t token : run_device(b).tokens) ++counts.at(token);
  }
  double sum = 0, chi_square = 0;
  for (int t = 0; t < kVocab; ++t) sum += std::exp(b.row(0)[t] / 0.8);
  for (int t = 0; t < kVocab; ++t) {
    const double expected = kRows * kLaunches * std::exp(b.row(0)[t] / 0.8) / sum;
    chi_square += (counts[t] - expected) * (counts[t] - expected) / expected;
  }
  EXPECT_LT(chi_square, 37.7);  // 15 degrees of freedom, p = 0.001
}

TEST_F(SamplingTest, TheSeedAndTheCountDecideAndTheSeatDoesNot) {
  Batch b = make_batch(3, 1000, 1.0f);
  for (int i = 0; i < 3; ++i) {
    std::copy_n(b.row(0), 1000, b.row(i));
    state_of(b, i).sampling.temperature = 1;
    state_of(b, i).sampling.seed = i < 2 ? 42 : 43;
    state_of(b, i).num_generated = 5;
  }
  int num_different = 0;
  for (int generated = 0; generated < 20; ++generated) {
    for (int i = 0; i < 3; ++i) state_of(b, i).num_generated = generated;
    const Result result = run_device(b);
    EXPECT_EQ(result.tokens[0], result.tokens[1]);
    num_different += result.tokens[0] != result.tokens[2];
  }
  EXPECT_GT(num_different, 10);
}

TEST_F(SamplingTest, DeniedIdsAreNeverSampled) {
  Batch b = make_batch(64, 50);
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    RowState& row = state_of(b, i);
    row.sampling.temperature = i % 2 == 0 ? 0.0f : 1.5f;
    row.num_denied_ids = kMaxDeniedIds;
    for (int d = 0; d < kMaxDeniedIds; ++d) {
      row.denied_ids[d] = (static_cast<int>(i) * 3 + d * 11) % 50;
      b.row(i)[row.denied_ids[d]] = 30;
    }
  }
  const Result result = run_device(b);
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    const RowState& row = state_of(b, i);
    EXPECT_EQ(std::count(row.denied_ids, row.denied_ids + kMaxDeniedIds, result.tokens[i]), 0);
  }
  expect_reference(b);
}

TEST_F(SamplingTest, OnlyTheFirstNumDeniedIdsCount) {
  Batch b = one_row({0, 9, 8, 7});
  state_of(b).num_denied_ids = 1;
  state_of(b).denied_ids[0] = 1;
  state_of(b).denied_ids[1] = 2;  // beyond the count
  EXPECT_EQ(token_of(b), 2);
}

TEST_F(SamplingTest, AutomatonAllowsItsEdgesAndIgnoresDeniedIds) {
  Batch b = make_batch(40, 300);
  b.automata = {{.num_edges = 1, .tokens = {5, 7, 7, 7}, .next = {1}},
                {.num_edges = 2, .tokens = {6, 299, 7, 7}, .next = {0, 1}},
                {.num_edges = 4, .tokens = {100, 0, 200, 150}, .next = {0, 0, 0, 0}}};
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    RowState& row = state_of(b, i);
    row.automaton = static_cast<std::int32_t>(i % 3);
    row.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    row.num_denied_ids = 1;
    row.denied_ids[0] = 5;
    b.row(i)[7] = 40;  // listed beyond num_edges: not an edge
  }
  const Result result = run_device(b);
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    const AutomatonState& state = b.automata[i % 3];
    EXPECT_EQ(std::count(state.tokens, state.tokens + state.num_edges, result.tokens[i]), 1)
        << result.tokens[i];
  }
  expect_reference(b);
}

// Its edges, and all tokens of its classes; a token of no class is in none.
TEST_F(SamplingTest, AClosedStateAllowsItsClasses) {
  Batch b = make_batch(40, 700);
  b.token_classes.resize(700);
  for (std::size_t token = 0; token < 700; ++token) {
    b.token_classes[token] = static_cast<std::uint8_t>(token * 7 % kNumTokenClasses);
  }
  b.automata = {{.num_edges = 1, .tokens = {12}, .next = {1}, .classes = 1u << 5},
                {.classes = 1u << 3 | 1u << 11},
                {.num_edges = 2, .tokens = {24, 36}, .next = {0, 1}},
                {.num_edges = 1, .tokens = {5}, .next = {0}, .is_open = 1, .classes = 1u << 5}};
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    RowState& row = state_of(b, i);
    row.automaton = static_cast<std::int32_t>(i % 4);
    row.sampling.temperature = i % 3 == 0 ? 0.0f : 2.0f;
    if (i % 5 == 0) row.sampling.top_k = 30;
    b.row(i)[48] = 20;  // of no class
  }
  const Result result = run_device(b);
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    const AutomatonState& state = b.automata[i % 4];
    const std::int32_t token = result.tokens[i];
    const bool is_edge = std::count(state.tokens, state.tokens + state.num_edges, token) > 0;
    const auto token_class = b.token_classes[static_cast<std::size_t>(token)];
    const bool is_listed = is_edge || (state.classes >> token_class & 1) != 0;
    EXPECT_TRUE(is_listed || state.is_open != 0) << token;
  }
  EXPECT_EQ(result.tokens[3], 48) << "an open state's classes mean nothing";
  expect_reference(b);
}

TEST_F(SamplingTest, AnOpenStateAllowsAllButForbiddenEdgesAndItsExitAloneAtTheLimit) {
  Batch b = make_batch(9, 300);
  b.automata = {{.num_edges = 3,
                 .tokens = {7, 40, 0},
                 .next = {1, kForbiddenEdge, kForbiddenEdge},
                 .is_open = 1},
                {.num_edges = 1, .tokens = {7}, .next = {kNoAutomaton}}};
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    RowState& row = state_of(b, i);
    row.automaton = 0;
    row.num_generated = 12;
    row.exit_at = i % 3 == 2 ? 12 : 13;
    row.max_after_exit = 5;
    row.num_denied_ids = 1, row.denied_ids[0] = 150;  // of free rows
    row.sampling.temperature = i < 3 ? 0.0f : 1.0f;
    b.row(i)[40] = b.row(i)[0] = 90;
    b.row(i)[i % 3 == 1 ? 7 : 150] = 80;
  }
  const Result result = run_device(b);
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    EXPECT_EQ(result.tokens[i], i % 3 == 0 ? 150 : 7) << "row " << i;
  }
  expect_reference(b);
}

// By the model's logits, whatever temperature and filters say.
TEST_F(SamplingTest, ConfidenceIsTheShareAmongTheCandidates) {
  Batch b = make_batch(5, 600);
  b.automata = {{.num_edges = 2, .tokens = {5, 300}, .next = {0, 0}},
                {.num_edges = 1, .tokens = {5}, .next = {0}}};
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    RowState& row = state_of(b, i);
    b.row(i)[5] = 2;
    b.row(i)[300] = 1;
    row.automaton = i == 1 ? 1 : 0;
    row.flags = i == 4 ? 0 : kRowWantsConfidence;
    if (i != 2) continue;
    row.sampling.temperature = 0.01f;
    row.sampling.top_k = 1;
  }
  // By a mask: the largest of 600 but one.
  RowState& masked = state_of(b, 3);
  masked.automaton = kNoAutomaton;
  masked.flags |= kRowHostMask;
  std::fill_n(b.host_masks.data() + 3 * b.mask_words, b.mask_words, ~0u);
  b.host_masks[std::size_t{3} * b.mask_words] &= ~(1u << 7);
  b.row(3)[7] = 50;
  b.row(3)[11] = 12;
  const Result result = run_device(b);
  const float share = 1 / (1 + std::exp(-1.0f));
  EXPECT_NEAR(result.confidences[0].token, share, 1e-6f);
  EXPECT_EQ(result.confidences[1].token, 1);
  EXPECT_NEAR(result.confidences[2].token, share, 1e-6f);
  double sum = 0;
  for (int t = 0; t < b.vocab; ++t) sum += t == 7 ? 0 : std::exp(double{b.row(3)[t]});
  EXPECT_EQ(result.tokens[3], 11);
  EXPECT_NEAR(result.confidences[3].token, std::exp(12.0) / sum, 1e-5);
  EXPECT_TRUE(is_poison(result.confidences[4].token)) << "nobody asked";
}

// Rows that skip their logprob, in states that list their tokens: the others' logits are what an earlier step left there.
// The same tokens and confidences as of rows that have them all.
TEST_F(SamplingTest, AShortListReadsItsOwnLogitsAlone) {
  Batch b = make_batch(48, 5000);
  b.automata = {{.num_edges = 2, .tokens = {5, 0}, .next = {0, 0}},
                {.num_edges = 4, .tokens = {4999, 31, 2500, 31}, .next = {0, 0, 0, 0}},
                {.num_edges = 1, .tokens = {7}, .next = {0}, .is_open = 1},
                {.num_edges = 1, .tokens = {7}, .next = {0}}};
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    RowState& row = state_of(b, i);
    row.automaton = static_cast<std::int32_t>(i % 4);
    row.flags = kRowWantsConfidence | (i % 5 == 0 ? kRowAdjustsLogits : 0);
    row.sampling.temperature = i % 3 == 0 ? 0.0f : 2.0f;
    row.sampling.repetition_penalty = 1.3f;
    if (i % 7 == 0) row.sampling.top_p = 0.6f;
    row.max_after_exit = 3;  // of the open state
    row.exit_at = 0;
  }
  remember_tokens(b);
  const Result whole = run_device(b);
  const float leftovers[] = {kNan, kInf, -kInf, 1e30f};
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    RowState& row = state_of(b, i);
    row.flags |= kRowSkipsLogprob;
    const AutomatonState& state = b.automata[i % 4];
    for (int t = 0; t < b.vocab; ++t) {
      const bool is_listed =
          std::count(state.tokens, state.tokens + state.num_edges, t) > 0 && i % 4 < 2;
      if (!is_listed) b.row(i)[t] = leftovers[(i + t) % 4];
    }
  }
  const Result listed = run_device(b);
  EXPECT_EQ(listed.tokens, whole.tokens);
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    EXPECT_EQ(listed.confidences[i].token, whole.confidences[i].token) << "row " << i;
    EXPECT_EQ(listed.logprobs[i], 0) << "row " << i;
    EXPECT_NE(whole.logprobs[i], 0) << "row " << i;
    if (i % 4 < 2) continue;
    EXPECT_EQ(listed.tokens[i], 7) << "the only one comes, whatever its logit is";
    EXPECT_EQ(listed.confidences[i].token, 1);
  }
  expect_reference(b);
}

TEST_F(SamplingTest, ARowThatSkipsItsLogprobIsSampledLikeOthers) {
  Batch b = make_batch(24, 3000);
  b.token_classes.resize(3000);
  for (std::size_t t = 0; t < 3000; t += 3) b.token_classes[t] = 4;
  b.automata = {{.num_edges = 1, .tokens = {40}, .next = {kForbiddenEdge}, .is_open = 1},
                {.num_edges = 2, .tokens = {40, 41}, .next = {0, 0}, .classes = 1u << 4}};
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    RowState& row = state_of(b, i);
    row.automaton = i % 2 == 0 ? kNoAutomaton : static_cast<std::int32_t>(i / 2 % 2);
    row.flags = kRowWantsConfidence | (i % 3 == 0 ? kRowHostMask : 0);
    row.sampling.temperature = i % 4 < 2 ? 0.0f : 1.0f;
    std::fill_n(b.host_masks.data() + i * b.mask_words, b.mask_words, 0x5555aaaau);
  }
  const Result before = run_device(b);
  for (RowState& row : b.states) row.flags |= kRowSkipsLogprob;
  const Result after = run_device(b);
  EXPECT_EQ(after.tokens, before.tokens);
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    EXPECT_EQ(after.confidences[i].token, before.confidences[i].token) << "row " << i;
    EXPECT_EQ(after.logprobs[i], 0) << "row " << i;
    EXPECT_NE(before.logprobs[i], 0) << "row " << i;
  }
  expect_reference(b);
}

// Without the end there is no choice left, and without anything the row ends.
TEST_F(SamplingTest, HeldBackStopIdsShortenAShortList) {
  Batch b = make_batch(3, 300);
  b.automata = {{.num_edges = 2, .tokens = {5, 0}, .next = {0, 0}},
                {.num_edges = 1, .tokens = {0}, .next = {0}}};
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    RowState& row = state_of(b, i);
    row.flags = kRowSkipsLogprob;
    row.automaton = i == 2 ? 1 : 0;
    row.num_generated = 4;
    row.sampling.min_tokens = i == 0 ? 4 : 5;
    row.num_stop_ids = 2;
    row.stop_ids[0] = 9, row.stop_ids[1] = 0;
    b.row(i)[0] = 30;
  }
  EXPECT_EQ(run_device(b).tokens, (std::vector<std::int32_t>{0, 5, 9}));
  expect_reference(b);
}

TEST_F(SamplingTest, AutomatonTiesGoToTheLowestIdNotTheFirstEdge) {
  Batch b = one_row(std::vector<float>(20, 1.0f));
  b.automata = {{.num_edges = 3, .tokens = {17, 4, 9}, .next = {0, 0, 0}}};
  state_of(b).automaton = 0;
  EXPECT_EQ(token_of(b), 4);
  state_of(b).flags = kRowSkipsLogprob;
  EXPECT_EQ(token_of(b), 4);
}

// As of a row that reads all logits: the largest finite one, whatever the temperature is.
TEST_F(SamplingTest, AShortListWithANonFiniteLogitFallsBackToGreedy) {
  for (const float wrong : {kNan, kInf, -kInf}) {
    Batch b = make_batch(40, 3000);
    b.automata = {{.num_edges = 3, .tokens = {17, 2004, 9}, .next = {0, 0, 0}}};
    for (std::size_t i = 0; i < b.seats.size(); ++i) {
      RowState& row = state_of(b, i);
      row.automaton = 0;
      row.flags = kRowSkipsLogprob;
      row.sampling.temperature = 100.0f;
      b.row(i)[17] = wrong, b.row(i)[2004] = 1.5f, b.row(i)[9] = 1.0f;
    }
    EXPECT_EQ(run_device(b).tokens, std::vector<std::int32_t>(b.seats.size(), 2004));
    for (std::size_t i = 0; i < b.seats.size(); ++i) b.row(i)[2004] = b.row(i)[9] = wrong;
    expect_reference(b);
  }
}

// A state with `otherwise` lets every token win, and a winner without an edge becomes it.
TEST_F(SamplingTest, AnOpenStateTakesEveryTokenAndCountsItAsItsOwn) {
  Batch b = make_batch(40, 300);
  b.automata = {
      {.num_edges = 2, .tokens = {299, 8}, .next = {0, 0}, .is_open = 1, .otherwise = 299},
      {.num_edges = 2, .tokens = {299, 8}, .next = {0, 0}}};
  std::size_t num_ends = 0;
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    RowState& row = state_of(b, i);
    row.automaton = i % 5 == 4 ? 1 : 0;
    row.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    // Neither binds here.
    row.flags = kRowHostMask | kRowWantsConfidence;
    row.num_denied_ids = 1;
    row.denied_ids[0] = 8;
    // 8 ends: above the coordinate's own logit always, above every other token's in half of the rows.
    b.row(i)[299] = -20;
    b.row(i)[8] = i % 4 < 2 ? 40 : -10;
  }
  const Result result = run_device(b);
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    const bool closed = i % 5 == 4;
    EXPECT_EQ(result.tokens[i], closed || i % 4 < 2 ? 8 : 299) << "row " << i;
    num_ends += result.tokens[i] == 8 ? 1u : 0u;
    // The logprob is that of the token that won.
    if (!closed && i % 4 >= 2) {
      EXPECT_GT(result.logprobs[i], -20.0f);
    }
    // That some object comes, whichever token begins it.
    double all = 0, end = 0;
    for (int t = 0; t < b.vocab; ++t) {
      if (closed && t != 8 && t != 299) continue;
      const double share = std::exp(double{b.row(i)[t]});
      all += share;
      if (t == 8) end += share;
    }
    const double ends = end / all;
    EXPECT_NEAR(result.confidences[i].token, result.tokens[i] == 8 ? ends : 1 - ends, 1e-5)
        << "row " << i;
  }
  EXPECT_LT(num_ends, b.seats.size());
  expect_reference(b);
}

TEST_F(SamplingTest, HostMaskBindsOnlyTheRowsThatAskForIt) {
  Batch b = make_batch(32, 70);
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    RowState& row = state_of(b, i);
    row.sampling.temperature = i % 3 == 0 ? 0.0f : 1.0f;
    if (i % 2 == 1) continue;  // its mask stays all zeros, and is not read
    row.flags = kRowHostMask;
    for (const int token : {0, 31, 32, 69}) {
      b.host_masks[i * b.mask_words + token / 32] |= 1u << (token % 32);
    }
  }
  const Result result = run_device(b);
  std::set<std::int32_t> free_tokens;
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    if (i % 2 == 1) {
      free_tokens.insert(result.tokens[i]);
    } else {
      const std::int32_t token = result.tokens[i];
      EXPECT_TRUE(token == 0 || token == 31 || token == 32 || token == 69) << token;
    }
  }
  EXPECT_GT(free_tokens.size(), 4u);
  expect_reference(b);
}

// Behind grammar_masks the logits are added up before the mask is there. Rows under masks of few to all tokens, logits with many
// equals and some that are not finite: tokens and probabilities are those of the same rows under the same masks of the host, and rows
// beside them that stay under the host's do not notice.
TEST_F(SamplingTest, RowsBehindGrammarMasksAreSampledLikeOthers) {
  constexpr double kShares[] = {0, 1e-5, 1e-3, 0.03, 0.5, 0.97, 0.9999, 1};
  constexpr int kRowsOfEach = 4;
  const int num_rows = kRowsOfEach * static_cast<int>(std::size(kShares));
  for (const int vocab : {1'000, 51'200, 151'941}) {
    Batch b = make_batch(num_rows, vocab);
    for (int i = 0; i < num_rows; ++i) {
      RowState& row = state_of(b, i);
      float* const logits = b.row(i);
      const auto any_token = [&] { return random_() % static_cast<unsigned>(vocab); };
      if (i % kRowsOfEach == 1) {
        for (int token = 0; token < vocab; ++token) logits[token] = std::round(logits[token]);
      }
      if (i % kRowsOfEach == 2) {
        for (const float value : {kNan, kInf, -kInf, -0.0f, 3e38f}) logits[any_token()] = value;
      }
      row.sampling.temperature = i % kRowsOfEach == 3 ? 1 : 0;
      const double share = kShares[i / kRowsOfEach];
      for (int token = 0; token < vocab; ++token) {
        if (static_cast<double>(random_() % 1'000'000) >= 1e6 * share) continue;
        b.host_masks[static_cast<std::size_t>(i * b.mask_words + token / 32)] |= 1u << token % 32;
      }
      row.num_denied_ids = 1;
      row.denied_ids[0] = static_cast<std::int32_t>(any_token());
      row.flags = kRowHostMask;
    }
    expect_reference(b);
    const Result under_host_masks = run_device(b);
    b.grammar_masks = b.host_masks;
    b.behind_grammar_masks = true;
    for (int i = 0; i < num_rows; ++i) {
      if (i % 8 == 7) continue;  // stays under the host's
      state_of(b, i).flags = 0;
      state_of(b, i).grammar = 0;
    }
    const Result behind = run_device(b);
    EXPECT_EQ(behind.tokens, under_host_masks.tokens);
    EXPECT_EQ(behind.logprobs, under_host_masks.logprobs);
  }
}

TEST_F(SamplingTest, DeniedIdsHoldUnderAHostMask) {
  Batch b = one_row({1, 9, 5, 3});
  state_of(b).flags = kRowHostMask;
  b.host_masks[0] = 0b1010;
  state_of(b).num_denied_ids = 1;
  state_of(b).denied_ids[0] = 1;
  EXPECT_EQ(token_of(b), 3);
}

TEST_F(SamplingTest, NothingAllowedGivesTheFirstStopIdOrZero) {
  for (const float temperature : {0.0f, 1.0f}) {
    Batch b = one_row({4, 3, 2, 1});
    RowState& row = state_of(b);
    row.sampling.temperature = temperature;
    row.flags = kRowHostMask;  // a mask of zeros
    EXPECT_EQ(token_of(b), 0);
    row.num_stop_ids = 2;
    row.stop_ids[0] = 2;
    row.stop_ids[1] = 1;
    EXPECT_EQ(token_of(b), 2);
    // log(e^2 / (e + e^2 + e^3 + e^4))
    EXPECT_NEAR(run_device(b).logprobs[0], -2.4401897f, 1e-5f);
    b.automata = {{.num_edges = 0}};
    row.automaton = 0;
    EXPECT_EQ(token_of(b), 2);
  }
}

TEST_F(SamplingTest, NonFiniteLogitsFallBackToGreedy) {
  for (const float bad : {kNan, kInf, -kInf}) {
    for (const float temperature : {0.0f, 1.0f, 50.0f}) {
      Batch b = one_row({1, bad, 2, 2.5f, 2.4f});
      RowState& row = state_of(b);
      row.sampling.temperature = temperature;
      for (int generated = 0; generated < 8; ++generated) {
        row.num_generated = generated;
        EXPECT_EQ(token_of(b), 3) << bad << " at temperature " << temperature;
      }
      expect_reference(b);
      EXPECT_TRUE(std::isfinite(run_device(b).logprobs[0]));
    }
  }
  // A bad logit that is not a candidate does not matter.
  Batch b = make_batch(64, 40);
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    RowState& row = state_of(b, i);
    row.sampling.temperature = 1.5f;
    row.num_denied_ids = 1;
    row.denied_ids[0] = 11;
    b.row(i)[11] = i % 2 == 0 ? kNan : kInf;
  }
  expect_reference(b);
  const Result result = run_device(b);
  for (const float logprob : result.logprobs) EXPECT_TRUE(std::isfinite(logprob));
}

TEST_F(SamplingTest, ARowWithoutAnyFiniteLogitStillEnds) {
  for (const float temperature : {0.0f, 1.0f}) {
    Batch b = one_row({kNan, kNan, kInf, -kInf});
    RowState& row = state_of(b);
    row.sampling.temperature = temperature;
    row.num_stop_ids = 1;
    row.stop_ids[0] = 3;
    const Result result = run_device(b);
    EXPECT_EQ(result.tokens[0], 3);
    EXPECT_EQ(result.logprobs[0], kImpossibleLogprob);
    expect_reference(b);
  }
}

TEST_F(SamplingTest, PenaltiesAndBiasesFollowTheReference) {
  for (const int vocab : {1000, 1003, 4096}) {
    Batch b = make_batch(64, vocab);
    for (std::size_t i = 0; i < b.seats.size(); ++i) {
      RowState& row = state_of(b, i);
      if (i % 5 == 4) continue;  // a plain row among them
      row.flags = kRowAdjustsLogits;
      row.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
      row.sampling.repetition_penalty = i % 3 == 0 ? 1.3f : i % 3 == 1 ? 0.7f : 1.0f;
      row.sampling.presence_penalty = i % 4 == 0 ? 0.0f : 1.5f;
      row.sampling.frequency_penalty = i % 4 == 1 ? 0.0f : -0.9f;
      if (i % 6 == 1) row.sampling.top_k = 7;
      if (i % 6 == 3) row.sampling.top_p = 0.6f;
      if (i % 6 == 5) row.sampling.min_p = 0.2f;
    }
    remember_tokens(b);
    expect_reference(b);
    // They matter: most rows pick another token than without.
    const Result adjusted = run_device(b);
    for (RowState& row : b.states) row.flags = 0;
    const Result plain = run_device(b);
    int num_changed = 0, num_adjusting = 0;
    for (std::size_t i = 0; i < b.seats.size(); ++i) {
      const bool adjusts = i % 5 != 4;
      num_adjusting += adjusts;
      num_changed += adjusted.tokens[i] != plain.tokens[i];
      if (!adjusts) {
        EXPECT_EQ(adjusted.tokens[i], plain.tokens[i]) << "row " << i;
      }
    }
    EXPECT_GT(num_changed, num_adjusting / 3);
  }
}

// Numbers worked out by hand, so that an error in the reference shows.
TEST_F(SamplingTest, WhatEachPenaltyDoes) {
  Batch b = one_row({2.0f, 1.9f, -1.0f, 0.5f});
  RowState& row = state_of(b);
  row.flags = kRowAdjustsLogits;
  const auto remember = [&](std::vector<std::uint16_t> uses, std::vector<float> biases) {
    const auto begin = b.seats[0] * b.memory_stride();
    b.uses.assign(b.states.size() * b.memory_stride(), 0);
    b.biases.assign(b.states.size() * b.memory_stride(), 0);
    std::copy(uses.begin(), uses.end(), b.uses.begin() + begin);
    std::copy(biases.begin(), biases.end(), b.biases.begin() + begin);
    return token_of(b);
  };
  EXPECT_EQ(remember({}, {}), 0);
  EXPECT_EQ(remember({}, {0, 0.11f, 0, 0}), 1) << "1.9 + 0.11 > 2";
  EXPECT_EQ(remember({}, {-100, 0, 0, 0}), 1);
  EXPECT_EQ(remember({}, {0, 0, 100, 0}), 2);
  row.sampling.presence_penalty = 0.2f;
  EXPECT_EQ(remember({1, 0, 0, 0}, {}), 1) << "2 - 0.2 < 1.9";
  EXPECT_EQ(remember({kTokenInPrompt, 0, 0, 0}, {}), 0) << "the prompt does not count";
  EXPECT_EQ(remember({1, 9, 0, 0}, {}), 0) << "nor does how often";
  row.sampling.presence_penalty = 0;
  row.sampling.frequency_penalty = 0.06f;
  EXPECT_EQ(remember({1, 0, 0, 0}, {}), 0) << "2 - 0.06 > 1.9";
  EXPECT_EQ(remember({2, 0, 0, 0}, {}), 1) << "2 - 2 * 0.06 < 1.9";
  EXPECT_EQ(remember({kTokenInPrompt | 2, 0, 0, 0}, {}), 1);
  EXPECT_EQ(remember({kTokenInPrompt, 0, 0, 0}, {}), 0) << "the prompt does not count";
  row.sampling.frequency_penalty = 0;
  row.sampling.repetition_penalty = 1.1f;
  EXPECT_EQ(remember({1, 0, 0, 0}, {}), 1) << "2 / 1.1 < 1.9";
  EXPECT_EQ(remember({kTokenInPrompt, 0, 0, 0}, {}), 1) << "the prompt counts";
  EXPECT_EQ(remember({5, 1, 0, 0}, {}), 0) << "how often does not";
  // A negative logit falls too: -1 * 1.1 < -1.05.
  EXPECT_EQ(remember({0, 0, 1, 0}, {-99, -99, 0, -1.55f}), 3);
  // The bias comes before the factor: (0.5 + 1) / 1.1 = 1.36 < 1.4 < 0.5 / 1.1 + 1 = 1.45.
  EXPECT_EQ(remember({0, 0, 0, 1}, {-0.6f, -100, 0, 1}), 0);
}

TEST_F(SamplingTest, TheLogprobIsTheModelsOwnWhateverTheAdjustments) {
  Batch b = one_row({4, 3, 2, 1});
  state_of(b).flags = kRowAdjustsLogits;
  remember_tokens(b);
  std::fill(b.uses.begin(), b.uses.end(), 0);
  std::fill(b.biases.begin(), b.biases.end(), 0.0f);
  b.biases[b.seats[0] * b.memory_stride() + 2] = 50;
  const Result result = run_device(b);
  EXPECT_EQ(result.tokens[0], 2);
  EXPECT_NEAR(result.logprobs[0], -2.4401897f, 1e-5f);  // log(e^2 / (e + e^2 + e^3 + e^4))
}

TEST_F(SamplingTest, StopIdsAreHeldBackUntilMinTokens) {
  for (const float temperature : {0.0f, 1.2f}) {
    for (const bool adjusts : {false, true}) {
      Batch b = make_batch(48, 90);
      for (std::size_t i = 0; i < b.seats.size(); ++i) {
        RowState& row = state_of(b, i);
        row.num_stop_ids = 3;
        row.stop_ids[0] = 5;
        row.stop_ids[1] = 89;
        row.stop_ids[2] = static_cast<int>(i);
        for (int s = 0; s < row.num_stop_ids; ++s) b.row(i)[row.stop_ids[s]] = 40;
        row.sampling.temperature = temperature;
        row.sampling.min_tokens = 4;
        row.num_generated = static_cast<int>(i % 6);
        if (adjusts) row.flags = kRowAdjustsLogits;
        if (i % 7 == 0) row.sampling.top_k = 89;
      }
      if (adjusts) remember_tokens(b);
      const Result result = run_device(b);
      for (std::size_t i = 0; i < b.seats.size(); ++i) {
        const RowState& row = state_of(b, i);
        const bool stopped =
            std::count(row.stop_ids, row.stop_ids + row.num_stop_ids, result.tokens[i]) > 0;
        EXPECT_EQ(stopped, row.num_generated >= 4) << "row " << i;
      }
      expect_reference(b);
    }
  }
}

TEST_F(SamplingTest, WhereOnlyHeldBackTokensMayBeSampledTheRowEnds) {
  Batch b = one_row({4, 3, 2, 1});
  RowState& row = state_of(b);
  row.num_stop_ids = 1;
  row.stop_ids[0] = 3;
  row.sampling.min_tokens = 100;
  b.automata = {{.num_edges = 1, .tokens = {3}, .next = {0}}};
  row.automaton = 0;
  for (const float temperature : {0.0f, 1.0f}) {
    row.sampling.temperature = temperature;
    EXPECT_EQ(token_of(b), 3);
  }
}

TEST_F(SamplingTest, PenaltiesHoldUnderAutomataAndMasksToo) {
  Batch b = make_batch(40, 300);
  b.automata = {{.num_edges = 4, .tokens = {100, 0, 200, 150}, .next = {0, 0, 0, 0}}};
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    RowState& row = state_of(b, i);
    row.flags = kRowAdjustsLogits;
    row.sampling.temperature = i % 4 < 2 ? 0.0f : 1.0f;
    row.sampling.repetition_penalty = 1.5f;
    row.sampling.presence_penalty = 1;
    if (i % 3 == 0) {
      row.automaton = 0;
    } else if (i % 3 == 1) {
      row.flags |= kRowHostMask;
    } else {
      row.grammar = 7;
    }
    for (int word = 0; word < b.mask_words; ++word) {
      b.host_masks[i * b.mask_words + word] = static_cast<std::uint32_t>(random_());
      b.grammar_masks[i * b.mask_words + word] = static_cast<std::uint32_t>(random_());
    }
  }
  remember_tokens(b);
  expect_reference(b);
}

TEST_F(SamplingTest, AnAdjustedRowDoesNotDependOnItsNeighbours) {
  Batch many = make_batch(33, 2000);
  for (std::size_t i = 0; i < many.seats.size(); ++i) {
    RowState& row = state_of(many, i);
    row.sampling.temperature = 1;
    if (i % 2 == 0) row.flags = kRowAdjustsLogits;
    row.sampling.repetition_penalty = 1.2f;
    row.sampling.frequency_penalty = 0.5f;
  }
  remember_tokens(many);
  const Result together = run_device(many);
  for (std::size_t i = 0; i < many.seats.size(); i += 4) {
    Batch alone = many;
    alone.seats = {many.seats[i]};
    alone.logits.assign(many.row(i), many.row(i) + many.stride());
    const Result result = run_device(alone);
    EXPECT_EQ(result.tokens[0], together.tokens[i]);
    EXPECT_EQ(result.logprobs[0], together.logprobs[i]);
  }
}

TEST_F(SamplingTest, PaddingAndDoneRowsGiveMinusOne) {
  Batch b = make_batch(4, 64);
  b.seats[1] = -1;
  state_of(b, 2).done = 1;
  const Result result = run_device(b);
  EXPECT_GE(result.tokens[0], 0);
  EXPECT_EQ(result.tokens[1], -1);
  EXPECT_EQ(result.tokens[2], -1);
  EXPECT_GE(result.tokens[3], 0);
  EXPECT_EQ(result.logprobs[1], 0);
  EXPECT_EQ(result.logprobs[2], 0);
}

TEST_F(SamplingTest, ExtremeTemperaturesAreWellDefined) {
  Batch b = make_batch(64, 100);
  const float temperatures[] = {1e-38f, 1e-6f, 1e6f, kInf, kNan, -1};
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    state_of(b, i).sampling.temperature = temperatures[i % std::size(temperatures)];
    state_of(b, i).sampling.top_p = 0.9f;
  }
  expect_reference(b);
}

}  // namespace
}  // namespace gapless
