// The tree of an object's names and the states it is made of.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/grammar_builder.h"
#include "grammar/json_grammar.h"

namespace gapless {
namespace {

struct Spelled {
  std::string name;
  std::string text;  // as it may stand in JSON
};

// Every name of up to four of these characters, in every spelling.
std::vector<Spelled> short_names() {
  const std::vector<Spelled> characters = {{"a", "a"},     {"b", "b"},          {"x", "x"},
                                           {"/", "/"},     {"/", "\\/"},        {"\"", "\\\""},
                                           {"\\", "\\\\"}, {"\x01", "\\u0001"}, {"é", "é"}};
  std::vector<Spelled> names = {{"", ""}};
  std::size_t begin = 0;
  for (int length = 1; length <= 4; ++length) {
    const std::size_t end = names.size();
    for (; begin < end; ++begin) {
      for (const Spelled& c : characters) {
        const Spelled shorter = names[begin];
        names.push_back({shorter.name + c.name, shorter.text + c.text});
      }
    }
  }
  return names;
}

void expect_names(std::string_view schema, const std::function<bool(const std::string&)>& allows) {
  const StatusOr<Grammar> grammar = compile_json_schema(schema);
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  for (const auto& [name, text] : short_names()) {
    ASSERT_EQ(accepts(*grammar, "{\"" + text + "\": 1}"), allows(name)) << schema << ": " << text;
    // Behind another member it is the same tree again.
    ASSERT_EQ(accepts(*grammar, "{\"" + text + "\": 1, \"b\": 2}"), allows(name) && name != "b")
        << schema << ": " << text;
  }
}

TEST(NameStatesTest, ShortNamesByBruteForce) {
  expect_names(
      R"({"type": "object", "properties": {"ab": {}, "a/": {}, "a\"b": {}, "é": {}, "b": {}},
          "additionalProperties": false})",
      [](const std::string& name) {
        return name == "ab" || name == "a/" || name == "a\"b" || name == "é" || name == "b";
      });
  expect_names(
      R"({"type": "object", "properties": {"ab": false, "a/b": false, "a\\": {}, "/": {}, "b": {}}})",
      [](const std::string& name) { return name != "ab" && name != "a/b"; });
  // The languages tell other names apart by where they begin, so no other name comes back to where the tree's first states stand.
  expect_names(
      R"({"type": "object", "patternProperties": {"^[x/]": {}}, "additionalProperties": false,
          "properties": {"xa": false, "b": {}, "xab": {}, "/x": false}})",
      [](const std::string& name) {
        if (name == "xa" || name == "/x") return false;
        return name == "b" || name.starts_with('x') || name.starts_with('/');
      });
  expect_names(
      R"({"type": "object", "patternProperties": {"^(x|xa|/|a/b)$": {}},
          "properties": {"xab": false, "xb": {}, "x": false, "b": {}, "/": {}},
          "additionalProperties": false})",
      [](const std::string& name) {
        return name == "xa" || name == "xb" || name == "b" || name == "/" || name == "a/b";
      });
}

TEST(NameStatesTest, ABeginningOfNoNameIsIllegal) {
  constexpr std::string_view kSchema = R"({"type": "object", "required": ["aab"],
      "patternProperties": {"^a+b$": {}}, "properties": {"ac": false, "acd": false, "aab": {}},
      "additionalProperties": false})";
  const Grammar grammar = compile_json_schema(kSchema).value();
  const auto may_begin = [&](std::string_view text) {
    GrammarRow row = begin_row(grammar);
    for (const char byte : text) {
      if (!advance(grammar, row, static_cast<std::uint8_t>(byte))) return false;
    }
    return true;
  };
  EXPECT_TRUE(may_begin("{\"aaaa"));
  EXPECT_TRUE(may_begin("{\"aab\""));
  EXPECT_FALSE(may_begin("{\"ac")) << "goes on to nothing that is allowed";
  EXPECT_FALSE(may_begin("{\"aabb"));
  EXPECT_FALSE(may_begin("{\"\\"));
}

TEST(GrammarBuilderTest, AByteThatAStateSaysNothingOfGoesWhereItsBaseSays) {
  GrammarBuilder builder;
  const BuildState start = builder.add_state(), heir = builder.add_state();
  const BuildState base = builder.add_state(), end = builder.add_state();
  builder.set_may_end(end);
  builder.add_edge(start, 'h', heir);
  builder.set_base(heir, base);
  builder.add_edge(heir, 'c', heir);
  builder.forbid(heir, 'd');
  builder.add_edge(base, std::uint8_t{'a'}, std::uint8_t{'e'}, end);
  const Grammar grammar = builder.finish(start).value();
  for (const char* text : {"ha", "hb", "hca", "hcce", "he"})
    EXPECT_TRUE(accepts(grammar, text)) << text;
  for (const char* text : {"hc", "hd", "hcd", "hf", "haa"})
    EXPECT_FALSE(accepts(grammar, text)) << text;
}

TEST(GrammarBuilderTest, AStateWhoseBaseEndsOnlyWhereItDoesNotIsADeadEnd) {
  GrammarBuilder builder;
  const BuildState start = builder.add_state(), heir = builder.add_state();
  const BuildState base = builder.add_state(), end = builder.add_state();
  builder.set_may_end(end);
  builder.add_edge(start, 'h', heir);
  builder.add_edge(start, 'b', base);
  builder.set_base(heir, base);
  builder.forbid(heir, 'x');
  builder.forbid(heir, 'y');
  builder.add_edge(base, std::uint8_t{'x'}, std::uint8_t{'y'}, end);
  const Grammar grammar = builder.finish(start).value();
  EXPECT_TRUE(accepts(grammar, "by"));
  GrammarRow row = begin_row(grammar);
  EXPECT_FALSE(advance(grammar, row, 'h'));
}

// Whose ends are found in whatever order the states were made.
TEST(GrammarBuilderTest, StatesInAnyOrderLive) {
  GrammarBuilder builder;
  constexpr BuildState kNumStates = 12;
  std::vector<BuildState> made;
  for (BuildState i = 0; i < kNumStates; ++i) made.push_back(builder.add_state());
  // 0, 11, 1, 10, 2, ...: the way to the end turns round at each state.
  std::vector<BuildState> way;
  for (BuildState i = 0; i < kNumStates / 2; ++i) way.insert(way.end(), {made[i], made[11 - i]});
  std::string text;
  for (std::size_t i = 0; i + 1 < way.size(); ++i) {
    builder.add_edge(way[i], 'a', way[i + 1]);
    text += 'a';
  }
  builder.set_may_end(way.back());
  const StatusOr<Grammar> grammar = builder.finish(way.front());
  ASSERT_TRUE(grammar.ok());
  EXPECT_TRUE(accepts(*grammar, text));
  EXPECT_EQ(grammar->num_states, static_cast<int>(kNumStates));
}

}  // namespace
}  // namespace gapless
