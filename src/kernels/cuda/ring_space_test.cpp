#include "kernels/cuda/ring_space.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace gapless {
namespace {

struct Stage {
  int at, size, taken;
};

// Fills a ring with stages until none fits, gives some back, and so on.
class RingSpaceTest : public ::testing::Test {
 protected:
  void push(RingSpace& space, int bytes, int size) {
    while (!space.has_room(size)) {
      ASSERT_FALSE(stages_.empty()) << "no room in an empty ring";
      space.give_back(stages_.front().taken);
      stages_.pop_front();
    }
    const int taken = space.taken_by(size);
    const Stage stage{space.take(size), size, taken};
    ASSERT_GE(stage.at, 0);
    ASSERT_LE(stage.at + size, bytes);
    ends_at_the_end_ += stage.at + size == bytes;
    for (const Stage& other : stages_) {
      ASSERT_TRUE(stage.at + size <= other.at || other.at + other.size <= stage.at)
          << "stages at " << stage.at << " and " << other.at << " overlap";
    }
    stages_.push_back(stage);
  }

  std::deque<Stage> stages_;
  int ends_at_the_end_ = 0;
};

TEST_F(RingSpaceTest, StagesStayInsideAndApart) {
  constexpr int kBytes = 1000, kLargest = 130;
  RingSpace space(kBytes);
  std::mt19937 random(1);
  for (int i = 0; i < 100'000; ++i) {
    push(space, kBytes, 10 * (1 + static_cast<int>(random() % (kLargest / 10))));
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(ends_at_the_end_, 100);  // a stage that ends with the array leaves nothing unused
}

TEST_F(RingSpaceTest, AStageIsNotCutInTwo) {
  RingSpace space(100);
  EXPECT_EQ(space.take(70), 0);
  EXPECT_EQ(space.taken_by(40), 70);
  EXPECT_FALSE(space.has_room(40));
  space.give_back(70);
  EXPECT_EQ(space.take(40), 0);
}

}  // namespace
}  // namespace gapless
