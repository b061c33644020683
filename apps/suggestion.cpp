#include "suggestion.h"

#include <algorithm>

namespace gapless {
namespace {

// The command that was being read.
const CLI::App* deepest_command(const CLI::App* app) {
  while (true) {
    const std::vector<CLI::App*> parsed = app->get_subcommands();
    if (parsed.empty()) return app;
    app = parsed.back();
  }
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options(nullptr)) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  // Rows of the table for the prefixes of `a`: the last two and the one in the making.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  int best_distance = static_cast<int>(std::min<std::size_t>(word.size(), 64) / 3) + 1;
  for (const std::string& candidate : known) {
    // What somebody shortened is meant, too: --temp, --max-tok.
    const bool shortened = word.size() >= 4 && candidate.starts_with(word);
    const int distance = shortened ? 1 : edit_distance(word.substr(0, 64), candidate);
    if (distance >= best_distance) continue;
    best_distance = distance;
    best = candidate;
  }
  return best;
}

std::string suggestion_after(const CLI::App& app) {
  const CLI::App* const command = deepest_command(&app);
  for (const std::string& argument : app.remaining(true)) {
    const bool is_option = argument.starts_with("-");
    std::string word = argument.substr(0, argument.find('='));
    if (is_option && !word.starts_with("--")) word.insert(word.begin(), '-');
    std::replace(word.begin(), word.end(), '_', '-');
    const std::string meant =
        nearest_word(word, is_option ? option_names(*command) : command_names(*command));
    if (!meant.empty()) return "Did you mean '" + meant + "'?";
  }
  return "";
}

}  // namespace gapless
