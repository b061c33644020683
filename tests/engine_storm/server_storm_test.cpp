// The whole server over the shipped model: clients that read their answers, clients that go away
// in the middle, and an end while answers are on their way.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine_service/engine_service.h"
#include "server/api_handler.h"
#include "server/http_server.h"
#include "tests/engine_storm/storm.h"
#include "tests/server/http_client.h"

namespace gapless {
namespace {

class ServerStorm : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.loop.depth = GetParam();
    options.num_preprocess_threads = 2;
    // At depth 2 on two devices.
    auto engines = start_storm_group(GetParam(), options);
    ASSERT_TRUE(engines.ok()) << engines.status().to_string();
    service_ = std::make_unique<EngineService>(std::move(engines).value(), "storm");
    ServerStateOptions state_options;
    state_options.version = "test";
    state_options.allowed_hosts.push_back("x");  // as post_request() calls the server
    state_ = std::make_unique<ServerState>(std::move(state_options));
    HttpServerOptions http;
    http.port = 0;
    http.log_requests = false;
    auto server = HttpServer::start(http, make_api_handler(*state_), state_->metrics());
    ASSERT_TRUE(server.ok()) << server.status().to_string();
    server_ = std::move(server).value();
    state_->set_service(service_.get());
  }

  // In the order of apps/serve.cpp.
  void shut_down() {
    if (!server_) return;
    server_->stop();
    state_->set_service(nullptr);
    service_.reset();
    server_.reset();
  }
  void TearDown() override { shut_down(); }

  static std::string stream_request(int max_tokens) {
    return post_request("/v1/query",
                        R"({"question": "Go on.", "stream": true, "settings": {"temperature": 0,)"
                        R"( "ignore_eos": true, "max_tokens": )" +
                            std::to_string(max_tokens) + "}}");
  }

  std::unique_ptr<EngineService> service_;
  std::unique_ptr<ServerState> state_;
  std::unique_ptr<HttpServer> server_;
};

INSTANTIATE_TEST_SUITE_P(Depth, ServerStorm, ::testing::Values(1, 2));

TEST_P(ServerStorm, ClientsThatGoAwayLeaveNothingBehind) {
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back([this, i] {
      for (int round = 0; round < 9; ++round) {
        HttpClient client(server_->port());
        switch ((round + i) % 3) {
          case 0: {
            ASSERT_TRUE(client.send(stream_request(12)));
            const ClientResponse response = client.read_response();
            EXPECT_EQ(response.status, 200);
            const std::vector<std::string> events = response.events();
            ASSERT_FALSE(events.empty());
            EXPECT_NE(events.back().find("\"completed\":true"), std::string::npos) << events.back();
            break;
          }
          case 1:  // in the middle of an answer
            ASSERT_TRUE(client.send(stream_request(kLongAnswerTokens)));
            EXPECT_NE(client.receive_until("data: "), "");
            client.reset();
            break;
          default:  // before it
            ASSERT_TRUE(client.send(stream_request(kLongAnswerTokens)));
            client.reset();
        }
        EXPECT_EQ(HttpClient(server_->port()).get("/metrics").status, 200);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  const auto deadline = std::chrono::steady_clock::now() + kDeadlockGuard;
  while (service_->metrics().num_running + service_->metrics().num_waiting > 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "an answer runs on for nobody";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(service_->metrics().num_forbidden_calls, 0);
}

std::string list_of(int count, const std::function<std::string(int)>& item) {
  std::string list;
  for (int i = 0; i < count; ++i) list += (i == 0 ? "" : ",") + item(i);
  return list;
}

// `round` makes each one new to the server, which remembers what it refused.
std::vector<std::string> forms_that_explode(int round) {
  const auto schema = [round](const std::string& text) {
    return fmt::format(R"("guided_json": {{"$comment": "{}", {}}})", round, text);
  };
  const auto pattern = [](const std::string& text) {
    return fmt::format(R"("guided_regex": "{}")", text);
  };
  std::string deep = R"("type": "null")";
  for (int i = 0; i < 8; ++i) deep = R"("anyOf": [{)" + deep + R"(}, {"type": "array"}])";
  return {
      schema(R"("$ref": "#")"),
      // Branches times branches.
      schema(R"("allOf": [)" +
             list_of(12,
                     [](int i) {
                       return R"({"anyOf": [)" +
                              list_of(40,
                                      [i](int k) {
                                        return fmt::format(R"({{"required": ["p{}_{}"]}})", i, k);
                                      }) +
                              R"(]})";
                     }) +
             "]"),
      // Bounds in bounds.
      schema(
          R"("$ref": "#/$defs/a0", "$defs": {)" +
          list_of(
              70,
              [](int i) {
                return fmt::format(
                    R"("a{}": {{"allOf": [{{"$ref": "#/$defs/a{}"}}, {{"$ref": "#/$defs/a{}"}}]}})",
                    i, i + 1, i + 1);
              }) +
          R"(, "a70": {}})"),
      schema(R"("enum": [)" +
             list_of(10'000, [](int i) { return fmt::format(R"({{"n": {}}})", i); }) + "]"),
      schema(deep + R"(, "uniqueItems": true)"),
      pattern(fmt::format("(a|b)*a(a|b){{{}}}", 20 + round)),
      pattern(fmt::format("((((a{{1,100}}){{1,100}}){{1,100}}){{1,10{}}})", round)),
      pattern(fmt::format("((((a|){{9999}}){{9999}}){{9999}}){{999{}}}", round)),
  };
}

// By everybody who holds memory, of all threads.
std::size_t allocated_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST_P(ServerStorm, GrammarsThatExplodeAreRefusedAndLeaveNothingBehind) {
  constexpr int kRounds = 3;
  std::size_t after_first_round = 0;
  for (int round = 0; round < kRounds; ++round) {
    HttpClient reader(server_->port());
    ASSERT_TRUE(reader.send(stream_request(12)));
    std::vector<std::unique_ptr<HttpClient>> clients;
    const std::vector<std::string> forms = forms_that_explode(round);
    for (const std::string& form : forms) {
      clients.push_back(std::make_unique<HttpClient>(server_->port()));
      ASSERT_TRUE(clients.back()->send(
          post_request("/v1/query", R"({"question": "What?", )" + form + "}")));
    }
    EXPECT_EQ(reader.read_response().status, 200);
    for (std::size_t i = 0; i < forms.size(); ++i) {
      const ClientResponse response = clients[i]->read_response();
      EXPECT_EQ(response.status, 400) << forms[i].substr(0, 200);
      EXPECT_NE(response.body.find("cannot be held: "), std::string::npos) << response.body;
      EXPECT_NE(response.body.find(R"("param":"guided_)"), std::string::npos) << response.body;
    }
    if (round == 0) after_first_round = allocated_bytes();
  }
  // One that is held, behind them.
  HttpClient client(server_->port());
  const ClientResponse held =
      client.post("/v1/query", R"({"question": "Which?", "guided_choice": ["yes"]})");
  EXPECT_EQ(held.status, 200);
  EXPECT_NE(held.body.find(R"("answer":"yes")"), std::string::npos) << held.body;
  // What is kept of a refusal is its text and its reason.
  EXPECT_LT(allocated_bytes(), after_first_round + (8u << 20));
}

TEST_P(ServerStorm, TheEndWhileAnswersAreOnTheirWay) {
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server_->port()));
    ASSERT_TRUE(clients.back()->send(stream_request(kLongAnswerTokens)));
  }
  // Two of them are being answered; the others are somewhere.
  EXPECT_NE(clients[0]->receive_until("data: "), "");
  EXPECT_NE(clients[1]->receive_until("data: "), "");
  std::vector<std::thread> readers;
  for (const auto& client : clients) {
    readers.emplace_back([&client] { EXPECT_TRUE(client->wait_closed()); });
  }
  shut_down();
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace gapless
