// Any bytes as what a connection reads: an error with a status, a wait for more, or a request; and
// the same one however the bytes are cut into pieces.
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

struct Outcome {
  RequestParser parser{kMaxHeader, kMaxBody};
  std::size_t used = 0;
};

// As Connection feeds it; `piece`: bytes of one network read.
Outcome parse(std::string_view bytes, std::size_t piece) {
  Outcome outcome;
  RequestParser& parser = outcome.parser;
  std::string input;
  while (true) {
    while (!input.empty() && parser.state() != RequestParser::State::kDone &&
           parser.state() != RequestParser::State::kFailed) {
      const auto before = parser.state();
      const std::size_t used = parser.feed(input);
      GAPLESS_CHECK(used <= input.size());
      input.erase(0, used);
      outcome.used += used;
      if (used == 0 && parser.state() == before) break;
    }
    if (parser.state() == RequestParser::State::kDone ||
        parser.state() == RequestParser::State::kFailed || bytes.empty()) {
      return outcome;
    }
    input += bytes.substr(0, piece);
    bytes.remove_prefix(std::min(piece, bytes.size()));
  }
}

void expect_same(Outcome& a, Outcome& b) {
  GAPLESS_CHECK(a.parser.state() == b.parser.state());
  if (a.parser.state() == RequestParser::State::kFailed) {
    GAPLESS_CHECK(a.parser.error_status() == b.parser.error_status());
    GAPLESS_CHECK(a.parser.error() == b.parser.error());
  }
  if (a.parser.state() != RequestParser::State::kDone) return;
  // What follows belongs to the next request.
  GAPLESS_CHECK(a.used == b.used);
  const HttpRequest one = a.parser.take();
  const HttpRequest other = b.parser.take();
  GAPLESS_CHECK(one.method == other.method && one.path == other.path && one.query == other.query);
  GAPLESS_CHECK(one.headers.fields() == other.headers.fields());
  GAPLESS_CHECK(one.body == other.body && one.keep_alive == other.keep_alive);
  GAPLESS_CHECK(one.body.size() <= kMaxBody && one.path.find('\0') == std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const std::size_t piece : {1, 7}) {
    Outcome whole = parse(bytes, size + 1);
    Outcome in_pieces = parse(bytes, piece);
    if (whole.parser.state() == RequestParser::State::kFailed) {
      GAPLESS_CHECK(whole.parser.error_status() >= 400 && !whole.parser.error().empty());
    }
    expect_same(whole, in_pieces);
  }
  return 0;
}
