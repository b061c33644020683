#include "option_values.h"

#include <fmt/format.h>

namespace gapless {

CLI::Validator number_between(double least, double most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        double number = 0;
        const bool is_number = CLI::detail::lexical_cast(text, number);
        if (is_number && number >= least && number <= most) return std::string();
        return fmt::format("Value {} not in range {} to {}", text, least, most);
      },
      fmt::format("FLOAT in [{} - {}]", least, most));
}

CLI::Validator not_empty() {
  return CLI::Validator(
      [](const std::string& text) { return std::string(text.empty() ? "must not be empty" : ""); },
      "");
}

}  // namespace gapless
