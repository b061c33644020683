#include "constraint/segment_automaton.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "step/automaton_walk.h"

namespace gapless {
namespace {

constexpr SpatialTokens kPathTestTokens{.coord_id = 1, .size_id = 2, .eos_id = 0};

// The definition in words: the text without whitespace around it is one command letter, "-", or an integer from 0 to 960.
std::string kind_in_words(const std::string& text) {
  static const std::regex command(R"(\s*([MmLlHhVvCcSsQqTtAaZz])\s*)");
  static const std::regex sign(R"(\s*-\s*)");
  static const std::regex integer(R"(\s*(0|[1-9][0-9]{0,8})\s*)");
  std::smatch match;
  if (std::regex_match(text, match, command)) return match[1];
  if (std::regex_match(text, sign)) return "-";
  if (!std::regex_match(text, match, integer)) return "";
  const int value = std::stoi(match[1]);
  return value > 960 ? "" : value <= 1 ? "0" : "9";
}

std::string kind_of_class(PathToken token, const std::string& text) {
  switch (token) {
    case PathToken::kNone:
      return "";
    case PathToken::kMinus:
      return "-";
    case PathToken::kBit:
      return "0";
    case PathToken::kNumber:
      return "9";
    default:
      return std::string(trim_path_token(text));
  }
}

TEST(PathToken, IsWhatTheDefinitionSays) {
  std::set<std::string> texts = {"", "\xC2\xB2", "+1", "1.5", "1e2", "007", "00", "M M", "- 1"};
  std::string characters = " \n\t-+.,0123456789\x80";
  for (char c = 'A'; c <= 'Z'; ++c) characters += {c, static_cast<char>(c - 'A' + 'a')};
  for (const char a : characters) {
    texts.insert({a});
    for (const char b : characters) {
      texts.insert({a, b});
      texts.insert({' ', a, b, ' '});
    }
  }
  for (int i = 0; i < 12'000; ++i) {
    texts.insert(std::to_string(i));
    texts.insert(" " + std::to_string(i) + "\n");
    texts.insert("-" + std::to_string(i));
    texts.insert("0" + std::to_string(i));
  }
  for (const std::string& text : texts) {
    EXPECT_EQ(kind_of_class(path_token(text), text), kind_in_words(text)) << "'" << text << "'";
  }
}

const std::vector<std::string>& path_vocabulary() {
  static const std::vector<std::string> texts = [] {
    std::vector<std::string> all = {"",  "",   "",   "0",   " 1", "2", "960", "961", " 17\n",
                                    "-", " -", "--", "the", " ",  ".", "-5",  "0.5"};
    for (const char c : std::string("MmLlHhVvCcSsQqTtAaZzBbXx")) {
      all.push_back({c});
      all.push_back({' ', c});
    }
    return all;
  }();
  return texts;
}

// SVG 1.1's grammar of path data (section 8.3.9), over kinds: '0' is a number that may be a flag, '9' another one.
bool is_whole_path(const std::string& kinds) {
  static const std::regex path(
      "[Mm](-?[09]-?[09])+"
      "([MmLlTt](-?[09]-?[09])+|[HhVv](-?[09])+|[SsQq](-?[09]){4}((-?[09]){4})*"
      "|[Cc](-?[09]){6}((-?[09]){6})*|[Aa]([09]{2}-?[09]00-?[09]-?[09])+|[Zz])*");
  return std::regex_match(kinds, path);
}

// Whether a path goes on with these: numbers that are 0 end any command.
bool begins_path(const std::string& kinds) {
  std::string ended = kinds;
  for (int i = 0; i <= 7; ++i) {
    if (is_whole_path(ended)) return true;
    ended += '0';
  }
  return false;
}

// The row of a device, and the host's constraint beside it.
struct SegmentWalk {
  std::vector<std::uint8_t> classes = path_token_classes(path_vocabulary());
  std::vector<AutomatonState> states;
  RowState row;
  SegmentConstraint host{kPathTestTokens, classes};

  SegmentWalk() {
    states.resize(static_cast<std::size_t>(segment_start()));
    for (const auto& state : build_segment_automaton(kPathTestTokens)) states.push_back(state);
    row.automaton = segment_start();
  }
  std::vector<int> allowed() const {
    std::vector<int> tokens;
    std::vector<std::uint32_t> mask((classes.size() + 31) / 32);
    host.allowed(mask);
    const auto& state = states[static_cast<std::size_t>(row.automaton)];
    for (int token = 0; token < static_cast<int>(classes.size()); ++token) {
      const bool allows = listed_tokens(state, row, classes.data()).allows(token);
      if (allows) tokens.push_back(token);
      const auto at = static_cast<std::size_t>(token);
      EXPECT_EQ(allows, (mask[at / 32] >> (at % 32) & 1) != 0) << "token " << token;
    }
    return tokens;
  }
  void sample(int token) {
    walk_automaton(states.data(), classes.data(), token, row);
    host.advance(TokenId(token));
  }
};

TEST(SegmentAutomaton, TheBoxComesFirst) {
  SegmentWalk walk;
  for (const int token : {1, 1, 2}) {
    EXPECT_EQ(walk.allowed(), std::vector<int>{token});
    walk.sample(token);
  }
  for (const int token : walk.allowed()) {
    EXPECT_EQ(
        trim_path_token(path_vocabulary()[static_cast<std::size_t>(token)]).find_first_of("Mm"),
        0u);
  }
}

// Of every token at every place of many paths: it is allowed where SVG's grammar goes on with it, and the end is where it
// may end.
TEST(SegmentAutomaton, AllowsWhatSvgsGrammarGoesOnWith) {
  std::mt19937 random(7);
  std::set<std::int32_t> seen;
  for (int path = 0; path < 50; ++path) {
    SegmentWalk walk;
    for (const int token : {1, 1, 2}) walk.sample(token);
    std::string kinds;
    for (int length = 0; length < 30; ++length) {
      seen.insert(walk.row.automaton);
      std::vector<int> expected;
      if (is_whole_path(kinds)) expected.push_back(kPathTestTokens.eos_id);
      std::map<std::string, bool> goes_on = {{"", false}};  // by kind
      for (int token = 3; token < static_cast<int>(path_vocabulary().size()); ++token) {
        const std::string kind = kind_in_words(path_vocabulary()[static_cast<std::size_t>(token)]);
        if (!goes_on.contains(kind)) goes_on[kind] = begins_path(kinds + kind);
        if (goes_on[kind]) expected.push_back(token);
      }
      ASSERT_EQ(walk.allowed(), expected) << kinds;
      ASSERT_FALSE(expected.empty());
      // Commands are drawn as often as numbers, so that all are reached.
      std::vector<int> next;
      const bool wants_number = random() % 8 != 0;
      for (const int token : expected) {
        const bool is_number = token != 0 && walk.classes[static_cast<std::size_t>(token)] >=
                                                 static_cast<std::uint8_t>(PathToken::kMinus);
        if (token != kPathTestTokens.eos_id && is_number == wants_number) next.push_back(token);
      }
      if (next.empty()) {
        for (const int token : expected) {
          if (token != kPathTestTokens.eos_id) next.push_back(token);
        }
      }
      const int token = next[random() % next.size()];
      kinds += kind_in_words(path_vocabulary()[static_cast<std::size_t>(token)]);
      walk.sample(token);
    }
  }
  // All but those of the box, and behind the signs that radii and flags of arcs have not.
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kNumSegmentStates - 3 - 4));
}

TEST(SegmentAutomaton, BehindTheEndItStays) {
  SegmentWalk walk;
  for (const int token : {1, 1, 2}) walk.sample(token);
  const auto& texts = path_vocabulary();
  const auto id = [&](const char* text) {
    return static_cast<int>(std::find(texts.begin(), texts.end(), text) - texts.begin());
  };
  for (const char* text : {"M", "2", "2"}) walk.sample(id(text));
  const std::int32_t whole = walk.row.automaton;
  walk.sample(kPathTestTokens.eos_id);  // of a row that ignores it
  EXPECT_EQ(walk.row.automaton, whole);
  walk.sample(id("the"));
  EXPECT_EQ(walk.row.automaton, whole) << "what is not allowed changes nothing";
}

}  // namespace
}  // namespace gapless
