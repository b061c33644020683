#include "grammar/grammar.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "grammar/closing_text.h"
#include "grammar/grammar_limits.h"
#include "grammar/json_grammar.h"
#include "grammar/regex_grammar.h"
#include "grammar/state_loops.h"
#include "grammar/text_with_calls.h"

namespace gapless {
namespace {

using ::testing::HasSubstr;

Grammar schema(std::string_view text) {
  StatusOr<Grammar> grammar = compile_json_schema(text);
  EXPECT_TRUE(grammar.ok()) << text << ": " << grammar.status().message();
  return grammar.ok() ? *grammar : compile_any_json_object().value();
}

std::string refusal(std::string_view text) {
  const StatusOr<Grammar> grammar = compile_json_schema(text);
  EXPECT_FALSE(grammar.ok()) << text;
  return grammar.status().message();
}

// Whether some text that begins so is an answer: every byte is legal.
bool may_begin(const Grammar& grammar, std::string_view text) {
  GrammarRow row = begin_row(grammar);
  for (const char byte : text) {
    if (!advance(grammar, row, static_cast<std::uint8_t>(byte))) return false;
  }
  return true;
}

TEST(GrammarTest, AnyJsonObjectOfAnyDepth) {
  const Grammar g = compile_any_json_object().value();
  EXPECT_TRUE(accepts(g, "{}"));
  EXPECT_TRUE(accepts(
      g, R"( {"a": [1, -2.5e3, {"b": [[], {}]}], "c" : "x\n\u00e9\ud83d\ude00é", "d":null})"));
  EXPECT_TRUE(accepts(g, "{" + std::string(kMaxWhitespaceRun, ' ') + "}"));
  EXPECT_FALSE(accepts(g, "{" + std::string(kMaxWhitespaceRun + 1, ' ') + "}"));
  EXPECT_TRUE(accepts(g, "{ \"a\" :\n\n[ 1" + std::string(kMaxWhitespaceRun, ' ') + "]}"));
  EXPECT_FALSE(may_begin(g, "{} ")) << "nothing behind the end";
  EXPECT_FALSE(accepts(g, "[]"));
  EXPECT_FALSE(accepts(g, "{\"a\":1,}"));
  EXPECT_FALSE(accepts(g, "{\"a\":01}"));
  EXPECT_FALSE(accepts(g, "{\"a\":\"\\ud83d\"}")) << "half a pair";
  EXPECT_FALSE(accepts(g, "{\"a\":\"\xff\"}")) << "not UTF-8";
  EXPECT_FALSE(accepts(g, "{\"a\":\"\n\"}")) << "a control character";
  EXPECT_FALSE(accepts(g, "{\"a\":1"));
  EXPECT_FALSE(accepts(g, "{}{}"));
  std::string deep = "{\"a\":";
  for (int i = 1; i < kMaxGrammarDepth; ++i) deep += "[";
  EXPECT_TRUE(may_begin(g, deep));
  EXPECT_FALSE(may_begin(g, deep + "[")) << "one more than there are frames";
}

TEST(GrammarTest, MembersInAnyOrderEachOnce) {
  const Grammar g = schema(R"({"type": "object", "properties": {"a": {"type": "integer"},
      "ab": {"type": "string"}}, "required": ["a"], "additionalProperties": false})");
  EXPECT_TRUE(accepts(g, R"({"a": 1})"));
  EXPECT_TRUE(accepts(g, R"({"ab": "x", "a": -7})"));
  EXPECT_FALSE(accepts(g, R"({"ab": "x"})")) << "a is required";
  EXPECT_FALSE(accepts(g, R"({"a": 1, "a": 2})")) << "twice";
  EXPECT_FALSE(may_begin(g, R"({"a": 1, "b)")) << "no such name";
  EXPECT_FALSE(may_begin(g, R"({"a": 1.)"));
}

// A beginning is legal only where an answer goes on so.
TEST(GrammarTest, WhatWasThereLeadsIntoNoDeadEnd) {
  const Grammar g = schema(R"({"type": "object", "properties": {"name": {}, "names": {}, "r": {}},
      "required": ["name"], "additionalProperties": false})");
  EXPECT_TRUE(may_begin(g, R"({"name": 1, "name)"));
  EXPECT_TRUE(may_begin(g, R"({"name": 1, "names": 2, "r)"));
  EXPECT_FALSE(may_begin(g, R"({"name": 1, "names": 2, "n)")) << "only r is left";
  EXPECT_FALSE(may_begin(g, R"({"r": 1, "names": 2, "r)"));
  EXPECT_FALSE(may_begin(g, R"({"name": 1, "names": 2, "r": 3,)")) << "nothing is left";
  const Grammar bounded = schema(R"({"type": "object", "properties": {"a": {}, "b": {}},
      "required": ["b"], "maxProperties": 2})");
  EXPECT_TRUE(may_begin(bounded, R"({"x": 1, "b)"));
  EXPECT_FALSE(may_begin(bounded, R"({"x": 1, "a)")) << "the last place is for b";
  EXPECT_FALSE(may_begin(bounded, R"({"x": 1, "b": 2,)"));
  EXPECT_FALSE(may_begin(schema(R"({"type": "object", "maxProperties": 0})"), R"({")"));
  EXPECT_THAT(refusal(R"({"type": "object", "properties": {"a": {}}, "minProperties": 2,
                          "additionalProperties": false})"),
              HasSubstr("no value"));
}

// The same where the character that tells names apart is spelled with a backslash.
TEST(GrammarTest, EscapesOfNamesLeadIntoNoDeadEnd) {
  const Grammar g = schema(R"({"type": "object", "properties": {"a\"b": {}, "a\\c": {}, "ad": {},
      "e/f": {}}, "required": ["ad"], "additionalProperties": false})");
  EXPECT_TRUE(accepts(g, R"({"a\"b": 1, "a\\c": 2, "ad": 3, "e\/f": 4})"));
  EXPECT_TRUE(may_begin(g, R"({"a\"b": 1, "a\)")) << "the name with a backslash is left";
  EXPECT_FALSE(may_begin(g, R"({"a\"b": 1, "a\")"));
  EXPECT_TRUE(may_begin(g, R"({"a\"b": 1, "a\\c": 2, "a)")) << "ad is left";
  EXPECT_FALSE(may_begin(g, R"({"a\"b": 1, "a\\c": 2, "a\)")) << "both with escapes were there";
  EXPECT_FALSE(may_begin(g, R"({"e/f": 1, "e)"));
  EXPECT_FALSE(may_begin(g, R"({"a\"b": 1, "a\\c": 2, "ad": 3, "e\/f": 4,)"));
  const Grammar bounded = schema(R"({"type": "object", "properties": {"q\"": {}, "r": {}},
      "required": ["q\""], "maxProperties": 1})");
  EXPECT_TRUE(may_begin(bounded, R"({"q\")"));
  EXPECT_FALSE(may_begin(bounded, R"({"\)")) << "the only place is for the required name";
  const Grammar two = schema(R"({"type": "object", "properties": {"\"": {}}, "required": ["\""],
      "maxProperties": 1})");
  EXPECT_TRUE(may_begin(two, R"({"\")"));
  EXPECT_FALSE(may_begin(two, R"({"\u)")) << "a control character would be another name";
}

std::optional<std::string> closing(const Grammar& g, std::string_view begun) {
  GrammarRow row = begin_row(g);
  for (const char byte : begun) {
    EXPECT_TRUE(advance(g, row, static_cast<std::uint8_t>(byte))) << begun;
  }
  long work = kMaxClosableWork;
  const auto pieces = ClosingText(g).find(row, work);
  if (!pieces) return std::nullopt;
  std::string text;
  for (const std::string& piece : *pieces) text += piece;
  EXPECT_TRUE(accepts(g, std::string(begun) + text)) << begun << text;
  return text;
}

TEST(ClosingTextTest, EndsWhatWasBegun) {
  const Grammar any = compile_any_json_object().value();
  EXPECT_EQ(closing(any, ""), "{}");
  EXPECT_EQ(closing(any, R"({"a": [1, {"b": 12)"), "}]}");
  EXPECT_EQ(closing(any, R"({"a": "x\u0)"), R"(aaa"})");
  EXPECT_EQ(closing(any, "{\"a\": \"\xc3")->size(), 3u) << "the rest of a character";
  EXPECT_EQ(closing(any, "{\"a\": {}}"), "");
  const Grammar g = schema(R"({"type": "object", "properties": {"kind": {"enum": ["circle", "box"]},
      "n": {"type": "integer", "minimum": 10}, "s": {"type": "string", "minLength": 4}, "free": {}},
      "required": ["kind", "n", "s"], "additionalProperties": false})");
  EXPECT_EQ(closing(g, ""), R"({"n":10,"s":"aaaa","kind":"box"})");
  EXPECT_EQ(closing(g, R"({"kind": "c)"), R"(ircle","n":10,"s":"aaaa"})");
  EXPECT_EQ(closing(g, R"({"s": "xé12", "n": 1)"), R"(0,"kind":"box"})");
}

// Its work is bounded whatever the grammar is; what is not known then is not there.
TEST(ClosingTextTest, LooksNoLongerThanItMay) {
  const Grammar g = compile_regex("(a|b){3000}c").value();
  EXPECT_EQ(closing(g, "ab"), std::nullopt) << "too long to be looked for";
  GrammarRow row = begin_row(g);
  for (int i = 0; i < 1500; ++i) ASSERT_TRUE(advance(g, row, 'a'));
  const ClosingText text(g);
  long work = kMaxClosableWork;
  EXPECT_TRUE(text.find(row, work).has_value());
  EXPECT_LT(work, kMaxClosableWork);
  row = begin_row(g);
  for (int i = 0; i < 1600; ++i) ASSERT_TRUE(advance(g, row, 'a'));
  work = 1000;
  EXPECT_FALSE(text.find(row, work).has_value());
  EXPECT_LE(work, 0);
}

TEST(ClosingTextTest, TakesTheWayThatEnds) {
  const Grammar tree = schema(R"({"$ref": "#/$defs/t", "$defs": {"t": {"type": "object",
      "properties": {"a": {"anyOf": [{"$ref": "#/$defs/t"}, {"const": "the end of it all"}]}}, "required": ["a"],
      "additionalProperties": false}}})");
  EXPECT_EQ(closing(tree, ""), R"({"a":"the end of it all"})");
  const Grammar list =
      schema(R"({"type": "array", "minItems": 3, "items": {"type": "array", "minItems": 2,
      "items": {"type": "boolean"}}})");
  EXPECT_EQ(closing(list, "[[false"), ",true],[true,true],[true,true]]");
  EXPECT_EQ(closing(compile_regex("a{3}(b|cde)").value(), "a"), "aab");
}

// A name that is spelled with an escape is the same name.
TEST(GrammarTest, OtherNamesAreNotDeclaredOnesInDisguise) {
  const Grammar g = schema(R"({"properties": {"a": {"type": "integer"}, "q\"": {"type": "null"}},
      "additionalProperties": {"type": "string"}, "type": "object"})");
  EXPECT_TRUE(accepts(g, R"({"b": "x", "a": 1, "": "y"})"));
  EXPECT_FALSE(accepts(g, R"({"b": 1})"));
  EXPECT_FALSE(accepts(g, R"({"a": "x"})"));
  EXPECT_FALSE(accepts(g, "{\"\\u0061\": \"x\"}"));
  EXPECT_TRUE(accepts(g, R"({"q\"": null})"));
  EXPECT_FALSE(accepts(g, R"({"q\"": "x"})"));
  EXPECT_TRUE(accepts(g, R"({"q\"\\": "x", "aa": ""})"));
}

TEST(GrammarTest, PatternsOfNames) {
  const Grammar g = schema(R"({"type": "object", "properties": {"x1": {"type": "integer"}},
      "patternProperties": {"^x": {"type": "number"}, "9$": {"minimum": 5}},
      "additionalProperties": {"type": "null"}})");
  EXPECT_TRUE(accepts(g, R"({"x1": 3, "x2": 2.5, "x9": 5, "y": null, "y9": 7})"));
  EXPECT_FALSE(accepts(g, R"({"x1": 2.5})")) << "integer and number";
  EXPECT_FALSE(accepts(g, R"({"x9": 4.5})"));
  EXPECT_FALSE(accepts(g, R"({"y": 1})"));
  EXPECT_TRUE(accepts(g, R"({"y9": "any type: minimum is for numbers"})"));
}

TEST(GrammarTest, AlternativesAreReadAtOnce) {
  const Grammar g = schema(R"({"anyOf": [
      {"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}},
       "required": ["kind", "r"], "additionalProperties": false},
      {"type": "object", "properties": {"kind": {"const": "box"}, "w": {"type": "number"}},
       "required": ["kind", "w"], "additionalProperties": false}]})");
  EXPECT_TRUE(accepts(g, R"({"kind": "circle", "r": 1})"));
  EXPECT_TRUE(accepts(g, R"({"w": 1, "kind": "box"})"));
  EXPECT_FALSE(may_begin(g, R"({"kind": "circle", "w)")) << "only the circle is left";
  EXPECT_FALSE(may_begin(g, R"({"w": 1, "kind": "c)"));
  EXPECT_FALSE(accepts(g, R"({"kind": "box"})"));
}

TEST(GrammarTest, RecursionNeedsNoMoreStates) {
  const Grammar g = schema(R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object",
      "properties": {"value": {"type": "integer"}, "children": {"type": "array",
      "items": {"$ref": "#/$defs/tree"}}}, "required": ["value"], "additionalProperties": false}}})");
  EXPECT_TRUE(
      accepts(g, R"({"value": 1, "children": [{"value": 2}, {"children": [], "value": 3}]})"));
  EXPECT_FALSE(accepts(g, R"({"value": 1, "children": [{"children": []}]})"));
  EXPECT_THAT(refusal(R"({"$ref": "#"})"), HasSubstr("comes back to itself"));
  EXPECT_THAT(refusal(R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"],
                          "maxProperties": 0})"),
              HasSubstr("no value"));
}

TEST(GrammarTest, ArraysCountTheirItems) {
  const Grammar g = schema(R"({"type": "array", "prefixItems": [{"type": "string"}],
      "items": {"type": "integer"}, "minItems": 2, "maxItems": 4})");
  EXPECT_TRUE(accepts(g, R"(["a", 1])"));
  EXPECT_TRUE(accepts(g, R"([ "a" , 1 , 2,3 ])"));
  EXPECT_FALSE(accepts(g, R"(["a"])"));
  EXPECT_FALSE(accepts(g, R"([])"));
  EXPECT_FALSE(may_begin(g, R"(["a", 1, 2, 3,)")) << "four are enough";
  EXPECT_FALSE(may_begin(g, R"([1)"));
  EXPECT_FALSE(may_begin(g, R"(["a", ])"));
  EXPECT_TRUE(accepts(schema(R"({"type": "array", "maxItems": 0})"), "[ ]"));
  EXPECT_FALSE(may_begin(schema(R"({"type": "array", "maxItems": 0})"), "[1"));
}

TEST(GrammarTest, StringsCountCodePoints) {
  const Grammar g = schema(R"({"type": "string", "minLength": 2, "maxLength": 3})");
  EXPECT_TRUE(accepts(g, "\"é\\n\""));
  EXPECT_TRUE(accepts(g, "\"\\ud83d\\ude00a\\u0041\""));
  EXPECT_FALSE(accepts(g, "\"é\""));
  EXPECT_FALSE(may_begin(g, "\"abcd"));
  const Grammar pattern = schema(R"({"type": "string", "pattern": "^[a-c]+$", "maxLength": 2})");
  EXPECT_TRUE(accepts(pattern, "\"ab\""));
  EXPECT_FALSE(accepts(pattern, "\"abc\""));
  EXPECT_FALSE(accepts(pattern, "\"d\""));
}

struct NumberCase {
  const char* schema;
  std::vector<const char*> in, out;
};

TEST(GrammarTest, NumbersBetweenBounds) {
  const NumberCase cases[] = {
      {R"({"type": "integer", "minimum": 8, "maximum": 123})",
       {"8", "9", "10", "99", "100", "119", "123"},
       {"7", "0", "-8", "124", "200", "1000", "08", "8.0"}},
      {R"({"type": "integer", "exclusiveMinimum": -3, "maximum": 2})",
       {"-2", "-1", "0", "2"},
       {"-3", "3", "-10", "10"}},
      {R"({"type": "integer", "minimum": -205, "maximum": -7})",
       {"-7", "-8", "-99", "-205", "-199"},
       {"-6", "0", "7", "-206", "-1000"}},
      {R"({"type": "number", "minimum": 0, "maximum": 1})",
       {"0", "0.0", "0.5", "1", "1.00", "0.999"},
       {"1.01", "-0.1", "2", "1.001", "10"}},
      {R"({"type": "number", "exclusiveMinimum": 0.25, "exclusiveMaximum": 1.5})",
       {"0.26", "0.3", "0.2501", "1", "1.4999", "1.49"},
       {"0.25", "0.250", "0.2", "1.5", "1.50", "0"}},
      {R"({"type": "number", "minimum": -1.5, "maximum": -0.5})",
       {"-1.5", "-1", "-0.5", "-0.75"},
       {"-1.51", "-0.49", "0", "-2", "1"}},
      {R"({"type": "integer", "multipleOf": 7, "minimum": 0})",
       {"0", "7", "14", "700"},
       {"1", "8", "-7"}},
      {R"({"type": "number", "multipleOf": 0.01})", {"1", "0.5", "-3.25"}, {"0.125", "1e2"}},
      {R"({"type": "number"})", {"-0", "1E-7", "3.14e+10"}, {"01", ".5", "1.", "+1"}},
  };
  for (const NumberCase& c : cases) {
    const Grammar g = schema(c.schema);
    for (const char* text : c.in) EXPECT_TRUE(accepts(g, text)) << c.schema << " " << text;
    for (const char* text : c.out) EXPECT_FALSE(accepts(g, text)) << c.schema << " " << text;
  }
}

// Every whole number of three digits and less, against the bounds themselves.
TEST(GrammarTest, IntegerBoundsByBruteForce) {
  for (const auto& [low, high] : {std::pair(-17, 203), std::pair(5, 5), std::pair(-999, -100),
                                  std::pair(0, 9), std::pair(99, 101)}) {
    const Grammar g =
        schema(fmt::format(R"({{"type": "integer", "minimum": {}, "maximum": {}}})", low, high));
    for (int n = -1100; n <= 1100; ++n) {
      EXPECT_EQ(accepts(g, std::to_string(n)), low <= n && n <= high) << n;
    }
  }
}

TEST(GrammarTest, NullIsAType) {
  const Grammar either = schema(R"({"type": ["string", "null"]})");
  EXPECT_TRUE(accepts(either, "null"));
  EXPECT_TRUE(accepts(either, R"("a")"));
  // OpenAPI's word says nothing.
  const Grammar text = schema(R"({"type": "string", "nullable": true})");
  EXPECT_FALSE(accepts(text, "null"));
  EXPECT_TRUE(accepts(text, R"("a")"));
}

TEST(GrammarTest, EnumsConstantsAndNot) {
  const Grammar g = schema(R"({"enum": ["a", 1, null, {"x": [true, 2.5]}]})");
  for (const char* text : {"\"a\"", "1", "null", R"({"x": [true, 2.5]})"}) {
    EXPECT_TRUE(accepts(g, text)) << text;
  }
  for (const char* text :
       {"\"b\"", "2", "true", R"({"x": [true]})", R"({"x": [true, 2.5, 1]})", "{}"}) {
    EXPECT_FALSE(accepts(g, text)) << text;
  }
  const Grammar other = schema(R"({"type": "string", "not": {"enum": ["no", "never"]}})");
  EXPECT_TRUE(accepts(other, "\"nobody\""));
  EXPECT_FALSE(accepts(other, "\"no\""));
}

TEST(GrammarTest, OneOfWhereBranchesAreApart) {
  const Grammar g =
      schema(R"({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"})");
  EXPECT_TRUE(accepts(g, R"({"a": 1})"));
  EXPECT_TRUE(accepts(g, R"({"b": 1, "c": 2})"));
  EXPECT_FALSE(accepts(g, R"({"a": 1, "b": 2})"));
  EXPECT_FALSE(accepts(g, R"({})"));
  EXPECT_THAT(refusal(R"({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]})"),
              HasSubstr("#: oneOf branches 0 and 1 may hold at once"));
}

TEST(GrammarTest, ConditionsAndDependencies) {
  const Grammar g = schema(R"({"type": "object", "properties": {"kind": {"enum": ["a", "b"]},
      "n": {"type": "integer"}}, "required": ["kind"], "additionalProperties": false,
      "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["n"]}})");
  EXPECT_TRUE(accepts(g, R"({"kind": "b"})"));
  EXPECT_TRUE(accepts(g, R"({"kind": "a", "n": 1})"));
  EXPECT_FALSE(accepts(g, R"({"kind": "a"})"));
  const Grammar d = schema(R"({"type": "object", "dependentRequired": {"card": ["address"]}})");
  EXPECT_TRUE(accepts(d, R"({"x": 1})"));
  EXPECT_TRUE(accepts(d, R"({"card": 1, "address": 2})"));
  EXPECT_FALSE(accepts(d, R"({"card": 1})"));
}

TEST(GrammarTest, WhatIsNotHeldIsRefusedWithItsPlace) {
  EXPECT_THAT(refusal(R"({"properties": {"tags": {"type": "array", "uniqueItems": true}}})"),
              HasSubstr("#/properties/tags: uniqueItems is not supported"));
  EXPECT_THAT(refusal(R"x({"pattern": "a(?=b)"})x"), HasSubstr("#: pattern: lookahead is"));
  EXPECT_THAT(refusal(R"x({"pattern": "(a)\\1"})x"), HasSubstr("backreferences"));
  EXPECT_THAT(refusal(R"({"$ref": "http://example.org/other.json"})"), HasSubstr("leads out of"));
  EXPECT_THAT(refusal(R"({"type": "strin"})"), HasSubstr("'strin' is unknown"));
  EXPECT_THAT(refusal(R"({"items": 3})"), HasSubstr("must be an object or a boolean"));
  EXPECT_THAT(refusal("{"), HasSubstr("not valid JSON"));
}

// Also where it is found out only while states are made.
TEST(GrammarTest, WhatIsPastABoundIsRefusedWithItsPlace) {
  const auto refusal_of_item = [](const std::string& item) {
    return refusal(R"({"properties": {"a": {"items": )" + item + "}}}");
  };
  std::string names;
  for (int i = 0; i < kMaxObjectNames + 1; ++i) {
    names += fmt::format(R"({}"n{}": {{}})", i == 0 ? "" : ",", i);
  }
  EXPECT_THAT(refusal_of_item(R"({"properties": {)" + names + "}}"),
              HasSubstr("#/properties/a/items: properties: more than 256 names"));
  EXPECT_THAT(refusal_of_item(R"({"multipleOf": 2001})"),
              HasSubstr("#/properties/a/items: multipleOf must be"));
  EXPECT_THAT(refusal_of_item(R"({"minimum": 1e300})"),
              HasSubstr("#/properties/a/items: bounds of numbers: "));
  EXPECT_THAT(refusal_of_item(R"({"minProperties": 5})"),
              HasSubstr("#/properties/a/items: minProperties: "));
  EXPECT_THAT(refusal_of_item(R"({"pattern": "^(a|b)*a(a|b){20}$"})"),
              HasSubstr("#/properties/a/items: pattern or format: the automaton of a string"));
}

TEST(GrammarTest, WhatWouldExplodeIsRefused) {
  EXPECT_EQ(compile_regex("(a|b)*a(a|b){20}").status().code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(compile_regex("((((a{1,100}){1,100}){1,100}){1,100})").ok());
  EXPECT_EQ(compile_regex("((((a|){9999}){9999}){9999}){9999}").status().code(),
            StatusCode::kResourceExhausted);
  // The empty text ten thousand times is the empty text, and costs no more.
  const auto nothing = compile_regex("((((){9999}){9999}){9999}){9999}");
  ASSERT_TRUE(nothing.ok()) << nothing.status().to_string();
  EXPECT_TRUE(accepts(*nothing, ""));
  EXPECT_FALSE(accepts(*nothing, "a"));
  EXPECT_FALSE(compile_regex("a" + std::string(60'000, '*')).ok()) << "nested as deep";
  EXPECT_FALSE(compile_regex("a" + std::string(kMaxPatternBytes, 'a')).ok());
  EXPECT_FALSE(compile_regex("\xc3").ok()) << "half a character";
  std::string nested = "{}";
  for (int i = 0; i < 200; ++i) nested = R"({"anyOf": [)" + nested + "]}";
  EXPECT_FALSE(compile_json_schema(std::string_view(nested)).ok());
}

std::string list_of(int count, const std::function<std::string(int)>& item) {
  std::string list;
  for (int i = 0; i < count; ++i) list += (i == 0 ? "" : ",") + item(i);
  return list;
}

// What is refused is refused after kMaxGrammarWork steps at most, however little of a schema asks for it.
TEST(GrammarTest, SchemasThatMultiplyOutAreRefused) {
  const std::string schemas[] = {
      // Branches times branches times branches.
      "{\"allOf\":[" +
          list_of(12,
                  [](int i) {
                    return "{\"anyOf\":[" +
                           list_of(40,
                                   [i](int k) {
                                     return fmt::format(R"({{"required":["p{}_{}"]}})", i, k);
                                   }) +
                           "]}";
                  }) +
          "]}",
      // Bounds in bounds, each array's items counted apart.
      R"({"$ref":"#/$defs/a0","$defs":{)" +
          list_of(70,
                  [](int i) {
                    return fmt::format(
                        R"("a{}":{{"allOf":[{{"$ref":"#/$defs/a{}"}},{{"$ref":"#/$defs/a{}"}}]}})",
                        i, i + 1, i + 1);
                  }) +
          R"(,"a70":{}}})",
      // Patterns that only their intersection shows to be many.
      R"({"type":"string","allOf":[)" +
          list_of(
              12,
              [](int i) { return fmt::format(R"({{"pattern":"^(a|b)*a(a|b){{{}}}$"}})", i + 3); }) +
          "]}",
      // Long names, each of which opens a set of alternatives of its own.
      "{\"anyOf\":[" +
          list_of(
              40,
              [](int i) {
                return fmt::format(
                    R"({{"type":"object","properties":{{"n{}":{{"const":{}}},"m{}":{{"type":"null"}}}},
                            "required":["n{}"]}})",
                    i, i, (i * 7) % 40, i);
              }) +
          "]}",
      R"({"type":"object","properties":{"x)" + std::string(200'000, 'y') + "\":{}}}",
      R"({"enum":[")" + std::string(200'000, 'y') + "\"]}",
      R"({"oneOf":[)" + list_of(300, [](int i) {
        return fmt::format(R"({{"type":"string","pattern":"^.*{}.*$"}})", i);
      }) + "]}"};
  for (const std::string& text : schemas) {
    const StatusOr<Grammar> grammar = compile_json_schema(std::string_view(text));
    EXPECT_FALSE(grammar.ok()) << text.substr(0, 300);
  }
}

// Long lists are held, not refused.
TEST(GrammarTest, TenThousandChoices) {
  const std::string schema_text =
      "{\"enum\":[" + list_of(10'000, [](int i) { return fmt::format("\"item-{}\"", i); }) + "]}";
  const Grammar g = schema(schema_text);
  EXPECT_TRUE(accepts(g, "\"item-0\""));
  EXPECT_TRUE(accepts(g, "\"item-9999\""));
  EXPECT_FALSE(accepts(g, "\"item-10000\""));
  EXPECT_LT(g.num_states, 200) << "equal ends are one";
}

TEST(GrammarTest, RegularExpressionsAndChoices) {
  const Grammar date = compile_regex(R"(\d{4}-(0[1-9]|1[0-2]))").value();
  EXPECT_TRUE(accepts(date, "2026-11"));
  EXPECT_FALSE(accepts(date, "2026-13"));
  EXPECT_FALSE(accepts(date, " 2026-11"));
  const Grammar anchored = compile_regex("^(yes|no)$").value();
  EXPECT_TRUE(accepts(anchored, "yes"));
  EXPECT_FALSE(accepts(anchored, "yess"));
  const std::string choices[] = {"red", "rot", "grün"};
  const Grammar g = compile_choices(choices).value();
  EXPECT_TRUE(accepts(g, "grün"));
  EXPECT_FALSE(may_begin(g, "gra"));
  EXPECT_FALSE(accepts(g, "re"));
  EXPECT_FALSE(compile_choices({}).ok());
}

TEST(GrammarTest, CharacterClassesOfPatterns) {
  struct Case {
    const char* pattern;
    std::vector<const char*> in, out;
  };
  const Case cases[] = {{"[^a-c]", {"d", "é", "\n"}, {"a", "", "dd"}},
                        {R"(\w+\s\D)", {"ab_1 x"}, {"ab_1 7", "- x"}},
                        {"[a-z&&x-]*", {"", "q&-"}, {"Q"}},
                        {R"(\u00e9\x41\.)", {"éA."}, {"éAx"}},
                        {".", {"x", "語"}, {"\n", "xy"}},
                        {"a{2,3}b?", {"aa", "aaab"}, {"a", "aaaa"}},
                        {"x{,2}", {"x{,2}"}, {"x", "xx"}},
                        {"(?:ab|(?<n>c))*", {"", "abcab"}, {"a"}}};
  for (const Case& c : cases) {
    const StatusOr<Grammar> g = compile_regex(c.pattern);
    ASSERT_TRUE(g.ok()) << c.pattern << g.status().message();
    for (const char* text : c.in) EXPECT_TRUE(accepts(*g, text)) << c.pattern << " " << text;
    for (const char* text : c.out) EXPECT_FALSE(accepts(*g, text)) << c.pattern << " " << text;
  }
}

TEST(GrammarTest, Formats) {
  const auto check = [](const char* format, const char* good, const char* bad) {
    const Grammar g = schema(fmt::format(R"({{"type": "string", "format": "{}"}})", format));
    EXPECT_TRUE(accepts(g, fmt::format("\"{}\"", good))) << format << " " << good;
    EXPECT_FALSE(accepts(g, fmt::format("\"{}\"", bad))) << format << " " << bad;
  };
  check("date", "2024-02-29", "2023-02-29");
  check("date", "1900-02-28", "1900-02-29");
  check("date-time", "2026-11-22T12:00:00.5Z", "2026-11-22 12:00:00Z");
  check("time", "23:59:59+01:30", "24:00:00Z");
  check("email", "a.b@example.org", "a@b@c");
  check("ipv4", "255.0.10.99", "256.0.0.1");
  check("ipv6", "2001:db8::1", "1::2::3");
  check("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b-12d3-a456-42661417400");
  check("uri", "https://example.org:80/a?b=c#d", "example.org/a");
  check("hostname", "a-b.example", "-a.example");
  check("duration", "P1DT2H", "P");
}

// Objects and lists that each hold another one, as long as the grammar allows it: whether something is legal at every place.
bool never_stuck(const Grammar& grammar, unsigned seed) {
  std::mt19937 random(seed);
  GrammarRow row = begin_row(grammar);
  for (int step = 0; step < 6000; ++step) {
    std::vector<std::uint8_t> legal, opening;
    for (int byte = 0; byte < 256; ++byte) {
      GrammarRow next = row;
      if (!advance(grammar, next, static_cast<std::uint8_t>(byte))) continue;
      legal.push_back(static_cast<std::uint8_t>(byte));
      if (byte == '[' || byte == '{') opening.push_back(static_cast<std::uint8_t>(byte));
    }
    if (legal.empty()) return may_end(grammar, row);
    const auto& among = opening.empty() ? legal : opening;
    EXPECT_TRUE(advance(grammar, row, among[random() % among.size()]));
  }
  return true;
}

TEST(GrammarTest, FramesRunOutWhereAValueMustOpenOne) {
  const char* const enough[] = {
      R"({"type": "object"})",
      R"({"type": "array"})",
      R"({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object", "properties":
        {"b": {"type": "array", "minItems": 2, "items": {"type": "integer"}}}, "required": ["b"]}}}})",
      R"({"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"v": {"type": "integer"},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/t"}]}}, "required": ["v", "next"]}}})",
      R"({"enum": [[[1], 2], {"a": [3]}]})",
      R"({"type": "string", "pattern": "^a+$"})"};
  for (const char* text : enough) {
    const Grammar grammar = schema(text);
    EXPECT_FALSE(may_run_out_of_frames(grammar)) << text;
    for (unsigned seed = 0; seed < 3; ++seed) EXPECT_TRUE(never_stuck(grammar, seed)) << text;
  }
  const char* const too_few[] = {
      R"({"type": "array", "items": {"$ref": "#/$defs/t"}, "$defs": {"t": {"type": "object", "properties":
        {"a": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "required": ["a"], "additionalProperties": false}}})",
      R"({"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "minItems": 0, "items": {"type": "object",
        "properties": {"b": {"$ref": "#/$defs/t"}}, "required": ["b"], "additionalProperties": false}}}})"};
  for (const char* text : too_few) {
    const Grammar grammar = schema(text);
    EXPECT_TRUE(may_run_out_of_frames(grammar)) << text;
  }
  EXPECT_FALSE(never_stuck(schema(too_few[0]), 1)) << "what the bound is for";
}

// A trial gives what the row itself would, whatever it keeps of it, and the lengths and counts for which that holds.
TEST(GrammarTest, ProbesAreTheRowWithoutItsCopy) {
  const Grammar grammars[] = {
      schema(R"({"type": "object"})"),
      schema(
          R"({"type": "array", "items": {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 5}}})"),
      schema(
          R"({"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "array", "maxItems": 3}},
        "required": ["b"], "maxProperties": 3})"),
      schema(
          R"({"type": "array", "minItems": 2, "maxItems": 5, "items": {"type": "array", "maxItems": 3}})")};
  std::mt19937 random(4);
  const std::string alphabet = "{}[],:\"ab1-. ";
  int num_legal = 0, num_overflowed = 0, num_other_counts = 0, num_other_lengths = 0;
  for (const Grammar& grammar : grammars) {
    const GrammarTables tables = tables_of(grammar);
    GrammarRow row = begin_row(grammar);
    for (int trial = 0; trial < 30'000; ++trial) {
      std::string text;
      for (unsigned n = 1 + random() % 7; n > 0; --n) text += alphabet[random() % alphabet.size()];
      if (random() % 4 == 0) text = std::string(1 + random() % 6, random() % 2 == 0 ? ']' : '[');
      if (random() % 8 == 0) text = std::string(1 + random() % 27, ' ') + text.substr(1);
      const auto take = [&](auto& at) {
        return std::all_of(text.begin(), text.end(), [&](char byte) {
          return take_byte(tables, at, static_cast<std::uint8_t>(byte));
        });
      };
      GrammarRow copy = row;
      const bool legal = take(copy);
      GrammarProbe<kMaxGrammarDepth + 1> large;
      WalkInterval counts[kMaxGrammarDepth + 1], counts_of_small[kMaxGrammarDepth + 1];
      large.begin(row, counts);
      const bool has_way = take(large);
      ASSERT_EQ(has_way && large.lengths.contains(row.length), legal) << text;
      GrammarProbe<2> small;
      small.begin(row, counts_of_small);
      const bool small_legal = take(small);
      num_overflowed += small.overflowed ? 1 : 0;
      if (!small.overflowed) {
        ASSERT_EQ(small_legal, has_way) << text;
      }
      // Any other length, and any other counts of the intervals.
      for (int i = 0; i < 3; ++i) {
        GrammarRow other = row;
        other.length = static_cast<std::int32_t>(random() % 30);
        for (int depth = 0; depth <= row.depth; ++depth) {
          const auto count = static_cast<std::int32_t>(random() % 6);
          if (!counts[depth].contains(count)) continue;
          num_other_counts += count != other.frames[depth].count ? 1 : 0;
          other.frames[depth].count = count;
        }
        const bool other_is_legal = has_way && large.lengths.contains(other.length);
        num_other_lengths += other_is_legal != legal ? 1 : 0;
        ASSERT_EQ(take(other), other_is_legal) << text << " at length " << other.length;
      }
      if (!legal) continue;
      ++num_legal;
      ASSERT_EQ(large.state, copy.state);
      ASSERT_EQ(large.depth, copy.depth);
      ASSERT_EQ(large.length, copy.length);
      ASSERT_TRUE(large.reach(large.depth));
      ASSERT_EQ(large.frame(large.depth).next, copy.frames[copy.depth].next);
      ASSERT_EQ(large.frame(large.depth).count, copy.frames[copy.depth].count);
      row = random() % 40 == 0 ? begin_row(grammar) : copy;
    }
  }
  EXPECT_GT(num_legal, 2000);
  EXPECT_GT(num_overflowed, 100);
  EXPECT_GT(num_other_counts, 2000);
  EXPECT_GT(num_other_lengths, 500);
}

// The table of a state's own bytes says what the grammar's tables say: of every state, for every byte, at lengths around the bounds.
TEST(GrammarTest, LoopsOfAStateAreTheGrammarsEdges) {
  const Grammar grammars[] = {
      schema(R"({"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 5}})"),
      schema(R"({"type": "object", "properties": {"a": {"pattern": "^[a-f]*é+$"}}})"),
      schema(R"({"type": "array"})"),  // a list begins a list
      compile_regex("[a-f]{2,5}-(é|ß)[0-9]*").value()};
  int num_kinds[4] = {};
  for (const Grammar& grammar : grammars) {
    const GrammarTables tables = tables_of(grammar);
    for (int state = 0; state < grammar.num_states; ++state) {
      const StateLoops loops = find_loops(tables, static_cast<std::uint16_t>(state));
      for (int byte = 0; byte < 256; ++byte) {
        ++num_kinds[static_cast<int>(loops.bytes[byte])];
        for (const std::int32_t length : {0, 3, 4, 5, 24, 25}) {
          GrammarRow row = begin_row(grammar);
          row.state = static_cast<std::uint16_t>(state);
          row.length = length;
          GrammarRow by_loops = row;
          const LoopByte kind = take_loop(loops, by_loops, static_cast<std::uint8_t>(byte));
          if (kind == LoopByte::kLeadsAway) continue;  // the grammar's tables take it
          const bool legal = take_byte(tables, row, static_cast<std::uint8_t>(byte));
          ASSERT_EQ(kind != LoopByte::kIllegal, legal)
              << "state " << state << ", byte " << byte << ", length " << length;
          if (!legal) continue;
          ASSERT_EQ(by_loops.state, row.state);
          ASSERT_EQ(by_loops.length, row.length);
          ASSERT_EQ(by_loops.depth, row.depth);
        }
      }
    }
  }
  for (const int number : num_kinds) EXPECT_GT(number, 20);
}

// One character of so many bytes as UTF-8 writes it.
std::string utf8(std::uint32_t code_point) {
  const auto byte = [](std::uint32_t value) { return static_cast<char>(value); };
  const auto continuation = [&](int shift) { return byte(0x80 | (code_point >> shift & 0x3F)); };
  if (code_point < 0x80) return {byte(code_point)};
  if (code_point < 0x800) return {byte(0xC0 | code_point >> 6), continuation(0)};
  if (code_point < 0x10000) {
    return {byte(0xE0 | code_point >> 12), continuation(6), continuation(0)};
  }
  return {byte(0xF0 | code_point >> 18), continuation(12), continuation(6), continuation(0)};
}

TEST(GrammarTest, SummariesSayWhatTextsConsistOf) {
  EXPECT_EQ(summary_of("").kinds(), 0u);
  EXPECT_EQ(summary_of("z9").kinds(), kind_of_ascii('g') | kind_of_ascii('0'));
  EXPECT_NE(kind_of_ascii('a'), kind_of_ascii('g'));
  EXPECT_NE(kind_of_ascii('\n'), kind_of_ascii('\t'));
  EXPECT_EQ(summary_of("z9").num_characters(), 2);
  EXPECT_EQ(summary_of("z9").first_byte(), 'z');
  const TextSummary mixed = summary_of("é中😂é");
  EXPECT_EQ(mixed.kinds(), kLongCharacter);
  EXPECT_EQ(mixed.num_characters(), 4);
  EXPECT_EQ(mixed.first_byte(), 0xC3);
  EXPECT_EQ(mixed.second_byte(), 0xA9);
  EXPECT_EQ(summary_of("x").second_byte(), 'x');
  EXPECT_EQ(summary_of(std::string(255, 'a')).kinds(), kind_of_ascii('a'));
  EXPECT_EQ(summary_of(std::string(255, 'a')).num_characters(), 255);
  for (const std::string& text : std::vector<std::string>{
           "\x80", "a\xe4\xb8", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80",
           "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xff", "\xc3\xa9\xa9", std::string(256, 'a')}) {
    EXPECT_NE(summary_of(text).kinds() & kBrokenText, 0u) << text;
  }
}

// Of every state: a character of a kind that leads back there does so, whatever the length, and counts if it is said to.
TEST(GrammarTest, CharactersThatLeadBackAreTheGrammarsEdges) {
  const Grammar grammars[] = {
      schema(R"({"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 5}})"),
      schema(R"({"type": "array", "items": {"type": "string"}})"),
      schema(R"({"pattern": "^[a-f]*[^é]*[^中]*[^😂]*[^5]*[^z]*$"})"),
      schema(R"({"type": "object", "properties": {"a": {"pattern": "^[a-z]*é+$"}}})"),
      schema(R"({"type": "object"})"),
      compile_regex("([a-z]|é|中)*[0-9 ]*").value()};
  std::vector<std::uint32_t> code_points;
  for (std::uint32_t point = 0; point < 0x10000; ++point) {
    if (point < 0xD800 || point > 0xDFFF) code_points.push_back(point);
  }
  for (std::uint32_t point = 0x10000; point <= 0x10FFFF; point += 61) code_points.push_back(point);
  code_points.push_back(0x1F602);
  code_points.push_back(0x10FFFF);
  std::vector<std::pair<std::string, CharacterKinds>> characters;
  for (const std::uint32_t point : code_points) {
    characters.emplace_back(utf8(point), summary_of(utf8(point)).kinds());
  }
  int num_counting = 0, num_long = 0, num_not_long = 0, num_illegal = 0;
  for (const Grammar& grammar : grammars) {
    const GrammarTables tables = tables_of(grammar);
    for (int state = 0; state < grammar.num_states; ++state) {
      const CharacterLoops& loops = grammar.character_loops[static_cast<std::size_t>(state)];
      if (loops.kinds == 0) continue;
      EXPECT_EQ((loops.kinds | loops.illegal) & kBrokenText, 0u);
      num_counting += loops.counts;
      ++((loops.kinds & kLongCharacter) != 0 ? num_long : num_not_long);
      for (const auto& [text, kind] : characters) {
        const bool leads_back = (kind & loops.kinds) != 0, is_illegal = (kind & loops.illegal) != 0;
        if (!leads_back && !is_illegal) continue;
        ASSERT_NE(leads_back, is_illegal);
        num_illegal += is_illegal ? 1 : 0;
        for (const std::int32_t length : {0, 4, 5, 24}) {
          GrammarRow row = begin_row(grammar);
          row.state = static_cast<std::uint16_t>(state);
          row.length = length;
          GrammarRow at_once = row;
          const bool legal = std::all_of(text.begin(), text.end(), [&](char byte) {
            return take_byte(tables, row, static_cast<std::uint8_t>(byte));
          });
          ASSERT_EQ(leads_back && take_characters(loops, at_once, 1), legal)
              << "state " << state << ": " << text;
          if (!legal) continue;
          ASSERT_EQ(row.state, state) << text;
          ASSERT_EQ(row.length, at_once.length) << text;
          ASSERT_EQ(row.depth, 0);
        }
      }
    }
  }
  EXPECT_GT(num_counting, 4);
  EXPECT_GT(num_long, 4);
  EXPECT_GT(num_not_long, 4);
  EXPECT_GT(num_illegal, 1000);
}

// A text's own way: at once where it can be, byte by byte where not, with the same end.
TEST(GrammarTest, TextsAreTakenAsTheirBytesAre) {
  const Grammar grammars[] = {
      schema(R"({"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 9}})"),
      schema(
          R"({"type": "object", "properties": {"ab": {"type": "string"}, "中b": {"pattern": "^a*é[a-z中]*$"}}})"),
      schema(R"({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3})")};
  const std::string_view pieces[] = {"a", "b",  "Z", "7",  " ",    "é",        "中",
                                     "😂", "\"", ",", ":",  "\\n",  "\n",       "[",
                                     "]", "{",  "}", "ab", "\xe4", "\xb8\xad", "\": \""};
  struct Text {
    std::string_view bytes;
    int num_bytes;
    TextSummary summary;
    std::uint8_t byte(int i) const {
      return static_cast<std::uint8_t>(bytes[static_cast<std::size_t>(i)]);
    }
  };
  std::mt19937 random(3);
  constexpr std::string_view kAnswers[] = {"[\"ab中😂 7\",  \"\\u00e9éa\"]",
                                           "{\"ab\": \"x中é\", \"中b\" : \"aé中z\", \"o\": 1}",
                                           "[77, 7 ,77 ]"};
  int num_at_once = 0, num_by_bytes = 0, num_illegal_at_once = 0, num_illegal_seconds = 0;
  for (int trial = 0; trial < 40'000; ++trial) {
    for (std::size_t g = 0; g < std::size(grammars); ++g) {
      const Grammar& grammar = grammars[g];
      const GrammarTables tables = tables_of(grammar);
      GrammarRow row = begin_row(grammar);
      for (const char byte : kAnswers[g].substr(0, random() % kAnswers[g].size())) {
        ASSERT_TRUE(advance(grammar, row, static_cast<std::uint8_t>(byte)));
      }
      std::string bytes;
      for (unsigned n = 1 + random() % 6; n > 0; --n) bytes += pieces[random() % std::size(pieces)];
      if (random() % 4 == 0) bytes = pieces[random() % std::size(pieces)];
      GrammarRow by_bytes = row;
      const bool legal = std::all_of(bytes.begin(), bytes.end(), [&](char byte) {
        return take_byte(tables, by_bytes, static_cast<std::uint8_t>(byte));
      });
      GrammarRow taken = row;
      const StateLoops loops = find_loops(tables, row.state);
      const Text text{bytes, static_cast<int>(bytes.size()), summary_of(bytes)};
      WalkInterval counts[kMaxGrammarDepth + 1];
      GrammarProbe<4> probe;
      probe.begin(row, counts);
      const int max_away = trial % 2 == 0 ? 0 : SecondBytes::kMaxAway;
      const SecondBytes seconds = find_second_bytes(tables, loops, probe, max_away);
      const LoopByte kind =
          take_at_once(grammar.character_loops[row.state], seconds, text.summary, taken);
      num_at_once += kind == LoopByte::kStays ? 1 : 0;
      num_illegal_at_once += kind == LoopByte::kIllegal ? 1 : 0;
      bool is_taken = kind == LoopByte::kStays;
      if (kind == LoopByte::kLeadsAway) is_taken = take_text(tables, loops, taken, text);
      if (kind == LoopByte::kIllegal) {
        const int row_of_first = seconds.row_of[text.summary.first_byte()];
        num_illegal_seconds += row_of_first >= SecondBytes::kNumFixed ? 1 : 0;
      }
      ASSERT_EQ(is_taken, legal) << bytes;
      if (!legal) continue;
      num_by_bytes += kind == LoopByte::kLeadsAway ? 1 : 0;
      ASSERT_EQ(taken.state, by_bytes.state) << bytes;
      ASSERT_EQ(taken.length, by_bytes.length) << bytes;
      ASSERT_EQ(taken.depth, by_bytes.depth) << bytes;
    }
  }
  EXPECT_GT(num_at_once, 500);
  EXPECT_GT(num_by_bytes, 500);
  EXPECT_GT(num_illegal_at_once, 500);
  EXPECT_GT(num_illegal_seconds, 500);
}

// A list that a trial opens begins anew: what it holds says nothing of the one that was closed in its place.
TEST(GrammarTest, ATrialNotesNoCountsOfListsThatItOpens) {
  const Grammar grammar = schema(R"({"type": "array", "items": {"type": "array", "maxItems": 9}})");
  const GrammarTables tables = tables_of(grammar);
  GrammarRow row = begin_row(grammar);
  for (const char byte : std::string_view("[[1,2,3"))
    ASSERT_TRUE(take_byte(tables, row, static_cast<std::uint8_t>(byte)));
  ASSERT_EQ(row.depth, 2);
  const auto most_behind = [&](std::string_view text) {
    WalkInterval counts[kMaxGrammarDepth + 1];
    GrammarProbe<kMaxGrammarDepth + 1> probe;
    probe.begin(row, counts);
    for (const char byte : text) {
      EXPECT_TRUE(take_byte(tables, probe, static_cast<std::uint8_t>(byte))) << text;
    }
    return counts[2].most;
  };
  EXPECT_LT(most_behind("]"), 10);
  EXPECT_EQ(most_behind("],[1,2,3,4,5"), most_behind("]"));
}

// ---- text with calls

constexpr std::string_view kFunctions = R"([
    {"name": "time", "strict": true, "parameters": {"type": "object", "properties": {"city": {"$ref": "#/0/parameters/$defs/c"}},
        "required": ["city"], "additionalProperties": false, "$defs": {"c": {"enum": ["Rome", "Paris"]}}}},
    {"name": "timer", "strict": false, "parameters": {"type": "object", "properties": {"tags": {"uniqueItems": true}}}}])";
const CallForm kMarkedCalls{.begin = "<tool_call>",
                            .end = "</tool_call>",
                            .thought_begin = "<think>",
                            .thought_end = "</think>",
                            .arguments_key = "arguments"};
const CallForm kWholeCalls{
    .begin = "", .end = "", .thought_begin = "", .thought_end = "", .arguments_key = "parameters"};

TEST(TextWithCallsTest, CallsBetweenMarkersAreHeld) {
  const Grammar g = compile_text_with_calls(kFunctions, kMarkedCalls).value();
  const std::string call =
      "<tool_call>\n{\"name\": \"time\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
  for (const std::string& text : std::vector<std::string>{
           "", "Hello.", " <", "<tool_cal", "a <tool_<tool_c", "\xff\xc3", call, "So. " + call,
           call + "\n" + call + "\nDone.", "<think>\na <tool_call> it?\n</think>\n" + call,
           "<think>forever", "<thi", "x<think>", "</tool_call>", " \n<think></think>" + call,
           "<<tool_call>{\"name\":\"timer\",\"arguments\":{\"any\":[1]}}</tool_call>"}) {
    EXPECT_TRUE(accepts(g, text)) << text;
  }
  for (const std::string& text : std::vector<std::string>{
           "<tool_call>", "a<tool_call>b", "<tool_call>{\"name\": \"tim\"",
           "<tool_call>{\"name\": \"time\", \"arguments\": {}", call.substr(0, call.size() - 1),
           "<think></think><tool_call>x", "x<think><tool_call>x", "<t<tool_call>x",
           "<tool_call>{\"name\": \"time\", \"arguments\": {\"city\": \"Rome\"}} x",
           "<tool_call>{\"name\": \"timer\", \"arguments\": 3", "<tool_call>{\"arguments\"",
           "<tool_call>" + std::string(kMaxWhitespaceRun + 1, ' ')}) {
    EXPECT_FALSE(accepts(g, text)) << text;
  }
  EXPECT_TRUE(may_begin(g, "<tool_call>{\"name\": \"timer"));
  EXPECT_FALSE(may_begin(g, "<tool_call>{\"name\": \"time\", \"arguments\": {\"city\": \"O"));
}

TEST(TextWithCallsTest, AnAnswerWithoutMarkersIsACallOrText) {
  const Grammar g = compile_text_with_calls(kFunctions, kWholeCalls).value();
  for (const std::string& text : std::vector<std::string>{
           "", "Hello.", "{", "{\"name\": \"other\", \"parameters\": 3}", "{\"name\": \"time",
           "{\"name\": \"tim\"}", "{\"a\": 1}", "a {\"name\": \"time\"!", "\xff",
           " {\"name\": \"time\", \"parameters\": {\"city\": \"Rome\"}}",
           "{ \"name\":\"timer\" ,\"parameters\": {\"any\": 1} }"}) {
    EXPECT_TRUE(accepts(g, text)) << text;
  }
  for (const std::string& text : std::vector<std::string>{
           "{\"name\": \"time\"", "{\"name\": \"time\"}", "\n{\"name\": \"time\", \"x\"",
           "{\"name\": \"time\", \"parameters\": {\"city\": \"Oslo\"}}",
           "{\"name\": \"time\", \"parameters\": {\"city\": \"Rome\"}} x",
           "{\"name\": \"timer\", \"parameters\": []}"}) {
    EXPECT_FALSE(accepts(g, text)) << text;
  }
}

TEST(TextWithCallsTest, OnlyStrictFunctionsAreRefused) {
  std::string functions(kFunctions);
  const std::size_t loose = functions.rfind("\"strict\": false");
  functions.replace(loose, 15, "\"strict\": true");
  const auto refused = compile_text_with_calls(functions, kMarkedCalls);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("#/1/parameters/properties/tags: uniqueItems"));
  // One that is too large does not loosen the others.
  const std::string large =
      R"([{"name": "a", "parameters": {"properties": {"s": {"type": "string", "pattern": "(a|b)*a(a|b){20}"}}}},
      {"name": "b", "parameters": {"type": "object", "required": ["x"]}}])";
  const Grammar g = compile_text_with_calls(large, kWholeCalls).value();
  EXPECT_TRUE(accepts(g, R"({"name": "a", "parameters": {"y": 1}})"));
  EXPECT_FALSE(accepts(g, R"({"name": "b", "parameters": {"y": 1}})"));
}

// As the tokenizer's and the model's own ends: whatever is open finds an end.
TEST(TextWithCallsTest, CallsCanBeClosed) {
  const Grammar g = compile_text_with_calls(kFunctions, kMarkedCalls).value();
  const ClosingText closing(g);
  for (const std::string text : {"Hello", "x <tool_call>", "<tool_call>{\"name\": \"timer\"",
                                 "<tool_call>{\"name\": \"time\", \"arguments\": {\"city\": \"R"}) {
    GrammarRow row = begin_row(g);
    for (const char byte : text) ASSERT_TRUE(advance(g, row, static_cast<std::uint8_t>(byte)));
    long work = kMaxClosableWork;
    const auto rest = closing.find(row, work);
    ASSERT_TRUE(rest) << text;
    std::string whole = text;
    for (const std::string& piece : *rest) whole += piece;
    EXPECT_TRUE(accepts(g, whole)) << whole;
  }
  EXPECT_FALSE(may_run_out_of_frames(
      compile_text_with_calls(R"([{"name": "a", "parameters": {"type": "object"}}])", kMarkedCalls)
          .value()));
}

}  // namespace
}  // namespace gapless
