#include "text/byte_level.h"

#include <unordered_map>

#include "text/utf8.h"

namespace gapless {
namespace {

bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// Code points of the alphabet lie below U+0144.
std::string utf8_of_small(int code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3F))};
}

std::array<std::string, 256> make_alphabet() {
  std::array<std::string, 256> alphabet;
  int next_substitute = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    alphabet[static_cast<std::size_t>(byte)] =
        utf8_of_small(stands_for_itself(byte) ? byte : next_substitute++);
  }
  return alphabet;
}

std::unordered_map<std::string_view, char> make_inverse() {
  std::unordered_map<std::string_view, char> inverse;
  const auto& alphabet = byte_level_alphabet();
  for (std::size_t byte = 0; byte < alphabet.size(); ++byte) {
    inverse.emplace(alphabet[byte], static_cast<char>(byte));
  }
  return inverse;
}

}  // namespace

const std::array<std::string, 256>& byte_level_alphabet() {
  static const std::array<std::string, 256> alphabet = make_alphabet();
  return alphabet;
}

std::string to_byte_level(std::string_view bytes) {
  const auto& alphabet = byte_level_alphabet();
  std::string spelling;
  for (const char byte : bytes) spelling += alphabet[static_cast<unsigned char>(byte)];
  return spelling;
}

std::optional<std::string> from_byte_level(std::string_view spelling) {
  static const std::unordered_map<std::string_view, char> inverse = make_inverse();
  std::string bytes;
  while (!spelling.empty()) {
    const std::size_t length = utf8_step(spelling).num_bytes;
    const auto found = inverse.find(spelling.substr(0, length));
    if (found == inverse.end()) return std::nullopt;
    bytes += found->second;
    spelling.remove_prefix(length);
  }
  return bytes;
}

}  // namespace gapless
