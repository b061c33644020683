// The bits of a lossless WebP, and its Huffman codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace gapless::internal {

struct WebpCodeEntry {
  std::uint16_t value = 0;  // the symbol, or where a second table lies behind the first one's begin
  std::uint16_t num_bits = 0;  // more than the first table's: those of both tables together
};

// A code's tables, within a list of entries. The first one is looked up by root_bits bits.
struct WebpCode {
  std::uint32_t first = 0;
  int root_bits = 0;  // 0: there is one symbol, and it takes no bits
};

// The lowest bit of a byte comes first. Behind the end there are zeros.
class WebpBits {
 public:
  explicit WebpBits(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  // At most 24.
  std::uint32_t read(int num_bits) {
    fill();
    const auto value = static_cast<std::uint32_t>(bits_ & ((std::uint64_t{1} << num_bits) - 1));
    drop(num_bits);
    return value;
  }

  int symbol(const WebpCode& code, const WebpCodeEntry* entries) {
    fill();
    const WebpCodeEntry* const table = entries + code.first;
    WebpCodeEntry entry = table[bits_ & ((1u << code.root_bits) - 1)];
    if (entry.num_bits > code.root_bits) {
      drop(code.root_bits);
      entry = table[entry.value + (bits_ & ((1u << (entry.num_bits - code.root_bits)) - 1))];
    }
    drop(entry.num_bits);
    return entry.value;
  }

  // More bits were taken than there are.
  bool is_past_end() const { return num_bits_ < num_zeros_; }

 private:
  void drop(int num_bits) {
    bits_ >>= num_bits;
    num_bits_ -= num_bits;
  }
  void fill() {
    if (num_bits_ >= 32) return;
    if (bytes_.size() - at_ >= 8) {
      std::uint32_t more;
      std::memcpy(&more, bytes_.data() + at_, sizeof(more));
      bits_ |= std::uint64_t{more}
               << num_bits_;  // the machines that this is built for are little-endian
      num_bits_ += 32;
      at_ += 4;
      return;
    }
    for (; num_bits_ < 32; num_bits_ += 8) {
      if (at_ < bytes_.size()) {
        bits_ |= std::uint64_t{bytes_[at_++]} << num_bits_;
      } else {
        num_zeros_ += 8;
      }
    }
  }

  const std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
  std::uint64_t bits_ = 0;
  int num_bits_ = 0;            // in bits_
  std::int64_t num_zeros_ = 0;  // of those that came behind the end
};

// Reads a code of so many symbols and adds its tables to `entries`. Nothing: it is none.
std::optional<WebpCode> read_webp_code(WebpBits& bits, int num_symbols,
                                       std::vector<WebpCodeEntry>& entries);

}  // namespace gapless::internal
