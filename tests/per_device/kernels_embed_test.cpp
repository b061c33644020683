#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

struct Shape {
  int dim, vocab, coord_features, size_features;
};

class EmbedTest : public KernelsTest {
 protected:
  struct Tables {
    TestTensor wte, images, coord_weight, coord_bias, size_weight, size_bias, coord_w, size_w;
  };

  Tables make_tables(const Shape& s) {
    auto weight = [&](int in) {
      return random_tensor(static_cast<std::size_t>(s.dim) * in, 1.0f / std::sqrt(1.0f * in));
    };
    return {.wte = random_tensor(static_cast<std::size_t>(s.vocab) * s.dim),
            .images = random_tensor(static_cast<std::size_t>(2) * 729 * s.dim),
            .coord_weight = weight(s.coord_features),
            .coord_bias = random_tensor(s.dim, 0.1f),
            .size_weight = weight(s.size_features),
            .size_bias = random_tensor(s.dim, 0.1f),
            .coord_w = random_tensor(s.coord_features / 2),
            .size_w = random_tensor(s.size_features)};
  }

  // `pick` says which copy of a tensor to point at.
  template <typename Pick>
  EmbedParams params(const Shape& s, const Tables& t, Pick pick) {
    EmbedParams p;
    p.wte = pick(t.wte);
    p.image_embeddings = pick(t.images);
    p.region.coord_encoder = {pick(t.coord_weight), pick(t.coord_bias), s.coord_features, s.dim};
    p.region.size_encoder = {pick(t.size_weight), pick(t.size_bias), s.size_features, s.dim};
    p.region.coord_features = pick(t.coord_w);
    p.region.size_features = pick(t.size_w);
    p.dim = s.dim;
    p.vocab = s.vocab;
    return p;
  }

  std::vector<TokenInput> mixed_inputs(const Shape& s) {
    std::vector<TokenInput> inputs = {
        {InputKind::kText, 0},           {InputKind::kText, s.vocab - 1},
        {InputKind::kImage, 0},          {InputKind::kImage, 2 * 729 - 1},
        {InputKind::kCoord, 5, 0, 0},    {InputKind::kCoord, 5, 1, 0},
        {InputKind::kSize, 6, 1, 1},     {InputKind::kSize, 6, 1.0f / 1024, 0.3f},
        {InputKind::kText, s.vocab, 0},  {InputKind::kText, -1, 0},
        {InputKind::kCoord, 5, 0.7f, 9}, {InputKind::kSize, 6, 0.2f, 0.9f}};
    for (int i = 0; i < 9; ++i) {
      inputs.push_back({InputKind::kText, static_cast<std::int32_t>(random_() % s.vocab)});
    }
    return inputs;
  }
};

TEST_F(EmbedTest, AgreesWithReferenceForEveryKindOfInput) {
  for (const Shape& s :
       {Shape{256, 1000, 256, 512}, Shape{2048, 100, 256, 512}, Shape{256, 300, 64, 64}}) {
    const Tables tables = make_tables(s);
    const std::vector<TokenInput> inputs = mixed_inputs(s);
    const int num_tokens = static_cast<int>(inputs.size());

    EmbedParams p = params(s, tables, [](const TestTensor& t) { return t.ref(); });
    std::vector<float> expected(inputs.size() * s.dim);
    p.inputs = inputs.data(), p.num_tokens = num_tokens, p.out = expected.data();
    reference::embed(p, dtype());

    p = params(s, tables, [](const TestTensor& t) { return t.dev(); });
    const Buffer inputs_dev = upload(inputs);
    const Buffer out = poisoned(expected.size());
    p.inputs = inputs_dev.as<TokenInput>(), p.num_tokens = num_tokens, p.out = out.data();
    run(kernels_->embed(*stream_, p));
    const std::vector<float> actual = floats(out);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto row = rows_of(actual, s.dim, i, i + 1);
      const auto expected_row = rows_of(expected, s.dim, i, i + 1);
      const bool is_copy =
          inputs[i].kind == InputKind::kText || inputs[i].kind == InputKind::kImage;
      EXPECT_TRUE(is_copy ? bits_equal(row, expected_row)
                          : rows_close(row, expected_row, s.dim, tolerance()))
          << "input " << i << ", dim " << s.dim;
    }
  }
}

// A decode step reads the inputs out of the row states, through the list of rows; the same input
// has the same bits wherever it lies, and whoever else is in the step.
TEST_F(EmbedTest, ReadsInputsFromRowStates) {
  for (const Shape& s : {Shape{256, 1000, 256, 512}, Shape{2048, 100, 256, 512},
                         Shape{200, 300, 64, 64}, Shape{256, 300, 64, 1024}}) {
    const Tables tables = make_tables(s);
    std::vector<TokenInput> inputs;
    for (int i = 0; i < 43; ++i) {
      inputs.push_back({InputKind::kSize, 6, (i + 1) / 64.0f, (i % 7) / 8.0f});
    }
    const std::vector<TokenInput> mixed = mixed_inputs(s);
    inputs.insert(inputs.end(), mixed.begin(), mixed.end());
    EmbedParams p = params(s, tables, [](const TestTensor& t) { return t.dev(); });
    const Buffer inputs_dev = upload(inputs);
    const Buffer packed = poisoned(inputs.size() * s.dim);
    p.inputs = inputs_dev.as<TokenInput>(), p.out = packed.data();
    p.num_tokens = static_cast<int>(inputs.size());
    run(kernels_->embed(*stream_, p));
    const std::vector<float> whole = floats(packed);
    const std::vector<float> zeros(static_cast<std::size_t>(s.dim));

    std::vector<RowState> rows(inputs.size() + 5);
    const auto row_of = [&](std::size_t i) { return (i * 7 + 3) % rows.size(); };  // coprime
    for (std::size_t i = 0; i < inputs.size(); ++i) rows[row_of(i)].input = inputs[i];
    const Buffer rows_dev = upload(rows);
    p.inputs = &rows_dev.as<RowState>()->input;
    p.input_stride_bytes = sizeof(RowState);
    for (const std::size_t num_tokens :
         {inputs.size(), std::size_t{45}, std::size_t{3}, std::size_t{1}}) {
      // A gap is padding or a row that is done.
      for (const std::size_t gaps_every : {inputs.size() + 1, std::size_t{2}}) {
        std::vector<std::int32_t> index(num_tokens);
        for (std::size_t i = 0; i < num_tokens; ++i) {
          index[i] = (i + 1) % gaps_every == 0 ? -1 : static_cast<std::int32_t>(row_of(i));
        }
        const Buffer index_dev = upload(index);
        const Buffer gathered = poisoned(num_tokens * s.dim);
        p.index = index_dev.as<std::int32_t>();
        p.out = gathered.data();
        p.num_tokens = static_cast<int>(num_tokens);
        run(kernels_->embed(*stream_, p));
        const std::vector<float> actual = floats(gathered);
        for (std::size_t i = 0; i < num_tokens; ++i) {
          EXPECT_TRUE(bits_equal(
              rows_of(actual, s.dim, i, i + 1),
              index[i] < 0 ? std::span<const float>(zeros) : rows_of(whole, s.dim, i, i + 1)))
              << "input " << i << " of " << num_tokens << ", dim " << s.dim;
        }
      }
    }
  }
}

// A table of the coordinates that the region heads make, filled by the op itself.
TEST_F(EmbedTest, ATableOfCoordinatesChangesNoBit) {
  for (const int divisor : {1023, 1024}) {
    constexpr int kBins = 1024;
    const Shape s{256, 1000, 256, 512};
    const Tables tables = make_tables(s);
    std::vector<TokenInput> inputs;
    for (int bin = 0; bin < kBins; ++bin) {
      const float x = reference::coordinate_of_bin(bin, kBins, divisor);
      inputs.push_back({InputKind::kCoord, 5, x, 0});
    }
    // Beside the bins, outside of them, and what is no coordinate.
    for (const float x : {0.12345f, std::nextafter(inputs[700].x, 1.0f), 1.5f, -0.25f, 1.0f}) {
      inputs.push_back({InputKind::kCoord, 5, x, 0});
    }
    const TokenInput more[] = {{InputKind::kSize, 6, inputs[9].x, inputs[80].x},
                               {InputKind::kText, 7},
                               {InputKind::kImage, 3}};
    inputs.insert(inputs.end(), std::begin(more), std::end(more));

    const Buffer inputs_dev = upload(inputs);
    EmbedParams p = params(s, tables, [](const TestTensor& t) { return t.dev(); });
    p.inputs = inputs_dev.as<TokenInput>();
    const Buffer table = poisoned(std::size_t{kBins} * s.dim);
    p.num_tokens = kBins, p.out = table.data();
    run(kernels_->embed(*stream_, p));

    const auto num_tokens = static_cast<int>(inputs.size());
    const auto embed_all = [&](const void* coord_table) {
      const Buffer out = poisoned(inputs.size() * s.dim);
      p.num_tokens = num_tokens, p.out = out.data();
      p.region.coord_table = coord_table;
      p.region.num_bins = kBins, p.region.coord_divisor = divisor;
      run(kernels_->embed(*stream_, p));
      return floats(out);
    };
    const std::vector<float> without = embed_all(nullptr);
    EXPECT_TRUE(bits_equal(embed_all(table.data()), without));
    // The table is read for bins, and for nothing else.
    const Buffer poison = poisoned(std::size_t{kBins} * s.dim);
    const std::vector<float> from_poison = embed_all(poison.data());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto row = rows_of(from_poison, s.dim, i, i + 1);
      const bool is_bin = inputs[i].kind == InputKind::kCoord &&
                          (i < kBins || (divisor == 1023 && inputs[i].x == 1.0f));
      EXPECT_TRUE(is_bin ? all_poison(row) : bits_equal(row, rows_of(without, s.dim, i, i + 1)))
          << "input " << i;
    }
    // In a decode step's few tokens as well.
    const std::int32_t index[] = {1000, 3, -1};
    const Buffer index_dev = upload(std::vector<std::int32_t>(std::begin(index), std::end(index)));
    const Buffer few = poisoned(std::size_t{3} * s.dim);
    p.index = index_dev.as<std::int32_t>(), p.num_tokens = 3, p.out = few.data();
    p.region.coord_table = table.data();
    run(kernels_->embed(*stream_, p));
    const std::vector<float> rows = floats(few);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(bits_equal(rows_of(rows, s.dim, i, i + 1),
                             rows_of(without, s.dim, index[i], index[i] + 1)));
    }
  }
}

}  // namespace
}  // namespace gapless
