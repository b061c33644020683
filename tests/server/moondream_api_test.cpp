// Moondream's API over real sockets.
#include <gtest/gtest.h>

#include "tests/server/server_fixture.h"

namespace gapless {
namespace {

namespace json = boost::json;

std::string body_with_image(std::string_view more) {
  return fmt::format(R"({{"image_url":"{}"{}{}}})", kImageUrl, more.empty() ? "" : ",", more);
}

class MoondreamApiTest : public ServerTest {
 protected:
  MoondreamApiTest() { start(); }
};

TEST_F(MoondreamApiTest, EverySkillAnswersUnderBothPrefixes) {
  for (const std::string prefix : {"/v1", ""}) {
    ClientResponse response = post(prefix + "/query", body_with_image(R"("question":"What?")"));
    EXPECT_EQ(response.status, 200);
    json::object answer = json::parse(response.body).as_object();
    EXPECT_EQ(answer["answer"], "What?");
    EXPECT_EQ(answer["finish_reason"], "stop");
    EXPECT_EQ(text_of(answer["request_id"]), response.header("X-Request-Id"));
    EXPECT_EQ(answer["metrics"].at("input_tokens"), 740);

    response = post(prefix + "/caption", body_with_image(R"("length":"short")"));
    EXPECT_EQ(json::parse(response.body).at("caption"), "a caption");
    EXPECT_EQ(service->last_request().length, CaptionLength::kShort);

    response = post(prefix + "/point", body_with_image(R"("object":"dog")"));
    EXPECT_EQ(json::parse(response.body).at("points"), json::parse(R"([{"x":0.25,"y":0.5}])"));

    response = post(prefix + "/detect", body_with_image(R"("object":"dog")"));
    EXPECT_EQ(json::parse(response.body).at("objects"),
              json::parse(R"([{"x_min":0.1,"y_min":0.2,"x_max":0.3,"y_max":0.4}])"));
    EXPECT_EQ(response.header("Content-Type"), "application/json");
  }
}

TEST_F(MoondreamApiTest, TheRequestReachesTheEngineWhole) {
  const ClientResponse good =
      post("/v1/query",
           R"({"question":"Q","image_url":"data:x/y;base64,Zm9\nv","spatial_refs":[[0.5,0.25]],)"
           R"("settings":{"temperature":0.5,"maxTokens":7},"top_p":0.25,"variant":null})");
  ASSERT_EQ(good.status, 200) << good.body;
  const SkillRequest request = service->last_request();
  ASSERT_EQ(request.images.size(), 1u);
  EXPECT_EQ(*request.images[0], "foo");
  EXPECT_EQ(request.settings.max_tokens, 7);
  EXPECT_EQ(request.settings.top_p, 0.25f);
  EXPECT_EQ(request.spatial_refs.size(), 1u);
  EXPECT_TRUE(request.cut_max_tokens) << "as Moondream's clients expect";
}

TEST_F(MoondreamApiTest, NumbersArePlainDecimals) {
  const ClientResponse point = post("/v1/point", body_with_image(R"("object":"dog")"));
  EXPECT_NE(point.body.find(R"("points":[{"x":0.25,"y":0.5}])"), std::string::npos) << point.body;
  EXPECT_NE(point.body.find(R"("ttft_ms":3.5})"), std::string::npos) << point.body;
  const ClientResponse stream = post("/v1/query", R"({"question":"words 1","stream":true})");
  EXPECT_NE(stream.events().back().find(R"("ttft_ms":3.5})"), std::string::npos);
}

TEST_F(MoondreamApiTest, TextOnlyQueriesNeedNoImage) {
  EXPECT_EQ(post("/v1/query", R"({"question":"Hi"})").status, 200);
  EXPECT_TRUE(service->last_request().images.empty());
}

TEST_F(MoondreamApiTest, StreamsAsTheClientsRead) {
  const ClientResponse response =
      post("/v1/query", R"({"question":"unicode","stream":true})", "Connection: close\r\n");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.header("Content-Type"), "text/event-stream");
  EXPECT_EQ(response.header("Cache-Control"), "no-cache");
  EXPECT_EQ(response.header("X-Accel-Buffering"), "no");
  EXPECT_EQ(response.header("Transfer-Encoding"), "chunked");
  EXPECT_EQ(response.header("Connection"), "close");
  for (const char c : response.body) EXPECT_LT(static_cast<unsigned char>(c), 0x80);

  const std::vector<std::string> events = response.events();
  ASSERT_EQ(events.size(), 4u);
  std::string text;
  for (std::size_t i = 0; i < 3; ++i) {
    const json::value event = json::parse(events[i]);
    EXPECT_EQ(event.at("completed"), false);
    EXPECT_EQ(event.at("token_index"), i + 1);
    text += event.at("chunk").as_string();
  }
  EXPECT_EQ(text, "na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x98\x80\n\"q\"");
  const json::value last = json::parse(events[3]);
  EXPECT_EQ(last.at("completed"), true);
  EXPECT_EQ(last.at("chunk"), "");
  EXPECT_EQ(text_of(last.at("answer")), text);
  EXPECT_EQ(last.at("finish_reason"), "stop");
  EXPECT_EQ(text_of(last.at("request_id")), response.header("X-Request-Id"));
  EXPECT_EQ(last.at("metrics").at("output_tokens"), 3);
}

TEST_F(MoondreamApiTest, CaptionsStreamTooAndBoxesComeWhole) {
  const ClientResponse caption = post("/v1/caption", body_with_image(R"("stream":true)"));
  EXPECT_EQ(json::parse(caption.events().back()).at("caption"), "a caption");
  const ClientResponse boxes = post("/v1/detect", body_with_image(R"("object":"a","stream":true)"));
  EXPECT_EQ(boxes.header("Content-Type"), "application/json");
  EXPECT_TRUE(json::parse(boxes.body).as_object().contains("objects"));
}

TEST_F(MoondreamApiTest, ErrorsBeforeTheFirstTokenAreStatusesEvenForStreams) {
  for (const char* stream : {"false", "true"}) {
    const std::string more = fmt::format(R"(,"stream":{}}})", stream);
    ClientResponse response = post("/v1/query", R"({"question":"corrupt")" + more);
    EXPECT_EQ(response.status, 400);
    EXPECT_EQ(error_code_of(response), "image_decode_failed");
    response = post("/v1/query", R"({"question":"full")" + more);
    EXPECT_EQ(response.status, 429);
    EXPECT_EQ(error_code_of(response), "queue_full");
    EXPECT_EQ(response.header("Retry-After"), "1");
    response = post("/v1/query", R"({"question":"  ")" + more);
    EXPECT_EQ(response.status, 400);
  }
}

TEST_F(MoondreamApiTest, SeveralObjectsAreAnsweredByName) {
  const json::value answer = json::parse(
      post("/v1/detect", body_with_image(R"("objects":["cat","nothing"],"confidence":true)")).body);
  EXPECT_TRUE(answer.at("request_id").is_string());
  const json::array& answers = answer.at("answers").as_array();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].at("object"), "cat");
  EXPECT_EQ(answers[0].at("finish_reason"), "stop");
  EXPECT_EQ(answers[0].at("objects").at(0).at("confidence"), 0.75);
  EXPECT_EQ(answers[0].at("objects").at(0).at("bin_confidences").at(2), 0.125);
  EXPECT_EQ(answers[1].at("object"), "nothing");
  EXPECT_TRUE(answers[1].at("objects").as_array().empty());
  EXPECT_TRUE(answers[1].at("metrics").is_object());
  const json::value plain =
      json::parse(post("/v1/detect", body_with_image(R"("object":"cat")")).body);
  EXPECT_FALSE(plain.at("objects").at(0).as_object().contains("confidence"));
}

TEST_F(MoondreamApiTest, OneObjectThatFailsEndsTheOthers) {
  const ClientResponse response =
      post("/v1/point", body_with_image(R"("objects":["silent","corrupt","silent"])"));
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(error_code_of(response), "image_decode_failed");
  EXPECT_TRUE(service->wait_cancelled(2));
}

TEST_F(MoondreamApiTest, ReasoningComesWithTheAnswerAndNotInTheStream) {
  const json::value whole =
      json::parse(post("/v1/query", R"({"question":"how many?","reasoning":true})").body);
  EXPECT_EQ(whole.at("answer"), "how many?");
  EXPECT_EQ(whole.at("reasoning").at("text"), "two dots");
  const json::value& part = whole.at("reasoning").at("grounding").at(0);
  EXPECT_EQ(part.at("start_idx"), 4);
  EXPECT_EQ(part.at("end_idx"), 8);
  EXPECT_EQ(part.at("points").at(0).at(1), 0.5);
  EXPECT_FALSE(json::parse(post("/v1/query", R"({"question":"how many?"})").body)
                   .as_object()
                   .contains("reasoning"));

  const ClientResponse stream =
      post("/v1/query", R"({"question":"how many?","reasoning":true,"stream":true})");
  std::string chunks;
  for (const std::string& event : stream.events()) {
    chunks += json::parse(event).at("chunk").as_string();
  }
  EXPECT_EQ(chunks, "how many?") << "the clients take every chunk for the answer";
  EXPECT_EQ(json::parse(stream.events().back()).at("reasoning").at("text"), "two dots");
}

TEST_F(MoondreamApiTest, AFailureInTheMiddleEndsTheStreamWithAnEvent) {
  const ClientResponse response = post("/v1/query", R"({"question":"break","stream":true})");
  EXPECT_EQ(response.status, 200);
  const json::value last = json::parse(response.events().back());
  EXPECT_EQ(last.at("completed"), true);
  EXPECT_EQ(last.at("chunk"), "");
  EXPECT_EQ(last.at("finish_reason"), "error");
  EXPECT_EQ(last.at("error").at("type"), "server_error");
  const ClientResponse whole = post("/v1/query", R"({"question":"break"})");
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(error_code_of(whole), "device_error");
  EXPECT_NE(whole.body.find("the device is lost"), std::string::npos) << "what it was is told";
}

TEST_F(MoondreamApiTest, BadRequestsSayWhatIsWrong) {
  const struct {
    const char* path;
    std::string body;
    const char* says;
  } cases[] = {
      {"/v1/query", "{}", "question is missing"},
      {"/v1/query", R"({"question":5})", "question must be a string"},
      {"/v1/query", R"({"question":"a","stream":"yes"})", "stream must be true or false"},
      {"/v1/query", R"({"question":"a","reasoning":"deep"})", "reasoning must be true or false"},
      {"/v1/caption", body_with_image(R"("reasoning":true)"), "caption answers at once"},
      {"/v1/query", R"({"question":"a","image_url":{"url":"x"}})", "image_url must be a string"},
      {"/v1/query", R"({"question":"a","image_url":"http://x/y.png"})", "does not fetch"},
      {"/v1/query", R"({"question":"a","settings":{"temperature":-1}})", "temperature"},
      {"/v1/query", R"({"question":"a","settings":{"max_tokens":1.5}})", "max_tokens"},
      {"/v1/query", R"({"question":"a","settings":[]})", "settings must be an object"},
      {"/v1/caption", R"({})", "needs an image"},
      {"/v1/caption", body_with_image(R"("length":"huge")"), "unknown caption length"},
      {"/v1/detect", body_with_image(""), "object is missing"},
      {"/v1/detect", R"({"object":"x"})", "needs an image"},
      {"/v1/detect", body_with_image(R"("objects":[])"), "objects must be a list of names"},
      {"/v1/detect", body_with_image(R"("objects":["a",1])"), "objects must be a list of names"},
      {"/v1/detect", body_with_image(R"("objects":["a"," "])"), "objects must not be empty"},
      {"/v1/detect", body_with_image(R"("objects":["a"],"object":"b")"), "objects and object"},
      {"/v1/query", R"({"question":"a","confidence":true})", "confidence is told by point"},
      {"/v1/point", body_with_image(R"("object":"x","settings":{"max_objects":0})"), "max_objects"},
      {"/v1/segment", body_with_image(R"("object":"x")"), "no segment skill"},
      {"/v1/query", "[]", "must be a JSON object"},
      {"/v1/query", "", "not valid JSON"},
      {"/v1/query", R"({"question":"a"} x)", "not valid JSON"},
  };
  for (const auto& [path, body, says] : cases) {
    const ClientResponse response = post(path, body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_NE(response.body.find(says), std::string::npos) << body << ": " << response.body;
    EXPECT_NE(error_code_of(response), "?") << response.body;
  }
}

TEST_F(MoondreamApiTest, ErrorsNameTheField) {
  const struct {
    const char* path;
    std::string body;
    const char* field;
  } cases[] = {
      {"/v1/query", "{}", "question"},
      {"/v1/query", R"({"question":" "})", "question"},
      {"/v1/query", R"({"question":"a","stream":"yes"})", "stream"},
      {"/v1/query", R"({"question":"a","reasoning":{"effort":"low"}})", "reasoning"},
      {"/v1/query", R"({"question":"a","variant":"x"})", "variant"},
      {"/v1/query", R"({"question":"a","settings":{"guided_json":1}})", "guided_json"},
      {"/v1/query", R"({"question":"a","image_url":{"url":"x"}})", "image_url"},
      {"/v1/query", R"({"question":"a","image_url":"data:x,???"})", "image_url"},
      {"/v1/query", R"({"question":"a","image_url":"http://x/y.png"})", "image_url"},
      {"/v1/query", R"({"question":"a","temperature":-1})", "temperature"},
      {"/v1/query", R"({"question":"a","settings":{"top_k":-5}})", "top_k"},
      {"/v1/query", R"({"question":"a","settings":[]})", "settings"},
      {"/v1/query", R"({"question":"a","model":5})", "model"},
      {"/v1/query", R"({"question":"a","spatial_refs":[[0,0]]})", "spatial_refs"},
      {"/v1/caption", "{}", "image_url"},
      {"/v1/caption", body_with_image(R"("length":"huge")"), "length"},
      {"/v1/detect", body_with_image(""), "object"},
      {"/v1/segment", body_with_image(R"("object":"x")"), "skill"},
      {"/v1/query", "", ""},
  };
  for (const auto& [path, body, field] : cases) {
    const ClientResponse response = post(path, body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_EQ(error_field_of(response), field) << body << ": " << response.body;
  }
}

TEST_F(MoondreamApiTest, SegmentIsRefusedWhereTheModelHasItNot) {
  for (const char* path : {"/v1/segment", "/segment"}) {
    const ClientResponse response = post(path, "{}");
    EXPECT_EQ(response.status, 400);
    EXPECT_EQ(error_code_of(response), "skill_not_available");
    EXPECT_NE(response.body.find("Moondream 3 and Moondream 3.1 have it"), std::string::npos);
  }
}

TEST_F(MoondreamApiTest, SegmentAnswersWithAPathInABox) {
  service->segments.store(true);
  const ClientResponse response = post("/v1/segment", body_with_image(R"("object":"x")"));
  ASSERT_EQ(response.status, 200) << response.body;
  const json::object answer = json::parse(response.body).as_object();
  EXPECT_EQ(answer.at("path"), "M 0 0 L 1 0 Z");
  const json::object box = {{"x_min", 0.25}, {"y_min", 0.5}, {"x_max", 0.75}, {"y_max", 1.0}};
  EXPECT_EQ(answer.at("bbox"), box);
  EXPECT_EQ(answer.at("coarse"), true);
  for (const auto& [body, says] : {std::pair{R"({})", "object is missing"},
                                   {R"({"object":"x"})", "needs an image"},
                                   {R"({"object":" "})", "object must not be empty"},
                                   {R"({"object":7})", "must be a string"}}) {
    const ClientResponse refused = post("/v1/segment", body);
    EXPECT_EQ(refused.status, 400) << body;
    EXPECT_NE(refused.body.find(says), std::string::npos) << body << refused.body;
  }
  EXPECT_EQ(post("/v1/segment", body_with_image(R"("object":"x","spatial_refs":[[2,0]])")).status,
            400);
}

TEST_F(MoondreamApiTest, SegmentStreamsItsBoxAndThenCommands) {
  service->segments.store(true);
  const ClientResponse response =
      post("/v1/segment", body_with_image(R"("object":"x","stream":true)"));
  ASSERT_EQ(response.status, 200) << response.body;
  std::vector<json::object> events;
  for (const std::string& event : response.events()) {
    events.push_back(json::parse(event).as_object());
  }
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0].at("type"), "bbox");
  EXPECT_EQ(events[0].at("bbox").at("x_min"), 0.25);
  std::string path;
  for (std::size_t i = 1; i <= 3; ++i) {
    EXPECT_EQ(events[i].at("type"), "path_delta");
    EXPECT_EQ(events[i].at("completed"), false);
    EXPECT_EQ(events[i].at("token_index"), 3 + i);
    path += events[i].at("chunk").as_string();
  }
  EXPECT_EQ(events[4].at("type"), "final");
  EXPECT_EQ(events[4].at("completed"), true);
  EXPECT_EQ(events[4].at("path").as_string(), path);
  EXPECT_EQ(events[4].at("bbox"), events[0].at("bbox"));
}

TEST_F(MoondreamApiTest, ModelNames) {
  for (const char* model : {"fake-model", "moondream2", "vikhyatk/moondream2"}) {
    EXPECT_EQ(post("/v1/query", fmt::format(R"({{"question":"a","model":"{}"}})", model)).status,
              200)
        << model;
  }
  EXPECT_EQ(post("/v1/query", R"({"question":"a"})").status, 200) << "none: the one that is served";
  // Another model is not this one, be it of the same family.
  for (const char* model : {"gpt-x", "moondream3-preview", "moondream-3-preview", ""}) {
    const ClientResponse response =
        post("/v1/query", fmt::format(R"({{"question":"a","model":"{}"}})", model));
    EXPECT_EQ(response.status, 404) << model;
    EXPECT_EQ(error_code_of(response), "model_not_found");
    EXPECT_EQ(error_field_of(response), "model");
  }
}

}  // namespace
}  // namespace gapless
