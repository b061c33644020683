// What connections do: reuse, pipelining, streams, clients that vanish or stall, the drain.
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "tests/server/server_fixture.h"

namespace gapless {
namespace {

using ConnectionTest = ServerTest;
using std::chrono::milliseconds;

TEST_F(ConnectionTest, KeepAliveServesManyRequestsAndStreams) {
  start();
  HttpClient client(server->port());
  for (int i = 0; i < 20; ++i) {
    const ClientResponse response =
        i % 2 == 0 ? client.post("/v1/query", R"({"question":"words 3","stream":true})")
                   : client.get("/health");
    ASSERT_EQ(response.status, 200) << i;
    EXPECT_EQ(response.header("Connection"), "keep-alive");
  }
}

// stop() may end the threads before they come to what it asked of them: many tries.
TEST_F(ConnectionTest, AStoppedServerListensNoMore) {
  for (int i = 0; i < 200; ++i) {
    server.reset();
    ASSERT_NO_FATAL_FAILURE(start());
    server->stop();
    HttpServerOptions options;
    options.port = server->port();
    const auto again = HttpServer::start(options, make_api_handler(*state), state->metrics());
    ASSERT_TRUE(again.ok()) << again.status().to_string();  // the port is free
  }
}

TEST_F(ConnectionTest, CloseIsHonouredAfterAWholeStream) {
  start();
  HttpClient client(server->port());
  const ClientResponse response =
      client.post("/v1/query", R"({"question":"words 3","stream":true})", "Connection: close\r\n");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.events().size(), 4u);
  EXPECT_TRUE(client.wait_closed());
}

TEST_F(ConnectionTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  HttpClient client(server->port());
  std::string bytes;
  for (int i = 0; i < 10; ++i) {
    bytes += post_request("/v1/query", fmt::format(R"({{"question":"words {} 2"}})", i + 1));
  }
  client.send(bytes);
  for (int i = 0; i < 10; ++i) {
    const ClientResponse response = client.read_response();
    ASSERT_EQ(response.status, 200);
    EXPECT_EQ(boost::json::parse(response.body).at("metrics").at("output_tokens"), i + 1);
  }
}

TEST_F(ConnectionTest, Http10ClientsGetAStreamWithoutChunks) {
  start();
  HttpClient client(server->port());
  const std::string body = R"({"question":"words 2","stream":true})";
  client.send(
      fmt::format("POST /v1/query HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
  const ClientResponse response = client.read_response();
  EXPECT_TRUE(response.head.starts_with("HTTP/1.0 200"));
  EXPECT_EQ(response.header("Transfer-Encoding"), "");
  EXPECT_EQ(response.events().size(), 3u);
}

TEST_F(ConnectionTest, ExpectContinueIsAnswered) {
  start();
  HttpClient client(server->port());
  const std::string body = R"({"question":"hi"})";
  client.send(
      fmt::format("POST /v1/query HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                  "Content-Length: {}\r\n\r\n",
                  body.size()));
  EXPECT_EQ(client.receive_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send(body);
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(ConnectionTest, ChunkedBodies) {
  start();
  HttpClient client(server->port());
  client.send("POST /v1/query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (const char c : std::string_view(R"({"question":"hi"})")) {
    client.send(fmt::format("1\r\n{}\r\n", c));
  }
  client.send("0\r\n\r\n");
  EXPECT_EQ(boost::json::parse(client.read_response().body).at("answer"), "hi");
}

TEST_F(ConnectionTest, AVanishedClientCancelsItsRequest) {
  start();
  int cancelled = 0;
  for (const std::string body : {R"({"question":"hang","stream":true})", R"({"question":"hang"})",
                                 R"({"question":"silent","stream":true})"}) {
    for (const bool with_reset : {false, true}) {
      HttpClient client(server->port());
      client.send(post_request("/v1/query", body));
      while (service->num_submitted() <= cancelled) std::this_thread::yield();
      if (with_reset) {
        client.reset();
      } else {
        client.finish_sending();
      }
      EXPECT_TRUE(service->wait_cancelled(++cancelled)) << body << with_reset;
    }
  }
  // Chat cancels all of its choices.
  {
    HttpClient client(server->port());
    client.send(post_request("/v1/chat/completions",
                             R"({"n":3,"messages":[{"role":"user","content":"hang"}]})"));
    while (service->num_submitted() < cancelled + 3) std::this_thread::yield();
  }
  EXPECT_TRUE(service->wait_cancelled(cancelled + 3));
}

// The bytes that a waiting client sends ahead must not hide that it goes away.
TEST_F(ConnectionTest, AVanishedClientThatPipelinedIsNoticed) {
  start();
  HttpClient client(server->port());
  client.send(post_request("/v1/query", R"({"question":"silent"})") +
              post_request("/v1/query", R"({"question":"hi"})"));
  while (service->num_submitted() == 0) std::this_thread::yield();
  client.finish_sending();
  EXPECT_TRUE(service->wait_cancelled(1));
  EXPECT_EQ(service->num_submitted(), 1);
}

// What a client sends behind a request that is being answered stays in the sockets, which hold a few
// megabytes, once the server holds its share.
TEST_F(ConnectionTest, AClientCannotSendAheadWithoutBound) {
  start();
  HttpClient client(server->port());
  client.send(post_request("/v1/query", R"({"question":"silent"})"));
  while (service->num_submitted() == 0) std::this_thread::yield();
  const std::size_t taken = client.send_what_is_taken(std::string(64u << 20, 'x'));
  EXPECT_LT(taken, 32u << 20);
  client.reset();
}

// From the head on the body has its own time: neither the head's limit cuts it nor does it wait for it.
TEST_F(ConnectionTest, ABodyHasATimeOfItsOwn) {
  const std::string body = R"({"question":"hi"})";
  const std::string head = fmt::format(
      "POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.size());
  HttpLimits limits;
  limits.head = milliseconds(50);
  limits.body = milliseconds(60'000);
  start({}, limits);
  HttpClient slow(server->port());
  slow.send(head);
  std::this_thread::sleep_for(milliseconds(300));
  slow.send(body);
  EXPECT_EQ(slow.read_response().status, 200);

  TearDown();
  limits.head = milliseconds(60'000);
  limits.body = milliseconds(50);
  start({}, limits);
  HttpClient stalled(server->port());
  stalled.send(head + body.substr(1));
  EXPECT_EQ(stalled.read_response().status, 408);
}

TEST_F(ConnectionTest, AClientThatDoesNotReadIsCancelledAndHoldsLittle) {
  HttpLimits limits;
  limits.max_outbox_bytes = 64 << 10;
  start({}, limits);
  HttpClient stalled(server->port());
  stalled.send(post_request("/v1/query", R"({"question":"flood","stream":true})"));
  EXPECT_TRUE(service->wait_cancelled(1));
  // Others are served meanwhile and after.
  EXPECT_EQ(post("/v1/query", R"({"question":"hi"})").status, 200);
}

// Slow is not stalled: who takes some of it again and again gets all of it.
TEST_F(ConnectionTest, ASlowReaderGetsEverything) {
  HttpLimits limits;
  limits.max_outbox_bytes = std::size_t{1} << 30;
  limits.write_stall = milliseconds(2000);
  start({}, limits);
  constexpr int kWords = 60'000;  // some megabytes of events: more than the sockets hold
  HttpClient slow(server->port());
  slow.send(
      post_request("/v1/query", fmt::format(R"({{"question":"words {}","stream":true}})", kWords)));
  std::string all;
  const std::string last = fmt::format("w{} ", kWords - 1);
  for (int i = 0; all.find("0\r\n\r\n", all.size() < 9 ? 0 : all.size() - 9) == std::string::npos;
       ++i) {
    const std::string more = slow.receive();
    if (more.empty()) break;
    all += more;
    if (i % 8 == 0) std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_NE(all.find(last), std::string::npos);
  EXPECT_NE(all.find("\"completed\":true"), std::string::npos);
  EXPECT_EQ(service->num_cancelled(), 0);
}

// Found by the load test: the end of the client's side came just when the answer had gone out, was
// taken for the end of the watching, and the connection stayed until it was idle for too long.
TEST_F(ConnectionTest, AClientThatLeavesBehindItsAnswerIsNoticed) {
  start();
  for (int i = 0; i < 300; ++i) {
    HttpClient client(server->port());
    ASSERT_EQ(client.post("/v1/query", R"({"question":"words 2","stream":true})").status, 200);
  }
  for (int i = 0; i < 500 && state->metrics().num_connections.load() > 0; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(state->metrics().num_connections.load(), 0);
}

TEST_F(ConnectionTest, AStalledClientRunsIntoTheWriteLimit) {
  HttpLimits limits;
  limits.max_outbox_bytes = std::size_t{1} << 30;
  limits.write_stall = milliseconds(50);
  start({}, limits);
  HttpClient stalled(server->port());
  stalled.send(post_request("/v1/query", R"({"question":"words 400000","stream":true})"));
  EXPECT_TRUE(service->wait_cancelled(1));
}

TEST_F(ConnectionTest, AnAnswerThatNeverComesIsATimeout) {
  HttpLimits limits;
  limits.answer = milliseconds(50);
  start({}, limits);
  const ClientResponse response = post("/v1/query", R"({"question":"silent"})");
  EXPECT_EQ(response.status, 504);
  EXPECT_TRUE(service->wait_cancelled(1));
  // In the middle of a stream there is no status left to send: the stream breaks off.
  EXPECT_EQ(post("/v1/query", R"({"question":"hang","stream":true})").status, 0);
  EXPECT_TRUE(service->wait_cancelled(2));
  // What the service says when it is cancelled comes too late.
  EXPECT_EQ(post("/v1/query", R"({"question":"obedient"})").status, 504);
}

TEST_F(ConnectionTest, IdleConnectionsAreClosed) {
  HttpLimits limits;
  limits.idle = milliseconds(50);
  start({}, limits);
  HttpClient never(server->port());
  EXPECT_TRUE(never.wait_closed());
  HttpClient after(server->port());
  EXPECT_EQ(after.get("/health").status, 200);
  EXPECT_TRUE(after.wait_closed());
}

TEST_F(ConnectionTest, ManyStreamsAtOnceKeepTheirWords) {
  start();
  constexpr int kClients = 60;
  constexpr int kWords = 40;
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server->port()));
    clients.back()->send(post_request(
        "/v1/query", fmt::format(R"({{"question":"words {} 1","stream":true}})", kWords)));
  }
  // Every third one dies in the middle.
  for (int i = 0; i < kClients; i += 3) clients[static_cast<std::size_t>(i)]->reset();
  for (int i = 0; i < kClients; ++i) {
    if (i % 3 == 0) continue;
    const ClientResponse response = clients[static_cast<std::size_t>(i)]->read_response();
    ASSERT_EQ(response.status, 200) << i << response.head << response.body;
    std::string text;
    for (const std::string& event : response.events()) {
      text += boost::json::parse(event).at("chunk").as_string();
    }
    std::string expected;
    for (int word = 0; word < kWords; ++word) expected += fmt::format("w{} ", word);
    EXPECT_EQ(text, expected) << i;
  }
}

TEST_F(ConnectionTest, ADrainFinishesWhatRunsAndClosesTheRest) {
  start();
  HttpClient idle(server->port());
  EXPECT_EQ(idle.get("/health").status, 200);
  HttpClient busy(server->port());
  busy.send(post_request("/v1/query", R"({"question":"words 100 2","stream":true})"));
  EXPECT_NE(busy.receive_until("w0").find("w0"), std::string::npos);
  state->begin_drain();
  server->begin_drain();
  EXPECT_TRUE(idle.wait_closed());
  const ClientResponse response = busy.read_response();
  EXPECT_EQ(response.events().size(), 101u);
  EXPECT_TRUE(busy.wait_closed());
  EXPECT_TRUE(server->wait_drained(milliseconds(10'000)));
}

// Between /ready's 503 and the end of the listener.
TEST_F(ConnectionTest, WhatComesBeforeTheDrainIsAnsweredAndItsConnectionLeft) {
  start();
  HttpClient kept(server->port());
  EXPECT_EQ(kept.get("/health").header("Connection"), "keep-alive");
  server->end_keep_alive();
  const ClientResponse last = kept.get("/health");  // it may have been on its way
  EXPECT_EQ(last.status, 200);
  EXPECT_EQ(last.header("Connection"), "close");
  EXPECT_TRUE(kept.wait_closed());
  HttpClient newcomer(server->port());
  EXPECT_EQ(newcomer.get("/health").status, 200);
  EXPECT_TRUE(newcomer.wait_closed());
}

// A client that is told to keep its connection may send its next request there, and nobody reads it.
TEST_F(ConnectionTest, AnAnswerThatADrainWaitsForSaysThatItIsTheLast) {
  for (const bool drains : {false, true}) {
    TearDown();
    start();
    HttpClient client(server->port());
    client.send(post_request("/v1/query", R"({"question":"words 100 2"})"));
    const auto until = std::chrono::steady_clock::now() + milliseconds(10'000);
    while (service->num_submitted() == 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      std::this_thread::yield();
    }
    if (drains) {
      server->begin_drain();
    } else {
      server->end_keep_alive();
    }
    const ClientResponse response = client.read_response();
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.header("Connection"), "close") << drains;
    EXPECT_TRUE(client.wait_closed());
  }
}

// A request of which the head came before the drain began.
TEST_F(ConnectionTest, ADrainAnswersWhatItHasBegunToRead) {
  start();
  HttpClient slow(server->port());
  const std::string request =
      post_request("/v1/query", R"({"question":"words 2 1"})", "Expect: 100-continue\r\n");
  const std::size_t head = request.find("\r\n\r\n") + 4;
  slow.send(request.substr(0, head));
  EXPECT_EQ(slow.receive_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  state->begin_drain();
  server->begin_drain();
  slow.send(request.substr(head));
  EXPECT_EQ(slow.read_response().status, 200);
  EXPECT_TRUE(server->wait_drained(milliseconds(10'000)));
}

// The last connection may end just when it is asked to.
TEST_F(ConnectionTest, DrainsWheneverTheLastConnectionEnds) {
  for (int round = 0; round < 40; ++round) {
    TearDown();
    start();
    HttpClient client(server->port());
    client.send(post_request("/v1/query", R"({"question":"words 2 2","stream":true})"));
    EXPECT_NE(client.receive_until("w0").find("w0"), std::string::npos);
    // Not wait_drained(), which rests in between.
    const auto until = std::chrono::steady_clock::now() + milliseconds(10'000);
    while (state->metrics().num_connections > 0 && std::chrono::steady_clock::now() < until) {
      server->begin_drain();
    }
    ASSERT_EQ(state->metrics().num_connections, 0) << "round " << round;
  }
}

TEST_F(ConnectionTest, StopEndsWhatStillRuns) {
  start();
  HttpClient client(server->port());
  client.send(post_request("/v1/query", R"({"question":"hang","stream":true})"));
  EXPECT_NE(client.receive_until("first").find("first"), std::string::npos);
  EXPECT_FALSE(server->wait_drained(milliseconds(50)));
  server->stop();
  EXPECT_TRUE(client.wait_closed());
  EXPECT_TRUE(service->wait_cancelled(1));
}

TEST_F(ConnectionTest, TooManyConnectionsAreTurnedAway) {
  HttpLimits limits;
  limits.max_connections = 2;
  start({}, limits);
  HttpClient first(server->port());
  HttpClient second(server->port());
  EXPECT_EQ(first.get("/health").status, 200);
  EXPECT_EQ(second.get("/health").status, 200);
  HttpClient third(server->port());
  EXPECT_TRUE(third.wait_closed());
  EXPECT_EQ(first.get("/health").status, 200);
}

// More than the sockets hold: it goes out in parts.
TEST(LargeAnswerTest, WhatTheSocketDoesNotTakeAtOnceFollows) {
  ServerMetrics metrics;
  std::string large(32u << 20, 'x');
  for (std::size_t i = 0; i < large.size(); i += 4096) {
    large[i] = static_cast<char>('a' + i / 4096 % 26);
  }
  const auto handler = [&](const std::shared_ptr<Exchange>& exchange) {
    HttpResponse response;
    response.body = large;
    exchange->respond(std::move(response));
  };
  const auto judge = [](const HttpRequest&, std::string_view) {
    HeadVerdict verdict;
    verdict.admitted = true;
    return verdict;
  };
  HttpServerOptions options;
  options.port = 0;
  options.log_requests = false;
  const auto server = HttpServer::start(options, {judge, handler}, metrics).value();
  const ClientResponse response = HttpClient(server->port()).get("/", "Connection: close\r\n");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body.size(), large.size());
  EXPECT_TRUE(response.body == large);
  server->stop();
}

TEST_F(ConnectionTest, ATakenPortIsAnErrorThatNamesIt) {
  start();
  HttpServerOptions options;
  options.port = server->port();
  const auto other = HttpServer::start(options, make_api_handler(*state), state->metrics());
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find(std::to_string(options.port)), std::string::npos);
  options.host = "nowhere";
  EXPECT_FALSE(HttpServer::start(options, make_api_handler(*state), state->metrics()).ok());
}

}  // namespace
}  // namespace gapless
