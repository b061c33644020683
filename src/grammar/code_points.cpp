#include "grammar/code_points.h"

#include <algorithm>

namespace gapless {
namespace {

constexpr char32_t kLastCodePoint = 0x10FFFF;
constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;
constexpr char32_t kBeforeSurrogates = 0xD7FF, kBehindSurrogates = 0xE000;

int utf8_length(char32_t c) {
  return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
}

// Ranges whose ends have equally long encodings and, from some byte on, span all continuation bytes.
void split(char32_t first, char32_t last, std::vector<Utf8Sequence>& out) {
  for (const char32_t limit : {char32_t{0x7F}, char32_t{0x7FF}, char32_t{0xFFFF}}) {
    if (first <= limit && last > limit) {
      split(first, limit, out);
      split(limit + 1, last, out);
      return;
    }
  }
  const int length = utf8_length(first);
  for (int i = 1; i < length; ++i) {
    const char32_t mask = (char32_t{1} << (6 * i)) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      split(first, first | mask, out);
      split((first | mask) + 1, last, out);
      return;
    }
    if ((last & mask) != mask) {
      split(first, (last & ~mask) - 1, out);
      split(last & ~mask, last, out);
      return;
    }
  }
  const std::string low = utf8_of(first), high = utf8_of(last);
  Utf8Sequence sequence{.length = length, .bytes = {}};
  for (int i = 0; i < length; ++i) {
    sequence.bytes[i] = {static_cast<std::uint8_t>(low[static_cast<std::size_t>(i)]),
                         static_cast<std::uint8_t>(high[static_cast<std::size_t>(i)])};
  }
  out.push_back(sequence);
}

}  // namespace

CodePointSet::CodePointSet(std::initializer_list<CodePointRange> ranges) {
  for (const CodePointRange& range : ranges) add(range.first, range.last);
}

CodePointSet CodePointSet::all() {
  return {{0, kBeforeSurrogates}, {kBehindSurrogates, kLastCodePoint}};
}

void CodePointSet::add(char32_t first, char32_t last) {
  CodePointRange merged{first, last};
  std::vector<CodePointRange> ranges;
  for (const CodePointRange& range : ranges_) {
    const bool apart = range.last + 1 < merged.first || merged.last + 1 < range.first;
    if (apart) {
      ranges.push_back(range);
    } else {
      merged = {std::min(range.first, merged.first), std::max(range.last, merged.last)};
    }
  }
  const auto at = std::find_if(ranges.begin(), ranges.end(), [&](const CodePointRange& range) {
    return range.first > merged.first;
  });
  ranges.insert(at, merged);
  ranges_ = std::move(ranges);
}

void CodePointSet::add(const CodePointSet& other) {
  for (const CodePointRange& range : other.ranges_) add(range.first, range.last);
}

CodePointSet CodePointSet::complement() const {
  CodePointSet result;
  char32_t from = 0;
  const auto add_gap = [&](char32_t first, char32_t last) {
    if (first < kFirstSurrogate) result.add(first, std::min(last, kBeforeSurrogates));
    if (last > kLastSurrogate) result.add(std::max(first, kBehindSurrogates), last);
  };
  for (const CodePointRange& range : ranges_) {
    if (range.first > from) add_gap(from, range.first - 1);
    from = range.last + 1;
  }
  if (from <= kLastCodePoint) add_gap(from, kLastCodePoint);
  return result;
}

std::vector<Utf8Sequence> utf8_sequences(CodePointRange range) {
  std::vector<Utf8Sequence> sequences;
  if (range.first < kFirstSurrogate) {
    split(range.first, std::min(range.last, kBeforeSurrogates), sequences);
  }
  if (range.last > kLastSurrogate) {
    split(std::max(range.first, kBehindSurrogates), range.last, sequences);
  }
  return sequences;
}

std::string utf8_of(char32_t c) {
  std::string out;
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  switch (utf8_length(c)) {
    case 1:
      put(c);
      break;
    case 2:
      put(0xC0 | c >> 6);
      put(0x80 | (c & 0x3F));
      break;
    case 3:
      put(0xE0 | c >> 12);
      put(0x80 | (c >> 6 & 0x3F));
      put(0x80 | (c & 0x3F));
      break;
    default:
      put(0xF0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3F));
      put(0x80 | (c >> 6 & 0x3F));
      put(0x80 | (c & 0x3F));
  }
  return out;
}

bool is_utf8(std::string_view bytes) {
  for (std::size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<unsigned char>(bytes[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead >= 0x80 && lead < 0xC0) return false;
    if (i + length > bytes.size()) return false;
    char32_t c = length == 1 ? lead : lead & (0x7Fu >> length);
    for (std::size_t k = 1; k < length; ++k) {
      c = c << 6 | (static_cast<unsigned char>(bytes[i + k]) & 0x3Fu);
    }
    const bool is_surrogate = c >= kFirstSurrogate && c <= kLastSurrogate;
    // The shortest encoding of a character, with continuation bytes behind the first.
    if (c > kLastCodePoint || is_surrogate || bytes.substr(i, length) != utf8_of(c)) return false;
    i += length;
  }
  return true;
}

std::u32string code_points_of(std::string_view utf8) {
  std::u32string out;
  for (std::size_t i = 0; i < utf8.size();) {
    const auto lead = static_cast<unsigned char>(utf8[i]);
    const int length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    char32_t c = length == 1 ? lead : lead & (0x7F >> length);
    for (int k = 1; k < length; ++k) {
      c = c << 6 | (static_cast<unsigned char>(utf8[i + static_cast<std::size_t>(k)]) & 0x3F);
    }
    out.push_back(c);
    i += static_cast<std::size_t>(length);
  }
  return out;
}

}  // namespace gapless
