// What tokens say in the path of a segment: Moondream 3 writes outlines as SVG path data in ordinary tokens, one command, sign or
// number to a token, numbers in 960ths of the segment's box.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gapless {

// As a class of AutomatonState::classes. A token counts by its text without the whitespace around it.
enum class PathToken : std::uint8_t {
  kNone,
  kMove,    // M m
  kTwo,     // L l T t
  kOne,     // H h V v
  kFour,    // S s Q q
  kSix,     // C c
  kArc,     // A a
  kClose,   // Z z
  kMinus,   // -
  kBit,     // 0 1, which an arc's flags may be
  kNumber,  // 2 to 960
};

inline constexpr int kPathUnits = 960;

// The text without the whitespace around it.
std::string_view trim_path_token(std::string_view text);

PathToken path_token(std::string_view text);

// Of each token; texts[i]: the bytes of token i, none for a special token.
std::vector<std::uint8_t> path_token_classes(const std::vector<std::string>& texts);

// How many numbers a command takes at a time: 2 for "M", 0 for "Z". Nothing: it is none.
std::optional<int> num_path_numbers(char command);

// What the i-th number of an arc is; of other commands all are coordinates.
enum class PathNumber : std::uint8_t { kCoordinate, kRadius, kDegrees, kFlag };
PathNumber path_number(char command, int i);

}  // namespace gapless
