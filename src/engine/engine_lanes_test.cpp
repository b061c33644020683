// Who waits for whom before the loop: texts and known pictures do not wait for large new ones, what
// is decoded at once stays within the budget, and what nobody wants any more is not decoded.
#include <gmock/gmock.h>

#include <thread>

#include "engine/engine_test_kit.h"

namespace gapless {
namespace {

using ::testing::HasSubstr;
using namespace gapless::testing;  // NOLINT: the helpers of this folder's tests

// 13 MB of raster, and one crop, so that the device has little to do with it.
constexpr int kWidth = 300;
constexpr int kHeight = 15'000;

class EngineLanesTest : public ::testing::Test {
 protected:
  void start(EngineOptions options) {
    auto model = load_model(open_device("cpu").value(), "");
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    auto engine = Engine::start(std::move(model).value(), options);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    engine_ = std::move(engine).value();
  }

  struct Asked {
    RequestId id;
    std::shared_ptr<JournalSink> sink;
  };
  Asked ask(const std::string& name, SkillRequest request) {
    Asked asked{{}, std::make_shared<JournalSink>(journal_, name)};
    const auto id = engine_->submit(std::move(request), asked.sink);
    EXPECT_TRUE(id.ok()) << id.status().to_string();
    asked.id = *id;
    return asked;
  }
  // "large 0" and so on, all of them new.
  std::vector<Asked> ask_about_large(int count) {
    // Made once for all tests. Asked all at once: making one takes longer than decoding it.
    static std::vector<std::shared_ptr<const std::string>> pictures;
    for (int i = static_cast<int>(pictures.size()); i < count; ++i) {
      pictures.push_back(flat_picture(kWidth, kHeight, i));
    }
    std::vector<Asked> asked;
    for (int i = 0; i < count; ++i) {
      asked.push_back(ask(fmt::format("large {}", i),
                          question_about(pictures[static_cast<std::size_t>(i)], 1)));
    }
    return asked;
  }

  Journal journal_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineLanesTest, ATextDoesNotWaitForPictures) {
  start({.num_preprocess_threads = 1});
  constexpr int kCount = 8;
  const auto large = ask_about_large(kCount);
  ask("text", question(1));
  const int text_at = journal_.wait_for("text ends");
  for (int i = 0; i < kCount; ++i) {
    const int at = journal_.wait_for(fmt::format("large {} ends", i));
    if (i >= 4) {
      EXPECT_LT(text_at, at) << "large " << i;
    }
    EXPECT_TRUE(large[static_cast<std::size_t>(i)].sink->status().ok());
  }
}

TEST_F(EngineLanesTest, AKnownPictureDoesNotWaitForNewOnes) {
  start({.num_preprocess_threads = 1});
  const auto known = flat_picture(800, 600, 99);
  ask("first", question_about(known, 1));
  journal_.wait_for("first ends");
  constexpr int kCount = 8;
  ask_about_large(kCount);
  ask("known", question_about(known, 1));
  const int known_at = journal_.wait_for("known ends");
  for (int i = 4; i < kCount; ++i) {
    EXPECT_LT(known_at, journal_.wait_for(fmt::format("large {} ends", i))) << "large " << i;
  }
}

TEST_F(EngineLanesTest, ASmallPictureWaitsForThoseThatRunOnly) {
  start({.num_preprocess_threads = 1});
  constexpr int kCount = 8;
  ask_about_large(kCount);
  ask("small", question_about(flat_picture(64, 64, 99), 1));
  const int small_at = journal_.wait_for("small ends");
  for (int i = 5; i < kCount; ++i) {
    EXPECT_LT(small_at, journal_.wait_for(fmt::format("large {} ends", i))) << "large " << i;
  }
}

// A picture of 27 crops is encoded in as many steps on the CPU.
TEST_F(EngineLanesTest, ATextGoesBetweenThePartsOfAPicturesEncode) {
  start({});
  ask("picture", question_about(flat_picture(30'000, 400, 7), 1));
  const auto num_encodes = [this] {
    return engine_->loop().ledger().totals().num_steps[static_cast<std::size_t>(StepKind::kEncode)];
  };
  while (num_encodes() == 0) std::this_thread::yield();
  ask("text", question(4));
  const int text_at = journal_.wait_for("text ends");
  EXPECT_LT(text_at, journal_.wait_for("picture ends"));
  EXPECT_EQ(num_encodes(), 27);
}

TEST_F(EngineLanesTest, WhatIsDecodedStaysWithinTheBudget) {
  // A picture takes 13 MB of raster and 1 MB beside it.
  constexpr std::int64_t kBudget = 20'000'000;
  start({.num_preprocess_threads = 4, .picture_memory_bytes = kBudget});
  constexpr int kCount = 6;
  const auto large = ask_about_large(kCount);
  std::int64_t most = 0;
  while (engine_->num_active() > 0) {
    most = std::max(most, engine_->picture_memory_in_use());
    std::this_thread::yield();
  }
  EXPECT_GT(most, std::int64_t{3} * kWidth * kHeight);
  EXPECT_LE(most, kBudget) << "two at once";
  EXPECT_EQ(engine_->picture_memory_in_use(), 0);
  for (const Asked& one : large) EXPECT_TRUE(one.sink->status().ok());

  const Asked too_large = ask("huge", question_about(flat_picture(kWidth, 2 * kHeight, 1), 1));
  journal_.wait_for("huge ends");
  EXPECT_EQ(too_large.sink->status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(too_large.sink->status().message().find("the picture takes"), 0u);
  EXPECT_THAT(too_large.sink->status().message(), HasSubstr("MB to decode, more than the 19 MB"));
}

TEST_F(EngineLanesTest, ACancelledPictureIsNotWaitedForNorDecoded) {
  start({.num_preprocess_threads = 1});
  constexpr int kCount = 8;
  const auto large = ask_about_large(kCount);
  for (int i = kCount - 1; i >= 1; --i) engine_->cancel(large[static_cast<std::size_t>(i)].id);
  const int first_at = journal_.wait_for("large 0 ends");
  EXPECT_TRUE(large[0].sink->status().ok());
  for (int i = 1; i < kCount; ++i) {
    journal_.wait_for(fmt::format("large {} ends", i));
    EXPECT_EQ(large[static_cast<std::size_t>(i)].sink->status().code(), StatusCode::kCancelled);
  }
  EXPECT_LT(journal_.wait_for(fmt::format("large {} ends", kCount - 1)), first_at)
      << "its turn would have been after the first one's";
  EXPECT_EQ(engine_->num_pictures_waiting(), 0u);
}

}  // namespace
}  // namespace gapless
