#include "text/incremental_detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "text/utf8.h"

namespace gapless {
namespace {

Tokenizer load() {
  return Tokenizer::load(GAPLESS_SOURCE_DIR "/tests/golden/tokenizer/gpt2_style.json").value();
}

TEST(IncrementalDetokenizer, HoldsBackUnfinishedCharacters) {
  const Tokenizer tokenizer = load();
  IncrementalDetokenizer detokenizer(tokenizer);
  const auto push = [&](const char* spelling) {
    return detokenizer.push(*tokenizer.id_of(spelling));
  };
  EXPECT_EQ(push("a"), "a");
  // U+10348: F0 90 8D 88, one byte per token.
  EXPECT_EQ(push("ð"), "");
  EXPECT_EQ(push("Ĳ"), "");
  EXPECT_EQ(push("į"), "");
  EXPECT_EQ(push("Ī"), "\U00010348");
  // An unfinished character that goes wrong gives one U+FFFD and what follows.
  EXPECT_EQ(push("ð"), "");
  EXPECT_EQ(push("a"), "\uFFFDa");
  EXPECT_EQ(push("ð"), "");
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(IncrementalDetokenizer, PlaceholdersAndSpecialTokens) {
  const Tokenizer tokenizer = load();
  IncrementalDetokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.push(TokenId(40000)), "<|40000|>");
  EXPECT_EQ(detokenizer.push(TokenId(1)), "");
  IncrementalDetokenizer keeping(tokenizer, SpecialTokens::kKeep);
  EXPECT_EQ(keeping.push(TokenId(1)), "<|separator_1|>");
}

TEST(IncrementalDetokenizer, JoinedPiecesEqualTheFullDecode) {
  const Tokenizer tokenizer = load();
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    // Ids below 260 are special or single bytes, so broken characters are frequent.
    std::vector<TokenId> ids;
    for (std::size_t length = random() % 40; ids.size() < length;) {
      const std::uint32_t range = random() % 2 == 0 ? 260 : 450;
      ids.emplace_back(static_cast<std::int32_t>(random() % range));
    }
    IncrementalDetokenizer detokenizer(tokenizer);
    std::string joined;
    for (const TokenId id : ids) {
      const std::string piece = detokenizer.push(id);
      EXPECT_EQ(find_invalid_utf8(piece), std::nullopt);
      joined += piece;
    }
    joined += detokenizer.flush();
    ASSERT_EQ(joined, repair_utf8(tokenizer.decode(ids))) << "round " << round;
  }
}

}  // namespace
}  // namespace gapless
