// Bodies over kMaxInlineBodyBytes: threads of their own read them and answer them.
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "base/limits.h"
#include "server/http_server.h"
#include "tests/server/http_client.h"

namespace gapless {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kGuard{60};

// One thread for connections and one for large bodies, which /held keeps until let_go(). Each request is answered with the size of
// its body.
class LargeBodyTest : public ::testing::Test {
 protected:
  ~LargeBodyTest() override { let_go(); }

  void start(HttpLimits limits = {}) {
    HttpServerOptions options;
    options.port = 0;
    options.num_threads = 1;
    options.num_body_threads = 1;
    options.log_requests = false;
    options.limits = limits;
    const auto judge = [](const HttpRequest&, std::string_view) {
      HeadVerdict verdict;
      verdict.admitted = true;
      return verdict;
    };
    server_ = HttpServer::start(
                  options, {judge, [this](const auto& exchange) { answer(*exchange); }}, metrics_)
                  .value();
  }

  void answer(Exchange& exchange) {
    const std::string path = exchange.request().path;
    {
      std::lock_guard lock(mutex_);
      threads_[path] = std::this_thread::get_id();
    }
    if (path == "/held") {
      held_.set_value();
      may_go_on_.wait();
    }
    if (path == "/throws") throw std::runtime_error("no memory, say");
    HttpResponse response;
    response.body = std::to_string(exchange.request().body.size());
    exchange.respond(std::move(response));
  }

  // A client whose request keeps the thread for large bodies busy.
  std::unique_ptr<HttpClient> hold() {
    auto client = std::make_unique<HttpClient>(server_->port());
    EXPECT_TRUE(client->send(post_request("/held", large_)));
    EXPECT_EQ(held_.get_future().wait_for(kGuard), std::future_status::ready);
    return client;
  }

  void let_go() {
    if (!std::exchange(is_let_go_, true)) go_on_.set_value();
  }

  std::thread::id thread_of(const std::string& path) {
    std::lock_guard lock(mutex_);
    return threads_.at(path);
  }

  const std::string large_ = std::string(kMaxInlineBodyBytes + 1, 'x');
  std::promise<void> held_;
  std::promise<void> go_on_;
  std::shared_future<void> may_go_on_{go_on_.get_future()};
  bool is_let_go_ = false;
  std::mutex mutex_;
  std::map<std::string, std::thread::id> threads_;
  ServerMetrics metrics_;
  std::unique_ptr<HttpServer> server_;
};

// Others are answered meanwhile. A small body is handled where it arrived.
TEST_F(LargeBodyTest, AHandlerHoldsNobodyUp) {
  start();
  const auto first = hold();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(HttpClient(server_->port()).get("/small").status, 200);
    EXPECT_EQ(HttpClient(server_->port()).post("/inline", large_.substr(1)).status, 200);
  }
  let_go();
  const ClientResponse response = first->read_response();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, std::to_string(large_.size()));
  EXPECT_EQ(HttpClient(server_->port()).post("/throws", large_).status, 500);
  EXPECT_EQ(thread_of("/inline"), thread_of("/small"));
  EXPECT_NE(thread_of("/held"), thread_of("/small"));
}

// While that thread has something else to do, a body stays where it is: in the sockets, which hold a few megabytes of it.
TEST_F(LargeBodyTest, ABodyIsReadByItsThread) {
  start();
  const auto first = hold();
  const std::string body(kMaxHttpBodyBytes - 1, 'x');
  const std::string request = post_request("/next", body);
  HttpClient next(server_->port());
  const std::size_t taken = next.send_what_is_taken(request);
  EXPECT_LT(taken, request.size()) << "somebody else read it";
  EXPECT_EQ(HttpClient(server_->port()).get("/small").status, 200);
  let_go();
  EXPECT_EQ(first->read_response().status, 200);
  ASSERT_TRUE(next.send(std::string_view(request).substr(taken)));
  EXPECT_EQ(next.read_response().body, std::to_string(body.size()));
}

// As of a body that its client does not send.
TEST_F(LargeBodyTest, ABodyThatWaitsForItsThreadHasATimeToo) {
  HttpLimits limits;
  limits.body =
      milliseconds(500);  // the body of the client that holds the thread comes in that time
  start(limits);
  const auto first = hold();
  HttpClient next(server_->port());
  ASSERT_TRUE(next.send(post_request("/next", large_ + large_).substr(0, large_.size())));
  std::this_thread::sleep_for(2 * limits.body);
  let_go();
  EXPECT_EQ(next.read_response().status, 408);
}

TEST_F(LargeBodyTest, AServerThatLeavesDoesNotWaitForABodyThatWaitsForItsThread) {
  start();
  const auto first = hold();
  HttpClient next(server_->port());
  ASSERT_TRUE(next.send(post_request("/next", large_)));
  EXPECT_EQ(HttpClient(server_->port()).get("/small").status, 200);
  std::thread leaving([this] { server_->stop(); });
  EXPECT_TRUE(next.wait_closed());
  let_go();
  leaving.join();
}

}  // namespace
}  // namespace gapless
