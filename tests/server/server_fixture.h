// A whole server on a free port of this machine, with the fake service behind it.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <memory>
#include <optional>
#include <string>

#include "server/api_handler.h"
#include "server/http_server.h"
#include "tests/server/fake_service.h"
#include "tests/server/http_client.h"

namespace gapless {

// A path where nothing is, short enough for a socket.
inline std::string fresh_socket_path() {
  static std::atomic<int> number{0};
  return fmt::format("/tmp/gapless-test-{}-{}.sock", ::getpid(), ++number);
}

class ServerTest : public ::testing::Test {
 protected:
  void start(ServerStateOptions state_options = {}, HttpLimits limits = {}) {
    HttpServerOptions options;
    options.limits = limits;
    start_with(options, std::move(state_options));
  }

  // On any free port.
  void start_with(HttpServerOptions options, ServerStateOptions state_options = {}) {
    state_options.version = "test";
    state_options.allowed_hosts.push_back(
        "x");  // as the tests that write whole requests are called
    state = std::make_unique<ServerState>(std::move(state_options));
    options.port = 0;
    options.unix_socket = unix_socket;
    if (asks_second_port) options.second_port = 0;
    options.log_requests = false;
    auto started = HttpServer::start(options, make_api_handler(*state), state->metrics());
    ASSERT_TRUE(started.ok()) << started.status().to_string();
    server = std::move(started).value();
    service = std::make_unique<FakeService>();
    state->set_service(service.get());
  }

  void TearDown() override {
    if (!server) return;
    server->stop();
    state->set_service(nullptr);
    service.reset();
    server.reset();
  }

  ClientResponse post(std::string_view path, std::string_view json,
                      std::string_view more_headers = "") {
    return HttpClient(address()).post(path, json, more_headers);
  }
  ClientResponse get(std::string_view path, std::string_view more_headers = "") {
    return HttpClient(address()).get(path, more_headers);
  }
  ServerAddress address() const {
    return {.port = asks_second_port ? server->second_port() : server->port(),
            .unix_socket = unix_socket.value_or("")};
  }

  // The field that an error names; "" for null.
  static std::string error_field_of(const ClientResponse& response) {
    boost::system::error_code failed;
    const boost::json::value value = boost::json::parse(response.body, failed);
    if (failed || !value.is_object() || !value.get_object().contains("error")) return "?";
    const boost::json::value& param = value.at("error").at("param");
    return param.is_null() ? "" : std::string(param.as_string());
  }

  // An error's code, after checking that its shape is the documented one.
  static std::string error_code_of(const ClientResponse& response) {
    boost::system::error_code failed;
    const boost::json::value value = boost::json::parse(response.body, failed);
    if (failed || !value.is_object() || !value.get_object().contains("error")) return "?";
    const boost::json::object& error = value.at("error").as_object();
    EXPECT_FALSE(error.at("message").as_string().empty());
    EXPECT_FALSE(error.at("type").as_string().empty());
    EXPECT_TRUE(error.at("param").is_null() || error.at("param").is_string());
    return error.at("code").is_null() ? "" : std::string(error.at("code").as_string());
  }

  std::optional<std::string> unix_socket;  // set before start(): it listens there
  bool asks_second_port = false;           // likewise: it listens there too, and is asked there
  std::unique_ptr<ServerState> state;
  std::unique_ptr<HttpServer> server;
  std::unique_ptr<FakeService> service;
};

inline std::string text_of(const boost::json::value& value) {
  return std::string(value.as_string());
}

// A picture as far as the server can tell: it decodes none.
inline constexpr std::string_view kImageUrl = "data:image/png;base64,iVBORw0KGgo=";

}  // namespace gapless
