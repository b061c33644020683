// An image's embeddings do not depend on what else is encoded with it, nor on how the launch is cut
// into chunks.
#include <gtest/gtest.h>

#include "tests/golden/random_model_fixture.h"

namespace gapless {
namespace {

class EncodePropertiesTest : public RandomModelTest {
 protected:
  std::vector<std::uint8_t> random_crops(int count, unsigned seed) const {
    std::mt19937 random(seed);
    std::vector<std::uint8_t> crops(static_cast<std::size_t>(count) * model_->info().crop_bytes);
    for (std::uint8_t& byte : crops) byte = static_cast<std::uint8_t>(random());
    return crops;
  }

  std::vector<std::byte> embeddings(int slot) {
    const std::size_t bytes =
        static_cast<std::size_t>(image_tokens()) * model_->info().hidden_bytes;
    const auto values = driver_->read(model_->state().image_slot(slot), bytes);
    EXPECT_TRUE(values.ok());
    return values.ok() ? *values : std::vector<std::byte>();
  }
};

TEST_F(EncodePropertiesTest, TogetherAsAlone) {
  // Five crops in chunks of two: the second image begins in the middle of a chunk.
  const std::vector<std::uint8_t> tiled = random_crops(3, 1);
  const std::vector<std::uint8_t> plain = random_crops(1, 2);
  const std::vector<std::uint8_t> other = random_crops(1, 3);
  const std::vector<DriverImage> images{
      {.crops = tiled, .tile_rows = 1, .tile_cols = 2, .image_slot = 2},
      {.crops = plain, .image_slot = 0},
      {.crops = other, .image_slot = 1}};
  GAPLESS_ASSERT_OK(driver_->encode(images));
  std::vector<std::vector<std::byte>> together;
  for (int slot = 0; slot < 3; ++slot) together.push_back(embeddings(slot));
  EXPECT_NE(together[0], together[1]);

  for (const DriverImage& image : images) {
    DriverImage alone = image;
    alone.image_slot = (image.image_slot + 1) % 3;
    GAPLESS_ASSERT_OK(driver_->encode({&alone, 1}));
    EXPECT_EQ(embeddings(alone.image_slot), together[static_cast<std::size_t>(image.image_slot)])
        << "image of slot " << image.image_slot;
  }
}

// Rows and columns of tiles are not exchanged.
TEST_F(EncodePropertiesTest, TheTilingMatters) {
  const std::vector<std::uint8_t> crops = random_crops(3, 1);
  const std::vector<DriverImage> images{
      {.crops = crops, .tile_rows = 1, .tile_cols = 2, .image_slot = 0},
      {.crops = crops, .tile_rows = 2, .tile_cols = 1, .image_slot = 1}};
  GAPLESS_ASSERT_OK(driver_->encode(images));
  EXPECT_NE(embeddings(0), embeddings(1));
}

}  // namespace
}  // namespace gapless
