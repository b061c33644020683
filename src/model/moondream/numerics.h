// Where public implementations of the same weights compute differently. Each difference is an option with a default;
// the table (numerics.cpp) says who computes which way, and docs/published_weights.md shows it.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace gapless {

// The first of each is the default.
enum class TauGelu { kTanh, kErf };
enum class TauPosition { kBf16, kF32 };
enum class CoordDivisor { kLastBin, kNumBins };
enum class RegionInput { kNorm, kPostNorm, kHidden };
enum class AnswerFeed { kOnce, kTwice };

struct Numerics {
  TauGelu tau_gelu = TauGelu::kTanh;  // of the queries, keys and values that tau looks at
  TauPosition tau_position = TauPosition::kBf16;        // how tau's part by position is rounded
  CoordDivisor coord_divisor = CoordDivisor::kLastBin;  // coordinate = bin / 1023 or bin / 1024
  RegionInput region_input = RegionInput::kNorm;  // what heads with a norm read, see the table
  AnswerFeed answer_feed = AnswerFeed::kOnce;     // how often the token that ends reasoning is read

  friend bool operator==(const Numerics&, const Numerics&) = default;
};

struct NumericsChoice {
  std::string_view name;     // "erf"
  std::string_view meaning;  // and who computes so
};

struct NumericsOption {
  std::string_view name;                // "tau_gelu"
  std::string_view about;               // a line for a person
  std::vector<NumericsChoice> choices;  // the first is the default
  int (*get)(const Numerics&);          // index of a choice
  void (*set)(Numerics&, int choice);
};

std::span<const NumericsOption> numerics_options();

// InvalidArgument, with what there is, for names that are not in the table.
Status set_numerics(std::string_view option, std::string_view choice, Numerics& numerics);

}  // namespace gapless
