#include "base/base64.h"

#include <array>
#include <cstdint>

#include "base/base64_vbmi.h"

namespace gapless {
namespace {

constexpr std::uint32_t kForeign = 0x8000'0000;

// One table per place of a character in its group of four: the sextet already shifted to where it
// belongs in the 24 bits, so that four loads and three ORs decode three bytes.
using SextetTable = std::array<std::uint32_t, 256>;

constexpr SextetTable make_table(int shift) {
  SextetTable table{};
  table.fill(kForeign);
  for (std::size_t i = 0; i < kBase64Alphabet.size(); ++i) {
    table[static_cast<unsigned char>(kBase64Alphabet[i])] = static_cast<std::uint32_t>(i) << shift;
  }
  return table;
}

constexpr std::array<SextetTable, 4> kSextets = {make_table(18), make_table(12), make_table(6),
                                                 make_table(0)};

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

// Reads one group with everything that the fast path does not take. Returns the sextets found (4,
// or fewer at the end); `at` moves behind them.
StatusOr<int> read_group(std::string_view text, std::size_t& at, std::uint32_t& bits) {
  bits = 0;
  int count = 0;
  while (at < text.size() && count < 4) {
    const char c = text[at];
    if (is_space(c)) {
      ++at;
      continue;
    }
    const std::uint32_t sextet =
        kSextets[static_cast<std::size_t>(count)][static_cast<unsigned char>(c)];
    if (sextet == kForeign) {
      if (c == '=') break;
      return invalid_argument("not base64 at character {}", at);
    }
    bits |= sextet;
    ++count;
    ++at;
  }
  return count;
}

// What may follow the last sextet: padding and whitespace.
Status check_tail(std::string_view text, std::size_t at, int sextets_in_last_group) {
  int num_padding = 0;
  for (; at < text.size(); ++at) {
    if (is_space(text[at])) continue;
    if (text[at] != '=') return invalid_argument("not base64 at character {}: after padding", at);
    ++num_padding;
  }
  if (sextets_in_last_group == 1) return invalid_argument("base64 ends inside of a byte");
  const int allowed = sextets_in_last_group == 0 ? 0 : 4 - sextets_in_last_group;
  if (num_padding > allowed) return invalid_argument("base64 has too much padding");
  return ok_status();
}

void append_bytes(std::string& out, std::uint32_t bits, int num_bytes) {
  for (int i = 0; i < num_bytes; ++i) out.push_back(static_cast<char>(bits >> (16 - 8 * i)));
}

}  // namespace

StatusOr<std::string> decode_base64(std::string_view text) {
  std::string out(text.size() / 4 * 3 + 3, '\0');
  std::size_t num_out = 0;
  std::size_t at = 0;
  while (true) {
    const std::size_t used =
        decode_base64_blocks(text.data() + at, text.size() - at, &out[num_out]);
    at += used;
    num_out += used / 4 * 3;
    const auto* in = reinterpret_cast<const unsigned char*>(text.data());
    while (text.size() - at >= 4) {
      const std::uint32_t bits = kSextets[0][in[at]] | kSextets[1][in[at + 1]] |
                                 kSextets[2][in[at + 2]] | kSextets[3][in[at + 3]];
      if ((bits & kForeign) != 0) break;
      out[num_out] = static_cast<char>(bits >> 16);
      out[num_out + 1] = static_cast<char>(bits >> 8);
      out[num_out + 2] = static_cast<char>(bits);
      num_out += 3;
      at += 4;
    }
    std::uint32_t bits = 0;
    GAPLESS_ASSIGN_OR_RETURN(const int count, read_group(text, at, bits));
    if (count == 4) {
      for (int shift = 16; shift >= 0; shift -= 8)
        out[num_out++] = static_cast<char>(bits >> shift);
      continue;
    }
    GAPLESS_RETURN_IF_ERROR(check_tail(text, at, count));
    out.resize(num_out);
    append_bytes(out, bits, count == 0 ? 0 : count - 1);
    return out;
  }
}

std::string encode_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      text += i + k > bytes.size() ? '=' : kBase64Alphabet[group >> (18 - 6 * k) & 63u];
    }
  }
  return text;
}

}  // namespace gapless
