#include "skill/skill_decoder.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

constexpr RegionTokenIds kIds{TokenId(5), TokenId(6)};

class SkillDecoderTest : public testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::load(GAPLESS_SOURCE_DIR "/models/tiny/tokenizer.json");
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    tokenizer_.emplace(std::move(loaded).value());
  }

  std::unique_ptr<SkillDecoder> make(Skill skill, std::vector<std::string> stop = {}) {
    SkillRequest request;
    request.skill = skill;
    request.settings.stop = std::move(stop);
    return make_skill_decoder(request, *tokenizer_, kIds);
  }

  std::vector<TokenId> encode(const std::string& text) { return tokenizer_->encode(text).value(); }

  static SkillResult result_of(const SkillDecoder& decoder) {
    SkillResult result;
    decoder.fill(result);
    return result;
  }

  std::optional<Tokenizer> tokenizer_;
};

TEST_F(SkillDecoderTest, TextArrivesInPiecesThatMakeTheWhole) {
  const std::string text = "a gr\u00fcn star \u2605 and 3 circles";
  auto decoder = make(Skill::kQuery);
  std::string streamed;
  for (const TokenId id : encode(text)) streamed += decoder->push({id, 0, 0});
  streamed += decoder->finish();
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(result_of(*decoder).text, text);
}

TEST_F(SkillDecoderTest, StopStringEndsTheTextBeforeIt) {
  auto decoder = make(Skill::kCaption, {" star"});
  std::string streamed;
  for (const TokenId id : encode("a red star and more")) streamed += decoder->push({id, 0, 0});
  EXPECT_TRUE(decoder->stopped());
  streamed += decoder->finish();
  EXPECT_EQ(streamed, "a red");
  EXPECT_EQ(result_of(*decoder).text, "a red");
}

TEST_F(SkillDecoderTest, PointsPairUpAndAnOddCoordinateIsDropped) {
  auto decoder = make(Skill::kPoint);
  for (const float value : {0.1f, 0.2f, 0.3f, 0.4f, 0.5f}) {
    EXPECT_EQ(decoder->push({kIds.coord, value, 0}), "");
  }
  const SkillResult result = result_of(*decoder);
  ASSERT_EQ(result.points.size(), 2u);
  EXPECT_FLOAT_EQ(result.points[1].x, 0.3f);
  EXPECT_FLOAT_EQ(result.points[1].y, 0.4f);
}

TEST_F(SkillDecoderTest, BoxesAreCentreAndSizeClampedToTheImage) {
  auto decoder = make(Skill::kDetect);
  decoder->push({kIds.coord, 0.5f, 0});
  decoder->push({kIds.coord, 0.9f, 0});
  decoder->push({kIds.size, 0.5f, 0.4f});
  decoder->push({kIds.coord, 0.1f, 0});  // cut off by the length limit
  const SkillResult result = result_of(*decoder);
  ASSERT_EQ(result.boxes.size(), 1u);
  EXPECT_FLOAT_EQ(result.boxes[0].x_min, 0.25f);
  EXPECT_FLOAT_EQ(result.boxes[0].x_max, 0.75f);
  EXPECT_FLOAT_EQ(result.boxes[0].y_min, 0.7f);
  EXPECT_FLOAT_EQ(result.boxes[0].y_max, 1.0f);
}

}  // namespace
}  // namespace gapless
