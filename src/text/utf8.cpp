#include "text/utf8.h"

namespace gapless {
namespace {

unsigned char byte_at(std::string_view bytes, std::size_t i) {
  return static_cast<unsigned char>(bytes[i]);
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes) {
  using Kind = Utf8Step::Kind;
  const unsigned char lead = byte_at(bytes, 0);
  if (lead < 0x80) return {Kind::kCodePoint, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Kind::kInvalid, 1};

  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Kind::kIncomplete, i};
    // The first continuation byte is narrower after four leads: no overlong forms, no surrogates,
    // nothing above U+10FFFF.
    unsigned char low = 0x80, high = 0xBF;
    if (i == 1) {
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (byte_at(bytes, i) < low || byte_at(bytes, i) > high) return {Kind::kInvalid, i};
  }
  return {Kind::kCodePoint, length};
}

std::optional<std::size_t> find_invalid_utf8(std::string_view bytes) {
  std::size_t i = 0;
  while (i < bytes.size()) {
    const Utf8Step step = utf8_step(bytes.substr(i));
    if (step.kind != Utf8Step::Kind::kCodePoint) return i;
    i += step.num_bytes;
  }
  return std::nullopt;
}

std::string repair_utf8(std::string_view bytes) {
  std::string repaired;
  repaired.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    const bool whole = step.kind == Utf8Step::Kind::kCodePoint;
    repaired += whole ? bytes.substr(0, step.num_bytes) : kReplacementCharacter;
    bytes.remove_prefix(step.num_bytes);
  }
  return repaired;
}

std::string escape_invalid_utf8(std::string_view bytes) {
  constexpr char kHexDigits[] = "0123456789abcdef";
  std::string escaped;
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    for (const char c : bytes.substr(0, step.num_bytes)) {
      if (step.kind == Utf8Step::Kind::kCodePoint) {
        escaped += c;
      } else {
        const auto byte = static_cast<unsigned char>(c);
        escaped.append({'\\', 'x', kHexDigits[byte >> 4], kHexDigits[byte & 15]});
      }
    }
    bytes.remove_prefix(step.num_bytes);
  }
  return escaped;
}

}  // namespace gapless
