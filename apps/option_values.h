// What the values of options may be, where CLI11's own checks say too little or take too much.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace gapless {

// An option that takes one of a few names. CLI::CheckedTransformer would take the enum's numbers as well,
// and list them in the help.
template <typename Value>
CLI::Option* add_choice_option(CLI::App& command, const std::string& name, Value& value,
                               const std::map<std::string, Value>& choices,
                               const std::string& help) {
  std::vector<std::string> names;
  for (const auto& [choice, _] : choices) names.push_back(choice);
  return command
      .add_option_function<std::string>(
          name, [&value, choices](const std::string& text) { value = choices.at(text); }, help)
      ->check(CLI::IsMember(std::move(names)));
}

// A number from `least` to `most`. CLI::Range lets NaN pass.
CLI::Validator number_between(double least, double most);

// Refuses an empty text, such as that of a shell's variable that is not set.
CLI::Validator not_empty();

}  // namespace gapless
