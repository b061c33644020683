// Nothing that a client sends may stop the server, hold it up, or make it keep memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/limits.h"
#include "tests/server/server_fixture.h"

namespace gapless {
namespace {

using std::chrono::milliseconds;

enum class Door { kTcp, kUnixSocket, kSecondPort };

// At every kind of door.
class HostileInputTest : public ServerTest, public ::testing::WithParamInterface<Door> {
 protected:
  HostileInputTest() {
    if (GetParam() == Door::kUnixSocket) unix_socket = fresh_socket_path();
    asks_second_port = GetParam() == Door::kSecondPort;
  }

  // After whatever happened.
  void expect_alive() { EXPECT_EQ(post("/v1/query", R"({"question":"hi"})").status, 200); }

  // Every path that reads a JSON body.
  static constexpr const char* kJsonPaths[] = {
      "/v1/query",       "/v1/caption",   "/v1/point",
      "/v1/detect",      "/v1/segment",   "/v1/chat/completions",
      "/v1/completions", "/tokenize",     "/detokenize",
      "/api/chat",       "/api/generate", "/api/show",
      "/api/pull",       "/debug/depth"};

  ClientResponse send_raw(std::string_view bytes) {
    HttpClient client(address());
    client.send(bytes);
    return client.read_response();
  }
};

INSTANTIATE_TEST_SUITE_P(Doors, HostileInputTest,
                         ::testing::Values(Door::kTcp, Door::kUnixSocket, Door::kSecondPort),
                         [](const auto& door) -> std::string {
                           if (door.param == Door::kUnixSocket) return "UnixSocket";
                           return door.param == Door::kTcp ? "Tcp" : "SecondPort";
                         });

TEST_P(HostileInputTest, ASlowHeadIsCutOff) {
  HttpLimits limits;
  limits.head = milliseconds(100);
  start({}, limits);
  HttpClient slow(address());
  slow.send("GET / HTTP/1.1\r\n");
  // A byte now and then does not buy more time.
  bool open = true;
  for (int i = 0; i < 200 && open; ++i) {
    open = slow.send("X");
    std::this_thread::sleep_for(milliseconds(5));
    if (i > 40) break;
  }
  EXPECT_EQ(slow.read_response().status, 408);
  EXPECT_TRUE(slow.wait_closed());
  expect_alive();
}

TEST_P(HostileInputTest, ASlowBodyIsCutOff) {
  HttpLimits limits;
  limits.body = milliseconds(100);
  start({}, limits);
  HttpClient slow(address());
  slow.send("POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(slow.read_response().status, 408);
  EXPECT_TRUE(slow.wait_closed());
  expect_alive();
}

// A byte now and then does not buy more time.
TEST_P(HostileInputTest, ABodyThatTricklesIsCutOff) {
  HttpLimits limits;
  limits.body = milliseconds(100);
  start({}, limits);
  HttpClient slow(address());
  slow.send("POST /v1/query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 60; ++i) {
    if (!slow.send("1\r\n \r\n")) break;
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_EQ(slow.read_response().status, 408);
  EXPECT_TRUE(slow.wait_closed());
  expect_alive();
}

// So many bytes that a read has ended whenever the time is over.
TEST_P(HostileInputTest, ABodyThatPoursIsCutOff) {
  HttpLimits limits;
  limits.body = milliseconds(100);
  start({}, limits);
  for (int client = 0; client < 8; ++client) {
    HttpClient pouring(address());
    pouring.send("POST /v1/query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    const auto end = std::chrono::steady_clock::now() + milliseconds(300);
    while (std::chrono::steady_clock::now() < end && pouring.send("1\r\n \r\n")) {
    }
    EXPECT_EQ(pouring.read_response().status, 408) << client;
    EXPECT_TRUE(pouring.wait_closed());
  }
  expect_alive();
}

TEST_P(HostileInputTest, BytesOutsideOfAsciiInHeads) {
  start();
  for (const char* head :
       {"GET /\xFF\xFE HTTP/1.1\r\nHost: x\r\n\r\n", "GET /%FF%C0%AF HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\nX\x01: y\r\n\r\n",
        "\xFF\xFF / HTTP/1.1\r\nHost: x\r\n\r\n"}) {
    const int status = send_raw(head).status;
    EXPECT_TRUE(status == 400 || status == 404 || status == 405) << head << status;
  }
  // An id and an origin that are not text reach neither the log nor the answer.
  HttpClient client(address());
  const ClientResponse response = client.get("/health", "X-Request-Id: \xFF\xFE\r\n");
  EXPECT_EQ(response.header("X-Request-Id").find('\xFF'), std::string::npos);
  expect_alive();
}

TEST_P(HostileInputTest, TruncatedRequestsAreDropped) {
  start();
  const std::string whole =
      "POST /v1/query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "11\r\n{\"question\":\"hi\"}\r\n0\r\n\r\n";
  for (std::size_t length = 0; length < whole.size(); length += 3) {
    HttpClient client(address());
    client.send(whole.substr(0, length));
    client.finish_sending();
    EXPECT_TRUE(client.wait_closed()) << length;
  }
  EXPECT_EQ(service->num_submitted(), 0);
  expect_alive();
}

TEST_P(HostileInputTest, SizesAreBoundedAndTheAnswerArrives) {
  HttpLimits limits;
  limits.max_body_bytes = 1 << 20;
  start({}, limits);
  EXPECT_EQ(send_raw("GET /" + std::string(100'000, 'a') + " HTTP/1.1\r\n\r\n").status, 431);
  EXPECT_EQ(send_raw("GET / HTTP/1.1\r\nX: " + std::string(100'000, 'a') + "\r\n\r\n").status, 431);
  std::string many = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 20'000; ++i) many += "A: b\r\n";
  EXPECT_EQ(send_raw(many + "\r\n").status, 431);
  const ClientResponse large = send_raw(post_request("/v1/query", std::string((1 << 20) + 1, ' ')));
  EXPECT_EQ(large.status, 413);
  EXPECT_EQ(error_code_of(large), "body_too_large");
  // A chunk whose head never ends.
  EXPECT_EQ(send_raw("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;" +
                     std::string(100'000, 'a'))
                .status,
            400);
  expect_alive();
}

TEST_P(HostileInputTest, BodiesTogetherAreBounded) {
  HttpLimits limits;
  limits.max_body_bytes_in_flight = 1 << 20;
  start({}, limits);
  // Holds most of it while its answer is awaited.
  HttpClient holder(address());
  holder.send(post_request(
      "/v1/query", fmt::format(R"({{"question":"silent","x":"{}"}})", std::string(800'000, 'x'))));
  while (service->num_submitted() == 0) std::this_thread::yield();
  const ClientResponse refused =
      post("/v1/query", fmt::format(R"({{"question":"hi","x":"{}"}})", std::string(400'000, 'x')));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.header("Retry-After"), "1");
  // The refused body is given back when its connection lets go of it, a moment after the answer.
  int status = 503;
  for (int tries = 0; tries < 1000 && status == 503; ++tries) {
    status = post("/v1/query", R"({"question":"hi"})").status;
  }
  EXPECT_EQ(status, 200);
  holder.reset();
  EXPECT_TRUE(service->wait_cancelled(1));
}

// Whole, but deeper than any request; one level is the body itself.
TEST_P(HostileInputTest, NestingIsBounded) {
  start();
  const auto nested = [](std::size_t depth) {
    return R"({"question":"hi","x":)" + std::string(depth - 1, '[') + std::string(depth - 1, ']') +
           "}";
  };
  EXPECT_EQ(post("/v1/query", nested(kMaxJsonDepth)).status, 200);
  EXPECT_EQ(post("/v1/query", nested(kMaxJsonDepth + 1)).status, 400);
  EXPECT_EQ(post("/v1/query", nested(100'000)).status, 400);
}

// A path that the server gets is one that these tests ask: /openapi.json names all that there are
// (tests/clients/openapi_test.py).
TEST_P(HostileInputTest, EveryPathThatReadsJsonIsAsked) {
  start({.debug = true});
  const boost::json::value description = boost::json::parse(get("/openapi.json").body);
  std::vector<std::string> paths;
  for (const auto& [path, operations] : description.at("paths").as_object()) {
    if (operations.as_object().contains("post")) paths.emplace_back(path);
  }
  EXPECT_THAT(paths, ::testing::UnorderedElementsAreArray(kJsonPaths));
}

TEST_P(HostileInputTest, BrokenJsonOfEveryKind) {
  start({.debug = true});
  const std::string deep(100'000, '[');
  std::string object_bomb;
  for (int i = 0; i < 1000; ++i) object_bomb += R"({"a":)";
  for (const std::string& body : std::vector<std::string>{
           deep, R"({"question":)" + deep, object_bomb, "{", "nul", R"({"question":"\ud800"})",
           "{\"question\":\"\xFF\xFE\"}", "{\"question\":\"\xC0\xAF\"}",
           "{\"question\":\"\xED\xA0\x80\"}", R"({"question":"a","settings":{"temperature":NaN}})",
           R"({"question":"a","settings":{"temperature":Infinity}})",
           R"({"question":"a","settings":{"temperature":1e999}})",
           R"({"question":"a","settings":{"max_tokens":99999999999999999999}})",
           R"({"question":"a","settings":{"top_p":-0.0}})", std::string("\0\0\0", 3),
           "\xEF\xBB\xBF{}"}) {
    const ClientResponse response = post("/v1/query", body);
    EXPECT_EQ(response.status, 400) << body.substr(0, 60) << " " << response.body;
    EXPECT_NE(error_code_of(response), "?");
  }
  // What no parser takes, at every door.
  for (const char* path : kJsonPaths) {
    for (const std::string& body : std::vector<std::string>{
             deep, object_bomb, "", "{", "[]", "null", R"({"model":7})", "{\"model\":\"\xFF\"}",
             R"({"model":"\ud800"})", std::string("\0{}", 3), "{} {}"}) {
      const ClientResponse response = post(path, body);
      EXPECT_EQ(response.status, 400) << path << " " << body.substr(0, 60) << " " << response.body;
    }
  }
  EXPECT_EQ(service->num_submitted(), 0);
  expect_alive();
}

// Fields of every type where another one belongs: an answer or an error, and a server that lives.
TEST_P(HostileInputTest, OllamaFieldsOfEveryType) {
  start();
  const char* const values[] = {"null",
                                "true",
                                "-1",
                                "1e308",
                                "-0.0",
                                "18446744073709551615",
                                R"("")",
                                "[]",
                                "{}",
                                R"(["x"])",
                                R"("\u0000\uffff")",
                                "[[[[]]]]",
                                "9223372036854775807",
                                R"({"":{"":[]}})"};
  const char* const fields[] = {"messages", "prompt",  "system",     "images",       "options",
                                "format",   "stream",  "keep_alive", "think",        "tools",
                                "raw",      "context", "logprobs",   "top_logprobs", "template"};
  const char* const options[] = {"temperature",    "top_k",       "top_p",
                                 "min_p",          "seed",        "stop",
                                 "mirostat",       "num_predict", "presence_penalty",
                                 "repeat_penalty", "num_ctx",     "repeat_last_n"};
  const auto answers = [&](const std::string& more) {
    for (const auto& [path, text] :
         {std::pair{"/api/chat", R"("messages":[{"role":"user","content":"hi"}])"},
          std::pair{"/api/generate", R"("prompt":"hi")"}}) {
      const int status = post(path, std::string("{") + text + "," + more + "}").status;
      EXPECT_TRUE(status == 200 || status == 400) << path << " " << more << " " << status;
    }
  };
  for (const std::string value : values) {
    for (const char* field : fields) answers(fmt::format(R"("{}":{})", field, value));
    for (const char* option : options) {
      answers(fmt::format(R"("options":{{"{}":{}}})", option, value));
    }
    for (const char* field : {"role", "content", "images", "tool_calls"}) {
      const std::string message = fmt::format(R"({{"{}":{}}})", field, value);
      answers(R"("messages":[{"role":"user","content":"a"},)" + message + "]");
      answers(R"("messages":[)" + value + "]");
    }
  }
  expect_alive();
}

TEST_P(HostileInputTest, Base64WithNoise) {
  start();
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::string noise(200, 'A');
    noise[random() % noise.size()] = "*-_!$%&.,;<>|~"[random() % 14];
    const ClientResponse response =
        post("/v1/caption", R"({"image_url":"data:image/png;base64,)" + noise + "\"}");
    EXPECT_EQ(response.status, 400);
    EXPECT_NE(response.body.find("not base64"), std::string::npos);
    const ClientResponse list =
        post("/api/generate", R"({"prompt":"hi","images":[")" + noise + "\"]}");
    EXPECT_EQ(list.status, 400);
    EXPECT_NE(list.body.find("not base64"), std::string::npos);
  }
  // An address is not fetched, whatever it is written like.
  for (const char* image : {"http://127.0.0.1/x.png", "file:///etc/passwd", "", " ", "data:"}) {
    EXPECT_EQ(
        post("/api/generate", fmt::format(R"({{"prompt":"hi","images":["{}"]}})", image)).status,
        400)
        << image;
  }
  EXPECT_EQ(service->num_submitted(), 0);
  expect_alive();
}

TEST_P(HostileInputTest, AThousandImages) {
  start();
  const std::string image = R"({"type":"image_url","image_url":")" + std::string(kImageUrl) + "\"}";
  std::string parts = image;
  for (int i = 1; i < 1000; ++i) parts += "," + image;
  const std::string turn = R"({"role":"user","content":[)" + parts + "]}";
  for (const std::string& messages : {turn, turn + "," + turn}) {
    const ClientResponse response =
        post("/v1/chat/completions", R"({"messages":[)" + messages + "]}");
    EXPECT_EQ(response.status, 400);
    EXPECT_NE(response.body.find("at most 8 images"), std::string::npos) << response.body;
  }
  std::string list = "\"iVBORw0KGgo=\"";
  for (int i = 1; i < 1000; ++i) list += ",\"iVBORw0KGgo=\"";
  const std::string message = R"({"role":"user","content":"a","images":[)" + list + "]}";
  for (const auto& [path, body] :
       {std::pair{"/api/generate", R"({"prompt":"a","images":[)" + list + "]}"},
        std::pair{"/api/chat", R"({"messages":[)" + message + "," + message + "]}"}}) {
    const ClientResponse response = post(path, body);
    EXPECT_EQ(response.status, 400);
    EXPECT_NE(response.body.find("at most 8 images"), std::string::npos) << response.body;
  }
  EXPECT_EQ(service->num_submitted(), 0);
  expect_alive();
}

// Bytes that once were requests, with a few of them changed: any answer will do, a live server must
// come out.
TEST_P(HostileInputTest, MutatedRequests) {
  HttpLimits limits;
  limits.head = limits.body = limits.idle = milliseconds(200);
  start({.debug = true}, limits);
  const std::string seeds[] = {
      post_request("/v1/query", R"({"question":"words 2","stream":true})"),
      post_request("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],"n":2})"),
      post_request("/api/chat",
                   R"({"messages":[{"role":"user","content":"a","images":["AAAA"]}]})"),
      post_request("/api/generate", R"({"prompt":"words 2","options":{"seed":1,"stop":["a"]}})"),
      "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
      "GET /openapi.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
      "GET /debug/timeline?device=cpu HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
      "POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
      "chunked\r\n\r\nf\r\n{\"prompt\":\"ab\"}"
      "\r\n0\r\n\r\n"};
  std::mt19937 random(11);
  for (int round = 0; round < 400; ++round) {
    std::string bytes = seeds[random() % std::size(seeds)];
    for (unsigned i = random() % 6; i > 0; --i) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, random() % 8);
          break;
        default:
          bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 16));
      }
      if (bytes.empty()) bytes.assign(1, '\n');
    }
    HttpClient client(address());
    client.send(bytes);
    client.finish_sending();
    client.wait_closed();
  }
  expect_alive();
}

}  // namespace
}  // namespace gapless
