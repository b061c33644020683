#include "image/lossless_webp_codes.h"

#include <algorithm>
#include <array>

namespace gapless::internal {
namespace {

constexpr int kMaxBits = 15;
constexpr int kMaxRootBits = 8;
constexpr std::size_t kNumLengthSymbols = 19;  // 16 to 18 repeat lengths
// In this order, so that those that are never used are at the end.
constexpr std::array<std::uint8_t, kNumLengthSymbols> kLengthOrder = {
    17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

std::uint32_t reversed(std::uint32_t code, int num_bits) {
  std::uint32_t reverse = 0;
  for (int i = 0; i < num_bits; ++i) reverse |= (code >> i & 1) << (num_bits - 1 - i);
  return reverse;
}

// By the length of each symbol's word, 0 for none. Every sequence of bits has to mean something.
std::optional<WebpCode> make_code(std::span<const std::uint8_t> lengths,
                                  std::vector<WebpCodeEntry>& entries) {
  std::array<int, kMaxBits + 1> counts{};
  for (const std::uint8_t length : lengths) ++counts[length];
  const int num_words = static_cast<int>(lengths.size()) - counts[0];
  if (num_words == 0) return std::nullopt;
  WebpCode code{.first = static_cast<std::uint32_t>(entries.size())};
  if (num_words == 1) {
    const auto symbol = std::find_if(lengths.begin(), lengths.end(), [](int l) { return l > 0; });
    entries.push_back({static_cast<std::uint16_t>(symbol - lengths.begin()), 0});
    return code;
  }
  std::array<std::uint32_t, kMaxBits + 1> next{};
  std::int64_t unused = 1;  // words of the length
  int longest = 0;
  for (std::size_t length = 1; length <= kMaxBits; ++length) {
    next[length] =
        (next[length - 1] + static_cast<std::uint32_t>(length > 1 ? counts[length - 1] : 0)) << 1;
    unused = 2 * unused - counts[length];
    if (unused < 0) return std::nullopt;
    if (counts[length] > 0) longest = static_cast<int>(length);
  }
  if (unused != 0) return std::nullopt;
  code.root_bits = std::min(longest, kMaxRootBits);
  const std::uint32_t root_size = 1u << code.root_bits;
  const std::uint32_t root_mask = root_size - 1;
  // Each symbol's word, the first bit lowest, and for each root the longest word that it begins.
  std::vector<std::uint32_t> words(lengths.size());
  std::array<std::uint8_t, std::size_t{1} << kMaxRootBits> longest_of_root{};
  for (std::size_t symbol = 0; symbol < lengths.size(); ++symbol) {
    const std::uint8_t length = lengths[symbol];
    if (length == 0) continue;
    words[symbol] = reversed(next[length]++, length);
    std::uint8_t& most = longest_of_root[words[symbol] & root_mask];
    if (length > code.root_bits) most = std::max(most, length);
  }
  entries.resize(entries.size() + root_size);
  for (std::uint32_t root = 0; root < root_size; ++root) {
    const int num_bits = longest_of_root[root];
    if (num_bits == 0) continue;
    entries[code.first + root] = {static_cast<std::uint16_t>(entries.size() - code.first),
                                  static_cast<std::uint16_t>(num_bits)};
    entries.resize(entries.size() + (std::size_t{1} << (num_bits - code.root_bits)));
  }
  for (std::size_t symbol = 0; symbol < lengths.size(); ++symbol) {
    const int length = lengths[symbol];
    if (length == 0) continue;
    std::uint32_t table = code.first, word = words[symbol];
    int word_bits = length, table_bits = code.root_bits;
    if (length > code.root_bits) {
      const WebpCodeEntry& root = entries[code.first + (word & root_mask)];
      table += root.value;
      table_bits = root.num_bits - code.root_bits;
      word >>= code.root_bits;
      word_bits -= code.root_bits;
    }
    for (std::uint32_t at = word; at < 1u << table_bits; at += 1u << word_bits) {
      entries[table + at] = {static_cast<std::uint16_t>(symbol),
                             static_cast<std::uint16_t>(word_bits)};
    }
  }
  return code;
}

// The lengths are coded themselves.
bool read_lengths(WebpBits& bits, std::span<std::uint8_t> lengths) {
  std::array<std::uint8_t, kNumLengthSymbols> own{};
  const std::size_t num_own = 4 + bits.read(4);
  if (num_own > kNumLengthSymbols) return false;
  for (std::size_t i = 0; i < num_own; ++i) {
    own[kLengthOrder[i]] = static_cast<std::uint8_t>(bits.read(3));
  }
  std::vector<WebpCodeEntry> entries;
  const std::optional<WebpCode> code = make_code(own, entries);
  if (!code) return false;
  std::size_t num_read = lengths.size();
  if (bits.read(1) != 0) {
    const int num_bits = 2 + 2 * static_cast<int>(bits.read(3));
    num_read = 2 + bits.read(num_bits);
    if (num_read > lengths.size()) return false;
  }
  std::uint8_t last = 8;
  for (std::size_t symbol = 0; symbol < lengths.size() && num_read > 0; --num_read) {
    const int value = bits.symbol(*code, entries.data());
    if (value < 16) {
      lengths[symbol++] = static_cast<std::uint8_t>(value);
      if (value != 0) last = static_cast<std::uint8_t>(value);
      continue;
    }
    const std::size_t times = value == 16   ? 3 + bits.read(2)
                              : value == 17 ? 3 + bits.read(3)
                                            : 11 + bits.read(7);
    if (times > lengths.size() - symbol) return false;
    std::fill_n(lengths.begin() + static_cast<std::ptrdiff_t>(symbol), times,
                value == 16 ? last : std::uint8_t{0});
    symbol += times;
  }
  return true;
}

}  // namespace

std::optional<WebpCode> read_webp_code(WebpBits& bits, int num_symbols,
                                       std::vector<WebpCodeEntry>& entries) {
  std::vector<std::uint8_t> lengths(static_cast<std::size_t>(num_symbols));
  if (bits.read(1) != 0) {  // of one or two symbols, written down
    const bool is_pair = bits.read(1) != 0;
    const std::size_t first = bits.read(bits.read(1) != 0 ? 8 : 1);
    const std::size_t second = is_pair ? bits.read(8) : first;
    // There are fewer distances than can be written here; those that there are not are passed over, as libwebp does.
    for (const std::size_t symbol : {first, second}) {
      if (symbol < lengths.size()) lengths[symbol] = 1;
    }
  } else if (!read_lengths(bits, lengths)) {
    return std::nullopt;
  }
  if (bits.is_past_end()) return std::nullopt;
  return make_code(lengths, entries);
}

}  // namespace gapless::internal
