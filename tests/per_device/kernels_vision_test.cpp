#include <cstdint>
#include <random>
#include <vector>

#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

using VisionTest = KernelsTest;

TEST_F(VisionTest, PatchifyLooksUpEveryByteOnce) {
  for (const int num_crops : {1, 3}) {
    PatchifyParams p;
    p.num_crops = num_crops;
    p.crop_size = 378;
    p.patch_size = 14;
    p.patch_stride = 592;
    std::vector<std::uint8_t> crops(static_cast<std::size_t>(num_crops) * 378 * 378 * 3);
    for (auto& byte : crops) byte = static_cast<std::uint8_t>(random_());
    std::vector<float> values(256);
    for (int v = 0; v < 256; ++v) values[v] = static_cast<float>(v) / 127.5f - 1.0f;
    const TestTensor lut = tensor(values);

    std::vector<float> expected(static_cast<std::size_t>(num_crops) * 27 * 27 * 592);
    p.crops = crops.data(), p.lut = lut.ref(), p.patches = expected.data();
    reference::patchify(p);

    const Buffer crops_dev = upload(crops);
    const Buffer patches = poisoned(expected.size());
    p.crops = crops_dev.as<std::uint8_t>(), p.lut = lut.dev(), p.patches = patches.data();
    run(kernels_->patchify(*stream_, p));
    EXPECT_TRUE(bits_equal(floats(patches), expected));
  }
}

struct AttentionCase {
  int num_crops, seq_len, num_heads, head_dim;
};

void PrintTo(const AttentionCase& c, std::ostream* os) {
  *os << c.num_crops << " crops of " << c.seq_len << ", " << c.num_heads << "x" << c.head_dim;
}

class VisionAttentionTest : public KernelsTest,
                            public ::testing::WithParamInterface<AttentionCase> {};

TEST_P(VisionAttentionTest, AgreesWithReferenceCropByCrop) {
  const AttentionCase c = GetParam();
  const std::size_t width = static_cast<std::size_t>(c.num_heads) * c.head_dim;
  const std::size_t num_rows = static_cast<std::size_t>(c.num_crops) * c.seq_len;
  // Queries and keys of size 1.5: scores spread over some ten units, so the softmax is not flat.
  const TestTensor qkv = random_tensor(num_rows * 3 * width, 1.5f);
  VisionAttentionParams p{.qkv = qkv.ref(),
                          .num_crops = c.num_crops,
                          .seq_len = c.seq_len,
                          .num_heads = c.num_heads,
                          .head_dim = c.head_dim};
  std::vector<float> expected(num_rows * width);
  p.out = expected.data();
  reference::vision_attention(p);

  const Buffer out = poisoned(expected.size());
  p.qkv = qkv.dev(), p.out = out.data();
  run(kernels_->vision_attention(*stream_, p));
  const std::vector<float> actual = floats(out);
  EXPECT_TRUE(rows_close(actual, expected, static_cast<int>(width), tolerance()));

  // The last crop alone has the same bits.
  const std::size_t first = num_rows - c.seq_len;
  const Buffer alone = poisoned(c.seq_len * width);
  p.qkv = static_cast<const char*>(qkv.dev()) + first * 3 * width * dtype_bytes(dtype());
  p.out = alone.data();
  p.num_crops = 1;
  run(kernels_->vision_attention(*stream_, p));
  EXPECT_TRUE(bits_equal(floats(alone), rows_of(actual, width, first, num_rows)));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, VisionAttentionTest,
    ::testing::Values(AttentionCase{1, 729, 4, 72}, AttentionCase{3, 81, 4, 72},
                      AttentionCase{2, 729, 1, 72}, AttentionCase{2, 65, 16, 72},
                      AttentionCase{1, 1, 2, 72}, AttentionCase{2, 17, 10, 72},
                      // more than a block lists at once
                      AttentionCase{300, 3, 16, 72},
                      // full tiles of queries and smaller ones; alone, others
                      AttentionCase{3, 200, 50, 72},
                      // other heads
                      AttentionCase{2, 300, 3, 64}, AttentionCase{2, 300, 3, 32}));

struct TilingCase {
  int rows, cols, dim;
};

void PrintTo(const TilingCase& c, std::ostream* os) {
  *os << c.rows << "x" << c.cols << " tiles, dim " << c.dim;
}

class StitchAndPoolTest : public KernelsTest, public ::testing::WithParamInterface<TilingCase> {};

TEST_P(StitchAndPoolTest, AgreesWithReference) {
  const TilingCase c = GetParam();
  const int num_tiles = c.rows * c.cols;
  const int num_crops = num_tiles == 1 ? 1 : 1 + num_tiles;
  const TestTensor features = random_tensor(static_cast<std::size_t>(num_crops) * 729 * c.dim);
  StitchAndPoolParams p{.features = features.ref(),
                        .tile_rows = c.rows,
                        .tile_cols = c.cols,
                        .grid = 27,
                        .overlap_margin = 4,
                        .dim = c.dim};
  std::vector<float> expected(729 * 2 * static_cast<std::size_t>(c.dim));
  p.out = expected.data();
  reference::stitch_and_pool(p);

  const Buffer out = poisoned(expected.size());
  p.features = features.dev(), p.out = out.data();
  run(kernels_->stitch_and_pool(*stream_, p));
  const std::vector<float> actual = floats(out);
  EXPECT_TRUE(rows_close(actual, expected, 2 * c.dim, tolerance()));
  for (std::size_t patch = 0; patch < 729; ++patch) {  // the global half is a copy
    EXPECT_TRUE(bits_equal(rows_of(actual, 2 * c.dim, patch, patch + 1).first(c.dim),
                           rows_of(features.host, c.dim, patch, patch + 1)));
  }
}

INSTANTIATE_TEST_SUITE_P(Tilings, StitchAndPoolTest,
                         ::testing::Values(TilingCase{1, 1, 288}, TilingCase{1, 2, 288},
                                           TilingCase{2, 2, 288}, TilingCase{3, 1, 72},
                                           TilingCase{1, 13, 8}, TilingCase{3, 4, 288},
                                           TilingCase{2, 4, 1152}));

}  // namespace
}  // namespace gapless
