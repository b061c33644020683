// Hosts that answer as no hub does. Whatever they say: an error that names them, nothing in the
// cache that could be taken for a file, and the token stays at home.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "hub/hub_download.h"
#include "tests/server/picture_host.h"

namespace gapless {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";
constexpr const char* kAsked = "/org/name/resolve/main/config.json";
constexpr const char* kFetched =
    "/org/name/resolve/0123456789abcdef0123456789abcdef01234567/config.json";
constexpr const char* kHello = "ce013625030ba8dba906f756967f9e9ca394464a";  // git's of "hello\n"

std::string described(std::string_view etag = kHello, int size = 6) {
  return fmt::format(
      "HTTP/1.1 200 OK\r\nX-Repo-Commit: {}\r\nETag: \"{}\"\r\nContent-Length: {}\r\n\r\n", kCommit,
      etag, size);
}

class HubHostileTest : public ::testing::Test {
 protected:
  HubHostileTest() {
    std::string pattern = (fs::temp_directory_path() / "gapless-hub-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    settings_.cache = folder_ / "hub";
    settings_.token = "hf_secret";
    settings_.patience = {.stall = milliseconds(300), .first_pause = milliseconds(1), .tries = 3};
  }
  ~HubHostileTest() override { fs::remove_all(folder_); }

  Status get_from(const std::string& endpoint, std::string_view file = "config.json") {
    settings_.endpoint = *parse_url(endpoint);
    settings_.endpoint.target = "/";
    const auto http = HubHttp::create(settings_);
    if (!http.ok()) return http.status();
    HubRepository repository(*parse_hub_name("org/name"), settings_, **http, events_);
    return repository.get(file).status();
  }
  Status get_with(std::map<std::string, std::string> answers) {
    const PictureHost host(std::move(answers));
    return get_from(host.url("/"));
  }
  // No file, and no blob under its name.
  void expect_nothing_cached() {
    if (!fs::exists(settings_.cache)) return;
    for (const auto& entry : fs::recursive_directory_iterator(settings_.cache)) {
      const std::string path = entry.path().string();
      if (path.find("/.locks/") != path.npos || path.ends_with(".incomplete")) continue;
      EXPECT_TRUE(entry.is_directory()) << path;
    }
  }

  fs::path folder_;
  HubSettings settings_;
  HubEvents events_;
};

TEST_F(HubHostileTest, AHubThatBehavesIsTaken) {
  ASSERT_TRUE(get_with({{kAsked, described()}, {kFetched, http_answer("hello\n")}}).ok());
  EXPECT_TRUE(fs::exists(settings_.cache / "models--org--name/blobs" / kHello));
}

TEST_F(HubHostileTest, HeadsThatAreNone) {
  const std::string long_head = "HTTP/1.1 200 OK\r\nX: " + std::string(1 << 20, 'x') + "\r\n\r\n";
  std::string many_fields = "HTTP/1.1 200 OK\r\n";
  for (int i = 0; i < 10'000; ++i) many_fields += fmt::format("X-{}: y\r\n", i);
  for (const std::string& answer :
       {std::string(),
        std::string("\r\n\r\n"),
        std::string("hello"),
        std::string("HTTP/1.1"),
        std::string("HTTP/9.9 200 OK\r\n\r\n"),
        std::string("HTTP/1.1 abc OK\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\n\0: x\r\n\r\n", 25),
        std::string("\x16\x03\x01\x02", 4),
        long_head,
        many_fields,
        described(std::string(64, 'z')),
        described("../../../../x"),
        described(kHello, -1),
        std::string("HTTP/1.1 200 OK\r\n\r\n"),
        std::string("HTTP/1.1 302 Found\r\n\r\n"),
        http_redirect("http://[::1"),
        http_redirect("file:///etc/passwd"),
        http_redirect("http://127.0.0.1:1/" + std::string(10'000, 'a'))}) {
    const Status status = get_with({{kAsked, answer}});
    EXPECT_FALSE(status.ok()) << answer.substr(0, 80);
    EXPECT_THAT(status.message(), Not(HasSubstr("hf_secret")));
    expect_nothing_cached();
  }
}

TEST_F(HubHostileTest, BodiesThatAreNot) {
  const std::string chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string& answer :
       {std::string(), http_answer(""), http_answer("hellO\n"), http_answer("hello\n\n"),
        http_answer(std::string(10 << 20, 'x')),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhel"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nhello\n"),
        std::string("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-5/6\r\n"
                    "Content-Length: 6\r\n\r\nhello\n"),
        std::string("HTTP/1.1 204 No Content\r\n\r\n"),
        std::string("HTTP/1.1 100 Continue\r\n\r\n"), chunked, chunked + "zz\r\n",
        chunked + "6\r\nhel", chunked + "ffffffffffffffffff\r\nhello\n",
        std::string("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 6\r\n\r\n"
                    "\x1f\x8b\x08\x01\x02\x03")}) {
    const Status status = get_with({{kAsked, described()}, {kFetched, answer}});
    EXPECT_FALSE(status.ok()) << answer.substr(0, 120);
    expect_nothing_cached();
    fs::remove_all(settings_.cache);  // a good beginning would be gone on with
  }
  // Framed in another way, and the right bytes.
  EXPECT_TRUE(
      get_with({{kAsked, described()}, {kFetched, chunked + "6\r\nhello\n\r\n0\r\n\r\n"}}).ok());
}

TEST_F(HubHostileTest, AHubThatFallsSilentIsNotWaitedForForever) {
  Status status = get_with({{kAsked, std::string(PictureHost::kSilence)}});
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  status = get_with({{kAsked, described()}, {kFetched, std::string(PictureHost::kSilence)}});
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  expect_nothing_cached();
}

TEST_F(HubHostileTest, NamesOfFilesAreQuoted) {
  const PictureHost host({});
  EXPECT_FALSE(get_from(host.url("/"), "a b\r\nX-Injected: y?z#%2F").ok());
  EXPECT_THAT(host.last_request(), HasSubstr("/a%20b%0D%0AX-Injected%3A%20y%3Fz%23%252F HTTP/1.1"));
}

class HubTlsTest : public HubHostileTest {
 protected:
  void SetUp() override {
    certificate_ = make_certificate(folder_.string(), "localhost");
    ASSERT_EQ(::setenv("SSL_CERT_FILE", certificate_.cert_file.c_str(), 1), 0);
  }
  void TearDown() override { ::unsetenv("SSL_CERT_FILE"); }
  PictureHost::Certificate certificate_;
};

TEST_F(HubTlsTest, ACertificateOfTheHostIsTaken) {
  const PictureHost host({{kAsked, described()}, {kFetched, http_answer("hello\n")}}, certificate_);
  const Status status = get_from(host.url("/", "localhost"));
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_THAT(host.last_request(), HasSubstr("Authorization: Bearer hf_secret\r\n"));
}

TEST_F(HubTlsTest, AnotherHostsIsNot) {
  const PictureHost host({{kAsked, described()}}, certificate_);
  EXPECT_THAT(get_from(host.url("/", "127.0.0.1")).message(), HasSubstr("TLS"));
  EXPECT_EQ(host.last_request(), "") << "nothing is said before the certificate is known";
  ::setenv("SSL_CERT_FILE", make_certificate(folder_.string(), "other").cert_file.c_str(), 1);
  EXPECT_THAT(get_from(host.url("/", "localhost")).message(), HasSubstr("TLS"));
  EXPECT_EQ(host.last_request(), "");
}

TEST_F(HubTlsTest, HttpsIsNotLeftForHttp) {
  const PictureHost plain({{"/x", described()}});
  const PictureHost host({{kAsked, http_redirect(plain.url("/x"))}}, certificate_);
  EXPECT_THAT(get_from(host.url("/", "localhost")).message(),
              HasSubstr("redirects from https to http"));
  EXPECT_EQ(plain.num_connections(), 0);
}

TEST_F(HubTlsTest, TheTokenStaysWithItsHostAndPort) {
  const PictureHost other({{"/x", described()}, {kFetched, http_answer("hello\n")}}, certificate_);
  const PictureHost host({{kAsked, http_redirect(other.url("/x", "localhost"))},
                          {kFetched, http_redirect(other.url(kFetched, "localhost"))}},
                         certificate_);
  const Status status = get_from(host.url("/", "localhost"));
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_THAT(host.last_request(), HasSubstr("Authorization"));
  EXPECT_THAT(other.last_request(), Not(HasSubstr("Authorization")));
}

}  // namespace
}  // namespace gapless
