#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

constexpr std::int32_t kCoordId = 5, kSizeId = 6;

struct RegionShape {
  int dim, inner, coord_bins, size_bins;  // inner 0: heads of one product
  int num_norms = 0;
  int coord_divisor = 0;
  bool linear_sizes = false;
};

class RegionsTest : public KernelsTest {
 protected:
  struct Weights {
    RegionShape shape;
    TestTensor coord_w1, coord_b1, coord_w2, coord_b2, size_w1, size_b1, size_w2, size_b2;
    TestTensor gammas[2], betas[2];

    template <typename Pick>
    RegionDecoderWeights pick(Pick data) const {
      const RegionShape& s = shape;
      RegionDecoderWeights weights = products(data);
      for (int i = 0; i < s.num_norms; ++i) {
        // One norm is the second one, as in the model.
        weights.norms[2 - s.num_norms + i] = {.gamma = data(gammas[i]), .beta = data(betas[i])};
      }
      return weights;
    }
    template <typename Pick>
    RegionDecoderWeights products(Pick data) const {
      const RegionShape& s = shape;
      if (s.inner == 0) {
        RegionDecoderWeights weights;
        weights.coord_fc2 = {data(coord_w2), data(coord_b2), s.dim, s.coord_bins};
        weights.size_fc2 = {data(size_w2), data(size_b2), s.dim, 2 * s.size_bins};
        return weights;
      }
      return {.norms = {},
              .coord_fc1 = {data(coord_w1), data(coord_b1), s.dim, s.inner},
              .coord_fc2 = {data(coord_w2), data(coord_b2), s.inner, s.coord_bins},
              .size_fc1 = {data(size_w1), data(size_b1), s.dim, s.inner},
              .size_fc2 = {data(size_w2), data(size_b2), s.inner, 2 * s.size_bins}};
    }
  };

  Weights make_weights(const RegionShape& s) {
    auto matrix = [&](int out, int in) {
      return random_tensor(static_cast<std::size_t>(out) * in, 1 / std::sqrt(1.0f * in));
    };
    const int last = s.inner > 0 ? s.inner : s.dim;
    Weights w{.shape = s,
              .coord_w1 = matrix(s.inner, s.dim),
              .coord_b1 = random_tensor(s.inner, 0.1f),
              .coord_w2 = matrix(s.coord_bins, last),
              .coord_b2 = random_tensor(s.coord_bins, 0.1f),
              .size_w1 = matrix(s.inner, s.dim),
              .size_b1 = random_tensor(s.inner, 0.1f),
              .size_w2 = matrix(2 * s.size_bins, last),
              .size_b2 = random_tensor(2 * s.size_bins, 0.1f),
              .gammas = {},
              .betas = {}};
    for (int i = 0; i < s.num_norms; ++i) {
      w.gammas[i] = random_tensor(s.dim, 0.3f, 1.0f);
      w.betas[i] = random_tensor(s.dim, 0.3f);
    }
    return w;
  }

  struct Rows {
    std::vector<std::int32_t> tokens, seats;
    std::vector<RowState> states;
  };

  // Row i on seat i.
  static Rows rows_with_tokens(const std::vector<std::int32_t>& tokens) {
    Rows rows{.tokens = tokens};
    rows.states.resize(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      rows.seats.push_back(static_cast<std::int32_t>(i));
      rows.states[i].flags = kRowDecodesRegions;
    }
    return rows;
  }

  // Three rows that decode no regions, whatever their tokens are.
  static void leave_out(Rows& rows, std::size_t first) {
    rows.seats[first] = -1;            // padding
    rows.states[first + 1].done = 1;   // a zombie
    rows.states[first + 2].flags = 0;  // its coordinates are text
  }

  std::vector<float> run_device(const Weights& w, const void* hidden, const Rows& rows,
                                std::vector<TokenConfidence>* told = nullptr) {
    return run_device(w.shape, w.pick([](const TestTensor& t) { return t.dev(); }), hidden, rows,
                      told);
  }
  // num_calls: one behind the other, without waiting in between.
  std::vector<float> run_device(const RegionShape& shape, const RegionDecoderWeights& weights,
                                const void* hidden, const Rows& rows,
                                std::vector<TokenConfidence>* told, int num_calls = 1) {
    const int num_rows = static_cast<int>(rows.seats.size());
    const int max_out = std::max(shape.coord_bins, 2 * shape.size_bins);
    const Buffer tokens = upload(rows.tokens), seats = upload(rows.seats);
    const Buffer states = upload(rows.states);
    const Buffer values = poisoned_bytes(num_rows * 2 * sizeof(float));
    const Buffer confidences = poisoned_bytes(num_rows * sizeof(TokenConfidence));
    const Buffer scratch =
        poisoned_bytes(kernels_->region_scratch_bytes(num_rows, shape.dim, shape.inner, max_out));
    for (int i = 0; i < num_calls; ++i) {
      const Status status =
          kernels_->decode_regions(*stream_, {.hidden = hidden,
                                              .tokens = tokens.as<std::int32_t>(),
                                              .rows = seats.as<std::int32_t>(),
                                              .row_states = states.as<RowState>(),
                                              .weights = weights,
                                              .values = values.as<float>(),
                                              .confidences = confidences.as<TokenConfidence>(),
                                              .num_rows = num_rows,
                                              .dim = shape.dim,
                                              .coord_divisor = shape.coord_divisor,
                                              .linear_sizes = shape.linear_sizes,
                                              .coord_id = kCoordId,
                                              .size_id = kSizeId,
                                              .scratch = scratch.data()});
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
    run(ok_status());
    if (told != nullptr) *told = download<TokenConfidence>(confidences);
    return download<float>(values);
  }

  // The same matrices as the backend's decode products want them, where it wants them otherwise, and there alone.
  RegionDecoderWeights prepared(const Weights& w, std::vector<Buffer>& buffers) {
    RegionDecoderWeights weights = w.pick([](const TestTensor& t) { return t.dev(); });
    for (LinearWeights* one :
         {&weights.coord_fc1, &weights.coord_fc2, &weights.size_fc1, &weights.size_fc2}) {
      const std::size_t bytes =
          kernels_->prepared_linear_bytes(one->in, one->out, PreparedFormat::kNative);
      if (one->out == 0 || bytes == 0) continue;
      buffers.push_back(poisoned_bytes(bytes));
      run(kernels_->prepare_linear(*stream_, {.weights = *one,
                                              .prepared = buffers.back().data(),
                                              .total_in = one->in,
                                              .total_out = one->out}));
      one->prepared = buffers.back().data();
      one->weight = nullptr;
    }
    return weights;
  }

  // The oracle's logits of one row.
  static std::vector<float> logits_of(const float* hidden, const RegionDecoderWeights& weights,
                                      const LinearWeights& fc1, const LinearWeights& fc2) {
    std::vector<float> x(hidden, hidden + weights.dim()), inner(fc1.out), logits(fc2.out);
    for (const NormWeights& norm : weights.norms) {
      if (norm.gamma != nullptr) reference::norm_row(norm, x.data(), x.data(), weights.dim());
    }
    LinearParams p{.x = x.data(), .x_stride = fc1.in, .weights = fc1, .y = inner.data()};
    p.y_stride = fc1.out, p.num_rows = 1, p.activation = Activation::kGeluTanh;
    if (fc1.out > 0) reference::linear(p);
    p = {.x = fc1.out > 0 ? inner.data() : x.data(),
         .x_stride = fc2.in,
         .weights = fc2,
         .y = logits.data()};
    p.y_stride = fc2.out, p.num_rows = 1;
    reference::linear(p);
    return logits;
  }

  // `value` is that of a bin whose logit is the largest but for rounding.
  void expect_best_bin(float value, std::span<const float> logits, float (*value_of)(int, int)) {
    const int num_bins = static_cast<int>(logits.size());
    const float largest = *std::max_element(logits.begin(), logits.end());
    double square = 0;
    for (const float logit : logits) square += logit * logit;
    const double margin = 10 * tolerance() * std::sqrt(square / num_bins);
    int best = 0;
    for (int bin = 1; bin < num_bins; ++bin) {
      if (std::abs(value_of(bin, num_bins) - value) < std::abs(value_of(best, num_bins) - value)) {
        best = bin;
      }
    }
    EXPECT_NEAR(value, value_of(best, num_bins), 1e-6f * value) << "no bin has this value";
    EXPECT_GE(logits[best], largest - margin) << "bin " << best;
  }
};

TEST_F(RegionsTest, AgreesWithReference) {
  for (const RegionShape& shape :
       {RegionShape{256, 512, 1024, 1024}, RegionShape{64, 96, 32, 16},
        RegionShape{2048, 8192, 1024, 1024}, RegionShape{256, 0, 1024, 1024, 1},
        RegionShape{64, 0, 32, 16, 2}, RegionShape{64, 0, 32, 16, 0},
        RegionShape{64, 96, 32, 16, 1}}) {
    const int num_rows = shape.dim == 2048 ? 2 : 12;
    const Weights w = make_weights(shape);
    const TestTensor hidden = random_tensor(static_cast<std::size_t>(num_rows) * shape.dim);
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < num_rows; ++i) tokens.push_back(i % 2 == 0 ? kCoordId : kSizeId);
    const std::vector<float> values = run_device(w, hidden.dev(), rows_with_tokens(tokens));

    const RegionDecoderWeights r = w.pick([](const TestTensor& t) { return t.ref(); });
    for (int i = 0; i < num_rows; ++i) {
      const float* row = hidden.ref() + static_cast<std::size_t>(i) * shape.dim;
      if (i % 2 == 0) {
        const std::vector<float> logits = logits_of(row, r, r.coord_fc1, r.coord_fc2);
        expect_best_bin(values[2 * i], logits, reference::coordinate_of_bin);
        EXPECT_EQ(values[2 * i + 1], 0);
      } else {
        const std::vector<float> logits = logits_of(row, r, r.size_fc1, r.size_fc2);
        const std::span<const float> all(logits);
        expect_best_bin(values[2 * i], all.first(shape.size_bins), reference::size_of_bin);
        expect_best_bin(values[2 * i + 1], all.last(shape.size_bins), reference::size_of_bin);
      }
    }
  }
}

TEST_F(RegionsTest, OtherRowsKeepTheirValues) {
  const RegionShape shape{64, 128, 64, 64};
  const Weights w = make_weights(shape);
  const TestTensor hidden = random_tensor(8 * 64);
  Rows rows = rows_with_tokens({kCoordId, 17, kSizeId, -1, kCoordId, kSizeId, kCoordId, 0});
  leave_out(rows, 4);
  const std::vector<float> values = run_device(w, hidden.dev(), rows);
  for (int i = 0; i < 8; ++i) {
    const bool decoded = i == 0 || i == 2;
    EXPECT_EQ(is_poison(values[2 * i]), !decoded) << "row " << i;
    EXPECT_EQ(is_poison(values[2 * i + 1]), !decoded) << "row " << i;
  }
}

// Zero weights leave the biases: exact values, and ties.
TEST_F(RegionsTest, ValuesOfBinsAndTies) {
  const RegionShape shape{64, 64, 1024, 1024};
  Weights w = make_weights(shape);
  const TestTensor hidden = random_tensor(64);
  w.coord_w2 = tensor(std::vector<float>(1024 * 64, 0.0f));
  w.size_w2 = tensor(std::vector<float>(2 * 1024 * 64, 0.0f));
  struct Case {
    std::vector<int> winners;
    int bin;
  };
  for (const Case& c : {Case{{0}, 0}, Case{{1023}, 1023}, Case{{500, 37, 1023}, 37}}) {
    std::vector<float> coord_bias(1024, -1), size_bias(2048, -1);
    for (const int bin : c.winners) coord_bias[bin] = size_bias[bin] = 3;
    size_bias[1024 + 1023 - c.bin] = 2;  // height: the mirrored bin
    w.coord_b2 = tensor(coord_bias);
    w.size_b2 = tensor(size_bias);
    std::vector<float> values = run_device(w, hidden.dev(), rows_with_tokens({kCoordId}));
    EXPECT_FLOAT_EQ(values[0], static_cast<float>(c.bin) / 1023.0f);
    values = run_device(w, hidden.dev(), rows_with_tokens({kSizeId}));
    EXPECT_FLOAT_EQ(values[0], std::exp2(10.0f * c.bin / 1023.0f - 10.0f));
    EXPECT_FLOAT_EQ(values[1], std::exp2(10.0f * (1023 - c.bin) / 1023.0f - 10.0f));
  }
}

// Zero weights leave the biases: 1024 bins, one of which is as much likelier as its bias says.
TEST_F(RegionsTest, ConfidencesAreTheBestBinsShares) {
  Weights w = make_weights({64, 0, 1024, 1024});
  const TestTensor hidden = random_tensor(5 * 64);
  w.coord_w2 = tensor(std::vector<float>(1024 * 64, 0.0f));
  w.size_w2 = tensor(std::vector<float>(2 * 1024 * 64, 0.0f));
  std::vector<float> coord_bias(1024, -1), size_bias(2048, 0);
  coord_bias[700] = 5;
  size_bias[3] = 8;
  size_bias[1024 + 1023] = 2;
  w.coord_b2 = tensor(coord_bias);
  w.size_b2 = tensor(size_bias);
  Rows rows = rows_with_tokens({kCoordId, kSizeId, kCoordId, 17, kSizeId});
  for (const std::size_t i : {0u, 1u, 3u, 4u}) rows.states[i].flags |= kRowWantsConfidence;
  rows.states[4].done = 1;
  std::vector<TokenConfidence> told;
  run_device(w, hidden.dev(), rows, &told);
  const auto share = [](float above) { return 1 / (1 + 1023 * std::exp(-above)); };
  EXPECT_NEAR(told[0].x, share(6), 1e-5f);
  EXPECT_EQ(told[0].y, 0);
  EXPECT_NEAR(told[1].x, share(8), 1e-5f);
  EXPECT_NEAR(told[1].y, share(2), 1e-5f);
  for (const std::size_t i : {2u, 3u, 4u}) EXPECT_TRUE(is_poison(told[i].x)) << "row " << i;
}

// The option coord_divisor of the model (numerics.h); sizes stay as they are.
TEST_F(RegionsTest, CoordinatesMayBeDividedByTheNumberOfBins) {
  Weights w = make_weights({64, 0, 1024, 1024, 0, 1024});
  const TestTensor hidden = random_tensor(64);
  w.coord_w2 = tensor(std::vector<float>(1024 * 64, 0.0f));
  w.size_w2 = tensor(std::vector<float>(2 * 1024 * 64, 0.0f));
  for (const int bin : {0, 37, 1023}) {
    std::vector<float> bias(1024, -1), size_bias(2048, -1);
    bias[bin] = size_bias[bin] = size_bias[1024 + bin] = 3;
    w.coord_b2 = tensor(bias);
    w.size_b2 = tensor(size_bias);
    EXPECT_EQ(run_device(w, hidden.dev(), rows_with_tokens({kCoordId}))[0],
              static_cast<float>(bin) / 1024.0f);
    EXPECT_FLOAT_EQ(run_device(w, hidden.dev(), rows_with_tokens({kSizeId}))[0],
                    std::exp2(10.0f * bin / 1023.0f - 10.0f));
  }
}

// As the models before March 2025 have them; coordinates stay as they are.
TEST_F(RegionsTest, SizesMayBeLinear) {
  Weights w = make_weights({64, 96, 1024, 1024, 0, 0, true});
  const TestTensor hidden = random_tensor(64);
  w.coord_w2 = tensor(std::vector<float>(1024 * 96, 0.0f));
  w.size_w2 = tensor(std::vector<float>(2 * 1024 * 96, 0.0f));
  for (const int bin : {0, 37, 1023}) {
    std::vector<float> bias(1024, -1), size_bias(2048, -1);
    bias[bin] = size_bias[bin] = size_bias[1024 + 1023 - bin] = 3;
    w.coord_b2 = tensor(bias);
    w.size_b2 = tensor(size_bias);
    const std::vector<float> size = run_device(w, hidden.dev(), rows_with_tokens({kSizeId}));
    EXPECT_EQ(size[0], static_cast<float>(bin) / 1024.0f);
    EXPECT_EQ(size[1], static_cast<float>(1023 - bin) / 1024.0f);
    EXPECT_EQ(run_device(w, hidden.dev(), rows_with_tokens({kCoordId}))[0],
              static_cast<float>(bin / 1023.0));
  }
}

TEST_F(RegionsTest, RowsDoNotDependOnTheBatch) {
  for (const RegionShape& shape :
       {RegionShape{256, 512, 1024, 1024}, RegionShape{256, 0, 1024, 1024, 1}}) {
    const Weights w = make_weights(shape);
    const TestTensor hidden = random_tensor(9 * 256);
    std::vector<std::int32_t> tokens(9, kCoordId);
    for (int i = 0; i < 9; i += 2) tokens[i] = kSizeId;
    const std::vector<float> all = run_device(w, hidden.dev(), rows_with_tokens(tokens));
    for (int i = 0; i < 9; ++i) {
      const void* row = static_cast<const char*>(hidden.dev()) + i * 256 * dtype_bytes(dtype());
      EXPECT_TRUE(
          bits_equal(run_device(w, row, rows_with_tokens({tokens[i]})), rows_of(all, 2, i, i + 1)));
    }
  }
}

// Bit for bit, for numbers of rows that are multiplied in different ways: of one head, of both, of none, of rows far between, and again
// right behind.
TEST_F(RegionsTest, PreparedHeadsGiveTheSameValues) {
  if (kernels_->prepared_linear_bytes(256, 256, PreparedFormat::kNative) == 0) {
    GTEST_SKIP() << "this backend prepares nothing";
  }
  constexpr int kMaxRows = 66;
  for (const RegionShape& shape :
       {RegionShape{256, 4096, 1024, 1024}, RegionShape{200, 2200, 1000, 500},
        RegionShape{256, 512, 64, 64}, RegionShape{256, 0, 1024, 1024, 1}}) {
    const Weights w = make_weights(shape);
    const RegionDecoderWeights plain = w.pick([](const TestTensor& t) { return t.dev(); });
    std::vector<Buffer> buffers;
    const RegionDecoderWeights with_prepared = prepared(w, buffers);
    const TestTensor hidden = random_tensor(std::size_t{kMaxRows} * shape.dim);
    const std::vector<std::vector<std::int32_t>> patterns = {
        {kCoordId}, {kSizeId}, {kCoordId, 17, kSizeId}, {17}, {17, 17, 17, 17, kSizeId}};
    for (const int num_rows : {1, 7, 8, 9, 16, 17, 32, 33, 49, 64, kMaxRows}) {
      for (const std::vector<std::int32_t>& pattern : patterns) {
        std::vector<std::int32_t> tokens;
        for (int i = 0; i < num_rows; ++i) tokens.push_back(pattern[i % pattern.size()]);
        Rows rows = rows_with_tokens(tokens);
        for (RowState& state : rows.states) state.flags |= kRowWantsConfidence;
        if (num_rows > 8) leave_out(rows, 5);
        std::vector<TokenConfidence> expected_told;
        const std::vector<float> expected =
            run_device(shape, plain, hidden.dev(), rows, &expected_told);
        for (const int num_calls : {1, 3}) {
          std::vector<TokenConfidence> told;
          const std::vector<float> values =
              run_device(shape, with_prepared, hidden.dev(), rows, &told, num_calls);
          const std::string where =
              std::to_string(num_rows) + " rows of " + std::to_string(shape.dim);
          EXPECT_TRUE(bits_equal(values, expected)) << where << ", token " << pattern[0];
          for (std::size_t i = 0; i < tokens.size(); ++i) {
            const bool left_out = tokens[i] == 17 || (num_rows > 8 && i >= 5 && i < 8);
            EXPECT_EQ(is_poison(values[2 * i]), left_out) << where << ", row " << i;
            if (left_out) continue;
            EXPECT_EQ(told[i].x, expected_told[i].x) << where << ", row " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace gapless
