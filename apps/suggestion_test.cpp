#include "suggestion.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

TEST(Suggestion, Distances) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("serve", "serve"), 0);
  EXPECT_EQ(edit_distance("serv", "serve"), 1);
  EXPECT_EQ(edit_distance("sreve", "serve"), 1) << "two neighbours swapped";
  EXPECT_EQ(edit_distance("surve", "serve"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(Suggestion, OnlyWhatIsNearIsMeant) {
  const std::vector<std::string> commands = {"run", "serve", "batch", "bench", "info"};
  EXPECT_EQ(nearest_word("sreve", commands), "serve");
  EXPECT_EQ(nearest_word("servr", commands), "serve");
  EXPECT_EQ(nearest_word("rum", commands), "run");
  EXPECT_EQ(nearest_word("bnech", commands), "bench");
  EXPECT_EQ(nearest_word("chat", commands), "");
  EXPECT_EQ(nearest_word("x", commands), "");
  EXPECT_EQ(nearest_word("", commands), "");
  EXPECT_EQ(nearest_word(std::string(100'000, 'r'), commands), "");
}

TEST(Suggestion, OptionsOfTheCommandThatWasNamed) {
  CLI::App app("x");
  app.require_subcommand(1);
  CLI::App* serve = app.add_subcommand("serve");
  CLI::App* run = app.add_subcommand("run");
  int number = 0;
  serve->add_option("--drain-lead", number);
  run->add_option("--temperature", number);
  run->add_option("--max-tokens", number);
  const auto suggested = [&app](std::vector<std::string> arguments) {
    std::reverse(arguments.begin(), arguments.end());
    try {
      app.parse(arguments);
    } catch (const CLI::ParseError&) {
      return suggestion_after(app);
    }
    return std::string("it parses");
  };
  EXPECT_EQ(suggested({"sevre"}), "Did you mean 'serve'?");
  EXPECT_EQ(suggested({"serve", "--drain_lead=3"}), "Did you mean '--drain-lead'?");
  EXPECT_EQ(suggested({"serve", "--drainlead", "3"}), "Did you mean '--drain-lead'?");
  EXPECT_EQ(suggested({"serve", "-drain-lead", "3"}), "Did you mean '--drain-lead'?");
  EXPECT_EQ(suggested({"run", "--temp", "3"}), "Did you mean '--temperature'?");
  EXPECT_EQ(suggested({"run", "--max-token", "3"}), "Did you mean '--max-tokens'?");
  EXPECT_EQ(suggested({"run", "--drain-lead", "3"}), "") << "it is not an option of run";
  EXPECT_EQ(suggested({"xyz"}), "");
}

}  // namespace
}  // namespace gapless
