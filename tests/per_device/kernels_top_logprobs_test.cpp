#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// What one launch reads. Row i of the batch sits on seat seats[i].
struct Batch {
  int vocab = 0;
  std::vector<float> logits;  // [rows, vocab + pad]
  std::vector<std::int32_t> seats;
  std::vector<RowState> states;

  static constexpr int kPad = 4;
  int stride() const { return vocab + kPad; }
  float* row(std::size_t i) { return logits.data() + i * stride(); }
  RowState& state(std::size_t i) { return states[seats[i]]; }
};

class TopLogprobsTest : public KernelsTest {
 protected:
  using Row = std::vector<TopLogprob>;  // kMaxTopLogprobs entries

  // Normal logits; every row asks for `num_wanted`.
  Batch make_batch(int num_rows, int vocab, int num_wanted) {
    Batch b;
    b.vocab = vocab;
    b.logits = random_values(static_cast<std::size_t>(num_rows) * b.stride(), 3.0f);
    b.states.resize(num_rows + 3);
    b.seats.resize(num_rows);
    for (int i = 0; i < num_rows; ++i) {
      b.seats[i] = num_rows + 2 - i;
      b.state(i).sampling.num_top_logprobs = num_wanted;
      // The padding of a row would win everywhere.
      std::fill_n(b.row(i) + vocab, Batch::kPad, 1e30f);
    }
    return b;
  }

  Batch one_row(std::vector<float> logits, int num_wanted) {
    Batch b = make_batch(1, static_cast<int>(logits.size()), num_wanted);
    std::copy(logits.begin(), logits.end(), b.row(0));
    return b;
  }

  std::vector<Row> run_device(const Batch& b) {
    const std::size_t num_rows = b.seats.size();
    const Buffer logits = upload(b.logits), seats = upload(b.seats), states = upload(b.states);
    const Buffer top = poisoned_bytes((num_rows + 1) * kMaxTopLogprobs * sizeof(TopLogprob));
    run(kernels_->top_logprobs(*stream_, {.logits = logits.as<float>(),
                                          .logits_stride = b.stride(),
                                          .rows = seats.as<std::int32_t>(),
                                          .row_states = states.as<RowState>(),
                                          .top = top.as<TopLogprob>(),
                                          .num_rows = static_cast<int>(num_rows),
                                          .vocab = b.vocab}));
    const auto entries = download<TopLogprob>(top);
    std::vector<Row> rows;
    for (std::size_t i = 0; i <= num_rows; ++i) {
      rows.emplace_back(entries.begin() + i * kMaxTopLogprobs,
                        entries.begin() + (i + 1) * kMaxTopLogprobs);
    }
    expect_untouched(rows.back(), 0);  // nothing is written past the last row
    rows.pop_back();
    return rows;
  }

  static void expect_untouched(const Row& row, std::size_t from) {
    for (std::size_t place = from; place < row.size(); ++place) {
      EXPECT_TRUE(row[place].token == -1 && is_poison(row[place].logprob)) << "place " << place;
    }
  }

  std::vector<Row> run_reference(const Batch& b) {
    std::vector<TopLogprob> entries(b.seats.size() * kMaxTopLogprobs);
    reference::top_logprobs({.logits = b.logits.data(),
                             .logits_stride = b.stride(),
                             .rows = b.seats.data(),
                             .row_states = b.states.data(),
                             .top = entries.data(),
                             .num_rows = static_cast<int>(b.seats.size()),
                             .vocab = b.vocab});
    std::vector<Row> rows;
    for (std::size_t i = 0; i < b.seats.size(); ++i) {
      rows.emplace_back(entries.begin() + i * kMaxTopLogprobs,
                        entries.begin() + (i + 1) * kMaxTopLogprobs);
    }
    return rows;
  }

  // The oracle's tokens in its order, and its logprobs.
  void expect_reference(const Batch& b) {
    const std::vector<Row> actual = run_device(b);
    const std::vector<Row> expected = run_reference(b);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      SCOPED_TRACE("row " + std::to_string(i));
      const int row = b.seats[i];
      const auto num_wanted =
          row < 0 ? 0 : static_cast<std::size_t>(b.states[row].sampling.num_top_logprobs);
      for (std::size_t place = 0; place < num_wanted; ++place) {
        SCOPED_TRACE("place " + std::to_string(place));
        EXPECT_EQ(actual[i][place].token, expected[i][place].token);
        const float logprob = expected[i][place].logprob;
        EXPECT_NEAR(actual[i][place].logprob, logprob, 1e-5 + 1e-6 * std::abs(logprob));
      }
      expect_untouched(actual[i], num_wanted);
    }
  }
};

TEST_F(TopLogprobsTest, AgreesWithReferenceAtEveryVocabularyAndCount) {
  for (const int vocab : {1, 2, 19, 20, 21, 31, 33, 512, 1023, 1024, 1025, 8192, 51200, 51201}) {
    for (const int num_wanted : {1, 2, 5, 20}) {
      SCOPED_TRACE(std::to_string(num_wanted) + " of " + std::to_string(vocab));
      expect_reference(make_batch(3, vocab, num_wanted));
    }
  }
}

TEST_F(TopLogprobsTest, ByHand) {
  const auto rows = run_device(one_row({1, 4, 2, 4, 3}, 4));
  const std::int32_t tokens[] = {1, 3, 4, 2};
  // log(e^4 / (e + e^2 + e^3 + 2 e^4)), and one and two less.
  const float logprobs[] = {-0.9372698f, -0.9372698f, -1.9372698f, -2.9372698f};
  for (std::size_t place = 0; place < 4; ++place) {
    EXPECT_EQ(rows[0][place].token, tokens[place]);
    EXPECT_NEAR(rows[0][place].logprob, logprobs[place], 1e-5f);
  }
}

TEST_F(TopLogprobsTest, MasksTemperatureAndFiltersDoNotCount) {
  Batch b = one_row({1, 4, 2, 4, 3}, 2);
  const auto plain = run_device(b);
  RowState& row = b.state(0);
  row.denied_ids[0] = 1;
  row.num_denied_ids = 1;
  row.flags = kRowHostMask;
  row.automaton = 0;
  row.sampling.temperature = 0.1f;
  row.sampling.top_k = 1;
  const auto masked = run_device(b);
  for (std::size_t place = 0; place < 2; ++place) {
    EXPECT_EQ(masked[0][place].token, plain[0][place].token);
    EXPECT_EQ(masked[0][place].logprob, plain[0][place].logprob);
  }
}

TEST_F(TopLogprobsTest, TheLowestIdAmongEqualsComesFirst) {
  for (const int vocab : {40, 1500, 51200}) {
    Batch b = make_batch(4, vocab, 20);
    std::fill_n(b.row(0), vocab, -2.5f);  // all equal
    for (int t = 0; t < vocab; ++t) b.row(1)[t] = std::round(b.row(1)[t]);
    // Equal keys of zero, and equal winners far apart.
    for (int t = 0; t < vocab; ++t) b.row(2)[t] = t % 3 == 0 ? -0.0f : 0.0f;
    b.row(3)[vocab - 1] = b.row(3)[0] = b.row(3)[vocab / 2] = 70;
    SCOPED_TRACE(vocab);
    expect_reference(b);
    EXPECT_EQ(run_device(b)[3][2].token, vocab - 1);
  }
}

// Whatever way the vocabulary is dealt out, the best may lie in few hands.
TEST_F(TopLogprobsTest, WhereverTheLargestLogitsLie) {
  constexpr int kVocab = 51200;
  for (const int stride : {1, 2, 7, 32, 64, 128, 256, 512, 1024, 2048}) {
    Batch b = make_batch(3, kVocab, 20);
    for (int t = 0; t < kVocab; ++t) {
      b.row(0)[t] = static_cast<float>(t) / 1000;
      b.row(1)[t] = static_cast<float>(-t) / 1000;
    }
    for (int n = 0; n < 30; ++n) {
      b.row(2)[(17 + n * stride) % kVocab] = 50.0f + static_cast<float>(n % 11);
    }
    SCOPED_TRACE(stride);
    expect_reference(b);
  }
}

TEST_F(TopLogprobsTest, LogitsThatAreNotFiniteAreLeftOut) {
  Batch b = make_batch(5, 2000, 20);
  for (int t = 0; t < 2000; ++t) {
    b.row(0)[t] = kNan;
    if (t != 5 && t != 1999) b.row(1)[t] = t % 2 == 0 ? -kInf : kInf;
    if (t % 2 == 0) b.row(2)[t] = kInf;
    if (t % 3 == 0) b.row(3)[t] = kNan;
    if (t >= 19) b.row(4)[t] = -kInf;
  }
  b.row(4)[3] = std::numeric_limits<float>::lowest();
  b.row(4)[4] = std::numeric_limits<float>::denorm_min();
  expect_reference(b);
  const auto rows = run_device(b);
  EXPECT_EQ(rows[0][0].token, -1);
  EXPECT_EQ(rows[0][19].logprob, kImpossibleLogprob);
  EXPECT_EQ(rows[1][1].token == 5 || rows[1][1].token == 1999, true);
  EXPECT_EQ(rows[1][2].token, -1);
  EXPECT_EQ(rows[4][18].token, 3);
}

TEST_F(TopLogprobsTest, RowsAskForThemselves) {
  Batch b = make_batch(33, 4096, 0);
  for (std::size_t i = 0; i < b.seats.size(); ++i) {
    b.state(i).sampling.num_top_logprobs = static_cast<std::int32_t>(i % 3 == 0 ? 0 : i % 21);
    b.state(i).done = i % 5 == 0 ? 1 : 0;  // the sampling before may have ended it
  }
  b.seats[4] = -1;  // padding
  b.seats[20] = -1;
  expect_reference(b);
}

TEST_F(TopLogprobsTest, RowsDoNotDependOnTheBatch) {
  const Batch whole = make_batch(17, 51200, 20);
  const auto together = run_device(whole);
  for (const std::size_t i : {0u, 8u, 16u}) {
    Batch alone = whole;
    alone.seats = {whole.seats[i]};
    const auto first = whole.logits.begin() + static_cast<std::ptrdiff_t>(i) * whole.stride();
    alone.logits.assign(first, first + whole.stride());
    const auto rows = run_device(alone);
    for (std::size_t place = 0; place < kMaxTopLogprobs; ++place) {
      EXPECT_EQ(rows[0][place].token, together[i][place].token);
      EXPECT_EQ(rows[0][place].logprob, together[i][place].logprob);
    }
  }
}

}  // namespace
}  // namespace gapless
