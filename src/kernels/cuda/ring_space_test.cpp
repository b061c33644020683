#include "kernels/cuda/ring_space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

namespace gapless {
namespace {

struct Stage {
  int at, size;
  unsigned end;
};

// Fills a ring with batches of equal stages, as many of each at a time as there is room for, and
// gives the oldest back when there is none.
class RingSpaceTest : public ::testing::Test {
 protected:
  static int before_end(const RingSpace& space, int size) {
    int count = 0;
    while (space.is_before_end(count, size)) ++count;
    return count;
  }

  void push(RingSpace& space, int bytes, int count, int size) {
    while (count > 0) {
      const int num_before_end = before_end(space, size);
      int ready = 0;
      while (ready < count && space.has_room(space.end(ready, size, num_before_end), given_back_)) {
        add({space.at(ready, size, num_before_end), size, space.end(ready, size, num_before_end)},
            bytes);
        if (HasFatalFailure()) return;
        ++ready;
      }
      if (ready == 0) {
        ASSERT_FALSE(stages_.empty()) << "no room in an empty ring";
        given_back_ = stages_.front().end;
        stages_.pop_front();
        continue;
      }
      space.take(ready, size, num_before_end);
      largest_batch_ = std::max(largest_batch_, ready);
      count -= ready;
    }
  }

  void add(const Stage& stage, int bytes) {
    ASSERT_GE(stage.at, 0);
    ASSERT_LE(stage.at + stage.size, bytes);
    ends_at_the_end_ += stage.at + stage.size == bytes;
    for (const Stage& other : stages_) {
      ASSERT_TRUE(stage.at + stage.size <= other.at || other.at + other.size <= stage.at)
          << "stages at " << stage.at << " and " << other.at << " overlap";
    }
    stages_.push_back(stage);
  }

  std::deque<Stage> stages_;
  unsigned given_back_ = 0;
  int ends_at_the_end_ = 0, largest_batch_ = 0;
};

TEST_F(RingSpaceTest, StagesStayInsideAndApart) {
  constexpr int kBytes = 1000, kLargest = 130;
  RingSpace space(kBytes);
  std::mt19937 random(1);
  for (int i = 0; i < 100'000; ++i) {
    const int size = 10 * (1 + static_cast<int>(random() % (kLargest / 10)));
    push(space, kBytes, 1 + static_cast<int>(random() % 20), size);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(ends_at_the_end_, 100);  // a stage that ends with the array leaves nothing unused
  EXPECT_GT(largest_batch_, 10);
}

TEST_F(RingSpaceTest, HoldsTheLargestStagesTwice) {
  constexpr int kBytes = 1000;
  RingSpace space(kBytes);
  std::mt19937 random(2);
  for (int i = 0; i < 10'000; ++i) {
    push(space, kBytes, 1 + static_cast<int>(random() % 3),
         10 * (1 + static_cast<int>(random() % 50)));
    if (HasFatalFailure()) return;
  }
}

TEST_F(RingSpaceTest, AStageIsNotCutInTwo) {
  RingSpace space(100);
  EXPECT_EQ(before_end(space, 35), 2);
  EXPECT_EQ(space.at(1, 35, 2), 35);
  EXPECT_EQ(space.end(1, 35, 2), 70u);
  space.take(2, 35, 2);
  EXPECT_EQ(before_end(space, 40), 0);
  EXPECT_EQ(space.at(0, 40, 0), 0);
  EXPECT_EQ(space.end(0, 40, 0), 140u);  // 30 are left unused
  EXPECT_FALSE(space.has_room(140, 35));
  EXPECT_TRUE(space.has_room(140, 40));
}

TEST(RingBytesTest, TheRingTakesWhatTheDeviceGives) {
  constexpr int kRest = 14'000;
  for (const int shared_kb : {99, 163, 227}) {
    const int shared = shared_kb << 10, ring = decoder_ring_bytes(shared, kRest);
    EXPECT_EQ(ring % kStageAlignment, 0);
    // Wherever the block's memory begins, the ring can be aligned.
    EXPECT_LE(ring + kRest + kStageAlignment, shared);
    EXPECT_GT(ring + kRest + 2 * kStageAlignment, shared);
  }
  EXPECT_EQ(decoder_ring_bytes(99 << 10, kRest), 87'168);
}

// Stages are used up in any order; slots are looked at as a set.
TEST(RingSlotsTest, StagesAreCountedInTurn) {
  std::mt19937 random(3);
  std::deque<bool> used_up;  // from the oldest stage on
  unsigned oldest = 0, next = 0;
  int most = 0;
  for (int i = 0; i < 200'000; ++i) {
    if (used_up.size() < kRingStages && random() % 2 == 0) {
      used_up.push_back(false);
      ++next;
    } else if (!used_up.empty()) {
      used_up[random() % used_up.size()] = true;
    }
    unsigned slots = 0;
    for (unsigned slot = 0; slot < kRingStages; ++slot) {
      const unsigned latest = latest_in_slot(slot, next);
      const unsigned place = latest - oldest;
      // Slots of stages that are gone: as barriers of an earlier turn, past or not.
      const bool is_set = place < used_up.size() ? used_up[place] : random() % 2 == 0;
      ASSERT_EQ(latest % kRingStages, slot);
      slots |= static_cast<unsigned>(is_set) << slot;
    }
    unsigned expected = 0;
    while (expected < used_up.size() && used_up[expected]) ++expected;
    ASSERT_EQ(stages_in_turn(slots, oldest, next), expected) << "from " << oldest << " to " << next;
    most = std::max(most, static_cast<int>(expected));
    // Not always at once, as who is busy elsewhere.
    if (random() % 8 == 0) {
      oldest += expected;
      used_up.erase(used_up.begin(), used_up.begin() + expected);
    }
  }
  EXPECT_GT(most, 4);
  EXPECT_GT(next, 10 * kRingStages);
}

}  // namespace
}  // namespace gapless
