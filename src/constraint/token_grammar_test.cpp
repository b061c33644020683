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
    R"({"type": "array", "items": {"type": "array", "items": {"enum": ["", true]}, "minItems": 1, "maxItems": 3},
        "minItems": 2, "maxItems": 6})",
    R"({"type": "string", "format": "date"})",
    R"({"type": "object", "properties": {"a\"": {"type": "null"}, "a\\": {"type": "null"}, "e/": {"const": 1},
        "name": {"const": "\"\\"}}, "required": ["e/"], "additionalProperties": false})",
    R"({"type": "object", "properties": {"\"": {"type": "null"}, "a": {"type": "null"}}, "required": ["\"", "a"],
        "maxProperties": 3, "additionalProperties": {"type": "null"}})",
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

// Of a list of up to 40 items those in the middle have the same tokens: none of them may be the last, and each may be. What a list
// within it holds says nothing of that.
TEST_F(TokenGrammarTest, ItemsInTheMiddleOfAListShareTheirMasks) {
  const auto grammar = make(
      R"({"type": "array", "items": {"type": "array", "items": {"type": "null"}, "maxItems": 9}, "maxItems": 40})");
  GrammarRow row = begin_row(grammar->grammar());
  const auto take = [&](std::string_view text) {
    for (const char byte : text) {
      (void)grammar->find_or_make(row);
      ASSERT_TRUE(advance(grammar->grammar(), row, static_cast<std::uint8_t>(byte)));
    }
  };
  take("[[null,null]");
  std::size_t num_by_fifth = 0;
  for (int item = 2; item <= 40; ++item) {
    take(",[null,null]");
    if (item == 5) num_by_fifth = grammar->num_masks();
    if (item == 35) {
      EXPECT_EQ(grammar->num_masks(), num_by_fifth);
    }
  }
  const auto last = grammar->find_or_make(row);
  EXPECT_GT(grammar->num_masks(), num_by_fifth);
  for (const std::int32_t token : by_brute_force(*grammar, row)) {
    EXPECT_EQ(vocabulary_->bytes_of(token).find(','), std::string_view::npos);
    EXPECT_TRUE(is_set(*last, token));
  }
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

const char* const kMoreSchemas[] = {
    // Alternatives that are told apart late, and one with much to say.
    R"({"anyOf": [{"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}},
        "required": ["kind", "r"]}, {"type": "object", "properties": {"kind": {"enum": ["box", "name"]},
        "a": {"type": "string", "minLength": 9}, "b": {"type": "string", "minLength": 9}},
        "required": ["kind", "a", "b"], "additionalProperties": false}]})",
    // Values in values.
    R"({"type": "object", "properties": {"a": {"type": "array", "minItems": 2, "items": {"type": "object",
        "properties": {"name": {"type": "string", "minLength": 12}, "r": {"type": "integer", "minimum": 100}},
        "required": ["name", "r"], "additionalProperties": false}}}, "required": ["a"],
        "additionalProperties": {"type": "array", "minItems": 3, "items": {"type": "boolean"}}})",
    // What ends only by another alternative than the one that refers to itself.
    R"({"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"a": {"anyOf": [
        {"$ref": "#/$defs/t"}, {"type": "null"}]}, "kind": {"const": "circle"}}, "required": ["a", "kind"],
        "additionalProperties": false}}})",
    R"({"type": "object", "minProperties": 1, "maxProperties": 3, "additionalProperties": {"type": "number"}})",
    R"({"type": "array", "prefixItems": [{"const": "yes"}, {"type": "string", "pattern": "^e{5}$"}], "minItems": 2,
        "items": {"type": "string", "format": "date"}})",
    R"({"type": "string", "minLength": 5, "maxLength": 9})"};

std::vector<const char*> all_schemas() {
  std::vector<const char*> schemas(std::begin(kSchemas), std::end(kSchemas));
  schemas.insert(schemas.end(), std::begin(kMoreSchemas), std::end(kMoreSchemas));
  return schemas;
}

// Random answers under limits from the least that is possible on: each one ends within its limit, whatever is drawn.
TEST(CompleteTest, EveryAnswerIsWholeWithinItsLimit) {
  GrammarStore store(small_vocabulary(), kEos);
  const VocabularyTrie vocabulary(small_vocabulary());
  std::mt19937 random(21);
  for (const char* text : all_schemas()) {
    const GrammarSpec spec{.kind = GrammarSpec::Kind::kJsonSchema, .text = text};
    const auto grammar = store.get(spec).value();
    const auto shortest = grammar->closing().find(begin_row(grammar->grammar()));
    ASSERT_TRUE(shortest.has_value()) << text;
    const int least = static_cast<int>(shortest->size()) + 1;
    EXPECT_EQ(store.complete_constraint(grammar, least - 1).status().field(), "complete");
    for (int i = 0; i < 60; ++i) {
      const int limit = least + (i < 20 ? 0 : i < 40 ? i - 20 : 3 * i);
      auto made = store.complete_constraint(grammar, limit);
      ASSERT_TRUE(made.ok()) << made.status().message();
      std::string answer;
      int num_tokens = 0;
      bool ended = false;
      while (num_tokens < limit && !ended) {
        TokenMask mask(static_cast<std::size_t>(vocabulary.vocab() + 31) / 32);
        (*made)->allowed(mask);
        std::vector<std::int32_t> allowed;
        for (std::int32_t token = 0; token < vocabulary.vocab(); ++token) {
          if (is_set(mask, token)) allowed.push_back(token);
        }
        ASSERT_FALSE(allowed.empty()) << text << ": " << answer;
        const std::int32_t token = allowed[random() % allowed.size()];
        ++num_tokens;
        ended = token == kEos;
        answer += vocabulary.bytes_of(token);
        (*made)->advance(TokenId(token));
      }
      EXPECT_TRUE(ended) << text << ": of " << limit << " tokens: " << answer;
      EXPECT_TRUE(accepts(grammar->grammar(), answer)) << text << ": " << answer;
    }
  }
}

// Objects in objects until there are no more frames: the last one may not begin another.
TEST(CompleteTest, DeepAnswersComeBack) {
  GrammarStore store(small_vocabulary(), kEos);
  const VocabularyTrie vocabulary(small_vocabulary());
  const GrammarSpec spec{
      .kind = GrammarSpec::Kind::kJsonSchema,
      .text = R"({"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {
      "name": {"$ref": "#/$defs/t"}, "kind": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/t"}}},
      "additionalProperties": false}}})"};
  const auto grammar = store.get(spec).value();
  std::mt19937 random(22);
  for (int i = 0; i < 20; ++i) {
    const auto constraint = store.constraint(grammar);
    GrammarRow row = begin_row(grammar->grammar());
    std::string answer;
    int deepest = 0;
    bool is_outwards = false;
    for (int step = 0; step < 2000; ++step) {
      TokenMask mask(static_cast<std::size_t>(vocabulary.vocab() + 31) / 32);
      constraint->allowed(mask);
      // Inwards, as long as it goes; then outwards.
      std::vector<std::int32_t> inwards, outwards, allowed;
      for (std::int32_t token = 0; token < vocabulary.vocab(); ++token) {
        if (!is_set(mask, token)) continue;
        allowed.push_back(token);
        const std::string& bytes = vocabulary.bytes_of(token);
        if (bytes.find_first_of("}] \t\n\r") == std::string::npos) inwards.push_back(token);
        if (bytes.find_first_not_of("}]") == std::string::npos) outwards.push_back(token);
      }
      ASSERT_FALSE(allowed.empty()) << answer;
      is_outwards = is_outwards || inwards.empty();
      const auto& wanted = is_outwards ? outwards : inwards;
      const auto& among = wanted.empty() ? allowed : wanted;
      const std::int32_t token = among[random() % among.size()];
      answer += vocabulary.bytes_of(token);
      constraint->advance(TokenId(token));
      if (token == kEos) break;
      for (const char byte : vocabulary.bytes_of(token)) {
        ASSERT_TRUE(advance(grammar->grammar(), row, static_cast<std::uint8_t>(byte)));
      }
      deepest = std::max<int>(deepest, row.depth);
    }
    EXPECT_TRUE(accepts(grammar->grammar(), answer)) << answer;
    EXPECT_GE(deepest, kMaxGrammarDepth - 1);
  }
}

// Far from its end an answer is as free as without a limit.
TEST(CompleteTest, FarFromTheLimitNothingIsMasked) {
  GrammarStore store(small_vocabulary(), kEos);
  for (const char* text : all_schemas()) {
    const auto grammar = store.get({.kind = GrammarSpec::Kind::kJsonSchema, .text = text}).value();
    const auto complete = store.complete_constraint(grammar, 3000);
    ASSERT_TRUE(complete.ok()) << complete.status().message();
    TokenMask limited(static_cast<std::size_t>(grammar->vocabulary().vocab() + 31) / 32);
    TokenMask free = limited;
    (*complete)->allowed(limited);
    store.constraint(grammar)->allowed(free);
    EXPECT_EQ(limited, free) << text;
  }
}

}  // namespace
}  // namespace gapless
