#include "constraint/path_tokens.h"

#include <algorithm>

namespace gapless {
namespace {

struct Command {
  std::string_view letters;
  PathToken token;
  int num_numbers;
};

// SVG 1.1, section 8.3: path data.
constexpr Command kCommands[] = {{"Mm", PathToken::kMove, 2},  {"LlTt", PathToken::kTwo, 2},
                                 {"HhVv", PathToken::kOne, 1}, {"SsQq", PathToken::kFour, 4},
                                 {"Cc", PathToken::kSix, 6},   {"Aa", PathToken::kArc, 7},
                                 {"Zz", PathToken::kClose, 0}};

const Command* find_command(char letter) {
  const auto* const found = std::ranges::find_if(kCommands, [letter](const Command& command) {
    return command.letters.find(letter) != std::string_view::npos;
  });
  return found == std::end(kCommands) ? nullptr : found;
}

// Written as numbers are: digits, no zero in front of others.
std::optional<int> small_number(std::string_view text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.empty() || text.size() > 3 || !std::ranges::all_of(text, is_digit)) return std::nullopt;
  if (text.size() > 1 && text.front() == '0') return std::nullopt;
  int value = 0;
  for (const char c : text) value = 10 * value + (c - '0');
  return value;
}

}  // namespace

std::string_view trim_path_token(std::string_view text) {
  constexpr std::string_view kWhitespace = " \t\n\v\f\r";
  const std::size_t first = text.find_first_not_of(kWhitespace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kWhitespace) - first + 1);
}

PathToken path_token(std::string_view text) {
  const std::string_view trimmed = trim_path_token(text);
  if (trimmed == "-") return PathToken::kMinus;
  if (const auto number = small_number(trimmed)) {
    if (*number <= 1) return PathToken::kBit;
    return *number <= kPathUnits ? PathToken::kNumber : PathToken::kNone;
  }
  const Command* const command = trimmed.size() == 1 ? find_command(trimmed.front()) : nullptr;
  return command == nullptr ? PathToken::kNone : command->token;
}

std::vector<std::uint8_t> path_token_classes(const std::vector<std::string>& texts) {
  std::vector<std::uint8_t> classes;
  classes.reserve(texts.size());
  for (const std::string& text : texts) {
    classes.push_back(static_cast<std::uint8_t>(path_token(text)));
  }
  return classes;
}

std::optional<int> num_path_numbers(char command) {
  const Command* const found = find_command(command);
  return found == nullptr ? std::nullopt : std::optional(found->num_numbers);
}

PathNumber path_number(char command, int i) {
  if (command != 'A' && command != 'a') return PathNumber::kCoordinate;
  if (i < 2) return PathNumber::kRadius;
  if (i == 2) return PathNumber::kDegrees;
  return i < 5 ? PathNumber::kFlag : PathNumber::kCoordinate;
}

}  // namespace gapless
