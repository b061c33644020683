// Numbers between bounds, as sets of their JSON texts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/byte_dfa.h"

namespace gapless {

// A decimal number: sign, digits before the point without leading zeros ("0" for none), digits
// behind it without trailing ones.
struct Decimal {
  bool negative = false;
  std::string whole = "0";
  std::string fraction;

  bool is_zero() const { return whole == "0" && fraction.empty(); }
  // Of a JSON number's shortest text, an exponent included. Nothing: beyond 10^400 or below 10^-400.
  static std::optional<Decimal> parse(std::string_view text);

  friend bool operator==(const Decimal&, const Decimal&) = default;
};
// -1, 0 or 1.
int compare(const Decimal& a, const Decimal& b);

struct Bound {
  Decimal value;
  bool exclusive = false;

  friend bool operator==(const Bound&, const Bound&) = default;
};

struct NumberBounds {
  bool integer = false;
  std::optional<Bound> min, max;
  std::vector<Decimal> multiples_of;

  bool any() const { return min || max || !multiples_of.empty(); }

  friend bool operator==(const NumberBounds&, const NumberBounds&) = default;
};

// Without bounds every JSON number; with some, plain decimals without an exponent. Integers have
// neither point nor exponent. Empty: there is none. ResourceExhausted, InvalidArgument: a multipleOf that
// no automaton of bounded size holds.
StatusOr<ByteDfa> number_dfa(const NumberBounds& bounds);

}  // namespace gapless
