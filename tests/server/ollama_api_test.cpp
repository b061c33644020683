// Ollama's API, as its own clients and those of Frigate, Home Assistant and Open WebUI use it.
#include <gtest/gtest.h>

#include <boost/json/array.hpp>
#include <sstream>

#include "tests/server/server_fixture.h"

namespace gapless {
namespace {

namespace json = boost::json;

constexpr std::string_view kPicture = "iVBORw0KGgo=";  // as far as the server can tell

class OllamaApiTest : public ServerTest {
 protected:
  // The lines of a stream, each an object.
  static std::vector<json::object> lines_of(const ClientResponse& response) {
    EXPECT_TRUE(response.body.empty() || response.body.ends_with("\n")) << response.body;
    std::vector<json::object> lines;
    std::istringstream text(response.body);
    for (std::string line; std::getline(text, line);) {
      lines.push_back(json::parse(line).as_object());
    }
    return lines;
  }

  static json::object object_of(const ClientResponse& response) {
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body).as_object();
  }

  // {"error": "message"} and no more.
  static std::string error_of(const ClientResponse& response) {
    boost::system::error_code failed;
    const json::value value = json::parse(response.body, failed);
    if (failed || !value.is_object() || value.get_object().size() != 1) return "? " + response.body;
    const json::value* error = value.get_object().if_contains("error");
    return error != nullptr && error->is_string() ? text_of(*error) : "? " + response.body;
  }

  static std::string chat_with(const std::string& more) {
    return R"({"model":"moondream2","stream":false,"messages":[{"role":"user","content":"hi"}],)" +
           more + "}";
  }
};

TEST_F(OllamaApiTest, ChatStreamsLinesUnlessToldOtherwise) {
  start();
  const std::string turn = R"("messages":[{"role":"user","content":"words 3"}]})";
  const ClientResponse streamed = post("/api/chat", R"({"model":"moondream2:latest",)" + turn);
  EXPECT_EQ(streamed.status, 200);
  EXPECT_EQ(streamed.header("Content-Type"), "application/x-ndjson");
  const std::vector<json::object> lines = lines_of(streamed);
  ASSERT_EQ(lines.size(), 4u);
  std::string text;
  for (const json::object& line : lines) {
    EXPECT_EQ(text_of(line.at("model")), "moondream2:latest") << "as the client calls it";
    EXPECT_EQ(text_of(line.at("created_at")).size(), std::size("2026-11-22T13:53:18.123456Z") - 1);
    EXPECT_EQ(text_of(line.at("message").at("role")), "assistant");
    EXPECT_EQ(line.at("done").as_bool(), &line == &lines.back());
    text += text_of(line.at("message").at("content"));
  }
  EXPECT_EQ(text, "w0 w1 w2 ");

  const json::object whole = object_of(post("/api/chat", R"({"stream":false,)" + turn));
  EXPECT_EQ(text_of(whole.at("model")), "fake-model");
  EXPECT_EQ(text_of(whole.at("message").at("content")), text);
  EXPECT_TRUE(whole.at("done").as_bool());
}

TEST_F(OllamaApiTest, CountsAndDurationsAreTheAnswers) {
  start();
  const json::object last = object_of(
      post("/api/generate", R"({"model":"moondream2","prompt":"words 4 5","stream":false})"));
  EXPECT_EQ(text_of(last.at("response")), "w0 w1 w2 w3 ");
  EXPECT_EQ(text_of(last.at("done_reason")), "stop");
  EXPECT_EQ(last.at("prompt_eval_count"), 740);
  EXPECT_EQ(last.at("eval_count"), 4);
  EXPECT_EQ(last.at("prompt_eval_duration"), 7'000'000);  // of the fake service
  EXPECT_EQ(last.at("eval_duration"), 2'500'000);
  EXPECT_EQ(last.at("load_duration"), 0);
  // Four pauses of 5 ms lie in it, and it is no time of day.
  EXPECT_GE(last.at("total_duration").as_int64(), 15'000'000);
  EXPECT_LT(last.at("total_duration").as_int64(), 600'000'000'000);
}

TEST_F(OllamaApiTest, OptionsReachTheEngine) {
  start();
  post("/api/chat",
       chat_with(R"("keep_alive":"5m","options":{"temperature":0.5,"top_p":0.9,"top_k":40.0,
      "min_p":0.05,"seed":7,"stop":["END"],"num_predict":12,"repeat_penalty":1.05,
      "presence_penalty":0.3,"frequency_penalty":0.2,"num_ctx":8192.0,"num_gpu":1,"mirostat":0,
      "typical_p":1.0,"tfs_z":1,"penalize_newline":true,"repeat_last_n":-1})"));
  const GenerationSettings& settings = service->last_request().settings;
  EXPECT_FLOAT_EQ(*settings.temperature, 0.5f);
  EXPECT_FLOAT_EQ(*settings.top_p, 0.9f);
  EXPECT_EQ(settings.top_k, 40);
  EXPECT_FLOAT_EQ(*settings.min_p, 0.05f);
  EXPECT_EQ(settings.seed, 7u);
  EXPECT_EQ(settings.stop, (std::vector<std::string>{"END"}));
  EXPECT_EQ(settings.max_tokens, 12);
  EXPECT_FLOAT_EQ(*settings.repetition_penalty, 1.05f);
  EXPECT_FLOAT_EQ(*settings.presence_penalty, 0.3f);
  EXPECT_FLOAT_EQ(*settings.frequency_penalty, 0.2f);
  EXPECT_TRUE(service->last_request().cut_max_tokens);
  EXPECT_GT(service->last_request().received_ns, 0);

  post("/api/chat", chat_with(R"("options":{"num_predict":-1,"seed":-1,"repeat_penalty":2,
      "presence_penalty":1,"frequency_penalty":1,"repeat_last_n":0})"));
  const GenerationSettings& off = service->last_request().settings;
  EXPECT_EQ(off.max_tokens, kMaxContext) << "cut to what the context leaves";
  EXPECT_FALSE(off.seed || off.repetition_penalty || off.presence_penalty || off.frequency_penalty);
}

TEST_F(OllamaApiTest, ImagesSystemAndEarlierTurnsAreTaken) {
  start();
  const std::string images = fmt::format(R"("images":["{0}","{0}"])", kPicture);
  post("/api/generate", R"({"prompt":"What is it?","system":"Be brief.",)" + images + "}");
  EXPECT_EQ(service->last_request().text, "Be brief.\nWhat is it?");
  ASSERT_EQ(service->last_request().images.size(), 2u);
  EXPECT_EQ(*service->last_request().images[1], "\x89PNG\r\n\x1a\n");

  post("/api/chat", R"({"messages":[{"role":"system","content":"S"},
      {"role":"user","content":"one",)" +
                        images + R"(},
      {"role":"assistant","content":"two","thinking":null,"tool_calls":[]},
      {"role":"user","content":"three","images":null}]})");
  EXPECT_EQ(service->last_request().text, "S\nUser: one\nAssistant: two\nthree");
  EXPECT_EQ(service->last_request().images.size(), 2u);
}

TEST_F(OllamaApiTest, NothingAskedIsALoad) {
  start();
  for (const auto& [path, body] : std::vector<std::pair<std::string, std::string>>{
           {"/api/generate", R"({"model":"moondream2"})"},
           {"/api/generate", R"({"model":"moondream2","prompt":"","keep_alive":0})"},
           {"/api/chat", R"({"model":"moondream2"})"},
           {"/api/chat", R"({"model":"moondream2","messages":[],"keep_alive":-1})"}}) {
    const json::object answer = object_of(post(path, body));
    EXPECT_EQ(text_of(answer.at("done_reason")), "load") << body;
    EXPECT_TRUE(answer.at("done").as_bool());
    EXPECT_EQ(answer.contains("message"), path == "/api/chat");
  }
  EXPECT_EQ(service->num_submitted(), 0);
}

TEST_F(OllamaApiTest, LogprobsComeWithTheirText) {
  start();
  const json::object whole =
      object_of(post("/api/chat", chat_with(R"("logprobs":true,"top_logprobs":2,"options":{})")));
  const json::value& token = whole.at("logprobs").at(0);
  EXPECT_EQ(text_of(token.at("token")), "hi");
  EXPECT_EQ(token.at("logprob"), -0.5);
  EXPECT_EQ(token.at("top_logprobs").as_array().size(), 2u);
  const std::vector<json::object> lines =
      lines_of(post("/api/generate", R"({"prompt":"words 2","logprobs":true})"));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(text_of(lines[1].at("logprobs").at(0).at("token")), "w1 ");
  EXPECT_FALSE(lines[2].contains("logprobs"));
}

TEST_F(OllamaApiTest, WhatCannotBeDoneIsRefusedByItsOllamaName) {
  start();
  const std::pair<const char*, const char*> cases[] = {
      {R"("format":"yaml")", "format must be"},
      {R"("format":7)", "format must be"},
      {R"("think":true)", "think "},
      {R"("think":"low")", "think "},
      {R"("tools":[{"type":"function"}])", "tools "},
      {R"("suffix":"x")", "suffix "},
      {R"("raw":true)", "raw "},
      {R"("template":"x")", "template "},
      {R"("context":[1,2])", "context "},
      {R"("keep_alive":[1])", "keep_alive "},
      {R"("stream":"yes")", "stream must"},
      {R"("top_logprobs":3)", "top_logprobs needs"},
      {R"("options":[])", "options must"},
      {R"("options":{"temperature":"hot"})", "temperature must"},
      {R"("options":{"num_predict":1.5})", "num_predict must"},
      {R"("options":{"num_predict":99999999999999999999})", "num_predict"},
      {R"("options":{"repeat_penalty":99})", "repeat_penalty must"},
      {R"("options":{"repeat_last_n":64})", "repeat_last_n must"},
      {R"("options":{"mirostat":2})", "mirostat "},
      {R"("options":{"tfs_z":0.5})", "tfs_z "},
      {R"("options":{"typical_p":0.5})", "typical_p "},
      {R"("options":{"penalize_newline":false})", "penalize_newline "},
      {R"("options":{"stop":[1]})", "stop must"},
      {R"("options":{"seed":"x"})", "seed must"}};
  for (const auto& [more, message] : cases) {
    const ClientResponse response = post("/api/chat", chat_with(more));
    EXPECT_EQ(response.status, 400) << more;
    EXPECT_TRUE(error_of(response).starts_with(message)) << more << ": " << response.body;
  }
  EXPECT_EQ(service->num_submitted(), 0);
  EXPECT_EQ(post("/api/chat", chat_with(R"("format":"json")")).status, 200);
  EXPECT_EQ(service->last_request().settings.grammar->kind, GrammarSpec::Kind::kJsonObject);
  EXPECT_EQ(post("/api/chat", chat_with(R"("format":{"type":"null"})")).status, 200);
  EXPECT_EQ(service->last_request().settings.grammar->text, R"({"type":"null"})");
  // Off is off.
  EXPECT_EQ(post("/api/chat", chat_with(R"("format":"","think":false,"tools":[],"suffix":"",
      "raw":false,"template":"","context":[],"keep_alive":null,"options":null)"))
                .status,
            200);
}

TEST_F(OllamaApiTest, ErrorsAreTextWithAStatus) {
  start();
  const ClientResponse other = post("/api/chat", R"({"model":"llama3","messages":[]})");
  EXPECT_EQ(other.status, 404);
  EXPECT_NE(error_of(other).find("'llama3' is not served"), std::string::npos) << other.body;
  EXPECT_EQ(post("/api/show", R"({"name":"llama3"})").status, 404);
  EXPECT_EQ(post("/api/show", R"({"model":"moondream2:v2"})").status, 404);
  EXPECT_EQ(error_of(get("/api/nothing")), "there is nothing at this path");
  EXPECT_EQ(get("/api/chat").status, 405);
  EXPECT_NE(error_of(post("/api/generate", "{")).find("JSON"), std::string::npos);
  const ClientResponse full = post("/api/generate", R"({"prompt":"full"})");
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.header("Retry-After"), "1");
  EXPECT_EQ(error_of(full), "too many requests are running");
  // Before the first line there is a status, behind it a line.
  EXPECT_EQ(post("/api/generate", R"({"prompt":"corrupt"})").status, 400);
  const std::vector<json::object> lines = lines_of(post("/api/generate", R"({"prompt":"break"})"));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(text_of(lines[1].at("error")), "the device is lost");
  service->lose_device();
  EXPECT_EQ(get("/api/tags").status, 503);
  state->set_service(nullptr);
  EXPECT_EQ(error_of(post("/api/chat", "{}")), "the model is loading");
}

// Clients cut lines wherever Unicode sees the end of one.
TEST_F(OllamaApiTest, LinesAreAscii) {
  start();
  const ClientResponse response = post("/api/generate", R"({"prompt":"unicode"})");
  for (const char c : response.body) ASSERT_LT(static_cast<unsigned char>(c), 0x7F);
  std::string text;
  for (const json::object& line : lines_of(response)) text += text_of(line.at("response"));
  EXPECT_EQ(text, "na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x98\x80\n\"q\"");
}

TEST_F(OllamaApiTest, AClientThatGoesCancels) {
  start();
  {
    HttpClient client(server->port());
    client.send(post_request("/api/generate", R"({"prompt":"hang"})"));
    client.receive_until("first");
  }
  EXPECT_TRUE(service->wait_cancelled(1));
}

TEST_F(OllamaApiTest, TheModelIsListedShownAndNeedsNoPull) {
  start();
  for (const char* path : {"/api/tags", "/api/ps"}) {
    const json::object list = object_of(get(path));
    ASSERT_EQ(list.at("models").as_array().size(), 1u);
    const json::value& model = list.at("models").at(0);
    EXPECT_EQ(text_of(model.at("model")), "fake-model:latest");
    EXPECT_EQ(model.at("name"), model.at("model"));
    EXPECT_EQ(model.at("size"), 54'000'000);
    EXPECT_EQ(text_of(model.at("digest")), "fa4e");
    EXPECT_EQ(text_of(model.at("details").at("parameter_size")), "27M");
    EXPECT_EQ(text_of(model.at("details").at("quantization_level")), "BF16");
  }
  EXPECT_EQ(object_of(get("/api/ps")).at("models").at(0).at("size_vram"), 0);
  EXPECT_EQ(object_of(get("/api/ps")).at("models").at(0).at("context_length"), 2048);
  const json::object shown = object_of(post("/api/show", R"({"model":"fake-model:latest"})"));
  EXPECT_EQ(shown.at("capabilities"), (json::array{"completion", "vision"}));
  EXPECT_EQ(shown.at("model_info").at("general.parameter_count"), 27'000'000);
  EXPECT_EQ(shown.at("model_info").at("moondream.context_length"), 2048);
  EXPECT_EQ(text_of(object_of(post("/api/pull", R"({"model":"moondream2:latest"})")).at("status")),
            "success");
  EXPECT_EQ(post("/api/pull", R"({"model":"llama3"})").status, 404);
  EXPECT_EQ(get("/api/version").body, R"({"version":"test"})");
}

// The same door as for every other path.
TEST_F(OllamaApiTest, KeysHostsOriginsAndLimitsHold) {
  HttpLimits limits;
  limits.max_body_bytes = 1000;
  start({.api_keys = {"secret"}}, limits);
  for (const char* path : {"/api/tags", "/api/ps", "/api/version"}) {
    const ClientResponse response = get(path);
    EXPECT_EQ(response.status, 401) << path;
    EXPECT_NE(error_of(response).find("API key"), std::string::npos) << response.body;
    EXPECT_EQ(get(path, "Authorization: Bearer secret\r\n").status, 200) << path;
  }
  for (const char* path : {"/api/chat", "/api/generate", "/api/show", "/api/pull"}) {
    EXPECT_EQ(post(path, "{}").status, 401) << path;
  }
  const char* const key = "Authorization: Bearer secret\r\n";
  EXPECT_EQ(post("/api/chat", std::string(2000, ' '), key).status, 413);
  const std::string with_key(key);
  EXPECT_EQ(get("/api/tags", with_key + "Origin: https://evil.example\r\n").status, 403);
  HttpClient client(server->port());
  client.send("GET /api/tags HTTP/1.1\r\nHost: evil.example\r\n" + with_key + "\r\n");
  const ClientResponse foreign = client.read_response();
  EXPECT_EQ(foreign.status, 403);
  EXPECT_NE(error_of(foreign).find("Host"), std::string::npos);
}

TEST_F(OllamaApiTest, ASecondPortAnswersTheSame) {
  HttpServerOptions options;
  options.second_port = 0;
  start_with(options);
  ASSERT_NE(server->second_port(), 0);
  ASSERT_NE(server->second_port(), server->port());
  for (const std::uint16_t port : {server->port(), server->second_port()}) {
    EXPECT_EQ(HttpClient(port).get("/api/version").status, 200);
    EXPECT_EQ(HttpClient(port).post("/v1/query", R"({"question":"hi"})").status, 200);
  }
  server->stop();
  HttpServerOptions again;
  again.port = server->port();
  again.second_port = server->port();
  EXPECT_FALSE(HttpServer::start(again, make_api_handler(*state), state->metrics()).ok())
      << "the same port twice";
  again.second_port = std::nullopt;
  EXPECT_TRUE(HttpServer::start(again, make_api_handler(*state), state->metrics()).ok())
      << "both were closed";
}

}  // namespace
}  // namespace gapless
