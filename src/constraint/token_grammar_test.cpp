#include "constraint/token_grammar.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "grammar/grammar_limits.h"
#include "grammar/json_grammar.h"

namespace gapless {
namespace {

constexpr std::int32_t kEos = 0;

// Token 0 ends the answer and has no text; then every byte, and pieces as vocabularies have them.
std::vector<std::string> small_vocabulary() {
  std::vector<std::string> bytes = {""};
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  for (const char* piece :
       {"{\"",  "\":",    "\", \"", "\"}",   "\"}]",  "}}",  "],",   "[[",           "[{\"",
        "  ",   "    ",   "\n  ",   "abc",   "ab",    "a\"", "name", "\"name\": \"", "true",
        "alse", "null,",  "12",     "12.5",  "0.",    "-1",  "1}",   "9]}",          "é",
        "\xc3", "\xa9\"", "\\n",    "\\u00", "e",     "ee",  "eee",  "eeeeeeee",     "\", ",
        "kind", "circle", "\"r\"",  "\": 1", "2024-", "-0",  "\"\"", "\"\":",        "\\\"",
        " ",    ", ",     "yes",    "no"}) {
    bytes.emplace_back(piece);
  }
  bytes.emplace_back("abc");  // twice, as vocabularies with added tokens may have it
  return bytes;
}

bool is_set(const TokenMask& mask, std::int32_t token) {
  return (mask[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1) != 0;
}

// Token by token, byte by byte, from a row of its own each time.
std::set<std::int32_t> by_brute_force(const TokenGrammar& grammar, const GrammarRow& row) {
  std::set<std::int32_t> legal;
  if (may_end(grammar.grammar(), row)) legal.insert(kEos);
  for (std::int32_t token = 0; token < grammar.vocabulary().vocab(); ++token) {
    const std::string& bytes = grammar.vocabulary().bytes_of(token);
    if (bytes.empty()) continue;
    GrammarRow at = row;
    bool ok = true;
    for (const char byte : bytes) {
      ok = ok && advance(grammar.grammar(), at, static_cast<std::uint8_t>(byte));
    }
    if (ok) legal.insert(token);
  }
  return legal;
}

const char* const kSchemas[] = {
    R"({"type": "object"})",
    R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "r": {"type": "number"}},
        "required": ["name"], "additionalProperties": false})",
    R"({"type": "array", "items": {"type": "integer", "minimum": -3, "maximum": 125}, "minItems": 2,
        "maxItems": 4})",
    R"({"type": "array", "items": {"type": "string", "minLength": 3, "maxLength": 12}, "minItems": 1})",
    R"({"anyOf": [{"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}},
        "required": ["kind", "r"], "additionalProperties": false}, {"type": "string", "pattern": "^e+$"},
        {"type": "null"}]})",
    R"({"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"a": {"type": "array",
        "items": {"$ref": "#/$defs/t"}}}, "additionalProperties": false, "maxProperties": 1}}})",
    R"({"type": "string", "format": "date"})",
    R"({"enum": ["yes", "no", {"a": [1, null]}, 12.5]})"};

class TokenGrammarTest : public ::testing::Test {
 protected:
  std::shared_ptr<TokenGrammar> make(std::string_view schema) {
    return std::make_shared<TokenGrammar>(compile_json_schema(schema).value(), vocabulary_, kEos);
  }

  std::shared_ptr<const VocabularyTrie> vocabulary_ =
      std::make_shared<const VocabularyTrie>(small_vocabulary());
};

// Random answers, with the cache: no legal token is masked, no other one allowed, whatever row filled the cache.
TEST_F(TokenGrammarTest, MasksAreExactAtEveryStepOfRandomAnswers) {
  std::mt19937 random(20);
  int num_whole = 0;
  for (const char* schema : kSchemas) {
    const auto grammar = make(schema);
    for (int answer = 0; answer < 40; ++answer) {
      GrammarRow row = begin_row(grammar->grammar());
      std::string text;
      for (int step = 0; step < 60; ++step) {
        const auto mask = grammar->find_or_make(row);
        const std::set<std::int32_t> legal = by_brute_force(*grammar, row);
        ASSERT_FALSE(legal.empty()) << schema << ": a dead end behind " << text;
        for (std::int32_t token = 0; token < vocabulary_->vocab(); ++token) {
          ASSERT_EQ(is_set(*mask, token), legal.contains(token))
              << schema << ": token " << token << " '" << vocabulary_->bytes_of(token)
              << "' behind " << text;
        }
        auto chosen = legal.begin();
        std::advance(chosen, static_cast<std::ptrdiff_t>(random() % legal.size()));
        if (*chosen == kEos) {
          EXPECT_TRUE(accepts(grammar->grammar(), text)) << text;
          ++num_whole;
          break;
        }
        for (const char byte : vocabulary_->bytes_of(*chosen)) {
          ASSERT_TRUE(advance(grammar->grammar(), row, static_cast<std::uint8_t>(byte)));
        }
        text += vocabulary_->bytes_of(*chosen);
      }
    }
  }
  EXPECT_GT(num_whole, 80);
}

// One set serves all lengths at which it is the same, so a long string does not cost one for each.
TEST_F(TokenGrammarTest, LongStringsShareTheirMasks) {
  const auto grammar = make(R"({"type": "string", "minLength": 20, "maxLength": 1000})");
  GrammarRow row = begin_row(grammar->grammar());
  ASSERT_TRUE(advance(grammar->grammar(), row, '"'));
  for (int i = 0; i < 900; ++i) {
    (void)grammar->find_or_make(row);
    ASSERT_TRUE(advance(grammar->grammar(), row, 'a'));
  }
  EXPECT_LT(grammar->num_masks(), 40u);
}

TEST_F(TokenGrammarTest, AConstraintWalksASequenceToItsEnd) {
  const auto workers = std::make_shared<MaskWorkers>(2);
  const auto grammar = make(R"({"enum": ["abc"]})");
  GrammarConstraint constraint(grammar, workers);
  const auto token_of = [this](std::string_view text) {
    for (std::int32_t token = 0; token < vocabulary_->vocab(); ++token) {
      if (vocabulary_->bytes_of(token) == text) return TokenId(token);
    }
    return TokenId(-1);
  };
  const auto allowed = [&] {
    TokenMask mask(static_cast<std::size_t>(vocabulary_->vocab() + 31) / 32);
    constraint.allowed(mask);
    return mask;
  };
  EXPECT_FALSE(is_set(allowed(), kEos));
  constraint.advance(token_of("\""));
  TokenMask mask = allowed();
  EXPECT_TRUE(is_set(mask, token_of("abc").value));
  EXPECT_TRUE(is_set(mask, token_of("ab").value));
  EXPECT_FALSE(is_set(mask, token_of("e").value));
  constraint.advance(token_of("abc"));
  constraint.advance(token_of("\""));
  mask = allowed();
  EXPECT_TRUE(is_set(mask, kEos));
  EXPECT_FALSE(is_set(mask, token_of(" ").value)) << "nothing behind the end";
  constraint.advance(TokenId(kEos));
  EXPECT_TRUE(is_set(allowed(), kEos));
  constraint.advance(token_of("abc"));  // illegal: the sequence has no next token
  mask = allowed();
  EXPECT_TRUE(std::all_of(mask.begin(), mask.end(), [](std::uint32_t word) { return word == 0; }));
}

TEST(GrammarStoreTest, KeepsWhatItCompiledAndWhatItRefused) {
  GrammarStore store(small_vocabulary(), kEos);
  const GrammarSpec spec{.kind = GrammarSpec::Kind::kJsonSchema,
                         .text = R"({"type": "null"})",
                         .field = "json_schema"};
  EXPECT_FALSE(store.find(spec).has_value());
  const auto first = store.get(spec), second = store.get(spec);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(*first, *second);
  const GrammarSpec bad{.kind = GrammarSpec::Kind::kRegex, .text = "(", .field = "guided_regex"};
  for (int i = 0; i < 2; ++i) {
    const auto refused = store.get(bad);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.status().field(), "guided_regex");
  }
  EXPECT_TRUE(store.find(bad).has_value());
  // The oldest makes room.
  for (std::size_t i = 0; i < kMaxCachedGrammars; ++i) {
    const GrammarSpec other{.kind = GrammarSpec::Kind::kChoice, .choices = {std::to_string(i)}};
    ASSERT_TRUE(store.get(other).ok());
  }
  EXPECT_FALSE(store.find(spec).has_value());
}

}  // namespace
}  // namespace gapless
