#include "grammar/number_language.h"

#include <algorithm>
#include <charconv>

namespace gapless {
namespace {

constexpr int kMaxExponent = 400;
// multipleOf: a state for each remainder.
constexpr int kMaxDivisor = 2000;

RegexPtr digit_range(char first, char last) {
  return regex_set({{static_cast<char32_t>(first), static_cast<char32_t>(last)}});
}
RegexPtr digits(int min, int max = Regex::kUnbounded) {
  return regex_repeat(digit_range('0', '9'), min, max);
}
RegexPtr nothing() {
  return regex_set(CodePointSet());
}
RegexPtr text(std::string_view literal) {
  return regex_literal(literal);
}
// A digit that is not zero, somewhere.
RegexPtr not_all_zeros() {
  return regex_concat({digits(0), digit_range('1', '9'), digits(0)});
}

// Whole numbers without leading zeros.
RegexPtr any_whole() {
  return regex_alternate({text("0"), regex_concat({digit_range('1', '9'), digits(0)})});
}

// Digits of the same length as `limit` that are greater (or less); the first of a number of several
// digits is not zero.
RegexPtr same_length(std::string_view limit, bool greater) {
  std::vector<RegexPtr> ways;
  for (std::size_t i = 0; i < limit.size(); ++i) {
    const bool leads = i == 0 && limit.size() > 1;
    const char first = greater ? static_cast<char>(limit[i] + 1) : leads ? '1' : '0';
    const char last = greater ? '9' : static_cast<char>(limit[i] - 1);
    if (first > last) continue;
    const int rest = static_cast<int>(limit.size() - i - 1);
    ways.push_back(
        regex_concat({text(limit.substr(0, i)), digit_range(first, last), digits(rest, rest)}));
  }
  return ways.empty() ? nothing() : regex_alternate(std::move(ways));
}

RegexPtr whole_above(const std::string& limit) {
  const int length = static_cast<int>(limit.size());
  return regex_alternate(
      {same_length(limit, true), regex_concat({digit_range('1', '9'), digits(length)})});
}

RegexPtr whole_below(const std::string& limit) {
  std::vector<RegexPtr> ways = {same_length(limit, false)};
  if (limit.size() > 1) {
    ways.push_back(text("0"));
    ways.push_back(
        regex_concat({digit_range('1', '9'), digits(0, static_cast<int>(limit.size()) - 2)}));
  }
  return regex_alternate(std::move(ways));
}

// What may follow the whole part, the point included.
RegexPtr any_fraction() {
  return regex_repeat(regex_concat({text("."), digits(1)}), 0, 1);
}

RegexPtr fraction_at_least(const std::string& limit, bool exclusive) {
  if (limit.empty()) {
    return exclusive ? regex_concat({text("."), not_all_zeros()}) : any_fraction();
  }
  std::vector<RegexPtr> ways = {
      regex_concat({text("." + limit), exclusive ? not_all_zeros() : digits(0)})};
  for (std::size_t i = 0; i < limit.size(); ++i) {
    if (limit[i] == '9') continue;
    ways.push_back(regex_concat({text("." + limit.substr(0, i)),
                                 digit_range(static_cast<char>(limit[i] + 1), '9'), digits(0)}));
  }
  return regex_alternate(std::move(ways));
}

RegexPtr fraction_at_most(const std::string& limit, bool exclusive) {
  if (limit.empty()) {
    return exclusive ? nothing()
                     : regex_repeat(
                           regex_concat({text("."), regex_repeat(text("0"), 1, Regex::kUnbounded)}),
                           0, 1);
  }
  std::vector<RegexPtr> ways = {regex_concat({})};
  // A proper beginning of the limit is less: its last digit is not zero.
  for (std::size_t i = 1; i < limit.size(); ++i) ways.push_back(text("." + limit.substr(0, i)));
  for (std::size_t i = 0; i < limit.size(); ++i) {
    if (limit[i] == '0') continue;
    ways.push_back(regex_concat({text("." + limit.substr(0, i)),
                                 digit_range('0', static_cast<char>(limit[i] - 1)), digits(0)}));
  }
  if (!exclusive) {
    ways.push_back(
        regex_concat({text("." + limit), regex_repeat(text("0"), 0, Regex::kUnbounded)}));
  }
  return regex_alternate(std::move(ways));
}

// Magnitudes: numbers without a sign.
RegexPtr at_least(const Decimal& d, bool exclusive) {
  return regex_alternate({regex_concat({whole_above(d.whole), any_fraction()}),
                          regex_concat({text(d.whole), fraction_at_least(d.fraction, exclusive)})});
}
RegexPtr at_most(const Decimal& d, bool exclusive) {
  return regex_alternate({regex_concat({whole_below(d.whole), any_fraction()}),
                          regex_concat({text(d.whole), fraction_at_most(d.fraction, exclusive)})});
}
RegexPtr any_magnitude() {
  return regex_concat({any_whole(), any_fraction()});
}
RegexPtr any_negative() {
  return regex_concat({text("-"), at_least(Decimal(), /*exclusive=*/true)});
}

RegexPtr not_below(const Bound& bound) {
  const Decimal& d = bound.value;
  if (!d.negative) return at_least(d, bound.exclusive);
  // Between the limit and zero, without zero itself.
  return regex_alternate({any_magnitude(), regex_concat({text("-"), at_most(d, bound.exclusive)})});
}
RegexPtr not_above(const Bound& bound) {
  const Decimal& d = bound.value;
  if (d.negative) return regex_concat({text("-"), at_least(d, bound.exclusive)});
  return regex_alternate({any_negative(), at_most(d, bound.exclusive)});
}

StatusOr<ByteDfa> dfa_of(const RegexPtr& regex) {
  return make_dfa(std::span(&regex, 1));
}

RegexPtr integer_text() {
  return regex_concat({regex_repeat(text("-"), 0, 1), any_whole()});
}
RegexPtr decimal_text() {
  return regex_alternate({any_magnitude(), any_negative()});
}
RegexPtr json_number_text() {
  return regex_concat(
      {regex_repeat(text("-"), 0, 1), any_magnitude(),
       regex_repeat(
           regex_concat({regex_set({{'E', 'E'}, {'e', 'e'}}),
                         regex_repeat(regex_set({{'+', '+'}, {'-', '-'}}), 0, 1), digits(1)}),
           0, 1)});
}

// Whole numbers that `divisor` divides.
ByteDfa multiples_of(int divisor) {
  ByteDfa dfa;
  // Classes: others, '-', each digit.
  dfa.num_classes = 12;
  dfa.class_of['-'] = 1;
  for (int d = 0; d < 10; ++d)
    dfa.class_of[static_cast<std::size_t>('0' + d)] = static_cast<std::uint8_t>(2 + d);
  // States: the start, behind a minus, then one for each remainder.
  const auto remainder = [](int r) { return 2 + r; };
  for (int state = 0; state < 2 + divisor; ++state) {
    dfa.labels.push_back(state == remainder(0) ? 1 : 0);
    dfa.next.push_back(ByteDfa::kDead);
    dfa.next.push_back(state == 0 ? 1 : ByteDfa::kDead);
    for (int d = 0; d < 10; ++d) {
      dfa.next.push_back(remainder(state < 2 ? d % divisor : ((state - 2) * 10 + d) % divisor));
    }
  }
  return dfa;
}

// 0.01 allows two digits behind the point.
StatusOr<ByteDfa> of_digits_behind_point(std::size_t count) {
  return dfa_of(regex_concat(
      {regex_repeat(text("-"), 0, 1), any_whole(),
       regex_repeat(regex_concat({text("."), digits(1, static_cast<int>(count))}), 0, 1)}));
}

StatusOr<ByteDfa> multiples_dfa(const Decimal& step) {
  if (step.fraction.empty() && step.whole.size() <= 4 && std::stoi(step.whole) <= kMaxDivisor &&
      !step.is_zero()) {
    return multiples_of(std::stoi(step.whole));
  }
  const bool power_of_ten = step.whole == "0" &&
                            step.fraction.find_first_not_of('0') == step.fraction.size() - 1 &&
                            step.fraction.back() == '1';
  if (power_of_ten) return of_digits_behind_point(step.fraction.size());
  return invalid_argument("multipleOf must be a whole number up to {} or a power of ten",
                          kMaxDivisor);
}

}  // namespace

std::optional<Decimal> Decimal::parse(std::string_view text) {
  Decimal d;
  if (text.starts_with('-')) {
    d.negative = true;
    text.remove_prefix(1);
  }
  int exponent = 0;
  if (const std::size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    std::string_view digits_of_exponent = text.substr(e + 1);
    if (digits_of_exponent.starts_with('+')) digits_of_exponent.remove_prefix(1);
    const auto [end, error] = std::from_chars(
        digits_of_exponent.data(), digits_of_exponent.data() + digits_of_exponent.size(), exponent);
    if (error != std::errc() || std::abs(exponent) > kMaxExponent) return std::nullopt;
    text = text.substr(0, e);
  }
  const std::size_t point = std::min(text.find('.'), text.size());
  d.whole = text.substr(0, point);
  if (point < text.size()) d.fraction = text.substr(point + 1);
  for (; exponent > 0; --exponent) {
    d.whole.push_back(d.fraction.empty() ? '0' : d.fraction.front());
    if (!d.fraction.empty()) d.fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    d.fraction.insert(d.fraction.begin(), d.whole.empty() ? '0' : d.whole.back());
    if (!d.whole.empty()) d.whole.pop_back();
  }
  d.whole.erase(0, std::min(d.whole.find_first_not_of('0'), d.whole.size()));
  if (d.whole.empty()) d.whole = "0";
  d.fraction.erase(d.fraction.find_last_not_of('0') + 1);
  if (d.is_zero()) d.negative = false;
  return d;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  int magnitude = a.whole.size() != b.whole.size() ? (a.whole.size() < b.whole.size() ? -1 : 1)
                                                   : a.whole.compare(b.whole);
  if (magnitude == 0) magnitude = a.fraction.compare(b.fraction);
  const int sign = magnitude < 0 ? -1 : magnitude > 0 ? 1 : 0;
  return a.negative ? -sign : sign;
}

StatusOr<ByteDfa> number_dfa(const NumberBounds& bounds) {
  static const ByteDfa integers = shared_dfa(integer_text());
  static const ByteDfa decimals = shared_dfa(decimal_text());
  static const ByteDfa json_numbers = shared_dfa(json_number_text());
  if (!bounds.any()) return bounds.integer ? integers : json_numbers;
  ByteDfa dfa = bounds.integer ? integers : decimals;
  const auto keep = [&dfa](StatusOr<ByteDfa> other) -> Status {
    if (!other.ok()) return other.status();
    GAPLESS_ASSIGN_OR_RETURN(dfa, intersection(dfa, *other));
    return ok_status();
  };
  if (bounds.min) GAPLESS_RETURN_IF_ERROR(keep(dfa_of(not_below(*bounds.min))));
  if (bounds.max) GAPLESS_RETURN_IF_ERROR(keep(dfa_of(not_above(*bounds.max))));
  for (const Decimal& step : bounds.multiples_of)
    GAPLESS_RETURN_IF_ERROR(keep(multiples_dfa(step)));
  return dfa;
}

}  // namespace gapless
