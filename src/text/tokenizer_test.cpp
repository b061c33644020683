#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <random>
#include <string>
#include <thread>

#include "base/file_bytes.h"
#include "base/limits.h"

namespace gapless {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kFolder = GAPLESS_SOURCE_DIR "/tests/golden/tokenizer/";

Tokenizer load(const std::string& file) {
  return Tokenizer::load(kFolder + file).value();
}

TEST(Tokenizer, LooksUpTokens) {
  const Tokenizer tokenizer = load("gpt2_style.json");
  EXPECT_EQ(tokenizer.id_of("<|endoftext|>"), TokenId(0));
  EXPECT_EQ(tokenizer.id_of("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.token_bytes(*tokenizer.id_of("Ġ")), " ");
  EXPECT_TRUE(tokenizer.is_special(TokenId(1)));
  EXPECT_FALSE(tokenizer.is_special(*tokenizer.id_of("a")));
}

TEST(Tokenizer, IdsWithoutATokenAreVisible) {
  const Tokenizer tokenizer = load("gpt2_style.json");
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{TokenId(51199), TokenId(-1)}), "<|51199|><|-1|>");
  EXPECT_FALSE(tokenizer.has(TokenId(51199)));
}

TEST(Tokenizer, TheVocabularyEndsBehindItsLastToken) {
#ifdef __GLIBC__
  // Fresh memory is not zero, so what lies behind the last token does not pass for an id without one.
  mallopt(M_PERTURB, 0x5A);
#endif
  const Tokenizer tokenizer = load("gpt2_style.json");
#ifdef __GLIBC__
  mallopt(M_PERTURB, 0);
#endif
  EXPECT_TRUE(tokenizer.has(TokenId(tokenizer.vocab_size() - 1)));
  EXPECT_FALSE(tokenizer.has(TokenId(tokenizer.vocab_size())));
}

// As Hugging Face's tokenizers do.
TEST(Tokenizer, OfAMergeListedTwiceTheLastCounts) {
  const auto merged_with = [](boost::json::array merges) {
    auto document =
        boost::json::parse(read_file(kFolder + "gpt2_style.json", 1u << 20).value()).as_object();
    boost::json::object& model = document["model"].as_object();
    boost::json::object& vocab = model["vocab"].as_object();
    for (const char* token : {"ab", "bc"}) {
      if (!vocab.contains(token)) vocab[token] = 60'000 + token[0];
    }
    model["merges"] = std::move(merges);
    const auto tokenizer = Tokenizer::parse(boost::json::serialize(document), "t.json");
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    std::vector<std::string> pieces;
    for (const TokenId id : tokenizer->encode("abc").value()) {
      pieces.push_back(tokenizer->token_bytes(id));
    }
    return pieces;
  };
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(merged_with({"a b", "b c"}), (Pieces{"ab", "c"}));
  EXPECT_EQ(merged_with({"a b", "b c", "a b"}), (Pieces{"a", "bc"}));
}

TEST(Tokenizer, UserTextNeverBecomesASpecialToken) {
  for (const char* file : {"gpt2_style.json", "split_style.json", "steps_style.json"}) {
    const Tokenizer tokenizer = load(file);
    for (const char* text : {"<|endoftext|>", "a<|coord|>", " <|separator_1|><|separator_2|> "}) {
      const std::vector<TokenId> ids = tokenizer.encode(text).value();
      for (const TokenId id : ids) {
        EXPECT_FALSE(tokenizer.is_special(id)) << file << " " << text;
      }
    }
    EXPECT_THAT(tokenizer.encode("a<|coord|>", AddedTokens::kAsTokens).value(),
                Contains(*tokenizer.id_of("<|coord|>")));
  }
}

// An added token may also be a word that merging its letters makes.
TEST(Tokenizer, MergingLettersNeverMakesASpecialToken) {
  auto document = boost::json::parse(read_file(kFolder + "gpt2_style.json", 1u << 20).value());
  const auto id = document.at("model").at("vocab").at("he").as_int64();
  document.at("added_tokens")
      .as_array()
      .push_back({{"id", id}, {"content", "he"}, {"special", true}});
  const auto tokenizer = Tokenizer::parse(boost::json::serialize(document), "t.json").value();
  const TokenId he(static_cast<std::int32_t>(id));
  EXPECT_THAT(load("gpt2_style.json").encode("he").value(), Each(he));
  EXPECT_THAT(tokenizer.encode("he").value(), Not(Contains(he)));
  EXPECT_THAT(tokenizer.encode("he", AddedTokens::kAsTokens).value(), Each(he));
}

TEST(Tokenizer, AWholeWordNeverIsASpecialTokenEither) {
  auto document = boost::json::parse(read_file(kFolder + "gpt2_style.json", 1u << 20).value());
  document.at("model").as_object()["ignore_merges"] = true;
  const auto id = document.at("model").at("vocab").at("he").as_int64();
  document.at("added_tokens")
      .as_array()
      .push_back({{"id", id}, {"content", "he"}, {"special", true}});
  const auto tokenizer = Tokenizer::parse(boost::json::serialize(document), "t.json").value();
  EXPECT_THAT(tokenizer.encode("he").value(),
              Not(Contains(TokenId(static_cast<std::int32_t>(id)))));
}

TEST(Tokenizer, MarkSpecialOnlyTouchesAddedTokens) {
  Tokenizer tokenizer = load("gpt2_style.json");
  const TokenId spaces = *tokenizer.id_of("   "), letter = *tokenizer.id_of("a");
  EXPECT_THAT(tokenizer.encode("x   y").value(), Contains(spaces));
  tokenizer.mark_special(std::vector<TokenId>{spaces, letter, TokenId(1 << 20)});
  EXPECT_THAT(tokenizer.encode("x   y").value(), Not(Contains(spaces)));
  EXPECT_THAT(tokenizer.encode("a").value(), Each(letter));
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8OrTooLong) {
  const Tokenizer tokenizer = load("gpt2_style.json");
  EXPECT_THAT(tokenizer.encode("abc\xFFz").status().message(), HasSubstr("byte 3"));
  EXPECT_EQ(tokenizer.encode(std::string(kMaxPromptBytes + 1, 'a')).status().code(),
            StatusCode::kInvalidArgument);
}

// Quadratic merging would need hours here; the test's own time limit would end it.
TEST(Tokenizer, OneWordOfAMegabyteComesBack) {
  for (const char* file : {"gpt2_style.json", "split_style.json"}) {
    const Tokenizer tokenizer = load(file);
    std::string random_letters;
    std::mt19937 random(3);
    while (random_letters.size() < kMaxPromptBytes) {
      random_letters += static_cast<char>('a' + random() % 26);
    }
    for (const std::string& text :
         {std::string(kMaxPromptBytes, 'e'), std::string(kMaxPromptBytes, ' '),
          std::string(kMaxPromptBytes, '<'), random_letters}) {
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text).value()), text);
    }
  }
}

TEST(Tokenizer, ThreadsShareIt) {
  const Tokenizer tokenizer = load("split_style.json");
  const std::string text = "Which bar is the highest? The second one, I'll describe it 123 times.";
  const std::vector<TokenId> expected = tokenizer.encode(text).value();
  std::vector<std::thread> threads;
  std::vector<int> num_wrong(4, 0);
  for (std::size_t t = 0; t < num_wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        if (tokenizer.encode(text).value() != expected) ++num_wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(num_wrong, Each(0));
}

}  // namespace
}  // namespace gapless
