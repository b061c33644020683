#include "server/request_parser.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace gapless {
namespace {

constexpr std::size_t kMaxHead = 1024;
constexpr std::size_t kMaxBody = 256;

// Feeds the bytes in pieces, as a connection would; what is left over stays in `rest`.
RequestParser parse(std::string_view bytes, std::size_t piece, std::string* rest = nullptr) {
  RequestParser parser(kMaxHead, kMaxBody);
  std::string buffer;
  std::size_t at = 0;
  while (parser.state() != RequestParser::State::kDone &&
         parser.state() != RequestParser::State::kFailed) {
    const std::size_t used = buffer.empty() ? 0 : parser.feed(buffer);
    buffer.erase(0, used);
    if (used > 0) continue;
    if (at == bytes.size()) break;
    buffer += bytes.substr(at, piece);
    at += std::min(piece, bytes.size() - at);
  }
  if (rest != nullptr) *rest = buffer + std::string(bytes.substr(at));
  return parser;
}

int status_of(std::string_view bytes) {
  RequestParser parser = parse(bytes, 1 << 20);
  return parser.state() == RequestParser::State::kFailed ? parser.error_status() : 0;
}

TEST(RequestParser, AnyCutGivesTheSameRequestAndLeavesTheNextOneAlone) {
  const std::string bytes =
      "POST /v1/qu%65ry?a=1 HTTP/1.1\r\nHost: x\r\nX-A:  b \r\nContent-Length: 5\r\n\r\nhello"
      "GET / HTTP/1.1\r\n";
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    std::string rest;
    RequestParser parser = parse(bytes, piece, &rest);
    ASSERT_EQ(parser.state(), RequestParser::State::kDone) << piece;
    const HttpRequest request = parser.take();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/query");
    EXPECT_EQ(request.query, "a=1");
    EXPECT_EQ(request.headers.find("x-a"), "b");
    EXPECT_EQ(request.body, "hello");
    EXPECT_TRUE(request.keep_alive);
    EXPECT_EQ(rest, "GET / HTTP/1.1\r\n");
  }
}

TEST(RequestParser, ChunkedBodiesInAnyCut) {
  const std::string bytes =
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
      "5;ext=1\r\nhello\r\n1\r\n!\r\n0\r\nTrailer: y\r\n\r\n";
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    RequestParser parser = parse(bytes, piece);
    ASSERT_EQ(parser.state(), RequestParser::State::kDone) << piece;
    const HttpRequest request = parser.take();
    EXPECT_EQ(request.body, "hello!");
    EXPECT_FALSE(request.keep_alive);
  }
}

TEST(RequestParser, ABodyMayBeWrittenInPlace) {
  const std::string body = "0123456789abcdefghijklmnopqrstuvwxyz";
  const std::string head =
      fmt::format("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.size());
  for (std::size_t most = 1; most <= body.size() + 1; ++most) {
    RequestParser parser(kMaxHead, kMaxBody);
    EXPECT_TRUE(parser.body_room(most).empty()) << "of no request";
    ASSERT_EQ(parser.feed(head), head.size());
    EXPECT_EQ(parser.feed(body.substr(0, 7)), 7u);
    for (bool by_half = false; parser.state() == RequestParser::State::kBody; by_half = !by_half) {
      const std::size_t at = parser.body_bytes_so_far();
      const std::span<char> room = parser.body_room(most);
      ASSERT_EQ(room.size(), std::min(most, body.size() - at));
      const std::size_t count = by_half ? room.size() / 2 : room.size();
      std::copy_n(body.begin() + static_cast<std::ptrdiff_t>(at), count, room.begin());
      parser.take_body(room, count);
      ASSERT_EQ(parser.body_bytes_so_far(), at + count);
    }
    ASSERT_EQ(parser.state(), RequestParser::State::kDone);
    EXPECT_TRUE(parser.body_room(most).empty()) << "behind the body";
    EXPECT_EQ(parser.take().body, body);
  }
  RequestParser chunked(kMaxHead, kMaxBody);
  chunked.feed("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  chunked.feed("5\r\n");
  EXPECT_TRUE(chunked.body_room(5).empty());
}

// Found by tests/fuzz/http_request_fuzz: what was refused depended on where a line was cut.
TEST(RequestParser, AnyCutGivesTheSameError) {
  const std::string chunked = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string& bytes : {
           std::string("POST /tokenize HTTP/1.1POST /tokeniz\rX"),
           std::string("GET / HTTP/1.0\r\nCo/nne\r\nHost: x\r\xF5\n"),
           std::string("GET / HTTP/1.1\nHost: x\n\n"),
           std::string("GET / HTTP/1.1\r\nHost: x\r\nBad Name: 1\r\n\r\n"),
           chunked + "24;a=\"\r\nhello, this is more than the quote\"\r\n0\r\n\r\n",
           chunked + "5\r\nhelloo\r\n",
           chunked + "5 \r\nhello\r\n0\r\n\r\n",
           chunked + "\r\nhello\r\n0\r\n\r\n",
           chunked + "1ffffffffffffffff\r\nhello",
           chunked + "1;" + std::string(2 * kMaxHead, 'e'),
           chunked + "0\r\nTrailer: " + std::string(2 * kMaxHead, 't'),
       }) {
    SCOPED_TRACE(bytes);
    const RequestParser whole = parse(bytes, bytes.size());
    EXPECT_EQ(whole.state(), RequestParser::State::kFailed);
    for (std::size_t piece = 1; piece < bytes.size(); ++piece) {
      const RequestParser cut = parse(bytes, piece);
      ASSERT_EQ(cut.state(), whole.state()) << piece;
      ASSERT_EQ(cut.error_status(), whole.error_status()) << piece;
      ASSERT_EQ(cut.error(), whole.error()) << piece;
    }
  }
}

// Not after the time that a head may take.
TEST(RequestParser, ABadRequestLineIsRefusedAsSoonAsItIsComplete) {
  EXPECT_EQ(status_of("GET / \r\n"), 400);
  EXPECT_EQ(status_of("GET /\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/3.0\r\n"), 505);
}

TEST(RequestParser, WaitsForMore) {
  EXPECT_EQ(parse("GET / HTTP/1.1\r\nHost: x\r\n", 7).state(), RequestParser::State::kHead);
  EXPECT_EQ(parse("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhell", 7).state(),
            RequestParser::State::kBody);
  EXPECT_EQ(
      parse("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", 7).state(),
      RequestParser::State::kBody);
}

TEST(RequestParser, Bounds) {
  EXPECT_EQ(status_of("GET /" + std::string(kMaxHead, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n"), 431);
  // A head that never ends is refused once it is too long, not kept.
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nX: " + std::string(2 * kMaxHead, 'a')), 431);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 257\r\n\r\n"), 413);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n101\r\n" +
                      std::string(257, 'a')),
            413);
}

TEST(RequestParser, WhatCouldBeReadInTwoWaysIsRefused) {
  const std::string head = "POST / HTTP/1.1\r\nHost: x\r\n";
  EXPECT_EQ(status_of(head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"), 400);
  EXPECT_EQ(status_of(head + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            400);
  EXPECT_EQ(status_of(head + "Transfer-Encoding: gzip\r\n\r\n"), 501);
  EXPECT_EQ(status_of(head + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 501);
  for (const char* second : {"chunked", "gzip", "identity", ""}) {
    EXPECT_EQ(status_of(head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: " + second +
                        "\r\n\r\n0\r\n\r\n"),
              400)
        << second;
  }
  EXPECT_EQ(
      status_of(head + "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
      501);
  EXPECT_EQ(status_of(head + "Content-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(status_of(head + "Content-Length: 99999999999999999999999\r\n\r\n"), 400);
  EXPECT_EQ(status_of(head + "Bad Name: 1\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status_of(head + "Host: y\r\n\r\n"), 400);
  EXPECT_EQ(status_of(head + "Content-Encoding: gzip\r\n\r\n"), 415);
  EXPECT_EQ(status_of(head + "Expect: tea\r\n\r\n"), 417);
  EXPECT_EQ(status_of("GET / HTTP/2.0\r\nHost: x\r\n\r\n"), 505);
  EXPECT_EQ(status_of("GET http://y/ HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET http://x/ HTTP/1.0\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET https://x/ HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET http://x?y HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("\x16\x03\x01\x02"), 400);  // TLS
  EXPECT_EQ(status_of(head + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n"), 400);
}

TEST(PercentDecode, ReadsNothingBehindItsText) {
  const std::string_view text = "/%41%42";
  std::string out;
  EXPECT_TRUE(percent_decode(text.substr(0, 4), out));
  EXPECT_EQ(out, "/A");
  EXPECT_FALSE(percent_decode(text.substr(0, 3), out)) << "/%4 before a 1";
  EXPECT_FALSE(percent_decode(text.substr(0, 2), out)) << "/% before 41";
}

TEST(RequestParser, ATargetMayNameTheHost) {
  const std::string head = " HTTP/1.1\r\nHost: X:80\r\n\r\n";
  EXPECT_EQ(parse("GET HTTP://x:80/a%20b?c=d" + head, 99).take().path, "/a b");
  EXPECT_EQ(parse("GET http://x:80/a?c=d" + head, 99).take().query, "c=d");
  EXPECT_EQ(parse("GET http://x:80" + head, 99).take().path, "/");
}

TEST(RequestParser, AFirstLineWithoutAVersionIsRefusedWhereItEnds) {
  for (const char* line : {"GET / \r\n", "GET /\r\n", "GET\r\n", "GET / \n"}) {
    for (const std::size_t piece : {1, 99}) {
      RequestParser parser = parse(line, piece);
      EXPECT_EQ(parser.state(), RequestParser::State::kFailed) << line;
      EXPECT_EQ(parser.error_status(), 400) << line;
    }
  }
  EXPECT_EQ(parse("GET / ", 99).state(), RequestParser::State::kHead);
  EXPECT_EQ(parse("GET / HTTP/1.1\r\n", 99).state(), RequestParser::State::kHead);
}

TEST(RequestParser, TheHeadIsThereBeforeTheBody) {
  RequestParser parser(kMaxHead, kMaxBody);
  parser.feed("POST /a HTTP/1.1\r\nHost: x\r\nX-A: b\r\nContent-Length: 100\r\n\r\n");
  ASSERT_EQ(parser.state(), RequestParser::State::kBody);
  EXPECT_EQ(parser.head().path, "/a");
  EXPECT_EQ(parser.head().headers.find("X-A"), "b");
  EXPECT_EQ(parser.take().body, "");
}

TEST(RequestParser, KeepAliveFollowsTheVersion) {
  EXPECT_FALSE(parse("GET / HTTP/1.0\r\n\r\n", 99).take().keep_alive);
  EXPECT_TRUE(parse("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 99).take().keep_alive);
}

TEST(ResponseHead, ValuesCannotAddHeaders) {
  HttpResponse response;
  response.headers.add("X-A", "1\r\nEvil: 2");
  const std::string head = response_head(response, {}, "Content-Length: 0", true, 1);
  EXPECT_EQ(head,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-A: 1Evil: 2\r\n"
            "Content-Length: 0\r\nConnection: keep-alive\r\n\r\n");
}

}  // namespace
}  // namespace gapless
