#include "pipeline/image_slots.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

ContentHash image(std::uint8_t name) {
  ContentHash hash{};
  hash.fill(name);
  return hash;
}

TEST(ImageSlotsTest, SeatsThatShareAnImageShareItsPlace) {
  ImageSlots slots(2);
  const auto first = slots.acquire(image(1));
  EXPECT_EQ(slots.acquire(image(1)), first);
  EXPECT_NE(slots.acquire(image(2)), first);
  EXPECT_FALSE(slots.acquire(image(3)).has_value()) << "both places are in use";
  slots.release(*first);
  EXPECT_FALSE(slots.acquire(image(3)).has_value()) << "one user is left";
  slots.release(*first);
  EXPECT_TRUE(slots.acquire(image(3)).has_value());
}

TEST(ImageSlotsTest, AnEncodedImageStaysUntilItsPlaceIsNeeded) {
  ImageSlots slots(2);
  for (const std::uint8_t name : {1, 2}) {
    const auto slot = slots.acquire(image(name));
    slots.set_encoded(*slot);
    slots.release(*slot);
  }
  EXPECT_TRUE(slots.is_encoded(*slots.acquire(image(1))));
  const auto third = slots.acquire(image(3));  // takes the place of image 2, used longest ago
  EXPECT_FALSE(slots.is_encoded(*third));
  slots.release(*third);
  EXPECT_FALSE(slots.is_encoded(*slots.acquire(image(2))));
  EXPECT_EQ(slots.num_in_use(), 2);
}

TEST(ImageSlotsTest, AnImageThatWasNeverEncodedIsForgotten) {
  ImageSlots slots(1);
  slots.release(*slots.acquire(image(1)));
  EXPECT_EQ(slots.num_in_use(), 0);
  EXPECT_FALSE(slots.is_encoded(*slots.acquire(image(1))));
}

TEST(ImageSlotsTest, ClearForgetsWhatNobodyUses) {
  ImageSlots slots(1);
  const auto slot = slots.acquire(image(1));
  slots.set_encoded(*slot);
  slots.clear();
  EXPECT_TRUE(slots.is_encoded(*slot));
  slots.release(*slot);
  slots.clear();
  EXPECT_FALSE(slots.is_encoded(*slots.acquire(image(1))));
}

}  // namespace
}  // namespace gapless
