// Any bytes as what a connection reads: an error with a status, a wait for more, or a request; and
// the same one whether the bytes come at once or one by one.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/request_parser.h"

namespace {

using gapless::HttpRequest;
using gapless::RequestParser;

constexpr std::size_t kMaxHeader = 1024;
constexpr std::size_t kMaxBody = 2048;

// As Connection feeds it; `piece`: bytes of one network read.
RequestParser parse(std::string_view bytes, std::size_t piece) {
  RequestParser parser(kMaxHeader, kMaxBody);
  std::string input;
  while (true) {
    while (!input.empty() && parser.state() != RequestParser::State::kDone &&
           parser.state() != RequestParser::State::kFailed) {
      const auto before = parser.state();
      const std::size_t used = parser.feed(input);
      GAPLESS_CHECK(used <= input.size());
      input.erase(0, used);
      if (used == 0 && parser.state() == before) break;
    }
    if (parser.state() == RequestParser::State::kDone ||
        parser.state() == RequestParser::State::kFailed || bytes.empty()) {
      return parser;
    }
    input += bytes.substr(0, piece);
    bytes.remove_prefix(std::min(piece, bytes.size()));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  RequestParser whole = parse(bytes, size + 1);
  RequestParser bitwise = parse(bytes, 1);
  GAPLESS_CHECK(whole.state() == bitwise.state());
  if (whole.state() == RequestParser::State::kFailed) {
    GAPLESS_CHECK(whole.error_status() >= 400 && !whole.error().empty());
  }
  if (whole.state() != RequestParser::State::kDone) return 0;
  const HttpRequest a = whole.take();
  const HttpRequest b = bitwise.take();
  GAPLESS_CHECK(a.method == b.method && a.path == b.path && a.body == b.body);
  GAPLESS_CHECK(a.body.size() <= kMaxBody && a.path.find('\0') == std::string::npos);
  return 0;
}
