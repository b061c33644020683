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
    slots.crops_launched(*slot, 1, true);
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

TEST(ImageSlotsTest, AnImageGoesOnWhereItsLastPartEnded) {
  ImageSlots slots(2);
  const auto large = slots.acquire(image(1)), other = slots.acquire(image(2));
  EXPECT_EQ(slots.num_to_encode(), 2);
  slots.crops_launched(*large, 4, false);
  EXPECT_EQ(slots.num_encoded_crops(*large), 4);
  EXPECT_EQ(slots.num_encoded_crops(*other), 0);
  EXPECT_FALSE(slots.is_encoded(*large));
  slots.crops_launched(*large, 8, false);
  slots.crops_launched(*large, 9, true);
  EXPECT_TRUE(slots.is_encoded(*large));
  EXPECT_EQ(slots.num_encoded_crops(*large), 0) << "nothing is left in part";
  EXPECT_EQ(slots.num_to_encode(), 1);
  EXPECT_TRUE(slots.holds(image(1)));
  EXPECT_FALSE(slots.holds(image(2)));
}

// Another image's features take the place of its own.
TEST(ImageSlotsTest, AnImageInPartBeginsAnewBehindAnother) {
  ImageSlots slots(2);
  const auto first = slots.acquire(image(1)), second = slots.acquire(image(2));
  slots.crops_launched(*first, 4, false);
  slots.crops_launched(*second, 1, true);
  EXPECT_EQ(slots.num_encoded_crops(*first), 0);
  slots.crops_launched(*first, 4, false);
  slots.forget_part();
  EXPECT_EQ(slots.num_encoded_crops(*first), 0);
}

TEST(ImageSlotsTest, APlaceHasNothingOfTheImageThatWasGivenUpInIt) {
  ImageSlots slots(1);
  const auto first = slots.acquire(image(1));
  slots.crops_launched(*first, 4, false);
  slots.release(*first);
  EXPECT_EQ(slots.num_encoded_crops(*slots.acquire(image(2))), 0);
}

TEST(ImageSlotsTest, ClearForgetsWhatNobodyUses) {
  ImageSlots slots(1);
  const auto slot = slots.acquire(image(1));
  slots.crops_launched(*slot, 1, true);
  slots.clear();
  EXPECT_TRUE(slots.is_encoded(*slot));
  slots.release(*slot);
  slots.clear();
  EXPECT_FALSE(slots.is_encoded(*slots.acquire(image(1))));
}

}  // namespace
}  // namespace gapless
