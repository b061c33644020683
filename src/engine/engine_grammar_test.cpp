// Requests that say what their answer must look like: the shipped model behind the whole engine.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_test_kit.h"
#include "grammar/grammar_spec.h"

namespace gapless {
namespace {

using testing::Answer;

using Kind = GrammarSpec::Kind;

const char* const kShapes = R"({"type": "object", "properties": {
    "shape": {"enum": ["circle", "square"]}, "count": {"type": "integer", "minimum": 0, "maximum": 30},
    "names": {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 1, "maxItems": 3}},
    "required": ["shape", "count", "names"], "additionalProperties": false})";

SkillRequest asking(GrammarSpec spec, float temperature = 0, std::uint64_t seed = 1) {
  SkillRequest request;
  request.text = "Say anything.";
  request.settings.temperature = temperature;
  request.settings.seed = seed;
  request.settings.max_tokens = 400;
  request.settings.grammar = std::move(spec);
  return request;
}

class EngineGrammarTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Engine> start(int depth) {
    EngineOptions options;
    options.loop.depth = depth;
    return Engine::start(load_model(open_device("cpu").value(), "").value(), options).value();
  }
};

TEST_F(EngineGrammarTest, WholeAnswersAreOfTheirFormAtEveryDepthAndBesideOthers) {
  const GrammarSpec specs[] = {
      {.kind = Kind::kJsonSchema, .text = kShapes},
      {.kind = Kind::kRegex, .text = "[a-f]{2,5}-(é|ß)[0-9]"},
      {.kind = Kind::kChoice, .choices = {"red", "green", "grün"}},
      {.kind = Kind::kJsonSchema,
       .text = R"({"type": "array", "items": {"type": "boolean"}, "maxItems": 5})"}};
  std::vector<std::vector<std::string>> texts;
  for (const int depth : {1, 2, 3}) {
    const auto engine = start(depth);
    std::vector<std::shared_ptr<Answer>> answers;
    std::vector<const GrammarSpec*> asked;
    const auto submit = [&](const SkillRequest& request, const GrammarSpec* spec) {
      answers.push_back(std::make_shared<Answer>());
      asked.push_back(spec);
      EXPECT_TRUE(engine->submit(request, answers.back()).ok());
    };
    for (const GrammarSpec& spec : specs) {
      for (const float temperature : {0.0f, 1.0f, 1.8f}) submit(asking(spec, temperature), &spec);
    }
    SkillRequest plain = asking({});
    plain.settings.grammar.reset();
    plain.settings.max_tokens = 40;
    submit(plain, nullptr);
    texts.emplace_back();
    for (std::size_t i = 0; i < answers.size(); ++i) {
      const StatusOr<SkillResult> result = answers[i]->promise.get_future().get();
      ASSERT_TRUE(result.ok()) << result.status().to_string();
      EXPECT_EQ(answers[i]->streamed, result->text);
      texts.back().push_back(result->text);
      if (asked[i] == nullptr) continue;
      ASSERT_EQ(result->finish_reason, FinishReason::kStop) << result->text;
      EXPECT_TRUE(accepts(compile_grammar(*asked[i]).value(), result->text)) << result->text;
    }
  }
  EXPECT_EQ(texts[0], texts[1]) << "I8: tokens do not depend on the depth";
  EXPECT_EQ(texts[0], texts[2]);
  // Nor on who else is there.
  const auto engine = start(2);
  std::size_t i = 0;
  for (const GrammarSpec& spec : specs) {
    for (const float temperature : {0.0f, 1.0f, 1.8f}) {
      const StatusOr<SkillResult> alone = engine->run(asking(spec, temperature));
      ASSERT_TRUE(alone.ok()) << alone.status().to_string();
      EXPECT_EQ(alone->text, texts[0][i++]);
    }
  }
}

// The compilers work on the smallest first, and who needs none of them passes by.
TEST_F(EngineGrammarTest, OthersGrammarsKeepNobodyWaiting) {
  const auto engine = start(2);
  constexpr int kNumSlow = 24;
  std::mutex mutex;
  std::vector<std::string> order;
  struct Noted final : ResponseSink {
    void on_text(std::string_view, int) override {}
    void on_done(const SkillResult&) override { end(); }
    void on_error(const Status&) override { end(); }
    void end() {
      {
        const std::lock_guard lock(*mutex);
        order->push_back(name);
      }
      done.set_value();
    }
    std::string name;
    std::mutex* mutex = nullptr;
    std::vector<std::string>* order = nullptr;
    std::promise<void> done;
  };
  std::vector<std::shared_ptr<Noted>> sinks;
  const auto submit = [&](const std::string& name, const SkillRequest& request) {
    sinks.push_back(std::make_shared<Noted>());
    sinks.back()->name = name;
    sinks.back()->mutex = &mutex;
    sinks.back()->order = &order;
    ASSERT_TRUE(engine->submit(request, sinks.back()).ok());
  };
  for (int i = 0; i < kNumSlow; ++i) {
    // Refused when all of its work is spent.
    const std::string pattern = "(a|b)*a(a|b){" + std::to_string(20 + i) + "}";
    submit("slow", asking({.kind = Kind::kRegex, .text = pattern}));
  }
  submit("small", asking({.kind = Kind::kChoice, .choices = {"yes"}}));
  SkillRequest plain = asking({});
  plain.settings.grammar.reset();
  plain.settings.max_tokens = 1;
  submit("plain", plain);
  for (const auto& sink : sinks) sink->done.get_future().wait();
  EXPECT_EQ(order.back(), "slow");
}

TEST_F(EngineGrammarTest, WhatCannotBeHeldIsTheRequestsErrorAndNobodyElses) {
  const auto engine = start(2);
  const GrammarSpec bad[] = {{.kind = Kind::kJsonSchema,
                              .text = R"({"items": {"uniqueItems": true}})",
                              .field = "a_field"},
                             {.kind = Kind::kRegex, .text = "(a|b)*a(a|b){20}", .field = "a_field"},
                             {.kind = Kind::kChoice, .field = "a_field"}};
  for (const GrammarSpec& spec : bad) {
    const StatusOr<SkillResult> refused = engine->run(asking(spec));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.status().field(), "a_field");
    const auto good = engine->run(asking({.kind = Kind::kChoice, .choices = {"yes"}}));
    ASSERT_TRUE(good.ok()) << good.status().to_string();
    EXPECT_EQ(good->text, "yes");
  }
}

TEST_F(EngineGrammarTest, ACutAnswerSaysSoAndBeginsAsItsFormDoes) {
  const auto engine = start(2);
  SkillRequest request = asking({.kind = Kind::kRegex, .text = "x{300}"});
  request.settings.max_tokens = 7;
  const StatusOr<SkillResult> result = engine->run(request);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(result->finish_reason, FinishReason::kLength);
  EXPECT_EQ(result->text, std::string(result->text.size(), 'x'));
  EXPECT_FALSE(result->text.empty());
}

TEST_F(EngineGrammarTest, CompleteAnswersEndWithinTheirLimitAtEveryDepth) {
  const GrammarSpec spec{.kind = Kind::kJsonSchema, .text = kShapes};
  const Grammar grammar = compile_grammar(spec).value();
  std::vector<std::string> texts[2];
  for (const int depth : {1, 2}) {
    const auto engine = start(depth);
    std::vector<std::shared_ptr<Answer>> answers;
    for (int i = 0; i < 8; ++i) {
      SkillRequest request = asking(spec, 1.6f, static_cast<std::uint64_t>(i));
      request.settings.complete = true;
      request.settings.max_tokens = 45 + i;
      answers.push_back(std::make_shared<Answer>());
      ASSERT_TRUE(engine->submit(request, answers.back()).ok());
    }
    for (const auto& answer : answers) {
      const StatusOr<SkillResult> result = answer->promise.get_future().get();
      ASSERT_TRUE(result.ok()) << result.status().to_string();
      EXPECT_EQ(result->finish_reason, FinishReason::kStop) << result->text;
      EXPECT_TRUE(accepts(grammar, result->text)) << result->text;
      texts[depth - 1].push_back(result->text);
    }
    SkillRequest request = asking(spec);
    request.settings.complete = true;
    request.settings.max_tokens = 3;
    EXPECT_EQ(engine->run(request).status().field(), "complete");
  }
  EXPECT_EQ(texts[0], texts[1]);
}

// Each choice has a sequence, and a place in the grammar, of its own.
TEST_F(EngineGrammarTest, ChoicesShareAGrammar) {
  const auto engine = start(2);
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 6; ++i) answers.push_back(std::make_shared<Answer>());
  const GrammarSpec spec{.kind = Kind::kJsonSchema, .text = kShapes};
  ASSERT_TRUE(engine->submit_choices(asking(spec, 1.5f), {answers.begin(), answers.end()}).ok());
  const Grammar grammar = compile_grammar(spec).value();
  for (const auto& answer : answers) {
    const StatusOr<SkillResult> result = answer->promise.get_future().get();
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    EXPECT_TRUE(accepts(grammar, result->text)) << result->text;
  }
}

// On the device, and with masks from the host: the same text, at every depth and beside rows of every kind.
TEST_F(EngineGrammarTest, DeviceAndHostGiveTheSameText) {
  const GrammarSpec specs[] = {{.kind = Kind::kJsonSchema, .text = kShapes},
                               {.kind = Kind::kJsonObject},
                               {.kind = Kind::kRegex, .text = "[a-f]{2,5}-(é|ß)[0-9]{1,30}"}};
  std::vector<std::string> plain_texts;
  for (const int depth : {1, 2, 3, 4}) {
    const auto engine = start(depth);
    DeviceGrammars& grammars = *engine->model().model->grammars();
    std::vector<std::shared_ptr<Answer>> answers;
    const auto submit = [&](const SkillRequest& request) {
      answers.push_back(std::make_shared<Answer>());
      EXPECT_TRUE(engine->submit(request, answers.back()).ok());
    };
    for (const GrammarSpec& spec : specs) {
      for (const float temperature : {0.0f, 1.2f}) {
        SkillRequest request = asking(spec, temperature, 77);
        request.settings.max_tokens = 80;
        if (temperature > 0) request.images = {testing::flat_picture(40, 30, 90)};
        submit(request);
        request.constraint_mode = ConstraintMode::kHostMask;
        submit(request);
      }
    }
    const std::size_t num_held = answers.size();
    SkillRequest plain = asking({});
    plain.settings.grammar.reset();
    plain.settings.max_tokens = 60;
    submit(plain);
    std::vector<std::string> texts;
    for (const auto& answer : answers) {
      const StatusOr<SkillResult> result = answer->promise.get_future().get();
      ASSERT_TRUE(result.ok()) << result.status().to_string();
      texts.push_back(result->text);
    }
    for (std::size_t i = 0; i < num_held; i += 2) EXPECT_EQ(texts[i], texts[i + 1]) << i;
    plain_texts.push_back(texts.back());
    EXPECT_EQ(grammars.counts().num_uploads, 3) << "each once";
    EXPECT_EQ(engine->loop().forbidden_calls(), 0) << "I7";
  }
  // Nor does a plain row know who else is there.
  const auto engine = start(2);
  SkillRequest plain = asking({});
  plain.settings.grammar.reset();
  plain.settings.max_tokens = 60;
  const StatusOr<SkillResult> alone = engine->run(plain);
  ASSERT_TRUE(alone.ok());
  for (const std::string& text : plain_texts) EXPECT_EQ(text, alone->text);
}

// Those that the device cannot hold exactly, or that must be whole within a limit.
TEST_F(EngineGrammarTest, WhatDoesNotGoToTheDeviceIsHeldByTheHost) {
  const auto engine = start(3);
  const DeviceGrammars& grammars = *engine->model().model->grammars();
  // May need one open object more than there are.
  const GrammarSpec deep{.kind = Kind::kJsonSchema, .text = R"({"$ref": "#/$defs/t", "$defs": {"t":
      {"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "required": ["a"],
       "additionalProperties": false}}})"};
  ASSERT_TRUE(may_run_out_of_frames(compile_grammar(deep).value()));
  SkillRequest request = asking(deep, 1.0f);
  request.settings.max_tokens = 60;
  EXPECT_TRUE(engine->run(request).ok());
  request = asking({.kind = Kind::kJsonSchema, .text = kShapes}, 1.0f);
  request.settings.complete = true;
  request.settings.max_tokens = 60;
  EXPECT_TRUE(engine->run(request).ok());
  EXPECT_EQ(grammars.counts().num_uploads, 0);
  request.settings.complete = false;
  EXPECT_TRUE(engine->run(request).ok());
  EXPECT_EQ(grammars.counts().num_uploads, 1);
}

// All that requests held is given back, cancelled ones included, and a place stays for who comes next.
TEST_F(EngineGrammarTest, PlacesOnTheDeviceAreGivenBack) {
  const auto engine = start(3);
  const DeviceGrammars& grammars = *engine->model().model->grammars();
  for (int round = 0; round < 2; ++round) {
    std::vector<std::shared_ptr<Answer>> answers;
    for (int i = 0; i < 12; ++i) {
      answers.push_back(std::make_shared<Answer>());
      const std::string pattern = "[a-z]{" + std::to_string(20 + i % 6) + ",900}";
      const auto id =
          engine->submit(asking({.kind = Kind::kRegex, .text = pattern}, 1.0f), answers.back());
      ASSERT_TRUE(id.ok());
      if (i % 2 == 0) engine->cancel(*id);
    }
    for (const auto& answer : answers) {
      const StatusOr<SkillResult> result = answer->promise.get_future().get();
      EXPECT_TRUE(result.ok() || result.status().code() == StatusCode::kCancelled);
    }
  }
  // The last ones' steps may still be in flight.
  const auto deadline = std::chrono::steady_clock::now() + testing::kDeadlockGuard;
  while (grammars.counts().held > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(grammars.counts().held, 0);
  EXPECT_GT(grammars.counts().resident, 0);
  EXPECT_LE(grammars.counts().num_uploads, 6);
}

TEST_F(EngineGrammarTest, RequestsThatAreCancelledWhileTheyCompileEnd) {
  const auto engine = start(2);
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 20; ++i) {
    answers.push_back(std::make_shared<Answer>());
    const auto id = engine->submit(
        asking({.kind = Kind::kRegex, .text = "(a|b)*a(a|b){" + std::to_string(6 + i % 3) + "}"}),
        answers.back());
    ASSERT_TRUE(id.ok());
    engine->cancel(*id);
  }
  for (const auto& answer : answers) {
    const StatusOr<SkillResult> result = answer->promise.get_future().get();
    EXPECT_TRUE(result.ok() || result.status().code() == StatusCode::kCancelled);
  }
}

}  // namespace
}  // namespace gapless
