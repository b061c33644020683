// What somebody who mistyped may have meant.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace gapless {

// Letters to put in, take out, replace or swap with their neighbour until `a` is `b`.
int edit_distance(std::string_view a, std::string_view b);

// The known word that is nearest to `word`, if it is near enough to be meant: of three letters one
// may differ, two of six. Empty: none.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);

// After a failed parse: "Did you mean 'serve'?" for the first word that no command knows, from the
// commands and options that stand there. Empty: nothing is near, or no word was unknown.
std::string suggestion_after(const CLI::App& app);

}  // namespace gapless
