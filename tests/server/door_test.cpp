// Who is let in, judged from the head alone: host names, origins, keys, and what strangers can hold.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "tests/server/server_fixture.h"

namespace gapless {
namespace {

using std::chrono::milliseconds;

class DoorTest : public ServerTest {
 protected:
  // A request of HTTP/1.1 without a body.
  ClientResponse ask(std::string_view target, std::string_view host,
                     std::string_view more_headers = "") {
    HttpClient client(server->port());
    client.send(fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\n{}\r\n", target, host, more_headers));
    return client.read_response();
  }

  // A head that promises a body of `length` bytes.
  static std::string head_of_post(std::size_t length, std::string_view more_headers = "") {
    return fmt::format("POST /v1/query HTTP/1.1\r\nHost: localhost\r\n{}Content-Length: {}\r\n\r\n",
                       more_headers, length);
  }
};

// A page of evil.test whose name leads to 127.0.0.1: for its browser Origin and Host agree.
TEST_F(DoorTest, ANameThatIsNotOursGetsNothing) {
  start({.debug = true});
  const std::string port = std::to_string(server->port());
  for (const std::string& host :
       std::vector<std::string>{"evil.test", "evil.test:" + port, "localhost.evil.test", "10.0.0.1",
                                "[fd00::1]", "0.0.0.0", "a b", ""}) {
    for (const char* path : {"/v1/models", "/health", "/", "/debug/timeline"}) {
      const ClientResponse response = ask(path, host, fmt::format("Origin: http://{}\r\n", host));
      EXPECT_EQ(response.status, 403) << host << path;
      EXPECT_EQ(error_code_of(response), "host_not_allowed") << host << path;
    }
  }
  HttpClient client(server->port());
  client.send(
      "POST /debug/depth HTTP/1.1\r\nHost: evil.test\r\nOrigin: http://evil.test\r\n"
      "Content-Length: 11\r\n\r\n{\"depth\":1}");
  EXPECT_EQ(client.read_response().status, 403);
  EXPECT_EQ(boost::json::parse(get("/debug/timeline").body).at("depth"), 2);
}

TEST_F(DoorTest, OurOwnNamesInAnySpelling) {
  start({.allowed_hosts = {"Gpu.Lab.example"}});
  const std::string port = std::to_string(server->port());
  for (const std::string& host : std::vector<std::string>{
           "localhost", "LocalHost:" + port, "localhost.", "127.0.0.1", "127.0.0.1:" + port,
           "[::1]", "[::1]:" + port, "gpu.lab.example:" + port, "GPU.LAB.EXAMPLE."}) {
    EXPECT_EQ(ask("/version", host).status, 200) << host;
  }
  // What clients send to a proxy names the host in the target too.
  EXPECT_EQ(ask("http://localhost/version", "localhost").status, 200);
  EXPECT_EQ(ask("http://evil.test/version", "evil.test").status, 403);
  EXPECT_EQ(ask("http://localhost/version", "evil.test").status, 400);
  EXPECT_EQ(ask("http://evil.test/version", "localhost").status, 400);
  // Without a Host it is no browser.
  HttpClient old(server->port());
  old.send("GET /version HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.read_response().status, 200);
  HttpClient two(server->port());
  two.send("GET /version HTTP/1.0\r\nHost: localhost\r\nHost: evil.test\r\n\r\n");
  EXPECT_EQ(two.read_response().status, 400);
}

TEST_F(DoorTest, DebugPathsAreForOurOwnPagesAlone) {
  for (const char* allowed : {"https://good.example", "*"}) {
    TearDown();
    start({.cors_origins = {allowed}, .debug = true});
    const char* kFriend = "Origin: https://good.example\r\n";
    EXPECT_EQ(get("/version", kFriend).status, 200);
    EXPECT_EQ(get("/debug/timeline", kFriend).status, 403);
    EXPECT_EQ(post("/debug/depth", R"({"depth":1})", kFriend).status, 403);
    EXPECT_EQ(get("/%64ebug/timeline", kFriend).status, 403);
    // A page that asks for it as if it were a picture sends no Origin.
    EXPECT_EQ(get("/debug/trace", "Sec-Fetch-Site: cross-site\r\n").status, 403);
    EXPECT_EQ(get("/debug/trace", "Sec-Fetch-Site: same-site\r\n").status, 403);
    for (const char* own : {"", "Origin: http://localhost\r\n", "Sec-Fetch-Site: same-origin\r\n",
                            "Sec-Fetch-Site: none\r\n"}) {
      EXPECT_EQ(get("/debug/timeline", own).status, 200) << own;
    }
    EXPECT_EQ(boost::json::parse(get("/debug/timeline").body).at("depth"), 2);
  }
}

// Answers come although not a byte of the body has been sent, and the connection is closed.
TEST_F(DoorTest, KeyHostAndOriginAreJudgedBeforeTheBody) {
  start({.api_keys = {"secret"}});
  const struct {
    std::string head;
    int status;
  } kCases[] = {
      {head_of_post(1000), 401},
      {head_of_post(1000, "Authorization: Bearer wrong\r\n"), 401},
      {head_of_post(1000, "Expect: 100-continue\r\n"), 401},
      {head_of_post(1000, "Authorization: Bearer secret\r\nOrigin: https://evil.test\r\n"), 403},
      {"POST /v1/query HTTP/1.1\r\nHost: evil.test\r\nContent-Length: 1000\r\n\r\n", 403},
      {"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", 401},
      // Paths that need no key take no body either.
      {"POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n", 401},
      {"OPTIONS / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", 401},
  };
  for (const auto& [head, status] : kCases) {
    HttpClient client(server->port());
    client.send(head);
    const ClientResponse response = client.read_response();
    EXPECT_EQ(response.status, status) << head;
    EXPECT_EQ(response.header("Connection"), "close");
    EXPECT_NE(response.header("X-Request-Id"), "");
    EXPECT_TRUE(client.wait_closed());
  }
  // A refusal without a body costs nobody the connection.
  HttpClient client(server->port());
  EXPECT_EQ(client.get("/version").status, 401);
  EXPECT_EQ(client.get("/version", "X-Moondream-Auth: secret\r\n").status, 200);
  // Pages that were let in can read why they were refused.
  TearDown();
  start({.api_keys = {"secret"}, .cors_origins = {"https://good.example"}});
  const ClientResponse refused = get("/version", "Origin: https://good.example\r\n");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.header("Access-Control-Allow-Origin"), "https://good.example");
}

// They once filled the budget of all bodies and kept it until they timed out.
TEST_F(DoorTest, StrangersWithLargeBodiesTakeNothingFromClients) {
  HttpLimits limits;
  limits.max_body_bytes_in_flight = 1 << 20;
  start({.api_keys = {"secret"}}, limits);
  const std::string half(500'000, ' ');
  std::vector<std::unique_ptr<HttpClient>> strangers;
  for (int i = 0; i < 24; ++i) {
    strangers.push_back(std::make_unique<HttpClient>(server->port()));
    strangers.back()->send(head_of_post(2 * half.size()));
    strangers.back()->send(half);
  }
  EXPECT_EQ(
      post("/v1/query", half + half + R"({"question":"hi"})", "Authorization: Bearer secret\r\n")
          .status,
      200);
  for (const auto& stranger : strangers) EXPECT_EQ(stranger->read_response().status, 401);
}

TEST_F(DoorTest, StrangersCannotHoldAllConnections) {
  HttpLimits limits;
  limits.max_connections = 8;
  limits.max_newcomers = 4;
  start({.api_keys = {"secret"}}, limits);
  const std::string_view kKey = "Authorization: Bearer secret\r\n";
  HttpClient known(server->port());
  EXPECT_EQ(known.get("/version", kKey).status, 200);
  std::vector<std::unique_ptr<HttpClient>> strangers;
  for (int i = 0; i < 40; ++i) {
    strangers.push_back(std::make_unique<HttpClient>(server->port()));
    // Silent ones, ones in the middle of a head, and ones that ask what needs no key.
    if (i % 3 == 1) strangers.back()->send("GET / HTTP/1.1\r\nHost: local");
    if (i % 3 == 2) strangers.back()->send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  for (int i = 0; i < 4; ++i) {
    HttpClient client(server->port());
    EXPECT_EQ(client.get("/version", kKey).status, 200) << i;
  }
  EXPECT_TRUE(strangers.front()->wait_closed());
  EXPECT_EQ(known.get("/version", kKey).status, 200) << "who has shown a key stays";
}

// Where every connection has been admitted there is nobody to make room.
TEST_F(DoorTest, ClientsAreNotTurnedOutForNewcomers) {
  HttpLimits limits;
  limits.max_connections = 3;
  start({.api_keys = {"secret"}}, limits);
  const std::string_view kKey = "Authorization: Bearer secret\r\n";
  HttpClient first(server->port());
  HttpClient second(server->port());
  EXPECT_EQ(first.get("/version", kKey).status, 200);
  EXPECT_EQ(second.get("/version", kKey).status, 200);
  HttpClient stranger(server->port());
  EXPECT_EQ(stranger.get("/health").status, 200);
  HttpClient third(server->port());
  EXPECT_EQ(third.get("/version", kKey).status, 200);
  EXPECT_TRUE(stranger.wait_closed());
  for (HttpClient* client : {&first, &second, &third}) {
    EXPECT_EQ(client->get("/version", kKey).status, 200);
  }
}

TEST_F(DoorTest, AFirstLineWithoutAVersionIsRefusedAtOnce) {
  HttpLimits limits;
  limits.head = limits.idle = std::chrono::minutes(5);  // the client gives up after 10 s
  start({}, limits);
  for (const char* line : {"GET / \r\n", "GET /\r\n", "GET / \n", "GET\r\n", "GET / \r\n\r\n"}) {
    HttpClient client(server->port());
    client.send(line);
    EXPECT_EQ(client.read_response().status, 400) << line;
    EXPECT_TRUE(client.wait_closed());
  }
}

}  // namespace
}  // namespace gapless
