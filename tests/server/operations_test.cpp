// Health, metrics, keys, origins.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/server/server_fixture.h"

namespace gapless {
namespace {

using OperationsTest = ServerTest;

TEST_F(OperationsTest, ReadyFollowsTheModelAndTheDrain) {
  start();
  EXPECT_EQ(get("/ready").status, 200);
  state->set_service(nullptr);
  EXPECT_EQ(get("/health").status, 200);
  const ClientResponse loading = get("/ready");
  EXPECT_EQ(loading.status, 503);
  EXPECT_EQ(error_code_of(loading), "not_ready");
  EXPECT_EQ(loading.header("Retry-After"), "1");
  EXPECT_EQ(post("/v1/query", R"({"question":"a"})").status, 503);
  EXPECT_EQ(get("/metrics").status, 200);
  state->set_service(service.get());
  state->begin_drain();
  const ClientResponse leaving = get("/ready");
  EXPECT_EQ(leaving.status, 503);
  EXPECT_EQ(error_code_of(leaving), "not_ready");
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(post("/v1/query", R"({"question":"a"})").status, 200) << "it has nowhere else to go";
}

// At once, and with the call's name: whoever routes requests sends them elsewhere.
TEST_F(OperationsTest, ALostDeviceIsNotReadyAndAnswersWithItsError) {
  start();
  service->lose_device();
  for (const char* path : {"/ready", "/healthz", "/v1/models"}) {
    const ClientResponse response = get(path);
    EXPECT_EQ(response.status, 503) << path;
    EXPECT_EQ(error_code_of(response), "device_lost");
    EXPECT_NE(response.body.find("step 7: some call"), std::string::npos) << response.body;
  }
  EXPECT_EQ(error_code_of(post("/v1/query", R"({"question":"a"})")), "device_lost");
  EXPECT_EQ(get("/health").status, 200) << "the process lives";
  EXPECT_EQ(get("/metrics").status, 200);
}

TEST_F(OperationsTest, ALostDeviceOfSeveralIsNamedWhileTheOthersGoOn) {
  start();
  for (const char* path : {"/health", "/ready"}) {
    EXPECT_EQ(get(path).body.find("lost"), std::string::npos) << path;
  }
  EXPECT_NE(get("/metrics")
                .body.find("gapless_device_up{model_name=\"fake-model\",device=\"gpu:1\"} 1\n"),
            std::string::npos);
  service->lose_one_device();
  for (const char* path : {"/health", "/v1/health", "/ready", "/healthz"}) {
    const ClientResponse response = get(path);
    EXPECT_EQ(response.status, 200) << path;
    EXPECT_EQ(boost::json::parse(response.body).at("lost_devices"), (boost::json::array{"gpu:1"}));
  }
  EXPECT_EQ(post("/v1/query", R"({"question":"a"})").status, 200);
  const std::string metrics = get("/metrics").body;
  for (const char* line : {"gapless_device_up{model_name=\"fake-model\",device=\"gpu:0\"} 1\n",
                           "gapless_device_up{model_name=\"fake-model\",device=\"gpu:1\"} 0\n"}) {
    EXPECT_NE(metrics.find(line), std::string::npos) << line;
  }
}

TEST_F(OperationsTest, RoutersSeeTheSumOfTheDevices) {
  start();
  const std::string metrics = get("/metrics").body;
  for (const char* line :
       {"vllm:num_requests_waiting{model_name=\"fake-model\"} 3\n",
        "vllm:kv_cache_usage_perc{model_name=\"fake-model\"} 0.3125\n",
        "vllm:cache_config_info{model_name=\"fake-model\",block_size=\"16\",num_gpu_blocks=\"400\"}"
        " 1\n",
        "gapless_requests_waiting{model_name=\"fake-model\",device=\"gpu:0\"} 0\n",
        "gapless_requests_waiting{model_name=\"fake-model\",device=\"gpu:1\"} 3\n",
        "gapless_info{model_name=\"fake-model\",device=\"gpu:1\",device_name=\"Fake\"} 1\n"}) {
    EXPECT_NE(metrics.find(line), std::string::npos) << line << metrics;
  }
}

TEST_F(OperationsTest, KeysGuardEverythingButHealth) {
  start({.api_keys = {"secret"}});
  for (const char* path : {"/metrics", "/v1/models", "/version", "/openapi.json", "/nothing"}) {
    const ClientResponse response = get(path);
    EXPECT_EQ(response.status, 401) << path;
    EXPECT_EQ(error_code_of(response), "invalid_api_key");
    EXPECT_EQ(response.header("WWW-Authenticate"), "Bearer");
  }
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/ready").status, 200);
  EXPECT_EQ(get("/version", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(get("/version", "X-Moondream-Auth: secret\r\n").status, 200);
  EXPECT_EQ(get("/version", "X-Moondream-Auth: \r\n").status, 401);
}

TEST_F(OperationsTest, ThePlaygroundNeedsNoKeyAndNoNetwork) {
  start({.api_keys = {"secret"}});
  const ClientResponse page = get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.header("Content-Type"), "text/html; charset=utf-8");
  EXPECT_NE(page.header("Content-Security-Policy").find("default-src 'self'"), std::string::npos);
  // Every file that the page and its modules name is there, and nothing comes from elsewhere.
  std::string todo = page.body;
  int num_files = 0;
  for (std::size_t at = todo.find("\"/web/"); at != std::string::npos;
       at = todo.find("\"/web/", at + 1)) {
    const std::string path = todo.substr(at + 1, todo.find('"', at + 1) - at - 1);
    const ClientResponse file = get(path);
    EXPECT_EQ(file.status, 200) << path;
    if (num_files++ < 20 && path.ends_with(".js")) todo += file.body;
  }
  EXPECT_GE(num_files, 6);
  EXPECT_EQ(todo.find("https://"), std::string::npos);
}

// What the Node client sends without a key.
TEST_F(OperationsTest, AnEmptyKeyIsNoKey) {
  start();
  EXPECT_EQ(get("/version", "X-Moondream-Auth: \r\n").status, 200);
}

TEST_F(OperationsTest, ForeignPagesStayOut) {
  start({.cors_origins = {"https://good.example"}});
  const ClientResponse foreign = get("/version", "Origin: https://evil.example\r\n");
  EXPECT_EQ(foreign.status, 403);
  EXPECT_EQ(foreign.header("Access-Control-Allow-Origin"), "");
  EXPECT_EQ(get("/version", "Origin: null\r\n").status, 403);
  const ClientResponse same = get("/version", "Origin: http://localhost\r\n");
  EXPECT_EQ(same.status, 200);
  const ClientResponse allowed = get("/version", "Origin: https://good.example\r\n");
  EXPECT_EQ(allowed.status, 200);
  EXPECT_EQ(allowed.header("Access-Control-Allow-Origin"), "https://good.example");
  EXPECT_EQ(allowed.header("Vary"), "Origin");

  HttpClient client(server->port());
  client.send(
      "OPTIONS /v1/query HTTP/1.1\r\nHost: localhost\r\nOrigin: https://good.example\r\n\r\n");
  const ClientResponse preflight = client.read_response();
  EXPECT_EQ(preflight.status, 204);
  EXPECT_NE(preflight.header("Access-Control-Allow-Headers").find("Content-Type"),
            std::string::npos);
  // OpenAI's client in a page sends headers of its own.
  client.send(
      "OPTIONS /v1/query HTTP/1.1\r\nHost: localhost\r\nOrigin: https://good.example\r\n"
      "Access-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: authorization,content-type,x-stainless-os\r\n\r\n");
  EXPECT_EQ(client.read_response().header("Access-Control-Allow-Headers"),
            "authorization,content-type,x-stainless-os");
}

TEST_F(OperationsTest, RequestIdsAreEchoedOrMade) {
  start();
  EXPECT_EQ(get("/health", "X-Request-Id: my-id.1\r\n").header("X-Request-Id"), "my-id.1");
  const std::string first = get("/health").header("X-Request-Id");
  EXPECT_EQ(first.size(), 16u);
  EXPECT_NE(first, get("/health").header("X-Request-Id"));
  // One that could break a log line is replaced.
  EXPECT_EQ(get("/health", "X-Request-Id: a b\"c\r\n").header("X-Request-Id").size(), 16u);
  EXPECT_EQ(get("/health", "X-Request-Id: " + std::string(200, 'a') + "\r\n")
                .header("X-Request-Id")
                .size(),
            16u);
}

TEST_F(OperationsTest, MetricsCountWhatHappened) {
  start();
  post("/v1/query", R"({"question":"words 3"})");
  post("/v1/query", R"({"question":"full"})");
  get("/nothing");
  const std::vector<std::string> lines{
      "vllm:generation_tokens_total{model_name=\"fake-model\"} 3\n",
      "vllm:request_success_total{model_name=\"fake-model\",finished_reason=\"stop\"} 1\n",
      "gapless_http_refused_total{model_name=\"fake-model\"} 1\n",
      "gapless_http_responses_total{model_name=\"fake-model\",status=\"4xx\"} 2\n",
      "vllm:num_requests_running{model_name=\"fake-model\"} 0\n",
      "gapless_bubble_seconds_total{model_name=\"fake-model\",device=\"gpu:0\",phase=\"plan\"} "
      "0.5\n"};
  // Things are counted when a connection is done with them, a moment after its client has the
  // answer.
  ClientResponse response;
  const auto is_missing = [&](const std::string& line) {
    return response.body.find(line) == std::string::npos;
  };
  int tries = 0;
  do {
    response = get("/metrics");
  } while (std::any_of(lines.begin(), lines.end(), is_missing) && ++tries < 1000);
  EXPECT_EQ(response.header("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const std::string& line : lines) EXPECT_FALSE(is_missing(line)) << line << response.body;
}

TEST_F(OperationsTest, TheTimelineAndTheDepthSwitch) {
  start({.debug = true});
  const boost::json::value timeline = boost::json::parse(get("/debug/timeline").body);
  EXPECT_EQ(timeline.at("depth"), 2);
  EXPECT_EQ(timeline.at("max_depth"), 2);
  const boost::json::value& step = timeline.at("steps").at(0);
  EXPECT_EQ(step.at("number"), 7);
  EXPECT_EQ(step.at("kind"), "decode");
  EXPECT_EQ(step.at("forward"), (boost::json::array{100, 200}));
  EXPECT_EQ(step.at("sampling"), (boost::json::array{200, 210}));
  EXPECT_EQ(timeline.at("gaps").at(0).at("state").as_string(), "starved");
  EXPECT_EQ(timeline.at("gaps").at(0).at("span"), (boost::json::array{210, 300}));

  EXPECT_EQ(boost::json::parse(post("/debug/depth", R"({"depth":1})").body).at("depth"), 1);
  for (const char* bad : {R"({"depth":0})", R"({"depth":3})", R"({"depth":99999999999})", "{}",
                          R"({"depth":"2"})", R"({"depth":1.5})", "1"}) {
    const ClientResponse refused = post("/debug/depth", bad);
    EXPECT_EQ(refused.status, 400) << bad;
    EXPECT_EQ(error_field_of(refused), bad[0] == '{' ? "depth" : "") << bad;
  }
  EXPECT_EQ(post("/debug/depth?device=gpu:2", R"({"depth":2})").status, 400);
  EXPECT_EQ(boost::json::parse(get("/debug/timeline").body).at("depth"), 1);
  EXPECT_EQ(timeline.at("device"), "gpu:0");
  EXPECT_EQ(timeline.at("devices"), (boost::json::array{"gpu:0", "gpu:1"}));
  for (const char* query : {"?device=gpu:1", "?device=gpu%3A1"}) {
    const std::string path = std::string("/debug/timeline") + query;
    EXPECT_EQ(boost::json::parse(get(path).body).at("device"), "gpu:1") << path;
  }
  for (const char* query :
       {"?device=gpu:2", "?device=%zz", "?device=%ff", "?x=1", "?device=gpu:1&a=b"}) {
    EXPECT_EQ(get(std::string("/debug/timeline") + query).status, 400) << query;
  }
  const ClientResponse trace = get("/debug/trace");
  EXPECT_NE(trace.header("Content-Disposition").find("gapless-trace.json"), std::string::npos);
  EXPECT_TRUE(boost::json::parse(trace.body).at("traceEvents").is_array());
  EXPECT_EQ(get("/debug/depth").status, 405);
}

TEST_F(OperationsTest, DebugPathsAreNotThereUnlessAskedForAndNeedTheKey) {
  start({.api_keys = {"secret"}, .debug = true});
  EXPECT_EQ(get("/debug/timeline").status, 401);
  EXPECT_EQ(post("/debug/depth", R"({"depth":1})").status, 401);
  TearDown();
  start();
  for (const char* path : {"/debug/timeline", "/debug/trace"}) EXPECT_EQ(get(path).status, 404);
  EXPECT_EQ(post("/debug/depth", R"({"depth":1})").status, 404);
}

TEST_F(OperationsTest, VersionsPathsAndMethods) {
  start();
  EXPECT_EQ(get("/version").body, R"({"version":"test"})");
  const ClientResponse described = get("/openapi.json");
  EXPECT_EQ(described.header("Content-Type"), "application/json");
  EXPECT_TRUE(boost::json::parse(described.body).at("paths").as_object().contains("/v1/query"));
  EXPECT_EQ(error_code_of(get("/v2/query")), "not_found");
  const ClientResponse wrong = get("/v1/query");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.header("Allow"), "POST");
  HttpClient client(server->port());
  client.send("HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n");
  const ClientResponse head = client.read_response(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_NE(head.header("Content-Length"), "0");
  EXPECT_EQ(client.get("/health").status, 200) << "a HEAD has no body";
}

}  // namespace
}  // namespace gapless
