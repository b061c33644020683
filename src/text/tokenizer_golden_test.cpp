// The tokenizer against Hugging Face's (tools/tokenizer_goldens.py makes the expected values).
// GAPLESS_TOKENIZER_GOLDENS is a folder of others, of real vocabularies (tools/tokenizer_check.py).
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "base/file_bytes.h"
#include "base/json.h"
#include "text/incremental_detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace gapless {
namespace {

const char* const kOther = std::getenv("GAPLESS_TOKENIZER_GOLDENS");
const std::string kGoldenFolder =
    kOther != nullptr ? std::string(kOther) + "/" : GAPLESS_SOURCE_DIR "/tests/golden/tokenizer/";

std::vector<TokenId> ids_of(const boost::json::value& list) {
  std::vector<TokenId> ids;
  for (const auto& id : list.as_array()) ids.emplace_back(id.to_number<int>());
  return ids;
}

std::vector<int> numbers(const std::vector<TokenId>& ids) {
  std::vector<int> values;
  for (const TokenId id : ids) values.push_back(id.value);
  return values;
}

TEST(TokenizerGolden, EncodesAndDecodesAsHuggingFaceDoes) {
  const std::string json = read_file(kGoldenFolder + "goldens.json", 256u << 20).value();
  const boost::json::value goldens = parse_json(json, "goldens.json").value();
  std::map<std::string, Tokenizer> tokenizers;
  int num_cases = 0;
  for (const boost::json::value& value : goldens.at("cases").as_array()) {
    const std::string file(value.at("tokenizer").as_string());
    if (!tokenizers.contains(file)) {
      tokenizers.emplace(file, Tokenizer::load(kGoldenFolder + file).value());
    }
    const Tokenizer& tokenizer = tokenizers.at(file);
    const std::string text(value.at("text").as_string());
    SCOPED_TRACE(file + ": " + testing::PrintToString(text));

    const std::vector<TokenId> as_tokens = ids_of(value.at("as_tokens"));
    EXPECT_EQ(numbers(tokenizer.encode(text, AddedTokens::kAsTokens).value()), numbers(as_tokens));
    EXPECT_EQ(numbers(tokenizer.encode(text).value()), numbers(ids_of(value.at("as_text"))));
    EXPECT_EQ(repair_utf8(tokenizer.decode(as_tokens, SpecialTokens::kKeep)),
              value.at("decoded").as_string());
    EXPECT_EQ(repair_utf8(tokenizer.decode(as_tokens)),
              value.at("decoded_without_special").as_string());
    ++num_cases;
  }
  EXPECT_GE(tokenizers.size(), kOther != nullptr ? 1u : 4u);
  EXPECT_GT(num_cases, 450);
}

}  // namespace
}  // namespace gapless
