// OpenAI's API over real sockets.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/base64.h"
#include "base/limits.h"
#include "tests/server/server_fixture.h"

namespace gapless {
namespace {

namespace json = boost::json;

// A chat request that says `text`, with more fields.
std::string chat(std::string_view text, std::string_view more = "") {
  return fmt::format(R"({{"messages":[{{"role":"user","content":"{}"}}]{}{}}})", text,
                     more.empty() ? "" : ",", more);
}

class OpenAiApiTest : public ServerTest {
 protected:
  OpenAiApiTest() { start(); }
  ClientResponse complete(std::string_view body) { return post("/v1/chat/completions", body); }
};

TEST_F(OpenAiApiTest, Models) {
  const json::value list = json::parse(get("/v1/models").body);
  EXPECT_EQ(list.at("object"), "list");
  EXPECT_EQ(list.at("data").at(0).at("id"), "fake-model");
  EXPECT_EQ(list.at("data").at(0).at("object"), "model");
  EXPECT_EQ(list.at("data").at(0).at("max_model_len"), 2048);
  EXPECT_EQ(json::parse(get("/v1/models/fake-model").body).at("id"), "fake-model");
  EXPECT_EQ(get("/v1/models/vikhyatk%2Fmoondream2").status, 200);
  EXPECT_EQ(get("/v1/models/other").status, 404);
  EXPECT_EQ(get("/v1/models/%C3%A9").status, 404);
  EXPECT_EQ(get("/v1/models/%ff").status, 400) << "no UTF-8, which a message could not repeat";
  EXPECT_EQ(get("/v1/models/moondream3-preview").status, 404);
  const ClientResponse other = complete(chat("a", R"("model":"gpt-4o")"));
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(error_code_of(other), "model_not_found");
  EXPECT_EQ(error_field_of(other), "model");
}

TEST_F(OpenAiApiTest, AWholeAnswer) {
  const ClientResponse response = complete(chat("Hello"));
  ASSERT_EQ(response.status, 200) << response.body;
  const json::value answer = json::parse(response.body);
  EXPECT_EQ(answer.at("object"), "chat.completion");
  EXPECT_TRUE(answer.at("id").as_string().starts_with("chatcmpl-"));
  EXPECT_EQ(answer.at("model"), "fake-model");
  EXPECT_GT(answer.at("created").as_int64(), 1'600'000'000);
  const json::value& choice = answer.at("choices").at(0);
  EXPECT_EQ(choice.at("index"), 0);
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(choice.at("message").at("content"), "Hello");
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_EQ(answer.at("usage"),
            json::parse(R"({"prompt_tokens":740,"completion_tokens":1,"total_tokens":741,
                            "prompt_tokens_details":{"cached_tokens":730}})"));
}

TEST_F(OpenAiApiTest, AStreamWithUsage) {
  const ClientResponse response =
      complete(chat("words 3", R"("stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_EQ(response.status, 200);
  const std::vector<std::string> events = response.events();
  ASSERT_EQ(events.size(), 7u) << response.body;  // role, 3 words, end, usage, [DONE]
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text;
  std::set<std::string> ids;
  for (std::size_t i = 0; i < 5; ++i) {
    const json::value chunk = json::parse(events[i]);
    EXPECT_EQ(chunk.at("object"), "chat.completion.chunk");
    ids.emplace(chunk.at("id").as_string());
    EXPECT_TRUE(chunk.at("usage").is_null());
    const json::object& delta = chunk.at("choices").at(0).at("delta").as_object();
    if (i == 0) {
      EXPECT_EQ(delta.at("role"), "assistant");
    }
    if (delta.contains("content")) text += delta.at("content").as_string();
    EXPECT_EQ(chunk.at("choices").at(0).at("finish_reason").is_null(), i != 4);
  }
  EXPECT_EQ(ids.size(), 1u);
  EXPECT_EQ(text, "w0 w1 w2 ");
  const json::value usage = json::parse(events[5]);
  EXPECT_TRUE(usage.at("choices").as_array().empty());
  EXPECT_EQ(usage.at("usage").at("completion_tokens"), 3);
}

// Clients index choices[0] blindly.
TEST_F(OpenAiApiTest, WithoutUsageEveryChunkHasAChoice) {
  const ClientResponse response = complete(chat("words 2", R"("stream":true)"));
  const std::vector<std::string> events = response.events();
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const json::object chunk = json::parse(events[i]).as_object();
    EXPECT_EQ(chunk.at("choices").as_array().size(), 1u);
    EXPECT_FALSE(chunk.contains("usage"));
  }
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(OpenAiApiTest, SeveralChoices) {
  const json::value answer = json::parse(complete(chat("words 2", R"("n":3,"seed":5)")).body);
  ASSERT_EQ(answer.at("choices").as_array().size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(answer.at("choices").at(i).at("index"), i);
  EXPECT_EQ(answer.at("usage").at("prompt_tokens"), 740);
  EXPECT_EQ(answer.at("usage").at("completion_tokens"), 6);
  EXPECT_EQ(service->last_request().settings.seed, 7u);

  const ClientResponse stream = complete(chat("words 2 1", R"("n":2,"stream":true)"));
  std::string text[2];
  int num_ends[2] = {};
  for (const std::string& event : stream.events()) {
    if (event == "[DONE]") continue;
    const json::value chunk = json::parse(event);
    const json::value& choice = chunk.at("choices").at(0);
    const auto index = static_cast<std::size_t>(choice.at("index").as_int64());
    const json::object& delta = choice.at("delta").as_object();
    if (delta.contains("content")) text[index] += delta.at("content").as_string();
    num_ends[index] += choice.at("finish_reason").is_string();
  }
  for (const int i : {0, 1}) {
    EXPECT_EQ(text[i], "w0 w1 ");
    EXPECT_EQ(num_ends[i], 1);
  }
}

// The answer has ended before the server knows of the others.
TEST_F(OpenAiApiTest, ChoicesThatAreSubmittedAfterOneFailedAreCancelled) {
  EXPECT_EQ(post("/v1/chat/completions",
                 R"({"n":3,"messages":[{"role":"user","content":"first fails"}]})")
                .status,
            500);
  EXPECT_TRUE(service->wait_cancelled(2));
}

TEST_F(OpenAiApiTest, LogprobsOfAWholeAnswer) {
  const json::value answer =
      json::parse(complete(chat("words 2", R"("logprobs":true,"top_logprobs":2,"n":2)")).body);
  EXPECT_EQ(service->last_request().settings.top_logprobs, 2);
  for (const std::size_t i : {0u, 1u}) {
    const json::object& logprobs = answer.at("choices").at(i).at("logprobs").as_object();
    EXPECT_TRUE(logprobs.at("refusal").is_null());
    const json::array& content = logprobs.at("content").as_array();
    ASSERT_EQ(content.size(), 2u);
    const json::value one = json::parse(R"({"token":"w1 ","logprob":-0.5,"bytes":[119,49,32]})");
    json::object token = one.as_object();
    token["top_logprobs"] = json::array{one, one};
    EXPECT_EQ(content.at(1), json::value(token));
  }

  // Without alternatives; of an answer without a token; without asking.
  const auto logprobs_of = [&](std::string_view text, std::string_view more) {
    const json::value whole = json::parse(complete(chat(text, more)).body);
    return whole.at("choices").at(0).at("logprobs");
  };
  EXPECT_EQ(logprobs_of("\u20AC", R"("logprobs":true)").at("content"),
            json::parse(R"([{"token":"\u20AC","logprob":-0.5,"bytes":[226,130,172],)"
                        R"("top_logprobs":[]}])"));
  EXPECT_EQ(logprobs_of("words 0", R"("logprobs":true)"),
            json::parse(R"({"content":[],"refusal":null})"));
  EXPECT_TRUE(logprobs_of("words 1", R"("top_logprobs":null)").is_null());
}

TEST_F(OpenAiApiTest, LogprobsOfAStream) {
  const ClientResponse stream =
      complete(chat("words 3", R"("stream":true,"logprobs":true,"top_logprobs":1,"n":2)"));
  std::string text[2], tokens[2];
  for (const std::string& event : stream.events()) {
    if (event == "[DONE]") continue;
    const json::value chunk = json::parse(event);
    const json::value& choice = chunk.at("choices").at(0);
    const auto index = static_cast<std::size_t>(choice.at("index").as_int64());
    const json::object& delta = choice.at("delta").as_object();
    if (delta.contains("content")) text[index] += delta.at("content").as_string();
    if (choice.at("logprobs").is_null()) continue;
    for (const json::value& token : choice.at("logprobs").at("content").as_array()) {
      tokens[index] += token.at("token").as_string();
      EXPECT_EQ(token.at("top_logprobs").as_array().size(), 1u);
    }
    EXPECT_EQ(tokens[index], text[index]) << "tokens come with their text";
  }
  for (const int i : {0, 1}) {
    EXPECT_EQ(text[i], "w0 w1 w2 ");
    EXPECT_EQ(tokens[i], text[i]);
  }
}

TEST_F(OpenAiApiTest, LogprobsOfPoints) {
  const std::string body = fmt::format(
      R"({{"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":"{}"}}]}}],)"
      R"("moondream":{{"skill":"point","object":"dog"}},"logprobs":true)",
      kImageUrl);
  const json::value tokens =
      json::parse(R"([{"token":"<|coord|>","logprob":-0.5,"bytes":null,"top_logprobs":[]},)"
                  R"({"token":"<|coord|>","logprob":-0.5,"bytes":null,"top_logprobs":[]}])");
  const json::value whole = json::parse(complete(body + "}").body);
  EXPECT_EQ(whole.at("choices").at(0).at("logprobs").at("content"), tokens);
  const ClientResponse stream = complete(body + R"(,"stream":true})");
  const json::value chunk = json::parse(stream.events()[1]);
  EXPECT_EQ(chunk.at("choices").at(0).at("logprobs").at("content"), tokens);
  EXPECT_TRUE(json::parse(stream.events()[2]).at("choices").at(0).at("logprobs").is_null());
}

// A part with these bytes as its picture's.
std::string image_part(std::string_view bytes) {
  return fmt::format(R"({{"type":"image_url","image_url":{{"url":"data:image/png;base64,{}"}}}})",
                     encode_base64(bytes));
}

std::string user_turn(const std::vector<std::string>& parts) {
  return fmt::format(R"({{"role":"user","content":[{}]}})", fmt::join(parts, ","));
}

TEST_F(OpenAiApiTest, SeveralImagesKeepTheirOrder) {
  const std::string question = R"({"type":"text","text":"Which is larger?"})";
  const auto contents = [&] {
    std::vector<std::string> bytes;
    for (const auto& image : service->last_request().images) bytes.push_back(*image);
    return bytes;
  };
  // Before, between and behind the text of one turn.
  const std::string one_turn =
      user_turn({image_part("first"), question, image_part("second"), image_part("third")});
  EXPECT_EQ(complete(R"({"messages":[)" + one_turn + "]}").status, 200);
  EXPECT_EQ(contents(), (std::vector<std::string>{"first", "second", "third"}));
  EXPECT_EQ(service->last_request().text, "Which is larger?");

  // Of earlier turns too.
  const std::string two_turns = user_turn({image_part("then"), question}) +
                                R"(,{"role":"assistant","content":"This one."},)" +
                                user_turn({question, image_part("now")});
  EXPECT_EQ(complete(R"({"messages":[)" + two_turns + "]}").status, 200);
  EXPECT_EQ(contents(), (std::vector<std::string>{"then", "now"}));
}

TEST_F(OpenAiApiTest, OneBadImageAmongSeveralIsNamed) {
  const std::string good = image_part("good");
  for (const char* bad : {R"({"type":"image_url","image_url":{"url":"data:image/png;base64,*"}})",
                          R"({"type":"image_url","image_url":"http://example.org/a.png"})",
                          R"({"type":"image_url","image_url":{}})"}) {
    const ClientResponse response =
        complete(R"({"messages":[)" + user_turn({good, good, bad, good}) + "]}");
    EXPECT_EQ(response.status, 400);
    EXPECT_NE(response.body.find("messages: image 3: image_url"), std::string::npos)
        << response.body;
  }
}

TEST_F(OpenAiApiTest, HowManyImagesARequestMayHave) {
  const std::string question = R"({"type":"text","text":"How many?"})";
  for (const std::size_t count : {kMaxImagesPerPrompt, kMaxImagesPerPrompt + 1}) {
    std::vector<std::string> parts(count, image_part("same"));
    parts.push_back(question);
    const ClientResponse response = complete(R"({"messages":[)" + user_turn(parts) + "]}");
    EXPECT_EQ(response.status, count > kMaxImagesPerPrompt ? 400 : 200);
    if (response.status == 200) continue;
    EXPECT_EQ(error_code_of(response), "invalid_request");
    EXPECT_NE(response.body.find("at most 8 images"), std::string::npos) << response.body;
  }
  // The skills with coordinates would not know of which image they are.
  const ClientResponse detect =
      complete(R"({"moondream":{"skill":"detect","object":"dog"},"messages":[)" +
               user_turn({image_part("a"), image_part("b")}) + "]}");
  EXPECT_EQ(detect.status, 400);
  EXPECT_NE(detect.body.find("exactly one image"), std::string::npos) << detect.body;
}

TEST_F(OpenAiApiTest, FailuresOfStreams) {
  EXPECT_EQ(complete(chat("corrupt", R"("stream":true)")).status, 400);
  EXPECT_EQ(complete(chat("full", R"("stream":true,"n":2)")).status, 429);
  const ClientResponse response = complete(chat("break", R"("stream":true)"));
  EXPECT_EQ(response.status, 200);
  const json::object last = json::parse(response.events().back()).as_object();
  EXPECT_EQ(last.at("error").at("type"), "server_error");
}

TEST_F(OpenAiApiTest, PartsImagesAndSystemText) {
  const ClientResponse response = complete(fmt::format(
      R"({{"model":"fake-model","user":"u","whatever":[1],"messages":[
      {{"role":"system","content":"Be brief."}},
      {{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{}","detail":"low"}}}},
                                 {{"type":"text","text":"What is it?"}}]}},
      {{"role":"assistant","content":"A dog."}},
      {{"role":"user","content":"Which colour?"}}]}})",
      kImageUrl));
  ASSERT_EQ(response.status, 200) << response.body;
  const SkillRequest request = service->last_request();
  EXPECT_EQ(request.images.size(), 1u);
  EXPECT_EQ(request.text, "Be brief.\nUser: What is it?\nAssistant: A dog.\nWhich colour?");

  // Some clients send image_url as a plain string.
  EXPECT_EQ(complete(fmt::format(R"({{"messages":[{{"role":"user","content":[
      {{"type":"image_url","image_url":"{}"}},{{"type":"text","text":"Q"}}]}}]}})",
                                 kImageUrl))
                .status,
            200);
  EXPECT_EQ(service->last_request().text, "Q");
}

TEST_F(OpenAiApiTest, SettingsReachTheEngine) {
  ASSERT_EQ(complete(chat("a", R"("temperature":0.5,"top_p":0.75,"top_k":3,"min_p":0.25,"seed":-1,)"
                               R"("stop":["x","y"],"max_tokens":9,"max_completion_tokens":8,)"
                               R"("ignore_eos":true,"presence_penalty":0,"tools":[],)"
                               R"("response_format":{"type":"text"},"logprobs":false)"))
                .status,
            200);
  const GenerationSettings settings = service->last_request().settings;
  EXPECT_EQ(settings.temperature, 0.5f);
  EXPECT_EQ(settings.top_p, 0.75f);
  EXPECT_EQ(settings.top_k, 3);
  EXPECT_EQ(settings.min_p, 0.25f);
  EXPECT_EQ(settings.seed, ~std::uint64_t{0});
  EXPECT_EQ(settings.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(settings.max_tokens, 8);
  EXPECT_TRUE(settings.ignore_eos);
  EXPECT_FALSE(service->last_request().cut_max_tokens) << "OpenAI refuses what does not fit";

  ASSERT_EQ(complete(chat("a", R"("top_k":-1,"min_tokens":3,"presence_penalty":0.5,)"
                               R"("frequency_penalty":-0.5,"repetition_penalty":1.25,)"
                               R"("logit_bias":{"7":-100,"8":2.5},"stop_token_ids":[9,10])"))
                .status,
            200);
  const GenerationSettings more = service->last_request().settings;
  EXPECT_EQ(more.top_k, -1);
  EXPECT_EQ(more.min_tokens, 3);
  EXPECT_EQ(more.presence_penalty, 0.5f);
  EXPECT_EQ(more.frequency_penalty, -0.5f);
  EXPECT_EQ(more.repetition_penalty, 1.25f);
  EXPECT_EQ(more.logit_bias, (std::vector<LogitBias>{{TokenId(7), -100}, {TokenId(8), 2.5f}}));
  EXPECT_EQ(more.stop_token_ids, (std::vector<TokenId>{TokenId(9), TokenId(10)}));
  EXPECT_FALSE(more.seed) << "the engine draws one";
  EXPECT_FALSE(more.grammar);

  ASSERT_EQ(complete(chat("a", R"("response_format":{"type":"json_schema","json_schema":)"
                               R"({"name":"n","schema":{"type":"null"}}})"))
                .status,
            200);
  const auto grammar = service->last_request().settings.grammar;
  ASSERT_TRUE(grammar.has_value());
  EXPECT_EQ(grammar->kind, GrammarSpec::Kind::kJsonSchema);
  EXPECT_EQ(grammar->text, R"({"type":"null"})");
  ASSERT_EQ(complete(chat("a", R"("guided_choice":["x","y"])")).status, 200);
  EXPECT_EQ(service->last_request().settings.grammar->choices,
            (std::vector<std::string>{"x", "y"}));
}

TEST_F(OpenAiApiTest, ErrorsNameTheField) {
  const struct {
    std::string body;
    const char* field;
  } cases[] = {
      {chat("a", R"("temperature":"hot")"), "temperature"},
      {chat("a", R"("temperature":-1)"), "temperature"},
      {chat("a", R"("presence_penalty":3)"), "presence_penalty"},
      {chat("a", R"("frequency_penalty":-3)"), "frequency_penalty"},
      {chat("a", R"("repetition_penalty":0)"), "repetition_penalty"},
      {chat("a", R"("logit_bias":{"7":101})"), "logit_bias"},
      {chat("a", R"("logit_bias":[7])"), "logit_bias"},
      {chat("a", R"("min_tokens":5,"max_tokens":4)"), "min_tokens"},
      {chat("a", R"("stop_token_ids":["a"])"), "stop_token_ids"},
      {chat("a", R"("stop":["",""])"), "stop"},
      {chat("a", R"("reasoning":{"effort":"low"})"), "reasoning"},
      {chat("a", R"("reasoning":true,"min_tokens":2)"), "min_tokens"},
      {chat("a", R"("reasoning_effort":"high")"), "reasoning_effort"},
      {chat("a", R"("guided_json":[])"), "guided_json"},
      {chat("a", R"("structured_outputs":{"choice":"a"})"), "structured_outputs"},
      {chat("a", R"("guided_regex":5)"), "guided_regex"},
      {chat("a", R"("guided_grammar":"root ::= x")"), "guided_grammar"},
      {chat("a", R"("modalities":["text","audio"])"), "modalities"},
      {chat("a", R"("variant":"x")"), "variant"},
      {chat("a", R"("moondream":{"skill":"query","reasoning":"deep"})"), "reasoning"},
      {chat("a", R"("moondream":{"skill":"outline"})"), "skill"},
      {chat("a", R"("tools":[{"type":"function"}])"), "tools"},
      {chat("a", R"("response_format":{"type":"json_schema"})"), "response_format"},
      {chat("a", R"("n":0)"), "n"},
      {chat("a", R"("stream_options":5)"), "stream_options"},
      {chat("a", R"("max_completion_tokens":"5")"), "max_completion_tokens"},
      {chat("a", R"("max_completion_tokens":0)"), "max_completion_tokens"},
      {chat("a", R"("max_completion_tokens":99999999999)"), "max_completion_tokens"},
      {chat("a", R"("max_tokens":5,"max_completion_tokens":0)"), "max_completion_tokens"},
      {chat("a", R"("max_tokens":0)"), "max_tokens"},
      {chat("a", R"("max_tokens":0,"max_completion_tokens":null)"), "max_tokens"},
      {chat("a", R"("top_logprobs":5)"), "top_logprobs"},
      {chat("  "), "messages"},
      {"{}", "messages"},
      {R"({"messages":[{"role":"tool","content":"a"}]})", "messages"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
       "messages"},
      {R"({"messages":[{"role":"user","content":[{"type":"text","text":1}]}]})", "messages"},
      {R"({"messages":[{"role":5,"content":"a"}]})", "messages"},
      {chat("corrupt"), ""},
  };
  for (const auto& [body, field] : cases) {
    const ClientResponse response = complete(body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_EQ(error_field_of(response), field) << body << ": " << response.body;
  }
}

TEST_F(OpenAiApiTest, EachOfSeveralObjectsIsAChoice) {
  const std::string body = fmt::format(
      R"({{"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":"{}"}}]}}],)"
      R"("moondream":{{"skill":"detect","objects":["cat","nothing"],"confidence":true}}}})",
      kImageUrl);
  const json::value answer = json::parse(complete(body).body);
  ASSERT_EQ(answer.at("choices").as_array().size(), 2u);
  const auto content = [&](std::size_t i) {
    return json::parse(answer.at("choices").at(i).at("message").at("content").as_string());
  };
  EXPECT_EQ(content(0).at("object"), "cat");
  EXPECT_EQ(content(0).at("objects").at(0).at("confidence"), 0.75);
  EXPECT_EQ(content(1).at("object"), "nothing");
  EXPECT_TRUE(content(1).at("objects").as_array().empty());
}

TEST_F(OpenAiApiTest, ReasoningIsAFieldOfTheMessageAndComesFirst) {
  for (const char* asks : {R"("reasoning":true)", R"("moondream":{"reasoning":true})"}) {
    const json::value answer = json::parse(complete(chat("hello", asks)).body);
    const json::value& message = answer.at("choices").at(0).at("message");
    EXPECT_EQ(message.at("content"), "hello");
    EXPECT_EQ(message.at("reasoning"), "two dots");
    EXPECT_EQ(message.at("reasoning_details").at("grounding").at(0).at("end_idx"), 8);
    EXPECT_EQ(answer.at("usage").at("completion_tokens_details").at("reasoning_tokens"), 2);
  }
  const json::value plain = json::parse(complete(chat("hello")).body);
  EXPECT_FALSE(plain.at("choices").at(0).at("message").as_object().contains("reasoning"));
  EXPECT_FALSE(plain.at("usage").as_object().contains("completion_tokens_details"));

  std::string order;
  for (const std::string& event :
       complete(chat("hello", R"("reasoning":true,"stream":true)")).events()) {
    if (event == "[DONE]") break;
    const json::value chunk = json::parse(event);
    for (const auto& field : chunk.at("choices").at(0).at("delta").as_object()) {
      if (field.key() == "role" || field.value() == "") continue;
      order += std::string(field.key()) + ' ';
    }
  }
  EXPECT_EQ(order, "reasoning reasoning content reasoning_details ");
}

TEST_F(OpenAiApiTest, SkillsThroughTheExtension) {
  const std::string body = fmt::format(
      R"({{"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{}"}}}}]}}],)",
      kImageUrl);
  const ClientResponse whole = complete(body + R"("moondream":{"skill":"detect","object":"dog"}})");
  ASSERT_EQ(whole.status, 200) << whole.body;
  const json::value content = json::parse(
      json::parse(whole.body).at("choices").at(0).at("message").at("content").as_string());
  EXPECT_EQ(content.at("objects").at(0).at("x_max"), 0.3);
  EXPECT_EQ(service->last_request().text, "dog");

  const ClientResponse stream =
      complete(body + R"("stream":true,"moondream":{"skill":"point","object":"dog"}})");
  const json::value delta = json::parse(stream.events()[1]).at("choices").at(0).at("delta");
  EXPECT_EQ(delta.at("content"), R"({"points":[{"x":0.25,"y":0.5}]})");

  ASSERT_EQ(complete(body + R"("moondream":{"skill":"caption","length":"long"}})").status, 200);
  EXPECT_EQ(service->last_request().length, CaptionLength::kLong);
  // A segment's path is a field of the content, so its pieces do not come as text.
  constexpr const char* kSegment =
      R"({"path":"M 0 0 L 1 0 Z","bbox":{"x_min":0.25,"y_min":0.5,"x_max":0.75,"y_max":1.0},"coarse":true})";
  const std::string segment = R"("moondream":{"skill":"segment","object":"dog"}})";
  const json::value outlined = json::parse(complete(body + segment).body);
  EXPECT_EQ(outlined.at("choices").at(0).at("message").at("content"), kSegment);
  std::string streamed;
  for (const std::string& event : complete(body + R"("stream":true,)" + segment).events()) {
    if (event == "[DONE]") continue;
    const json::value chunk = json::parse(event);
    const json::value* piece =
        chunk.at("choices").at(0).at("delta").as_object().if_contains("content");
    if (piece != nullptr) streamed += piece->as_string();
  }
  EXPECT_EQ(streamed, kSegment);
  EXPECT_EQ(complete(body + R"("moondream":"detect"})").status, 400);
}

TEST_F(OpenAiApiTest, WhatIsNotThereIsRefusedAndNamed) {
  const struct {
    std::string body;
    const char* says;
  } cases[] = {
      {chat("a", R"("tools":[{"type":"function"}])"), "tools"},
      {chat("a", R"("response_format":{"type":"xml"})"), "response_format"},
      {chat("a", R"("logprobs":5)"), "logprobs"},
      {chat("a", R"("top_logprobs":5)"), "top_logprobs needs logprobs"},
      {chat("a", R"("logprobs":false,"top_logprobs":0)"), "top_logprobs needs logprobs"},
      {chat("a", R"("logprobs":true,"top_logprobs":21)"), "between 0 and 20"},
      {chat("a", R"("logprobs":true,"top_logprobs":-1)"), "between 0 and 20"},
      {chat("a", R"("logprobs":true,"top_logprobs":1.5)"), "top_logprobs"},
      {chat("a", R"("presence_penalty":2.5)"), "presence_penalty"},
      {chat("a", R"("logit_bias":{"5":1000})"), "logit_bias"},
      {chat("a", R"("n":0)"), "n must lie"},
      {chat("a", R"("n":1000)"), "n must lie"},
      {chat("a", R"("stream_options":5)"), "stream_options"},
      {chat("a", R"("max_completion_tokens":"5")"), "max_completion_tokens must be an integer"},
      {chat("a", R"("max_completion_tokens":0)"), "max_completion_tokens must be at least 1"},
      {chat("a", R"("max_tokens":0)"), "max_tokens must be at least 1"},
      {R"({})", "messages"},
      {R"({"messages":[]})", "messages"},
      {R"({"messages":[5]})", "messages"},
      {R"({"messages":[{"role":"tool","content":"a"}]})", "role 'tool'"},
      {R"({"messages":[{"role":"assistant","content":"a"}]})", "the last one must be the user's"},
      {R"({"messages":[{"role":"user","content":[{"type":"input_audio"}]}]})", "input_audio"},
      {R"({"messages":[{"role":"user","content":5}]})", "content"},
      {R"({"messages":[{"role":"user","content":"a","content":[]}]})", "question"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
       "image_url"},
  };
  for (const auto& [body, says] : cases) {
    const ClientResponse response = complete(body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_NE(response.body.find(says), std::string::npos) << body << ": " << response.body;
  }
  EXPECT_EQ(complete(chat("a", R"("tools":[{"type":"function"}],"tool_choice":"none")")).status,
            200);
}

TEST_F(OpenAiApiTest, TokensThereAndBack) {
  const json::value tokens =
      json::parse(post("/tokenize", R"({"prompt":"ab","return_token_strs":true})").body);
  EXPECT_EQ(tokens.at("count"), 3);
  EXPECT_EQ(tokens.at("tokens"), json::parse("[0,97,98]"));
  EXPECT_EQ(tokens.at("max_model_len"), 2048);
  EXPECT_EQ(tokens.at("token_strs").at(2), "b");
  EXPECT_EQ(json::parse(post("/tokenize", R"({"prompt":"ab","add_special_tokens":false})").body)
                .at("tokens"),
            json::parse("[97,98]"));
  EXPECT_EQ(json::parse(post("/detokenize", R"({"tokens":[104,105]})").body).at("prompt"), "hi");
  // A token that is no whole character.
  EXPECT_EQ(json::parse(post("/detokenize", R"({"tokens":[255]})").body).at("prompt"),
            "\xEF\xBF\xBD");
  for (const char* body : {R"({"tokens":[-1]})", R"({"tokens":[999]})", R"({"tokens":["a"]})",
                           R"({"tokens":5})", "{}"}) {
    EXPECT_EQ(post("/detokenize", body).status, 400) << body;
  }
  EXPECT_EQ(post("/tokenize", R"({"messages":[]})").status, 400);
}

}  // namespace
}  // namespace gapless
