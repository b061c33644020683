// Every way in which a tokenizer.json can be wrong gives an error that names the file and the
// thing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <functional>
#include <string>

#include "base/file_bytes.h"
#include "text/tokenizer.h"

namespace gapless {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kFile = GAPLESS_SOURCE_DIR "/tests/golden/tokenizer/gpt2_style.json";

std::string good_json() {
  return read_file(kFile, 1u << 20).value();
}

// The message for the good file after an edit, without the "t.json: " that must begin it.
std::string error_after(const std::function<void(boost::json::object&)>& edit) {
  boost::json::value document = boost::json::parse(good_json());
  edit(document.as_object());
  const auto tokenizer = Tokenizer::parse(boost::json::serialize(document), "t.json");
  if (tokenizer.ok()) return "no error";
  EXPECT_TRUE(tokenizer.status().message().starts_with("t.json: ")) << tokenizer.status().message();
  return tokenizer.status().message();
}

TEST(TokenizerErrors, TheUneditedFileIsGood) {
  EXPECT_EQ(error_after([](auto&) {}), "no error");
}

TEST(TokenizerErrors, FileThatIsNotThere) {
  EXPECT_THAT(Tokenizer::load("/no/such/tokenizer.json").status().to_string(),
              AllOf(HasSubstr("not found"), HasSubstr("/no/such/tokenizer.json")));
}

TEST(TokenizerErrors, TruncatedAtAnyPlace) {
  const std::string json = good_json();
  for (std::size_t size = 0; size + 2 < json.size(); size += size < 200 ? 1 : 97) {
    const auto tokenizer = Tokenizer::parse(std::string_view(json).substr(0, size), "t.json");
    ASSERT_FALSE(tokenizer.ok()) << size;
    EXPECT_EQ(tokenizer.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(tokenizer.status().message(), HasSubstr("t.json: not valid JSON"));
  }
}

TEST(TokenizerErrors, NestedTooDeep) {
  const std::string deep = "{\"model\":" + std::string(100'000, '[');
  EXPECT_THAT(Tokenizer::parse(deep, "t.json").status().message(), HasSubstr("not valid JSON"));
}

TEST(TokenizerErrors, NotBpe) {
  for (const char* type : {"Unigram", "WordPiece", "WordLevel"}) {
    EXPECT_THAT(error_after([&](auto& root) { root["model"].as_object()["type"] = type; }),
                AllOf(HasSubstr(type), HasSubstr("only BPE")));
  }
  EXPECT_THAT(error_after([](auto& root) { root.erase("model"); }), HasSubstr("model must be"));
}

TEST(TokenizerErrors, UnsupportedPartsAreNamed) {
  using boost::json::object;
  using boost::json::parse;
  EXPECT_THAT(error_after([](auto& root) {
                root["normalizer"] = object{{"type", "NFKC"}};
              }),
              HasSubstr("normalizer NFKC is not supported"));
  EXPECT_THAT(error_after([](auto& root) {
                root["pre_tokenizer"] = object{{"type", "Metaspace"}};
              }),
              HasSubstr("Metaspace"));
  EXPECT_THAT(error_after([](auto& root) { root["pre_tokenizer"] = nullptr; }),
              HasSubstr("pre_tokenizer must be an object"));
  EXPECT_THAT(error_after([](auto& root) {
                root["decoder"] = object{{"type", "WordPiece"}};
              }),
              HasSubstr("decoder WordPiece"));
  EXPECT_THAT(error_after([](auto& root) { root["model"].as_object()["dropout"] = 0.1; }),
              HasSubstr("dropout"));
  EXPECT_THAT(error_after([](auto& root) { root["model"].as_object()["byte_fallback"] = true; }),
              HasSubstr("byte_fallback"));
  EXPECT_THAT(
      error_after([](auto& root) { root["model"].as_object()["end_of_word_suffix"] = "</w>"; }),
      HasSubstr("end_of_word_suffix </w>"));
  EXPECT_THAT(error_after([](auto& root) {
                root["added_tokens"].as_array()[0].as_object()["lstrip"] = true;
              }),
              AllOf(HasSubstr("<|endoftext|>"), HasSubstr("lstrip")));
  EXPECT_THAT(error_after([](auto& root) {
                root["pre_tokenizer"] = parse(
                    R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"a"},
                        "behavior":"Contiguous","invert":false},{"type":"ByteLevel"}]})");
              }),
              HasSubstr("Contiguous"));
  EXPECT_THAT(error_after([](auto& root) {
                root["pre_tokenizer"] =
                    parse(R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},
                              {"type":"Digits","individual_digits":true}]})");
              }),
              HasSubstr("ByteLevel before another step"));
}

TEST(TokenizerErrors, RegularExpressionThatDoesNotCompile) {
  EXPECT_THAT(error_after([](auto& root) {
                root["pre_tokenizer"] = boost::json::parse(
                    R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"(a"},
                        "behavior":"Isolated","invert":false},{"type":"ByteLevel"}]})");
              }),
              HasSubstr("'(a' is wrong at byte 2"));
}

TEST(TokenizerErrors, RegularExpressionThatBacktracksForEverIsStopped) {
  boost::json::value document = boost::json::parse(good_json());
  document.as_object()["pre_tokenizer"] = boost::json::parse(
      R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"(?:a|a)+(?:a|a)+$"},
          "behavior":"Isolated","invert":false},{"type":"ByteLevel"}]})");
  const Tokenizer tokenizer = Tokenizer::parse(boost::json::serialize(document), "t.json").value();
  EXPECT_THAT(tokenizer.encode(std::string(60, 'a') + "b").status().message(),
              HasSubstr("regular expression failed at byte 0"));
}

TEST(TokenizerErrors, VocabularyAndMerges) {
  const auto vocab = [](auto& root) -> auto& {
    return root["model"].as_object()["vocab"].as_object();
  };
  const auto merges = [](auto& root) -> auto& {
    return root["model"].as_object()["merges"].as_array();
  };
  EXPECT_THAT(error_after([&](auto& root) { vocab(root).erase("A"); }),
              HasSubstr("no token for byte 0x41 ('A')"));
  EXPECT_THAT(error_after([&](auto& root) {
                const boost::json::value id_of_b = vocab(root).at("B");  // [] may move it
                vocab(root)["A"] = id_of_b;
              }),
              AllOf(HasSubstr("'A'"), HasSubstr("'B'"), HasSubstr("belongs to both")));
  for (const boost::json::value& id :
       {boost::json::value(-1), boost::json::value(1 << 20), boost::json::value(~0ull)}) {
    EXPECT_THAT(error_after([&](auto& root) { vocab(root)["A"] = id; }),
                HasSubstr("model.vocab.A must be between 0 and 1048575"));
  }
  EXPECT_THAT(error_after([&](auto& root) { vocab(root)["A"] = "x"; }),
              HasSubstr("model.vocab.A must be an integer"));
  EXPECT_THAT(error_after([&](auto& root) {
                merges(root)[3] = boost::json::array{"zz9", "a"};
              }),
              HasSubstr("model.merges[3] names 'zz9', which is not in the vocabulary"));
  EXPECT_THAT(error_after([&](auto& root) { merges(root)[3] = "q A"; }),
              HasSubstr("model.merges[3] names 'qA'"));
  for (const boost::json::value& merge :
       {boost::json::value("one"), boost::json::value("a b c"), boost::json::value(3),
        boost::json::value(boost::json::array{"a"})}) {
    EXPECT_THAT(error_after([&](auto& root) { merges(root)[3] = merge; }),
                HasSubstr("model.merges[3] must be a pair of tokens"));
  }
  EXPECT_THAT(
      error_after([](auto& root) { root["added_tokens"].as_array()[0].as_object()["id"] = 7; }),
      HasSubstr("belongs to both"));
}

}  // namespace
}  // namespace gapless
