#include "skill/segment_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "constraint/path_tokens.h"
#include "skill/response_json.h"

namespace gapless {
namespace {

// The pieces that come, joined by "|".
std::string path_of(std::initializer_list<const char*> tokens) {
  PathText path;
  std::string pieces;
  const auto add = [&pieces](const std::string& piece) {
    if (!piece.empty()) pieces += (pieces.empty() ? "" : "|") + piece;
  };
  for (const char* token : tokens) add(path.push(token));
  add(path.finish());
  std::string joined = pieces;
  std::erase(joined, '|');
  EXPECT_EQ(path.so_far(), joined) << "the pieces are the path";
  return pieces;
}

TEST(PathText, NumbersAreSharesOfTheBox) {
  EXPECT_EQ(path_of({"M", "0", "960", "L", "480", "1", "Z"}), "M 0 1| L 0.5 0.001| Z");
  EXPECT_EQ(path_of({" M", " 96\n", "12", "l", "-", "20", " -", "0", "z"}),
            "M 0.1 0.013| l -0.021 0| z");
  EXPECT_EQ(path_of({"M", "959", "320"}), "M 0.999 0.333") << "three decimals";
}

TEST(PathText, ACommandTakesItsNumbersSeveralTimes) {
  EXPECT_EQ(path_of({"M", "0", "0", "960", "0", "C", "1", "2", "3", "4", "5", "6"}),
            "M 0 0 1 0| C 0.001 0.002 0.003 0.004 0.005 0.006");
  EXPECT_EQ(path_of({"M", "0", "0", "H", "96", "V", "192", "288"}), "M 0 0| H 0.1| V 0.2 0.3")
      << "one number at a time";
}

TEST(PathText, ArcsKeepTheirAnglesAndFlags) {
  EXPECT_EQ(path_of({"M", "0", "0", "A", "96", "192", "-", "45", "1", "0", "960", "480"}),
            "M 0 0| A 0.1 0.2 -45 1 0 1 0.5");
}

TEST(PathText, WhatIsNoWholeCommandIsLeftOut) {
  EXPECT_EQ(path_of({"M", "0", "0", "L", "1"}), "M 0 0");
  EXPECT_EQ(path_of({"M", "0", "0", "C", "96", "96", "96", "96", "96"}), "M 0 0");
  EXPECT_EQ(path_of({"M", "0", "0", "L", "96", "96", "96", "z"}), "M 0 0| L 0.1 0.1| z");
  EXPECT_EQ(path_of({"M", "0"}), "");
  EXPECT_EQ(path_of({"L", "0", "0", "5", "M", "0", "0"}), "M 0 0") << "a move comes first";
  EXPECT_EQ(path_of({"M", "0", "L", "1", "1", "z"}), "");
  EXPECT_EQ(path_of({"M", "the", "0", " ", "961", "0", "-"}), "M 0 0");
  EXPECT_EQ(path_of({}), "");
}

class SegmentDecoderTest : public testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::load(GAPLESS_SOURCE_DIR "/models/tiny/tokenizer.json");
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    tokenizer_.emplace(std::move(loaded).value());
    request_.skill = Skill::kSegment;
  }
  std::unique_ptr<SkillDecoder> make() const {
    return make_skill_decoder(request_, *tokenizer_, {.coord = TokenId(5), .size = TokenId(6)});
  }
  SampledToken token(const char* text) const { return {*tokenizer_->id_of(text)}; }

  std::optional<Tokenizer> tokenizer_;
  SkillRequest request_;
};

TEST_F(SegmentDecoderTest, TheBoxComesOnceAndThenWholeCommands) {
  const auto decoder = make();
  EXPECT_EQ(decoder->push({TokenId(5), 0.25f}), "");
  EXPECT_EQ(decoder->push({TokenId(5), 0.5f}), "");
  EXPECT_FALSE(decoder->take_box());
  EXPECT_EQ(decoder->push({TokenId(6), 0.75f, 0.5f}), "");
  const std::optional<Box> box = decoder->take_box();
  ASSERT_TRUE(box);
  EXPECT_EQ(box->x_min, 0) << "what lies outside of the picture is cut off";
  EXPECT_FLOAT_EQ(box->y_min, 0.25f);
  EXPECT_FLOAT_EQ(box->x_max, 0.625f);
  EXPECT_FLOAT_EQ(box->y_max, 0.75f);
  EXPECT_FALSE(decoder->take_box());
  std::vector<std::string> pieces;
  for (const char* text : {"M", "Ġ4", "-", "8", "L", "9", "9"}) {
    pieces.push_back(decoder->push(token(text)));
  }
  EXPECT_EQ(pieces, (std::vector<std::string>{"", "", "", "", "M 0.004 -0.008", "", ""}));
  EXPECT_EQ(decoder->finish(), " L 0.009 0.009");
  EXPECT_EQ(decoder->num_final_tokens(), 10);
  SkillResult result;
  result.skill = Skill::kSegment;
  decoder->fill(result);
  EXPECT_TRUE(result.confidences.empty());
  const boost::json::object json = response_json(result);
  EXPECT_EQ(json.at("path"), "M 0.004 -0.008 L 0.009 0.009");
  EXPECT_EQ(json.at("coarse"), true);
  const boost::json::object expected = {
      {"x_min", 0.0}, {"y_min", 0.25}, {"x_max", 0.625}, {"y_max", 0.75}};
  EXPECT_EQ(json.at("bbox"), expected);
}

TEST_F(SegmentDecoderTest, ABoxThatTheLimitCutOffIsNone) {
  const auto decoder = make();
  decoder->push({TokenId(5), 0.25f});
  decoder->push({TokenId(5), 0.25f});
  EXPECT_EQ(decoder->finish(), "");
  SkillResult result;
  result.skill = Skill::kSegment;
  decoder->fill(result);
  const boost::json::object json = response_json(result);
  EXPECT_EQ(json.at("path"), "");
  EXPECT_TRUE(json.at("bbox").is_null());
}

TEST_F(SegmentDecoderTest, TellsHowSureItsBoxIs) {
  request_.settings.confidence = true;
  const auto decoder = make();
  decoder->push({TokenId(5), 0.5f, 0, {.token = 0.75f, .x = 0.5f}});
  decoder->push({TokenId(5), 0.5f, 0, {.token = 1, .x = 0.25f}});
  decoder->push({TokenId(6), 0.5f, 0.5f, {.token = 1, .x = 0.125f, .y = 1}});
  SkillResult result;
  result.skill = Skill::kSegment;
  decoder->fill(result);
  const boost::json::object json = response_json(result);
  EXPECT_EQ(json.at("confidence"), 0.75);
  EXPECT_EQ(json.at("bin_confidences"), (boost::json::array{0.5, 0.25, 0.125, 1.0}));
}

// Of every token of a vocabulary: it has a class where its text without the whitespace around it is a command, a sign or an
// integer from 0 to 960.
TEST_F(SegmentDecoderTest, EveryTokenHasTheClassOfItsText) {
  const std::regex said(
      R"(\s*([MmLlHhVvCcSsQqTtAaZz]|-|0|[1-9][0-9]?|[1-8][0-9][0-9]|9[0-5][0-9]|960)\s*)");
  const std::vector<std::string> texts = tokenizer_->text_of_tokens();
  const std::vector<std::uint8_t> classes = path_token_classes(texts);
  ASSERT_EQ(classes.size(), texts.size());
  for (std::size_t token = 0; token < texts.size(); ++token) {
    const bool is_special = tokenizer_->is_special(TokenId(static_cast<int>(token)));
    EXPECT_EQ(classes[token] != 0, !is_special && std::regex_match(texts[token], said))
        << token << ": '" << texts[token] << "'";
  }
}

}  // namespace
}  // namespace gapless
