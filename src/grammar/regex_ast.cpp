#include "grammar/regex_ast.h"

#include <iterator>

#include "grammar/compile_work.h"
#include "grammar/grammar_limits.h"

namespace gapless {
namespace {

RegexPtr node(Regex regex) {
  return std::make_shared<const Regex>(std::move(regex));
}

const CodePointSet& digits() {
  static const CodePointSet set{{'0', '9'}};
  return set;
}
const CodePointSet& word_characters() {
  static const CodePointSet set{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return set;
}
// WhiteSpace and LineTerminator of ECMA-262.
const CodePointSet& spaces() {
  static const CodePointSet set{
      {0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
      {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  return set;
}
const CodePointSet& line_ends() {
  static const CodePointSet set{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
  return set;
}

class Parser {
 public:
  explicit Parser(std::string_view pattern) : text_(code_points_of(pattern)) {}

  StatusOr<RegexPtr> parse() {
    GAPLESS_ASSIGN_OR_RETURN(RegexPtr regex, alternatives());
    if (at_ < text_.size()) return error("unmatched )");
    return regex;
  }

 private:
  static constexpr int kMaxRepeat = 10'000;

  Status error(std::string_view what) const {
    return invalid_argument("pattern: {} at character {}", what, at_);
  }
  bool at_end() const { return at_ >= text_.size(); }
  bool next_is(char32_t c) const { return !at_end() && text_[at_] == c; }
  bool take(char32_t c) {
    if (!next_is(c)) return false;
    ++at_;
    return true;
  }

  StatusOr<RegexPtr> alternatives() {
    if (++depth_ > kMaxRegexDepth) return error("groups nested too deeply");
    std::vector<RegexPtr> parts;
    do {
      GAPLESS_ASSIGN_OR_RETURN(RegexPtr part, sequence());
      parts.push_back(std::move(part));
    } while (take('|'));
    --depth_;
    return regex_alternate(std::move(parts));
  }

  StatusOr<RegexPtr> sequence() {
    std::vector<RegexPtr> parts;
    while (!at_end() && !next_is('|') && !next_is(')')) {
      GAPLESS_ASSIGN_OR_RETURN(RegexPtr part, term());
      parts.push_back(std::move(part));
    }
    return regex_concat(std::move(parts));
  }

  StatusOr<RegexPtr> term() {
    if (take('^')) return node({.kind = Regex::Kind::kBegin});
    if (take('$')) return node({.kind = Regex::Kind::kEnd});
    GAPLESS_ASSIGN_OR_RETURN(RegexPtr part, atom());
    int min = 0, max = Regex::kUnbounded;
    GAPLESS_ASSIGN_OR_RETURN(const bool repeats, repetition(min, max));
    if (!repeats) return part;
    take('?');  // lazy: the same strings
    int again_min = 0, again_max = 0;
    GAPLESS_ASSIGN_OR_RETURN(const bool repeats_again, repetition(again_min, again_max));
    if (repeats_again) return error("a repetition of a repetition");
    return regex_repeat(std::move(part), min, max);
  }

  // Whether a repetition follows, and how often.
  StatusOr<bool> repetition(int& min, int& max) {
    min = 0;
    max = Regex::kUnbounded;
    if (take('*')) return true;
    if (take('+')) {
      min = 1;
      return true;
    }
    if (take('?')) {
      max = 1;
      return true;
    }
    const std::size_t brace = at_;
    if (!counts(min, max)) {
      at_ = brace;  // a brace that stands for itself: the next atom
      return false;
    }
    if (max != Regex::kUnbounded && max < min) return error("a repetition {n,m} with n > m");
    if (min > kMaxRepeat || max > kMaxRepeat) return error("a repetition of more than 10000");
    return true;
  }

  bool number(int& value) {
    const std::size_t begin = at_;
    value = 0;
    while (!at_end() && text_[at_] >= '0' && text_[at_] <= '9') {
      if (value <= kMaxRepeat) value = value * 10 + static_cast<int>(text_[at_] - '0');
      ++at_;
    }
    return at_ > begin;
  }

  // {n}, {n,} or {n,m}; otherwise false, and the position is anywhere.
  bool counts(int& min, int& max) {
    if (!take('{') || !number(min)) return false;
    max = min;
    if (take(',')) {
      if (next_is('}')) {
        max = Regex::kUnbounded;
      } else if (!number(max)) {
        return false;
      }
    }
    return take('}');
  }

  StatusOr<RegexPtr> atom() {
    const char32_t c = text_[at_++];
    switch (c) {
      case '(':
        return group();
      case '[':
        return char_class();
      case '.':
        return regex_set(line_ends().complement());
      case '\\':
        return escape();
      case '*':
      case '+':
      case '?':
        --at_;
        return error("nothing to repeat");
      default:
        return regex_set({{c, c}});
    }
  }

  StatusOr<RegexPtr> group() {
    if (take('?')) {
      if (take('<')) {
        if (next_is('=') || next_is('!')) return error("lookbehind is not regular");
        while (!at_end() && !next_is('>')) ++at_;
        if (!take('>')) return error("a group's name without an end");
      } else if (next_is('=') || next_is('!')) {
        return error("lookahead is not regular");
      } else if (!take(':')) {
        return error("an unknown kind of group");
      }
    }
    GAPLESS_ASSIGN_OR_RETURN(RegexPtr inner, alternatives());
    if (!take(')')) return error("a group without an end");
    return inner;
  }

  StatusOr<RegexPtr> escape() {
    if (at_end()) return error("a backslash at the end");
    const char32_t c = text_[at_];
    if (c == 'b' || c == 'B') return error("word boundaries are not supported");
    if (c >= '1' && c <= '9') return error("backreferences are not regular");
    CodePointSet set;
    GAPLESS_RETURN_IF_ERROR(escaped_set(set));
    return regex_set(std::move(set));
  }

  StatusOr<char32_t> hex(int num_digits) {
    char32_t value = 0;
    for (int i = 0; i < num_digits; ++i) {
      const char32_t c = at_end() ? 0 : text_[at_];
      const int digit = c >= '0' && c <= '9'   ? static_cast<int>(c - '0')
                        : c >= 'a' && c <= 'f' ? static_cast<int>(c - 'a') + 10
                        : c >= 'A' && c <= 'F' ? static_cast<int>(c - 'A') + 10
                                               : -1;
      if (digit < 0) return error("an escape that lacks hexadecimal digits");
      value = value * 16 + static_cast<char32_t>(digit);
      ++at_;
    }
    return value;
  }

  // What follows a backslash, in a class or outside: one character, or a class of them.
  Status escaped_set(CodePointSet& set) {
    const char32_t c = text_[at_++];
    switch (c) {
      case 'd':
        set = digits();
        return ok_status();
      case 'D':
        set = digits().complement();
        return ok_status();
      case 'w':
        set = word_characters();
        return ok_status();
      case 'W':
        set = word_characters().complement();
        return ok_status();
      case 's':
        set = spaces();
        return ok_status();
      case 'S':
        set = spaces().complement();
        return ok_status();
      case 'p':
      case 'P':
        return error("Unicode property classes are not supported");
      default:
        break;
    }
    GAPLESS_ASSIGN_OR_RETURN(const char32_t one, escaped_character(c));
    set.add(one, one);
    return ok_status();
  }

  StatusOr<char32_t> escaped_character(char32_t c) {
    switch (c) {
      case 't':
        return U'\t';
      case 'n':
        return U'\n';
      case 'v':
        return U'\v';
      case 'f':
        return U'\f';
      case 'r':
        return U'\r';
      case '0':
        return U'\0';
      case 'x':
        return hex(2);
      case 'u': {
        if (take('{')) {
          char32_t value = 0;
          while (!at_end() && !next_is('}') && value <= 0x10FFFF) {
            GAPLESS_ASSIGN_OR_RETURN(const char32_t digit, hex(1));
            value = value * 16 + digit;
          }
          if (!take('}') || value > 0x10FFFF) return error("a bad \\u{...}");
          return value;
        }
        GAPLESS_ASSIGN_OR_RETURN(const char32_t high, hex(4));
        if (high < 0xD800 || high > 0xDBFF) return high;
        if (!take('\\') || !take('u')) return error("half a surrogate pair");
        GAPLESS_ASSIGN_OR_RETURN(const char32_t low, hex(4));
        return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
      }
      case 'c': {
        if (at_end()) return error("\\c without a letter");
        return text_[at_++] % 32;
      }
      default:
        return c;  // an escaped mark, or a letter that means itself
    }
  }

  StatusOr<RegexPtr> char_class() {
    const bool negated = take('^');
    CodePointSet set;
    while (!take(']')) {
      if (at_end()) return error("a class without an end");
      CodePointSet low;
      bool is_class = false;
      GAPLESS_RETURN_IF_ERROR(class_item(low, is_class));
      const bool is_range =
          next_is('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']' && !is_class;
      GAPLESS_RETURN_IF_ERROR(CompileWork::spend(std::ssize(set.ranges()) + 10));
      if (!is_range) {
        set.add(low);
        continue;
      }
      ++at_;
      CodePointSet high;
      GAPLESS_RETURN_IF_ERROR(class_item(high, is_class));
      if (is_class) {  // [a-\d]: three things, as browsers read it
        set.add(low);
        set.add('-', '-');
        set.add(high);
        continue;
      }
      const char32_t first = low.ranges().front().first, last = high.ranges().front().first;
      if (last < first) return error("a range out of order");
      set.add(first, last);
    }
    return regex_set(negated ? set.complement() : set);
  }

  Status class_item(CodePointSet& set, bool& is_class) {
    if (at_end()) return error("a class without an end");
    is_class = false;
    const char32_t c = text_[at_++];
    if (c != '\\') {
      set.add(c, c);
      return ok_status();
    }
    if (at_end()) return error("a backslash at the end");
    const char32_t escaped = text_[at_];
    if (escaped == 'b') {
      ++at_;
      set.add('\b', '\b');
      return ok_status();
    }
    is_class = std::u32string_view(U"dDwWsS").find(escaped) != std::u32string_view::npos;
    return escaped_set(set);
  }

  const std::u32string text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

// Rewrites a tree so that it holds anchors no more: where a match begins (kBegin) or ends, either
// an anchor stands, or anything may.
class Unanchored {
 public:
  static StatusOr<RegexPtr> of(const RegexPtr& regex, bool search) {
    const RegexPtr begun = open(regex, Regex::Kind::kBegin, search);
    const RegexPtr whole = open(begun, Regex::Kind::kEnd, search);
    if (has_anchor(*whole)) return invalid_argument("pattern: an anchor in the middle of a match");
    return whole;
  }

 private:
  // The tree with its edge on that side opened: every way through it either had the anchor there,
  // which is taken out, or gets regex_anything() there (search only).
  static RegexPtr open(const RegexPtr& regex, Regex::Kind side, bool search) {
    if (regex->kind == side) return regex_concat({});
    if (regex->kind == Regex::Kind::kAlternate) {
      std::vector<RegexPtr> parts;
      for (const RegexPtr& part : regex->parts) parts.push_back(open(part, side, search));
      return regex_alternate(std::move(parts));
    }
    if (regex->kind == Regex::Kind::kConcat && !regex->parts.empty()) {
      std::vector<RegexPtr> parts = regex->parts;
      RegexPtr& edge = side == Regex::Kind::kBegin ? parts.front() : parts.back();
      if (has_anchor(*edge)) {
        edge = open(edge, side, search);
        return regex_concat(std::move(parts));
      }
    }
    if (!search) return regex;
    return side == Regex::Kind::kBegin ? regex_concat({regex_anything(), regex})
                                       : regex_concat({regex, regex_anything()});
  }

  static bool has_anchor(const Regex& regex) {
    if (regex.kind == Regex::Kind::kBegin || regex.kind == Regex::Kind::kEnd) return true;
    for (const RegexPtr& part : regex.parts) {
      if (has_anchor(*part)) return true;
    }
    return false;
  }
};

}  // namespace

RegexPtr regex_set(CodePointSet set) {
  return node({.kind = Regex::Kind::kSet, .set = std::move(set)});
}

RegexPtr regex_literal(std::string_view utf8) {
  std::vector<RegexPtr> parts;
  for (const char32_t c : code_points_of(utf8)) parts.push_back(regex_set({{c, c}}));
  return regex_concat(std::move(parts));
}

RegexPtr regex_concat(std::vector<RegexPtr> parts) {
  if (parts.size() == 1) return parts.front();
  return node({.kind = Regex::Kind::kConcat, .parts = std::move(parts)});
}

RegexPtr regex_alternate(std::vector<RegexPtr> parts) {
  if (parts.size() == 1) return parts.front();
  return node({.kind = Regex::Kind::kAlternate, .parts = std::move(parts)});
}

RegexPtr regex_repeat(RegexPtr part, int min, int max) {
  return node({.kind = Regex::Kind::kRepeat, .parts = {std::move(part)}, .min = min, .max = max});
}

RegexPtr regex_anything() {
  static const RegexPtr anything =
      regex_repeat(regex_set(CodePointSet::all()), 0, Regex::kUnbounded);
  return anything;
}

namespace {

StatusOr<RegexPtr> parse(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return make_error(StatusCode::kResourceExhausted, "pattern: more than {} bytes",
                      kMaxPatternBytes);
  }
  if (!is_utf8(pattern)) return invalid_argument("pattern: not UTF-8");
  return Parser(pattern).parse();
}

}  // namespace

StatusOr<RegexPtr> parse_regex(std::string_view pattern) {
  GAPLESS_ASSIGN_OR_RETURN(const RegexPtr regex, parse(pattern));
  return Unanchored::of(regex, /*search=*/false);
}

StatusOr<RegexPtr> parse_search_regex(std::string_view pattern) {
  GAPLESS_ASSIGN_OR_RETURN(const RegexPtr regex, parse(pattern));
  return Unanchored::of(regex, /*search=*/true);
}

}  // namespace gapless
