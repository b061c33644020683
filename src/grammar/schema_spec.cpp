#include "grammar/schema_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace gapless {
namespace {

void take_larger(int& value, int other) {
  value = std::max(value, other);
}
void take_smaller_limit(int& value, int other) {
  if (other == kNoLimit) return;
  value = value == kNoLimit ? other : std::min(value, other);
}

// The tighter of two bounds; sign 1: of two lower bounds.
std::optional<Bound> tighter(const std::optional<Bound>& a, const std::optional<Bound>& b,
                             int sign) {
  if (!a) return b;
  if (!b) return a;
  const int order = compare(a->value, b->value) * sign;
  if (order != 0) return order > 0 ? a : b;
  return Bound{a->value, a->exclusive || b->exclusive};
}

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

bool SchemaSpec::says_nothing() const {
  static const SchemaSpec kNothing;
  return *this == kNothing;
}

std::optional<SchemaSpec> merge(const SchemaSpec& a, const SchemaSpec& b) {
  SchemaSpec m = a;
  m.types = a.types & b.types;
  if (m.types == 0) return std::nullopt;

  m.number.integer = a.number.integer || b.number.integer;
  m.number.min = tighter(a.number.min, b.number.min, 1);
  m.number.max = tighter(a.number.max, b.number.max, -1);
  append(m.number.multiples_of, b.number.multiples_of);
  if (a.number_texts && b.number_texts) {
    std::vector<std::string> both;
    std::copy_if(a.number_texts->begin(), a.number_texts->end(), std::back_inserter(both),
                 [&](const std::string& text) {
                   return std::find(b.number_texts->begin(), b.number_texts->end(), text) !=
                          b.number_texts->end();
                 });
    m.number_texts = std::move(both);
  } else if (b.number_texts) {
    m.number_texts = b.number_texts;
  }
  append(m.not_number_texts, b.not_number_texts);

  append(m.patterns, b.patterns);
  append(m.not_patterns, b.not_patterns);
  take_larger(m.min_length, b.min_length);
  take_smaller_limit(m.max_length, b.max_length);
  if (a.strings && b.strings) {
    std::set<std::string> both;
    std::set_intersection(a.strings->begin(), a.strings->end(), b.strings->begin(),
                          b.strings->end(), std::inserter(both, both.end()));
    m.strings = std::move(both);
  } else if (b.strings) {
    m.strings = b.strings;
  }
  m.not_strings.insert(b.not_strings.begin(), b.not_strings.end());

  append(m.objects, b.objects);
  m.required.insert(b.required.begin(), b.required.end());
  m.forbidden.insert(b.forbidden.begin(), b.forbidden.end());
  take_larger(m.min_properties, b.min_properties);
  take_smaller_limit(m.max_properties, b.max_properties);

  append(m.arrays, b.arrays);
  take_larger(m.min_items, b.min_items);
  take_smaller_limit(m.max_items, b.max_items);
  return m;
}

StatusOr<ByteDfa> string_values(const SchemaSpec& spec, bool bounded) {
  ByteDfa dfa;
  if (spec.strings) {
    std::set<std::string> left;
    for (const std::string& string : *spec.strings) {
      const auto length = static_cast<int>(code_points_of(string).size());
      const bool fits = length >= spec.min_length &&
                        (spec.max_length == kNoLimit || length <= spec.max_length) &&
                        !spec.not_strings.contains(string);
      if (fits) left.insert(string);
    }
    if (left.empty()) return ByteDfa();
    GAPLESS_ASSIGN_OR_RETURN(dfa, dfa_of_strings(left));
  } else {
    const bool limits = bounded && (spec.min_length > 0 || spec.max_length != kNoLimit);
    if (spec.max_length != kNoLimit && spec.max_length < spec.min_length) return ByteDfa();
    const bool first_pattern_is_all = !limits && !spec.patterns.empty();
    if (limits) {
      const RegexPtr all =
          regex_repeat(regex_set(CodePointSet::all()), spec.min_length, spec.max_length);
      GAPLESS_ASSIGN_OR_RETURN(dfa, make_dfa(std::span(&all, 1)));
    } else if (first_pattern_is_all) {
      GAPLESS_ASSIGN_OR_RETURN(const ByteDfa* const first, spec.patterns.front()->dfa());
      dfa = *first;
    } else {
      dfa = dfa_of_all_strings();
    }
    if (!spec.not_strings.empty()) {
      GAPLESS_ASSIGN_OR_RETURN(const ByteDfa others, dfa_of_strings(spec.not_strings));
      GAPLESS_ASSIGN_OR_RETURN(dfa, difference(dfa, others));
    }
    if (first_pattern_is_all && spec.patterns.size() == 1 && spec.not_patterns.empty()) return dfa;
  }
  for (const StringPatternPtr& pattern : spec.patterns) {
    GAPLESS_ASSIGN_OR_RETURN(const ByteDfa* const other, pattern->dfa());
    GAPLESS_ASSIGN_OR_RETURN(dfa, intersection(dfa, *other));
  }
  for (const StringPatternPtr& pattern : spec.not_patterns) {
    GAPLESS_ASSIGN_OR_RETURN(const ByteDfa* const other, pattern->dfa());
    GAPLESS_ASSIGN_OR_RETURN(dfa, difference(dfa, *other));
  }
  return dfa;
}

StatusOr<ByteDfa> number_texts(const SchemaSpec& spec) {
  GAPLESS_ASSIGN_OR_RETURN(ByteDfa dfa, number_dfa(spec.number));
  if (spec.number_texts) {
    if (spec.number_texts->empty()) return ByteDfa();
    GAPLESS_ASSIGN_OR_RETURN(const ByteDfa texts, dfa_of_strings({spec.number_texts->begin(),
                                                                  spec.number_texts->end()}));
    // An enum's 1.0 is an integer whatever its text.
    GAPLESS_ASSIGN_OR_RETURN(dfa, spec.number.any() || spec.number.integer
                                      ? intersection(texts, dfa)
                                      : StatusOr<ByteDfa>(texts));
  }
  if (!spec.not_number_texts.empty()) {
    GAPLESS_ASSIGN_OR_RETURN(const ByteDfa texts, dfa_of_strings({spec.not_number_texts.begin(),
                                                                  spec.not_number_texts.end()}));
    GAPLESS_ASSIGN_OR_RETURN(dfa, difference(dfa, texts));
  }
  return dfa;
}

std::vector<std::string> texts_of_number(const boost::json::value& number) {
  if (number.is_int64()) return {fmt::format("{}", number.get_int64())};
  if (number.is_uint64()) return {fmt::format("{}", number.get_uint64())};
  const double value = number.get_double();
  std::vector<std::string> texts = {fmt::format("{}", value)};
  const bool fits = value >= -0x1p63 && value < 0x1p63;
  if (fits && value == static_cast<double>(static_cast<std::int64_t>(value))) {
    texts.push_back(fmt::format("{}", static_cast<std::int64_t>(value)));
    texts.push_back(fmt::format("{}.0", static_cast<std::int64_t>(value)));
  }
  return texts;
}

}  // namespace gapless
