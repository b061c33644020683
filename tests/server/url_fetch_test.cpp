// Pictures by address: what is fetched, and everything that is not.
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <future>
#include <memory>
#include <vector>

#include "base/base64.h"
#include "base/limits.h"
#include "server/connection_exchange.h"
#include "server/remote_images.h"
#include "server/url_fetcher.h"
#include "tests/server/picture_host.h"
#include "tests/server/server_fixture.h"

namespace gapless {
namespace {

using std::chrono::milliseconds;

bool allows_loopback(std::string_view address) {
  return address == "127.0.0.1" || address == "::1";
}

FetchPolicy test_policy() {
  FetchPolicy policy;
  policy.allowed_hosts = {"127.0.0.1", "localhost"};
  policy.allows_address = allows_loopback;
  policy.timeout = std::chrono::milliseconds(5000);
  return policy;
}

StatusOr<std::string> fetch(FetchPolicy policy, std::string_view url) {
  const auto fetcher = UrlFetcher::create(std::move(policy)).value();
  std::promise<StatusOr<std::string>> promise;
  fetcher->fetch(url,
                 [&promise](StatusOr<std::string> body) { promise.set_value(std::move(body)); });
  return promise.get_future().get();
}

void expect_refused(const StatusOr<std::string>& body, StatusCode code, std::string_view why) {
  ASSERT_FALSE(body.ok());
  EXPECT_EQ(body.status().code(), code) << body.status().to_string();
  EXPECT_NE(body.status().message().find(why), std::string::npos) << body.status().to_string();
}

TEST(UrlFetch, ABodyOfAnyFraming) {
  PictureHost host({{"/length?x=1", http_answer("a picture")},
                    {"/chunks",
                     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                     "2\r\na \r\n7\r\npicture\r\n0\r\n\r\n"},
                    {"/end", "HTTP/1.0 200 OK\r\n\r\na picture"}});
  for (const char* path : {"/length?x=1", "/chunks", "/end"}) {
    const auto body = fetch(test_policy(), host.url(path));
    ASSERT_TRUE(body.ok()) << path << body.status().to_string();
    EXPECT_EQ(*body, "a picture");
  }
  EXPECT_EQ(host.last_request().find("Cookie"), std::string::npos);
  EXPECT_TRUE(host.last_request().starts_with("GET /end HTTP/1.1\r\n"));
}

// The policy as it is shipped: the address is refused although the host's name is allowed, and
// nobody was connected to.
TEST(UrlFetch, LoopbackIsRefusedByDefaultWhateverItsName) {
  PictureHost host({{"/", http_answer("secret")}});
  FetchPolicy policy = test_policy();
  policy.allows_address = FetchPolicy().allows_address;
  policy.allowed_hosts = {"*"};
  policy.hide_names = false;  // what is refused is said at once
  for (const char* name : {"127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001",
                           "[::ffff:127.0.0.1]", "0.0.0.0"}) {
    expect_refused(fetch(policy, host.url("/", name)), StatusCode::kNotFound, "not allowed");
  }
  EXPECT_EQ(host.num_connections(), 0);
}

TEST(UrlFetch, OnlyAllowedHosts) {
  PictureHost host({{"/", http_answer("x")}});
  FetchPolicy policy = test_policy();
  policy.allowed_hosts = {"example.org"};
  expect_refused(fetch(policy, host.url("/")), StatusCode::kInvalidArgument, "host");
  EXPECT_EQ(host.num_connections(), 0);
  expect_refused(fetch(test_policy(), "ftp://127.0.0.1/"), StatusCode::kInvalidArgument, "http");
}

TEST(UrlFetch, RedirectsAreFollowedAndJudgedEach) {
  PictureHost inner({{"/x", http_answer("secret")}});
  PictureHost host({{"/once", http_redirect("/dir/next")},
                    {"/dir/next", http_redirect("last")},
                    {"/dir/last", http_answer("found")},
                    {"/loop", http_redirect("/loop")},
                    {"/host", http_redirect(inner.url("/x", "localhost"))},
                    {"/address", http_redirect("http://127.0.0.2/")},
                    {"/file", http_redirect("file:///etc/passwd")},
                    {"/user", http_redirect("http://127.0.0.1@example.org/")},
                    {"/nowhere", "HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"}});
  FetchPolicy policy = test_policy();
  const auto found = fetch(policy, host.url("/once"));
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(*found, "found");
  const int num_before = host.num_connections();
  expect_refused(fetch(policy, host.url("/loop")), StatusCode::kUnavailable, "3 redirects");
  EXPECT_EQ(host.num_connections() - num_before, 1 + policy.max_redirects);
  // The next hop's host is judged ...
  policy.allowed_hosts = {"127.0.0.1", "127.0.0.2"};
  expect_refused(fetch(policy, host.url("/host")), StatusCode::kInvalidArgument, "'localhost'");
  EXPECT_EQ(inner.num_connections(), 0);
  // ... and its address.
  policy.hide_names = false;  // what is refused is said at once
  expect_refused(fetch(policy, host.url("/address")), StatusCode::kNotFound, "127.0.0.2");
  for (const char* path : {"/file", "/user", "/nowhere"}) {
    EXPECT_FALSE(fetch(policy, host.url(path)).ok()) << path;
  }
}

TEST(UrlFetch, SizesAreBoundedHoweverTheyAreFramed) {
  const std::string large(5000, 'x');
  PictureHost host({{"/length", http_answer(large)},
                    {"/claimed", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nx"},
                    {"/chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\n" +
                                    large + "\r\n0\r\n\r\n"},
                    {"/end", "HTTP/1.0 200 OK\r\n\r\n" + large},
                    {"/head", "HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n"},
                    {"/fits", http_answer(large.substr(0, 4096))}});
  FetchPolicy policy = test_policy();
  policy.max_bytes = 4096;
  for (const char* path : {"/length", "/claimed", "/chunks", "/end"}) {
    expect_refused(fetch(policy, host.url(path)), StatusCode::kResourceExhausted, "4096 bytes");
  }
  EXPECT_FALSE(fetch(policy, host.url("/head")).ok());
  EXPECT_TRUE(fetch(policy, host.url("/fits")).ok());
}

TEST(UrlFetch, SlowHostsAndBrokenAnswersAreGivenUp) {
  PictureHost host({{"/silent", std::string(PictureHost::kSilence)},
                    {"/short", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"},
                    {"/noise", "\x01\x02\x03\r\n\r\n"},
                    {"/empty", ""},
                    {"/error", "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"}});
  FetchPolicy policy = test_policy();
  for (const char* path : {"/short", "/noise", "/empty", "/error", "/missing"}) {
    EXPECT_FALSE(fetch(policy, host.url(path)).ok()) << path;
  }
  policy.timeout = std::chrono::milliseconds(100);
  expect_refused(fetch(policy, host.url("/silent")), StatusCode::kUnavailable, "in time");
}

TEST(UrlFetch, TlsIsVerified) {
  const std::string folder = ::testing::TempDir();
  const PictureHost::Certificate files = make_certificate(folder, "localhost");
  const PictureHost::Certificate other = make_certificate(folder, "other.test");
  PictureHost host({{"/", http_answer("over tls")}}, files);
  FetchPolicy policy = test_policy();
  // Nobody whom the system trusts has signed it.
  expect_refused(fetch(policy, host.url("/", "localhost")), StatusCode::kUnavailable, "verify");
  policy.ca_file = files.cert_file;
  const auto body = fetch(policy, host.url("/", "localhost"));
  ASSERT_TRUE(body.ok()) << body.status().to_string();
  EXPECT_EQ(*body, "over tls");
  // Trusted, but for another name.
  expect_refused(fetch(policy, host.url("/", "127.0.0.1")), StatusCode::kUnavailable, "verify");
  PictureHost wrong({{"/", http_answer("x")}}, other);
  policy.ca_file = other.cert_file;
  expect_refused(fetch(policy, wrong.url("/", "localhost")), StatusCode::kUnavailable, "verify");
  // A host that knows no TLS.
  PictureHost plain({});
  policy.timeout = std::chrono::milliseconds(100);
  EXPECT_FALSE(fetch(policy, "https" + plain.url("/", "localhost").substr(4)).ok());
  policy.ca_file = folder + "/nothing.pem";
  EXPECT_FALSE(UrlFetcher::create(policy).ok());
}

class RemoteImages : public ServerTest {
 protected:
  void start_fetching(FetchPolicy policy) {
    start();
    state->set_fetcher(UrlFetcher::create(std::move(policy)).value());
  }
  void TearDown() override {
    server->stop();
    if (state->fetcher() != nullptr) state->fetcher()->stop();
    ServerTest::TearDown();
  }
  static std::string query_of(std::string_view url) {
    return fmt::format(R"({{"question":"hi","image_url":"{}"}})", url);
  }
  static std::string chat_of(std::string_view url) {
    return fmt::format(
        R"({{"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{}"}}}},)"
        R"({{"type":"text","text":"hi"}}]}}]}})",
        url);
  }
};

TEST_F(RemoteImages, OffUnlessHostsAreAllowed) {
  start();
  PictureHost host({{"/p.png", http_answer("picture")}});
  for (const auto& [path, body] :
       {std::pair("/v1/query", query_of(host.url("/p.png"))),
        std::pair("/v1/chat/completions", chat_of(host.url("/p.png")))}) {
    const ClientResponse response = post(path, body);
    EXPECT_EQ(response.status, 400);
    EXPECT_NE(response.body.find("does not fetch"), std::string::npos) << response.body;
  }
  EXPECT_EQ(host.num_connections(), 0);
}

TEST_F(RemoteImages, BothApisFetch) {
  start_fetching(test_policy());
  PictureHost host({{"/p.png", http_answer("the picture's bytes")}});
  EXPECT_EQ(post("/v1/query", query_of(host.url("/p.png"))).status, 200);
  ASSERT_EQ(service->last_request().images.size(), 1u);
  EXPECT_EQ(*service->last_request().images[0], "the picture's bytes");
  HttpClient client(server->port());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.post("/v1/chat/completions", chat_of(host.url("/p.png"))).status, 200);
  }
  EXPECT_EQ(*service->last_request().images[0], "the picture's bytes");
  EXPECT_EQ(host.num_connections(), 4);
  // What is no http address is not touched.
  EXPECT_EQ(post("/v1/query", query_of(kImageUrl)).status, 200);
}

TEST_F(RemoteImages, OfSeveralTheOneThatFailsIsNamed) {
  start_fetching(test_policy());
  PictureHost host({{"/a.png", http_answer("one")}, {"/b.png", http_answer("two")}});
  const auto part = [&](const char* path) {
    return fmt::format(R"({{"type":"image_url","image_url":"{}"}})", host.url(path));
  };
  const auto chat_with = [&](const char* second) {
    return R"({"messages":[{"role":"user","content":[)" + part("/a.png") + "," + part(second) +
           R"(,{"type":"text","text":"hi"}]}]})";
  };
  EXPECT_EQ(post("/v1/chat/completions", chat_with("/b.png")).status, 200);
  ASSERT_EQ(service->last_request().images.size(), 2u);
  EXPECT_EQ(*service->last_request().images[1], "two");
  const ClientResponse failed = post("/v1/chat/completions", chat_with("/missing.png"));
  EXPECT_EQ(failed.status, 400);
  EXPECT_NE(failed.body.find("(address 2 of 2)"), std::string::npos) << failed.body;
}

std::string chat_of_pictures(const std::string& url, std::size_t count) {
  std::string body = R"({"messages":[{"role":"user","content":[)";
  for (std::size_t i = 0; i < count; ++i) {
    body += fmt::format(R"({{"type":"image_url","image_url":"{}"}},)", url);
  }
  return body + R"({"type":"text","text":"hi"}]}]})";
}

TEST_F(RemoteImages, OneMoreThanTheBoundAndNoneIsFetched) {
  start_fetching(test_policy());
  PictureHost host({{"/p.png", http_answer("x")}});
  const ClientResponse refused =
      post("/v1/chat/completions", chat_of_pictures(host.url("/p.png"), kMaxFetchedImages + 1));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(host.num_connections(), 0);
  const std::string most = chat_of_pictures(host.url("/p.png"), kMaxFetchedImages);
  EXPECT_EQ(post("/v1/chat/completions", most).status, 200);
  EXPECT_EQ(host.num_connections(), int{kMaxFetchedImages});
}

// Whatever a handler lets pass.
TEST_F(RemoteImages, TheBoundHoldsForEveryHandler) {
  start_fetching(test_policy());
  PictureHost host({{"/p.png", http_answer("x")}});
  boost::asio::io_context io;
  const auto exchange =
      std::make_shared<ConnectionExchange>(io.get_executor(), HttpRequest(), 1 << 20);
  bool went_on = false;
  with_remote_images(
      *state, exchange,
      boost::json::parse(chat_of_pictures(host.url("/p.png"), kMaxFetchedImages + 1)).as_object(),
      ImagePlace::kMessages, [](const boost::json::object&) { return ok_status(); },
      [&](const boost::json::object&) { went_on = true; });
  const ConnectionExchange::Output output = exchange->take();
  ASSERT_TRUE(output.head) << "answered at once";
  EXPECT_EQ(output.head->status, 400);
  EXPECT_NE(output.head->body.find("at most 8 pictures"), std::string::npos) << output.head->body;
  state->fetcher()->stop();
  EXPECT_FALSE(went_on);
  EXPECT_EQ(host.num_connections(), 0);
}

// Where an address leads nowhere, its answer comes when the time for fetching is over, whatever the
// reason: neither the answer nor its time tells a name of the network from one that does not exist.
TEST_F(RemoteImages, ErrorsSayNothingAboutTheNetwork) {
  FetchPolicy policy = test_policy();
  policy.allowed_hosts = {"*"};
  policy.allows_address = is_public_address;
  policy.timeout = milliseconds(300);
  start_fetching(policy);
  PictureHost host({{"/p.png", http_answer("x")}});
  std::vector<std::string> bodies;
  for (const std::string& url :
       {host.url("/p.png"), host.url("/p.png", "localhost"), std::string("http://10.0.0.1/"),
        std::string("http://169.254.169.254/"), std::string("http://no-such-name.invalid/")}) {
    const auto began = std::chrono::steady_clock::now();
    const ClientResponse response = post("/v1/query", query_of(url));
    EXPECT_GE(std::chrono::steady_clock::now() - began, policy.timeout) << url;
    EXPECT_EQ(response.status, 400) << url;
    EXPECT_EQ(error_code_of(response), "image_fetch_failed") << url;
    bodies.push_back(response.body);
  }
  for (const std::string& body : bodies) EXPECT_EQ(body, bodies.front());
  EXPECT_EQ(host.num_connections(), 0);
  EXPECT_EQ(service->num_submitted(), 0);
}

// They do not take the places of other fetches meanwhile.
TEST_F(RemoteImages, AddressesThatLeadNowhereKeepNobodyOut) {
  FetchPolicy policy = test_policy();
  policy.allowed_hosts = {"*"};
  policy.allows_address = [](std::string_view address) { return address == "127.0.0.1"; };
  policy.timeout = std::chrono::minutes(5);
  start_fetching(policy);
  PictureHost host({{"/p.png", http_answer("x")}});
  std::vector<std::unique_ptr<HttpClient>> lost;
  for (int i = 0; i < 2 * kMaxFetchesAtOnce; ++i) {
    lost.push_back(std::make_unique<HttpClient>(server->port()));
    lost.back()->send(post_request("/v1/query", query_of("http://127.0.0.2/")));
  }
  // At first some of them may still be on their way.
  int status = 0;
  for (int tries = 0; tries < 1000 && status != 200; ++tries) {
    status = post("/v1/query", query_of(host.url("/p.png"))).status;
  }
  EXPECT_EQ(status, 200);
}

// Fetching for a request that is refused anyway would let its sender make requests elsewhere.
TEST_F(RemoteImages, NothingIsFetchedForARequestThatIsRefused) {
  start_fetching(test_policy());
  PictureHost host({{"/p.png", http_answer("x")}});
  const std::string url = host.url("/p.png");
  const std::string part = fmt::format(R"({{"type":"image_url","image_url":{{"url":"{}"}}}})", url);
  const struct {
    const char* path;
    std::string body;
  } kCases[] = {
      {"/v1/query", fmt::format(R"({{"image_url":"{}"}})", url)},
      {"/v1/query", fmt::format(R"({{"question":1,"image_url":"{}"}})", url)},
      {"/v1/query", fmt::format(R"({{"question":"a","stream":1,"image_url":"{}"}})", url)},
      {"/v1/query",
       fmt::format(R"({{"question":"a","settings":{{"top_p":2}},"image_url":"{}"}})", url)},
      {"/v1/query", fmt::format(R"({{"question":"a","reasoning":"deep","image_url":"{}"}})", url)},
      {"/v1/query", fmt::format(R"({{"question":"a","model":"other","image_url":"{}"}})", url)},
      {"/v1/detect", fmt::format(R"({{"image_url":"{}"}})", url)},
      {"/v1/chat/completions", R"({"n":99,"messages":[{"role":"user","content":[)" + part + "]}]}"},
      {"/v1/chat/completions",
       R"({"tools":[1],"messages":[{"role":"user","content":[)" + part + "]}]}"},
      {"/v1/chat/completions", R"({"messages":[{"role":"assistant","content":[)" + part + "]}]}"},
      // The second of two is not allowed.
      {"/v1/chat/completions",
       R"({"messages":[{"role":"user","content":[)" + part +
           R"(,{"type":"image_url","image_url":"http://example.org/"},{"type":"text","text":"a"}]}]})"},
  };
  for (const auto& [path, body] : kCases) {
    EXPECT_NE(post(path, body).status, 200) << body;
    EXPECT_EQ(host.num_connections(), 0) << body;
  }
  EXPECT_EQ(service->num_submitted(), 0);
}

TEST_F(RemoteImages, NothingIsFetchedForFieldsThatAreNotRead) {
  start_fetching(test_policy());
  PictureHost host({{"/p.png", http_answer("x")}});
  const std::string url = host.url("/p.png");
  EXPECT_EQ(post("/v1/query", fmt::format(R"({{"question":"a","x":{{"image_url":"{0}"}},)"
                                          R"("messages":[{{"content":[{{"type":"image_url",)"
                                          R"("image_url":"{0}"}}]}}]}})",
                                          url))
                .status,
            200);
  EXPECT_EQ(post("/v1/chat/completions",
                 fmt::format(R"({{"image_url":"{0}","messages":[{{"role":"user","content":[)"
                             R"({{"type":"text","text":"hi","image_url":"{0}"}}]}}]}})",
                             url))
                .status,
            200);
  EXPECT_EQ(service->num_submitted(), 2);
  EXPECT_EQ(host.num_connections(), 0);
}

TEST_F(RemoteImages, WhatCannotBeFetchedIsA400) {
  FetchPolicy policy = test_policy();
  policy.timeout = std::chrono::seconds(1);
  start_fetching(policy);
  PictureHost host({{"/silent", std::string(PictureHost::kSilence)}});
  for (const char* path : {"/silent", "/missing"}) {
    const ClientResponse response = post("/v1/query", query_of(host.url(path)));
    EXPECT_EQ(response.status, 400);
    EXPECT_EQ(error_code_of(response), "image_fetch_failed") << response.body;
  }
  EXPECT_EQ(host.num_connections(), 2);
}

TEST_F(RemoteImages, AStopDuringAFetchEndsInGoodOrder) {
  FetchPolicy policy = test_policy();
  policy.timeout = std::chrono::minutes(5);
  start_fetching(policy);
  PictureHost host({{"/silent", std::string(PictureHost::kSilence)}});
  HttpClient client(server->port());
  client.send(post_request("/v1/query", query_of(host.url("/silent"))));
  while (host.num_connections() == 0) std::this_thread::yield();
  server->stop();
  state->fetcher()->stop();
  EXPECT_TRUE(client.wait_closed());
  EXPECT_EQ(service->num_submitted(), 0);
}

}  // namespace
}  // namespace gapless
