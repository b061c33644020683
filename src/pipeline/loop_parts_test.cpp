// Images that are encoded in several steps, and who goes in between. In virtual time.
#include <gmock/gmock.h>

#include "pipeline/loop_test_kit.h"

namespace gapless {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t kCropNs = 100'000'000;

// A crop takes what it takes on a CPU, and a launch takes one or two.
class LoopPartsTest : public LoopTest {
 protected:
  LoopPartsTest() {
    model_config_.limits.max_crops_per_encode = 2;
    model_config_.limits.max_images_per_encode = 1;
    model_config_.limits.long_fill_ns = kCropNs / 2;
    model_config_.forward_ns = [](const StepShape& shape) {
      return shape.kind == StepKind::kEncode ? shape.num_crops * kCropNs : std::int64_t{100'000};
    };
  }

  // The global crop and 2x3 tiles.
  PreparedPrompt about_large(std::uint8_t name, int max_generated) {
    PreparedPrompt prompt = about_image(name, 3, max_generated);
    PreparedImage& image = prompt.images[0];
    image.tile_rows = 2;
    image.tile_cols = 3;
    image.crops_pinned.clear();
    for (std::size_t i = 0; i < 7; ++i) {
      image.crops_pinned.push_back(crops_pinned_.as<std::uint8_t>() +
                                   (name + i) % 8 * model_config_.crop_bytes);
    }
    return prompt;
  }
  std::vector<CommittedToken> oracle(const PreparedPrompt& prompt) {
    return fake_answer(model_config_, prompt, nullptr).tokens;
  }
  void expect_answer(const Answer& answer, const PreparedPrompt& prompt) {
    const std::vector<CommittedToken> expected = oracle(prompt);
    ASSERT_EQ(answer.tokens.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(answer.tokens[i].token, expected[i].token) << i;
    }
  }
  int num_encodes() { return static_cast<int>(records_of(StepKind::kEncode).size()); }
  void tick_until_encodes(int count) {
    while (num_encodes() < count) (void)loop_->tick();
  }
};

TEST_F(LoopPartsTest, TheTokensAreThoseOfOneEncode) {
  for (const int crops : {1, 2, 4, 7, 9}) {
    for (const bool with_graphs : {false, true}) {
      for (int depth = 1; depth <= kMaxDepth; ++depth) {
        options_.depth = depth;
        model_config_.limits.max_crops_per_encode = crops;
        model_config_.limits.max_graph_crops = with_graphs ? crops : 0;
        make_loop();
        const auto first = submit(about_large(1, 5));
        const auto second = submit(about_large(2, 5));
        const auto other = submit(text(4, 6));
        run();
        EXPECT_EQ(num_encodes(), 2 * ((7 + crops - 1) / crops));
        expect_answer(*first, about_large(1, 5));
        expect_answer(*second, about_large(2, 5));
        expect_answer(*other, text(4, 6));
        EXPECT_EQ(model_->num_faults(), 0);
      }
    }
  }
}

// It would wait for twenty-one crops, were an image one step, and for two images at least.
TEST_F(LoopPartsTest, ATextWaitsForOnePartOfAnImage) {
  for (const int depth : {1, 2, 3}) {
    options_.depth = depth;
    make_loop();
    std::vector<std::shared_ptr<Answer>> about;
    for (std::uint8_t name = 1; name <= 3; ++name) about.push_back(submit(about_large(name, 2)));
    tick_until_encodes(depth);  // those that were launched before one was seen to be long
    const auto answer = submit(text(3, 8));
    const std::int64_t submitted_ns = device_->now_ns();
    run();
    EXPECT_LE(answer->times.first_token_ns - submitted_ns, 2 * kCropNs + kCropNs / 10)
        << "the part in flight; depth " << depth;
    EXPECT_LT(answer->times.finished_ns - submitted_ns, 3 * kCropNs) << "depth " << depth;
    for (const auto& one : about) EXPECT_EQ(one->tokens.size(), 2u);
  }
}

// Two ask about the image. The first one goes away when half of it is encoded; the other one has
// its place still, and goes on, whether or not somebody else was encoded in between.
TEST_F(LoopPartsTest, WhoSharesAnImageInPartGoesOnWithIt) {
  model_config_.limits.max_images_per_encode = 3;
  for (const bool with_another : {false, true}) {
    for (int num_parts = 1; num_parts <= 4; ++num_parts) {
      make_loop();
      const auto id = loop_->submit(about_large(1, 5), std::make_shared<Answer>());
      ASSERT_TRUE(id.ok());
      std::shared_ptr<Answer> another;
      if (with_another) another = submit(about_large(2, 3));
      const auto shared = submit(about_large(1, 5));
      tick_until_encodes(num_parts);
      loop_->cancel(*id);
      run();
      expect_answer(*shared, about_large(1, 5));
      if (another) expect_answer(*another, about_large(2, 3));
      EXPECT_EQ(loop_->counts().seats.image_slots_in_use, 0);
    }
  }
}

TEST_F(LoopPartsTest, APictureGivenUpInPartLeavesNothingToTheNextOne) {
  for (int num_parts = 1; num_parts <= 3; ++num_parts) {
    model_config_.limits.num_image_slots = 1;
    make_loop();
    const auto id = loop_->submit(about_large(1, 5), std::make_shared<Answer>());
    ASSERT_TRUE(id.ok());
    const auto next = submit(about_large(2, 5));
    tick_until_encodes(num_parts);
    loop_->cancel(*id);
    run();
    EXPECT_LE(num_encodes(), num_parts + 1 + 4) << "one part was in flight";
    expect_answer(*next, about_large(2, 5));
  }
}

// The launch of somebody else's encode fails when its crops may be where the half image was.
TEST_F(LoopPartsTest, AFailedEncodeTakesTheHalfImageWithIt) {
  model_config_.limits.max_images_per_encode = 3;
  int num_failed = 0;
  for (std::int64_t number = 1; number <= 40; ++number) {
    device_config_.faults.failing_calls = {{SimCall::kRecord, number}};
    make_loop();
    const auto id = loop_->submit(about_large(1, 5), std::make_shared<Answer>());
    ASSERT_TRUE(id.ok());
    const auto another = submit(about_large(2, 3));
    const auto shared = submit(about_large(1, 5));
    for (int i = 0; i < 4 && num_encodes() < 1; ++i) (void)loop_->tick();
    loop_->cancel(*id);
    run();
    num_failed += another->reason == FinishReason::kError ? 1 : 0;
    if (shared->reason != FinishReason::kError) expect_answer(*shared, about_large(1, 5));
    if (another->reason != FinishReason::kError) expect_answer(*another, about_large(2, 3));
    EXPECT_EQ(loop_->counts().seats.image_slots_in_use, 0);
  }
  EXPECT_GT(num_failed, 2);
}

// ---- seats

// Pictures that wait for their encode would take every seat and hold it; so they wait for it before
// they have one.
TEST_F(LoopPartsTest, PicturesThatWaitForTheirEncodeLeaveSeatsToTexts) {
  make_loop();
  std::vector<std::shared_ptr<Answer>> about;
  for (std::uint8_t name = 1; name <= 20; ++name) about.push_back(submit(about_large(name, 2)));
  (void)loop_->tick();
  EXPECT_EQ(loop_->counts().running, 1) << "as many as an encode step takes";
  const auto answer = submit(text(3, 8));
  const std::int64_t submitted_ns = device_->now_ns();
  run();
  EXPECT_LT(answer->times.finished_ns - submitted_ns, 4 * kCropNs);
  std::int64_t previous_ns = 0;
  for (const auto& one : about) {
    ASSERT_EQ(one->tokens.size(), 2u);
    EXPECT_GT(one->times.first_token_ns, previous_ns) << "in order of arrival";
    previous_ns = one->times.first_token_ns;
  }
}

TEST_F(LoopPartsTest, TheNextPictureHasItsSeatWhenTheEncodeBeforeItIsLaunched) {
  make_loop();
  submit(about_image(1, 3, 2));
  submit(about_image(2, 3, 2));
  (void)loop_->tick();
  EXPECT_EQ(loop_->counts().running, 1);
  EXPECT_EQ(loop_->counts().steps_in_flight, 1);
  (void)loop_->tick();
  EXPECT_EQ(loop_->counts().running, 2);
}

// While others decode and nobody's seat becomes free.
TEST_F(LoopPartsTest, ATextBehindPicturesThatWaitIsSeatedAtOnce) {
  make_loop();
  for (std::uint8_t name = 1; name <= 3; ++name) submit(about_large(name, 2));
  const auto running = submit(text(3, 60));
  while (running->tokens.size() < 10) (void)loop_->tick();
  ASSERT_EQ(loop_->counts().running, 2);
  const auto late = submit(text(3, 4));
  (void)loop_->tick();
  EXPECT_EQ(loop_->counts().running, 3);
}

// What is cached, pages of the prefix or an image in its place, needs no encode.
TEST_F(LoopPartsTest, KnownPicturesPassThoseThatWaitForTheirEncode) {
  for (const int num_prefixes : {0, 8}) {
    options_.max_cached_prefixes = num_prefixes;
    model_config_.limits.num_image_slots = num_prefixes == 0 ? 4 : 1;
    make_loop();
    submit(about_large(30, 1));
    run();
    submit(about_large(31, 1));  // takes its place, where there is one only
    run();
    std::vector<std::shared_ptr<Answer>> about;
    for (std::uint8_t name = 1; name <= 3; ++name) about.push_back(submit(about_large(name, 2)));
    (void)loop_->tick();
    const auto known = submit(about_large(30, 4));
    while (known->tokens.size() < 4) (void)loop_->tick();
    EXPECT_TRUE(about[2]->tokens.empty()) << num_prefixes << " cached prefixes";
    EXPECT_TRUE(about[0]->tokens.empty());
    run();
    for (const auto& one : about) EXPECT_EQ(one->tokens.size(), 2u);
  }
}

// Passed by texts again and again, a picture is the first in line as soon as its turn comes.
TEST_F(LoopPartsTest, TextsDoNotStarveThePicturesThatTheyPass) {
  model_config_.limits.max_seats = 2;
  model_config_.limits.max_prefill_sequences = 2;
  make_loop();
  const auto first = submit(about_large(1, 2));
  const auto second = submit(about_large(2, 2));
  std::vector<std::shared_ptr<Answer>> texts;
  for (int i = 0; i < 200; ++i) texts.push_back(submit(text(3, 20)));
  while (second->tokens.empty()) (void)loop_->tick();
  int num_finished = 0;
  for (const auto& one : texts) num_finished += one->num_finished;
  EXPECT_LT(num_finished, 200);
  run();
  for (const auto& one : texts) EXPECT_EQ(one->tokens.size(), 20u);
}

}  // namespace
}  // namespace gapless
