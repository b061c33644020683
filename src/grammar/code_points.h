// Sets of Unicode code points.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gapless {

struct CodePointRange {
  char32_t first = 0;
  char32_t last = 0;

  friend bool operator==(const CodePointRange&, const CodePointRange&) = default;
};

// Sorted ranges that neither touch nor overlap.
class CodePointSet {
 public:
  CodePointSet() = default;
  CodePointSet(std::initializer_list<CodePointRange> ranges);

  // Every scalar value: surrogates are not characters.
  static CodePointSet all();

  void add(char32_t first, char32_t last);
  void add(const CodePointSet& other);
  CodePointSet complement() const;

  bool empty() const { return ranges_.empty(); }
  const std::vector<CodePointRange>& ranges() const { return ranges_; }

 private:
  std::vector<CodePointRange> ranges_;
};

// One byte range for each byte of a UTF-8 sequence; its code points are the product of the ranges.
struct Utf8Sequence {
  struct ByteRange {
    std::uint8_t first = 0;
    std::uint8_t last = 0;
  };
  int length = 0;
  ByteRange bytes[4];
};

// The sequences whose code points are exactly [range.first, range.last], surrogates left out.
std::vector<Utf8Sequence> utf8_sequences(CodePointRange range);

std::string utf8_of(char32_t code_point);
bool is_utf8(std::string_view bytes);
// Of valid UTF-8.
std::u32string code_points_of(std::string_view utf8);

}  // namespace gapless
