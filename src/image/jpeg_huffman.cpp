#include "image/jpeg_huffman.h"

#include <algorithm>

namespace gapless {
namespace {

// Longer numbers are not those of 8-bit samples.
constexpr int kMaxDcBits = 11;
constexpr int kMaxAcBits = 10;

}  // namespace

JpegCode::Step JpegCode::step_of(int num_bits, std::uint8_t symbol) const {
  if (kind_ == Kind::kDc) return {static_cast<std::uint8_t>(num_bits), symbol};
  const int zeros = symbol >> 4;
  const int number_bits = symbol & 15;
  int go_on = zeros + 1;
  if (number_bits == 0 && zeros != 15) go_on = kEndOfBlock;
  return {static_cast<std::uint8_t>(num_bits + number_bits), static_cast<std::uint8_t>(go_on)};
}

bool JpegCode::assign(Kind kind, std::span<const std::uint8_t, 16> counts,
                      std::span<const std::uint8_t> symbols) {
  kind_ = kind;
  num_symbols_ = 0;
  quick_.fill({});
  words_.fill({});
  last_code_.fill(-1);
  int code = 0;
  int at = 0;
  for (int length = 1; length <= kMaxBits; ++length, code <<= 1) {
    const auto l = static_cast<std::size_t>(length);
    symbol_at_[l] = at - code;
    for (int i = 0; i < counts[l - 1]; ++i, ++code, ++at) {
      if (at == std::ssize(symbols) || at == std::ssize(symbols_) || code >= 1 << length) {
        return false;
      }
      const std::uint8_t symbol = symbols[static_cast<std::size_t>(at)];
      const int number_bits = kind == Kind::kDc ? symbol : symbol & 15;
      if (number_bits > (kind == Kind::kDc ? kMaxDcBits : kMaxAcBits)) return false;
      symbols_[static_cast<std::size_t>(at)] = symbol;
      words_[symbol] = {static_cast<std::uint16_t>(code), length};
      last_code_[l] = code;
      if (length > kQuickBits) continue;
      const int unused = kQuickBits - length;
      std::fill_n(quick_.begin() + (code << unused), 1 << unused, step_of(length, symbol));
    }
  }
  num_symbols_ = at;
  return at > 0;
}

JpegCode::Step JpegCode::long_step(std::uint64_t bits) const {
  for (int length = kQuickBits + 1; length <= kMaxBits; ++length) {
    const auto l = static_cast<std::size_t>(length);
    const int code = static_cast<int>(bits >> (64 - length));
    if (code > last_code_[l]) continue;
    return step_of(length, symbols_[static_cast<std::size_t>(symbol_at_[l] + code)]);
  }
  return {};
}

}  // namespace gapless
