// A server on a Unix socket: the same answers, for its owner alone, and no file left behind.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/server/server_fixture.h"

namespace gapless {
namespace {

namespace fs = std::filesystem;

class UnixSocketTest : public ServerTest {
 protected:
  UnixSocketTest() { unix_socket = fresh_socket_path(); }
  ~UnixSocketTest() override {
    std::error_code ignored;
    fs::remove_all(*unix_socket, ignored);
  }

  Status start_failure() {
    ServerState other({});
    HttpServerOptions options;
    options.unix_socket = unix_socket;
    return HttpServer::start(options, make_api_handler(other), other.metrics()).status();
  }

  // A socket that is bound there and that nobody listens on, as a killed server leaves it.
  void leave_socket() {
    const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    unix_socket->copy(name.sun_path, sizeof(name.sun_path) - 1);
    ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
    ::close(socket);
  }
};

TEST_F(UnixSocketTest, RequestsStreamsAndKeptConnections) {
  start();
  EXPECT_EQ(server->port(), 0);
  HttpClient client(address());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.post("/v1/query", R"({"question":"hi"})").status, 200);
    const ClientResponse stream =
        client.post("/v1/query", R"({"question":"words 5","stream":true})");
    EXPECT_EQ(stream.status, 200);
    EXPECT_GE(stream.events().size(), 5u);
  }
}

TEST_F(UnixSocketTest, TheDoorJudgesAsElsewhere) {
  start({.api_keys = {"secret"}});
  const std::string_view kKey = "X-Moondream-Auth: secret\r\n";
  EXPECT_EQ(get("/version").status, 401);
  EXPECT_EQ(get("/version", kKey).status, 200);
  const auto with_host = [&](std::string_view host) {
    HttpClient client(address());
    client.send(fmt::format("GET /health HTTP/1.1\r\nHost: {}\r\n\r\n", host));
    return client.read_response().status;
  };
  EXPECT_EQ(with_host("localhost"), 200);
  EXPECT_EQ(with_host("evil.test"), 403);
  EXPECT_EQ(with_host(""), 403);
}

TEST_F(UnixSocketTest, OnlyItsOwnerMayConnect) {
  const mode_t before = ::umask(0);
  start();
  ::umask(before);
  struct stat found {};
  ASSERT_EQ(::lstat(unix_socket->c_str(), &found), 0);
  EXPECT_TRUE(S_ISSOCK(found.st_mode));
  EXPECT_EQ(found.st_mode & 0777u, 0600u);
}

TEST_F(UnixSocketTest, TheFileGoesWhenNobodyListensAnyMore) {
  start();
  server->begin_drain();
  EXPECT_TRUE(server->wait_drained(std::chrono::seconds(10)));
  server->stop();
  EXPECT_FALSE(fs::exists(*unix_socket));
  TearDown();
  start();
  EXPECT_EQ(get("/health").status, 200);
}

// Somebody may have started another server there.
TEST_F(UnixSocketTest, AFileThatIsNotOursStays) {
  start();
  fs::remove(*unix_socket);
  std::ofstream(*unix_socket) << "precious";
  server->stop();
  EXPECT_TRUE(fs::exists(*unix_socket));
}

TEST_F(UnixSocketTest, WhatADeadServerLeftIsReplaced) {
  leave_socket();
  start();
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(UnixSocketTest, WhatIsInUseIsLeftAlone) {
  start();
  const Status in_use = start_failure();
  EXPECT_EQ(in_use.code(), StatusCode::kUnavailable);
  EXPECT_NE(in_use.message().find(*unix_socket + ": a server listens there"), std::string::npos)
      << in_use.message();
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(UnixSocketTest, PathsThatCannotBe) {
  const std::string usual = *unix_socket;
  std::ofstream(usual) << "precious";
  EXPECT_EQ(start_failure().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(fs::file_size(usual), 8u);
  for (const std::string& path : std::vector<std::string>{
           "", "/tmp/" + std::string(200, 'x'), std::string("\0abstract", 9),
           std::string("/tmp/gapless\0x", 14), "/tmp/" + std::string(103, 'x')}) {
    unix_socket = path;
    EXPECT_EQ(start_failure().code(), StatusCode::kInvalidArgument) << path;
  }
  for (const std::string& path : {usual + "/socket", std::string("/nothing/there/socket")}) {
    unix_socket = path;
    const Status status = start_failure();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_NE(status.message().find(path), std::string::npos);
  }
  unix_socket = usual;
}

}  // namespace
}  // namespace gapless
