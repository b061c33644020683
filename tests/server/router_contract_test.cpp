// What gateways and routers ask of a worker: /v1/completions, /server_info, /model_info.
#include <gtest/gtest.h>

#include "tests/server/server_fixture.h"

namespace gapless {
namespace {

namespace json = boost::json;

class RouterContractTest : public ServerTest {
 protected:
  RouterContractTest() { start(); }
  ClientResponse complete(std::string_view body) { return post("/v1/completions", body); }
};

TEST_F(RouterContractTest, ACompletionIsTheAnswerToItsPrompt) {
  for (const char* prompt : {R"("Hello")", R"(["Hello"])"}) {
    const ClientResponse response = complete(fmt::format(R"({{"prompt":{}}})", prompt));
    ASSERT_EQ(response.status, 200) << response.body;
    const json::value answer = json::parse(response.body);
    EXPECT_EQ(answer.at("object"), "text_completion");
    EXPECT_TRUE(answer.at("id").as_string().starts_with("cmpl-"));
    EXPECT_EQ(
        answer.at("choices"),
        json::parse(R"([{"index":0,"text":"Hello","logprobs":null,"finish_reason":"stop"}])"));
    EXPECT_EQ(answer.at("usage").at("completion_tokens"), 1);
    EXPECT_EQ(answer.at("usage").at("prompt_tokens_details").at("cached_tokens"), 730);
  }
  EXPECT_EQ(service->last_request().settings.max_tokens, 16) << "OpenAI's default";
  complete(R"({"prompt":"a","max_tokens":5,"temperature":0.5,"stop":"x","seed":3})");
  EXPECT_EQ(service->last_request().settings.max_tokens, 5);
  EXPECT_EQ(service->last_request().settings.temperature, 0.5f);
  EXPECT_EQ(service->last_request().settings.seed, 3u);
  EXPECT_EQ(post("/completions", R"({"prompt":"a"})").status, 200);
}

TEST_F(RouterContractTest, ACompletionStreamsText) {
  const ClientResponse response = complete(
      R"({"prompt":"words 2","n":2,"stream":true,"stream_options":{"include_usage":true}})");
  const std::vector<std::string> events = response.events();
  ASSERT_EQ(events.size(), 8u) << response.body;  // two words and an end each, usage, [DONE]
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text[2];
  for (std::size_t i = 0; i < 6; ++i) {
    const json::value chunk = json::parse(events[i]);
    EXPECT_EQ(chunk.at("object"), "text_completion");
    const json::value& choice = chunk.at("choices").at(0);
    EXPECT_FALSE(choice.as_object().contains("delta"));
    text[choice.at("index").as_int64()] += text_of(choice.at("text"));
  }
  EXPECT_EQ(text[0], "w0 w1 ");
  EXPECT_EQ(text[1], "w0 w1 ");
  EXPECT_EQ(json::parse(events[6]).at("usage").at("completion_tokens"), 4);
}

TEST_F(RouterContractTest, ACompletionsLogprobsAreInItsOwnForm) {
  const char* const body = R"({"prompt":"words 3","logprobs":2)";
  const json::value whole = json::parse(complete(fmt::format("{}}}", body)).body);
  const json::value& told = whole.at("choices").at(0).at("logprobs");
  EXPECT_EQ(told.at("tokens"), json::parse(R"(["w0 ","w1 ","w2 "])"));
  EXPECT_EQ(told.at("text_offset"), json::parse("[0,3,6]"));
  ASSERT_EQ(told.at("token_logprobs").as_array().size(), 3u);
  ASSERT_EQ(told.at("top_logprobs").as_array().size(), 3u);
  EXPECT_EQ(told.at("top_logprobs").at(1).at("w1 "), told.at("token_logprobs").at(1));

  // A stream's offsets go on from chunk to chunk.
  json::array offsets;
  for (const std::string& event : complete(fmt::format(R"({},"stream":true}})", body)).events()) {
    if (event == "[DONE]") continue;
    const json::value chunk = json::parse(event);
    const json::value& part = chunk.at("choices").at(0).at("logprobs");
    if (part.is_null()) continue;
    for (const json::value& offset : part.at("text_offset").as_array()) offsets.push_back(offset);
  }
  EXPECT_EQ(offsets, json::parse("[0,3,6]").as_array());
}

TEST_F(RouterContractTest, ACompletionsErrorsNameItsFields) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "prompt"},
      {R"({"prompt":[]})", "prompt"},
      {R"({"prompt":["a","b"]})", "prompt"},
      {R"({"prompt":[1,2,3]})", "prompt"},
      {R"({"prompt":" "})", "prompt"},
      {R"({"prompt":"a","logprobs":true})", "logprobs"},
      {R"({"prompt":"a","logprobs":-1})", "logprobs"},
      {R"({"prompt":"a","logprobs":21})", "logprobs"},
      {R"({"prompt":"a","top_logprobs":3})", "top_logprobs"},
      {R"({"prompt":"a","echo":true})", "echo"},
      {R"({"prompt":"a","suffix":"b"})", "suffix"},
      {R"({"prompt":"a","best_of":2})", "best_of"},
      {R"({"prompt":"a","max_tokens":0})", "max_tokens"}};
  for (const auto& [body, field] : cases) {
    const ClientResponse response = complete(body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_EQ(error_field_of(response), field) << body << response.body;
  }
  EXPECT_EQ(complete(R"({"prompt":"a","model":"other"})").status, 404);
  EXPECT_EQ(complete(R"({"prompt":"full"})").status, 429);
  EXPECT_EQ(service->num_submitted(), 0);
}

TEST_F(RouterContractTest, TheWorkerSaysWhatItIs) {
  for (const char* path : {"/model_info", "/get_model_info"}) {
    const json::value info = json::parse(get(path).body);
    EXPECT_EQ(info.at("model_path"), "fake-model");
    EXPECT_TRUE(info.at("is_generation").as_bool());
    EXPECT_TRUE(info.at("has_image_understanding").as_bool());
    EXPECT_EQ(info.at("skills"), (json::array{"query", "caption", "point", "detect"}));
  }
  for (const char* path : {"/server_info", "/get_server_info"}) {
    const json::value info = json::parse(get(path).body);
    EXPECT_EQ(info.at("served_model_name"), "fake-model");
    EXPECT_EQ(info.at("version"), "test");
    EXPECT_EQ(info.at("context_length"), 2048);
    EXPECT_EQ(info.at("max_running_requests"), 8);
    EXPECT_EQ(info.at("tp_size"), 1);
    EXPECT_EQ(info.at("internal_states").at(0).at("num_running_reqs"), 0);
  }
  state->set_service(nullptr);
  for (const char* path : {"/server_info", "/model_info"}) EXPECT_EQ(get(path).status, 503);
}

}  // namespace
}  // namespace gapless
