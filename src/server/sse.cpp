#include "server/sse.h"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>

#include "base/json.h"
#include "text/utf8.h"

namespace gapless {
namespace {

constexpr std::uint32_t kReplacement = 0xFFFD;

void append_escaped(std::string& out, std::uint32_t code) {
  const auto append_unit = [&](std::uint32_t unit) {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", unit);
  };
  if (code < 0x10000) {
    append_unit(code);
  } else {
    append_unit(0xD800 + ((code - 0x10000) >> 10));
    append_unit(0xDC00 + ((code - 0x10000) & 0x3FF));
  }
}

// The code point of whole, valid UTF-8 bytes.
std::uint32_t decode_utf8(std::string_view bytes) {
  const auto first = static_cast<unsigned char>(bytes[0]);
  std::uint32_t code = bytes.size() == 1 ? first : first & (0x7Fu >> bytes.size());
  for (const char c : bytes.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3F);
  return code;
}

}  // namespace

std::string ascii_json(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  std::size_t at = 0;
  while (at < text.size()) {
    const auto c = static_cast<unsigned char>(text[at]);
    if (c < 0x80) {
      // DEL is legal in JSON, and the only ASCII control character that serialisers leave alone.
      if (c == 0x7F) {
        append_escaped(out, c);
      } else {
        out += text[at];
      }
      ++at;
    } else {
      const Utf8Step step = utf8_step(text.substr(at));
      const bool valid = step.kind == Utf8Step::Kind::kCodePoint;
      append_escaped(out, valid ? decode_utf8(text.substr(at, step.num_bytes)) : kReplacement);
      at += step.num_bytes;
    }
  }
  return out;
}

std::string sse_event(const boost::json::value& value) {
  return "data: " + ascii_json(json_text(value)) + "\n\n";
}

}  // namespace gapless
