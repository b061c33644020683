// I8 on the real model: the tokens of a request do not depend on the depth of the pipeline, nor on
// who else is in the batch, bit for bit; and I7: nothing that may stall the device is called
// meanwhile.
//
// One mixed load goes through the loop at each depth: greedy and seeded rows, detect and point by
// device automaton and by host mask, answers held to grammars, with and without images, joining and
// being cancelled at different ticks. The shipped model runs on the device named by GAPLESS_TEST_DEVICE.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/file_bytes.h"
#include "base/host_clock.h"
#include "base/limits.h"
#include "constraint/spatial_automaton.h"
#include "constraint/token_grammar.h"
#include "engine/crop_pool.h"
#include "engine/preprocess.h"
#include "kernels/fp8.h"
#include "model/model_loader.h"
#include "pipeline/loop.h"
#include "tests/per_device/test_device.h"

namespace gapless {

// Coordinates and log probabilities by their bits.
bool operator==(const CommittedToken& a, const CommittedToken& b) {
  const auto same = [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  };
  return a.token == b.token && same(a.x, b.x) && same(a.y, b.y) && same(a.logprob, b.logprob) &&
         same(a.confidence.token, b.confidence.token) && same(a.confidence.x, b.confidence.x) &&
         same(a.confidence.y, b.confidence.y) &&
         std::equal(a.top_logprobs.begin(), a.top_logprobs.end(), b.top_logprobs.begin(),
                    b.top_logprobs.end(), [&](const TopLogprob& one, const TopLogprob& other) {
                      return one.token == other.token && same(one.logprob, other.logprob);
                    });
}

void PrintTo(const CommittedToken& token, std::ostream* out) {
  *out << token.token.value << " (" << token.x << ", " << token.y << ") p " << token.logprob;
  for (const TopLogprob& one : token.top_logprobs) *out << " or " << one.token;
}

namespace {

constexpr int kNever = -1;

struct Ask {
  SkillRequest request;
  int submit_tick = 0;
  int cancel_tick = kNever;
  // A point request held to gaze's grammar (one point, then the end), which no skill of the shipped
  // model has.
  bool gaze = false;
  // Which of the request's objects it is about, where that has several: each is an ask of its own.
  int object = 0;
};

struct Answer final : TokenSink {
  void on_token(const CommittedToken& token) override { tokens.push_back(token); }
  void on_finished(FinishReason end, const Status& end_status, const SequenceTimes&) override {
    reason = end;
    status = end_status;
    finished = true;
  }

  std::vector<CommittedToken> tokens;
  FinishReason reason = FinishReason::kStop;
  Status status;
  bool finished = false;
};
using Answers = std::vector<std::shared_ptr<Answer>>;

class DepthEqualityTest : public DeviceTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(DeviceTest::SetUp());
    load(std::move(device_));
  }

  // In place of the model before it, if any.
  void load(std::unique_ptr<Device> device, const ModelOptions& options = {}) {
    crops_.reset();
    model_.reset();
    ModelOptions chosen = options;
    chosen.compute = test_compute();
    auto loaded = load_model(std::move(device), model_name_, chosen);
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    model_ = std::move(loaded).value();
    auto crops = CropPool::create(*model_->device, 2 * (kMaxTilesPerImage + 1),
                                  model_->model->info().crop_bytes);
    ASSERT_TRUE(crops.ok()) << crops.status().to_string();
    crops_ = std::move(crops).value();
    grammars_ = std::make_unique<GrammarStore>(model_->tokenizer.text_of_tokens(),
                                               model_->config.tokenizer.eos_id.value);
  }
  void TearDown() override {
    crops_.reset();
    model_.reset();
  }

  static std::shared_ptr<const std::string> image(const std::string& name) {
    auto bytes = read_file(GAPLESS_SOURCE_DIR "/tests/golden/tiny/" + name, kMaxImageBytes);
    EXPECT_TRUE(bytes.ok()) << bytes.status().to_string();
    return std::make_shared<const std::string>(std::move(bytes).value());
  }

  static SkillRequest ask(Skill skill, const std::string& text, const std::string& image_name) {
    SkillRequest request;
    request.skill = skill;
    request.text = text;
    if (!image_name.empty()) request.images = {image(image_name)};
    return request;
  }

  static SkillRequest ask_about(const std::string& question,
                                const std::vector<std::string>& image_names) {
    SkillRequest request = ask(Skill::kQuery, question, "");
    for (const std::string& name : image_names) request.images.push_back(image(name));
    return request;
  }

  // Greedy, seeded, constrained both ways, cancelled, staggered; some share an image.
  static std::vector<Ask> mixed_load() {
    std::vector<Ask> asks;
    const auto add = [&](SkillRequest request, int submit_tick, int cancel_tick = kNever) {
      asks.push_back({std::move(request), submit_tick, cancel_tick});
      return &asks.back().request;
    };
    const auto long_text = [](SkillRequest* request, int tokens, float temperature) {
      request->settings.ignore_eos = true;
      request->settings.max_tokens = tokens;
      request->settings.temperature = temperature;
      request->settings.seed = 7;
    };
    const auto with_alternatives = [](SkillRequest* request, int count) {
      request->settings.logprobs = true;
      request->settings.top_logprobs = count;
      return request;
    };
    with_alternatives(add(ask(Skill::kQuery, "How many shapes are there?", "single.png"), 0), 3);
    long_text(add(ask(Skill::kQuery, "Tell me something.", ""), 0), 24, 0.9f);
    add(ask(Skill::kDetect, "circle", "wide.png"), 0);
    with_alternatives(add(ask(Skill::kDetect, "circle", "wide.png"), 1), 2)->constraint_mode =
        ConstraintMode::kHostMask;
    add(ask(Skill::kPoint, "square", "tall.png"), 2)->settings.confidence = true;
    add(ask(Skill::kPoint, "square", "tall.png"), 4)->constraint_mode = ConstraintMode::kHostMask;
    SkillRequest* caption = add(ask(Skill::kCaption, "", "single.png"), 6);
    caption->settings.temperature = 1.0f;
    caption->settings.top_p = 0.9f;
    caption->settings.seed = 11;
    long_text(with_alternatives(add(ask(Skill::kQuery, "Go on and on.", ""), 3, 12), 20), 200,
              0.0f);
    long_text(add(ask(Skill::kQuery, "And what colour is it?", "single.png"), 5, 19), 200, 0.7f);
    add(ask(Skill::kDetect, "triangle", "wide.png"), 8, 11);
    add(ask(Skill::kDetect, "triangle", "wide.png"), 8, 13)->constraint_mode =
        ConstraintMode::kHostMask;
    long_text(add(ask(Skill::kQuery, "One word only.", "tall.png"), 9), 1, 0.0f);
    long_text(add(ask(Skill::kQuery, "Is it red?", "wide.png"), 14), 12, 0.0f);
    // Several images: together with the first of them, twice the same ones, the other way round.
    long_text(add(ask_about("What is new?", {"single.png", "tall.png"}), 7), 16, 0.0f);
    long_text(add(ask_about("And the colours?", {"single.png", "tall.png"}), 8), 16, 0.8f);
    long_text(add(ask_about("What is new?", {"tall.png", "single.png"}), 8), 16, 0.0f);
    long_text(add(ask_about("What is gone?", {"wide.png", "wide.png"}), 9, 20), 200, 0.0f);
    // What they may sample depends on what they sampled, and on their prompts, cached or not.
    SkillRequest* varied = add(ask(Skill::kQuery, "And what colour is it?", "single.png"), 10);
    long_text(varied, 40, 0.0f);
    varied->settings.repetition_penalty = 1.4f;
    varied = add(ask(Skill::kQuery, "Say it again.", ""), 11);
    long_text(with_alternatives(varied, 4), 40, 0.9f);
    varied->settings.presence_penalty = 0.8f;
    varied->settings.frequency_penalty = 1.2f;
    varied->settings.logit_bias = {{TokenId(300), 4}, {TokenId(301), -100}, {TokenId(40), 3.5f}};
    varied = add(ask(Skill::kCaption, "", "tall.png"), 12);
    varied->settings.min_tokens = 25;
    varied->settings.max_tokens = 60;
    varied->settings.stop_token_ids = {TokenId(20), TokenId(21), TokenId(22)};
    varied = add(ask(Skill::kDetect, "circle", "wide.png"), 12);
    varied->settings.repetition_penalty = 1.1f;
    varied->settings.max_objects = 8;
    varied = add(ask_about("What is new?", {"single.png", "tall.png"}), 13, 22);
    long_text(varied, 200, 0.7f);
    varied->settings.repetition_penalty = 0.8f;
    varied->settings.frequency_penalty = 2;
    const auto held = [](SkillRequest* request, GrammarSpec spec, float temperature) {
      request->settings.grammar = std::move(spec);
      request->settings.temperature = temperature;
      request->settings.seed = 5;
    };
    using Kind = GrammarSpec::Kind;
    const GrammarSpec shapes{.kind = Kind::kJsonSchema, .text = R"({"type": "object", "properties":
        {"kind": {"enum": ["circle", "box"]}, "n": {"type": "integer", "minimum": 1, "maximum": 40},
         "names": {"type": "array", "items": {"type": "string", "maxLength": 9}, "maxItems": 3}},
        "required": ["kind", "n", "names"], "additionalProperties": false})"};
    held(add(ask(Skill::kQuery, "What is there?", "single.png"), 14), shapes, 0.0f);
    held(with_alternatives(add(ask(Skill::kQuery, "What is there?", "single.png"), 14), 3), shapes,
         1.2f);
    SkillRequest* masked = add(ask(Skill::kQuery, "What is there?", "single.png"), 14);
    held(masked, shapes, 1.2f);
    masked->constraint_mode = ConstraintMode::kHostMask;
    held(add(ask(Skill::kQuery, "Which?", "wide.png"), 15),
         {.kind = Kind::kRegex, .text = "[a-f]{3}-(é|ß|語){2,9}"}, 0.9f);
    varied = add(ask(Skill::kQuery, "Anything.", ""), 15);
    held(varied, {.kind = Kind::kJsonObject}, 1.3f);
    varied->settings.max_tokens = 60;
    varied->settings.repetition_penalty = 1.2f;
    held(add(ask(Skill::kQuery, "Anything else.", ""), 15, 28), {.kind = Kind::kJsonObject}, 1.3f);
    SkillRequest* spread = add(ask(Skill::kDetect, "square", "single.png"), 15);
    spread->settings.temperature = 0.8f;
    spread->settings.seed = 3;
    spread->settings.max_objects = 5;
    return asks;
  }

  // As the engine does.
  void hold_to(const std::shared_ptr<TokenGrammar>& grammar, ConstraintMode mode,
               PreparedPrompt& prompt) const {
    if (mode == ConstraintMode::kHostMask) {
      prompt.row.flags |= kRowHostMask;
      prompt.host_constraint = grammars_->constraint(grammar);
      return;
    }
    ASSERT_TRUE(grammar->fits_device());
    const auto held = model_->model->grammars()->hold(grammar, grammar->grammar());
    ASSERT_TRUE(held.ok()) << held.status().to_string();
    ASSERT_NE(*held, nullptr);
    prompt.row.grammar = (*held)->index;
    prompt.device_grammar = *held;
  }

  void hold_to_gaze(PreparedPrompt& prompt) const {
    if (prompt.host_constraint == nullptr) {
      prompt.row.automaton = automaton_start(SpatialSkill::kGaze);
      return;
    }
    const TokenizerConfig& tokens = model_->prompts.config();
    prompt.host_constraint = std::make_unique<SpatialConstraint>(
        SpatialSkill::kGaze,
        SpatialTokens{tokens.coord_id.value, tokens.size_id.value, tokens.eos_id.value});
  }

  struct Run {
    Answers answers;
    LedgerTotals totals;
    int most_running = 0;  // sequences with a seat at one time
  };

  // The whole load through one loop. `one_by_one`: each request alone, nobody is cancelled.
  Run run(int depth, const std::vector<Ask>& asks, bool one_by_one = false,
          bool foresees_limits = true) {
    Run result;
    LoopOptions options;
    options.depth = depth;
    options.foresees_limits = foresees_limits;
    RealHostClock clock;
    auto created = Loop::create(*model_->device, *model_->model, clock, options);
    EXPECT_TRUE(created.ok()) << created.status().to_string();
    if (!created.ok()) return result;
    Loop& loop = **created;
    const Preprocessor preprocessor(*model_, crops_);
    std::vector<SequenceId> ids;
    const auto submit = [&](const Ask& asked) {
      const int num_choices = std::max(1, static_cast<int>(asked.request.objects.size()));
      auto prompts = preprocessor.prepare_choices(asked.request, num_choices);
      ASSERT_TRUE(prompts.ok()) << prompts.status().to_string();
      PreparedPrompt* const prompt = &(*prompts)[static_cast<std::size_t>(asked.object)];
      if (asked.gaze) hold_to_gaze(*prompt);
      if (const auto& spec = asked.request.settings.grammar) {
        const auto grammar = grammars_->get(*spec);
        ASSERT_TRUE(grammar.ok()) << grammar.status().to_string();
        ASSERT_NO_FATAL_FAILURE(hold_to(*grammar, asked.request.constraint_mode, *prompt));
      }
      result.answers.push_back(std::make_shared<Answer>());
      const auto id = loop.submit(std::move(*prompt), result.answers.back());
      ASSERT_TRUE(id.ok()) << id.status().to_string();
      ids.push_back(*id);
    };

    if (one_by_one) {
      for (const Ask& asked : asks) {
        submit(asked);
        while (loop.tick() == Loop::Tick::kWorked) {
        }
      }
    } else {
      const auto by_submission = [](const Ask& a, const Ask& b) {
        return a.submit_tick < b.submit_tick;
      };
      EXPECT_TRUE(std::is_sorted(asks.begin(), asks.end(), by_submission));
      for (int tick = 0;; ++tick) {
        while (ids.size() < asks.size() && asks[ids.size()].submit_tick <= tick) {
          submit(asks[ids.size()]);
          if (testing::Test::HasFatalFailure()) return result;
        }
        for (std::size_t i = 0; i < ids.size(); ++i) {
          if (asks[i].cancel_tick == tick) loop.cancel(ids[i]);
        }
        const bool is_idle = loop.tick() == Loop::Tick::kIdle;
        result.most_running = std::max(result.most_running, loop.counts().running);
        if (is_idle && ids.size() == asks.size()) break;
      }
    }
    EXPECT_EQ(loop.forbidden_calls(), 0) << "depth " << depth;
    EXPECT_EQ(loop.counts().seats.rows_in_use, 0);
    EXPECT_EQ(loop.counts().seats.pages_in_use, loop.num_cached_pages());
    result.totals = loop.ledger().totals();
    return result;
  }

  static void expect_same(const std::vector<Ask>& asks, const Answers& expected,
                          const Answers& actual) {
    ASSERT_EQ(actual.size(), asks.size());
    for (std::size_t i = 0; i < asks.size(); ++i) {
      SCOPED_TRACE("request " + std::to_string(i) + ": " + asks[i].request.text);
      std::vector<CommittedToken> wanted = expected[i]->tokens;
      ASSERT_TRUE(actual[i]->finished);
      if (asks[i].cancel_tick == kNever) {
        EXPECT_TRUE(actual[i]->status.ok()) << actual[i]->status.to_string();
        EXPECT_EQ(actual[i]->reason, expected[i]->reason);
      } else {
        // It may have come further at one depth than at another, but on the same way.
        wanted.resize(std::min(wanted.size(), actual[i]->tokens.size()));
      }
      EXPECT_EQ(actual[i]->tokens, wanted);
    }
  }

  // Every one, but on a CPU: there a run takes seconds, one test has every depth, and the others have the default and the
  // deepest.
  static std::vector<int> depths() {
    if (test_device_name() == "cpu") return {LoopOptions().depth, kMaxDepth};
    return all_depths();
  }
  static std::vector<int> all_depths() {
    std::vector<int> all;
    for (int depth = 1; depth <= kMaxDepth; ++depth) all.push_back(depth);
    return all;
  }

  std::string model_name_;  // empty: the shipped one
  std::unique_ptr<LoadedModel> model_;
  std::shared_ptr<CropPool> crops_;
  std::unique_ptr<GrammarStore> grammars_;
};

// What an encode or a prefill leaves behind shows in the first tokens. Nobody is cancelled.
std::vector<Ask> cut_to_first_tokens(std::vector<Ask> asks) {
  for (Ask& asked : asks) {
    asked.cancel_tick = kNever;
    asked.request.settings.min_tokens = 0;
    asked.request.settings.max_tokens = 12;
  }
  return asks;
}

std::vector<Ask> sorted_by_submission(std::vector<Ask> asks) {
  std::stable_sort(asks.begin(), asks.end(),
                   [](const Ask& a, const Ask& b) { return a.submit_tick < b.submit_tick; });
  return asks;
}

TEST_F(DepthEqualityTest, EveryDepthGivesTheTokensOfEachRequestAlone) {
  const std::vector<Ask> asks = sorted_by_submission(mixed_load());
  const Run alone = run(1, asks, /*one_by_one=*/true);
  std::size_t num_tokens = 0;
  for (const auto& answer : alone.answers) num_tokens += answer->tokens.size();
  ASSERT_GT(num_tokens, 400u) << "the load is too small to show anything";

  for (const int depth : all_depths()) {
    SCOPED_TRACE("depth " + std::to_string(depth));
    const Run mixed = run(depth, asks);
    expect_same(asks, alone.answers, mixed.answers);
    int num_cancelled = 0;
    for (const auto& answer : mixed.answers) {
      num_cancelled += answer->reason == FinishReason::kCancelled ? 1 : 0;
    }
    EXPECT_GE(num_cancelled, 2) << "the cancellations came too late";
    EXPECT_EQ(mixed.totals.num_zombie_rows > 0, depth > 1);
  }
  const Run unforeseen = run(3, asks, /*one_by_one=*/false, /*foresees_limits=*/false);
  SCOPED_TRACE("length limits that nobody foresees");
  expect_same(asks, alone.answers, unforeseen.answers);
}

// More rows than a word has bits, and than a launch of the decode kernel takes: all sorts of rows at once.
TEST_F(DepthEqualityTest, HundredsOfRowsGetTheTokensThatEachGetsAlone) {
  std::vector<Ask> asks = mixed_load();
  for (int i = 0; i < 220; ++i) {
    SkillRequest request = ask(Skill::kQuery, "Tell me about number " + std::to_string(i), "");
    request.settings.ignore_eos = true;
    request.settings.max_tokens = 6 + i % 23;
    request.settings.temperature = i % 3 == 0 ? 0.9f : 0.0f;
    request.settings.seed = static_cast<std::uint64_t>(i);
    if (i % 4 == 1) request.settings.repetition_penalty = 1.3f;
    if (i % 5 == 2) request.settings.logit_bias = {{TokenId(300 + i), 5.0f}};
    if (i % 7 == 3) {
      request.settings.ignore_eos = false;
      request.settings.grammar = {.kind = GrammarSpec::Kind::kRegex, .text = "[a-f]{3,20}"};
    }
    asks.push_back({.request = std::move(request), .submit_tick = 1 + i % 3});
  }
  asks = sorted_by_submission(std::move(asks));
  auto device = open_device(test_device_name());
  ASSERT_TRUE(device.ok()) << device.status().to_string();
  load(std::move(device).value(),
       {.kv_cache_bytes = std::size_t{1} << 30, .max_rows = kMaxSeats, .adjust_limits = nullptr});
  if (HasFatalFailure()) return;
  const Run alone = run(1, asks, /*one_by_one=*/true);
  for (const int depth : depths()) {
    SCOPED_TRACE("depth " + std::to_string(depth));
    const Run together = run(depth, asks);
    expect_same(asks, alone.answers, together.answers);
    EXPECT_GT(together.most_running, 128);
  }
}

// Nearly all that a CPU does in 8 bits is to convert: there every third request has to do.
std::vector<Ask> load_in_eight_bits(std::vector<Ask> asks) {
  if (test_device_name() != "cpu") return asks;
  std::vector<Ask> third;
  for (std::size_t i = 0; i < asks.size(); i += 3) third.push_back(std::move(asks[i]));
  return third;
}

// Experts of a launch's rows are sorted together, heads are scaled by position. Random weights seldom say when to
// stop, so answers are cut.
TEST_F(DepthEqualityTest, ASmallMoondream3GivesTheSameTokensAtEveryDepth) {
  std::vector<Ask> asks = sorted_by_submission(mixed_load());
  for (Ask& asked : asks) {
    GenerationSettings& settings = asked.request.settings;
    settings.max_tokens = std::min(settings.max_tokens.value_or(32), 48);
    if (asked.request.skill == Skill::kPoint || asked.request.skill == Skill::kDetect) {
      settings.max_tokens = std::nullopt;
      settings.max_objects = 8;
    }
  }
  model_name_ = "random:moondream3-small:3";
  auto device = open_device(test_device_name());
  ASSERT_TRUE(device.ok()) << device.status().to_string();
  load(std::move(device).value());
  if (HasFatalFailure()) return;
  ASSERT_GT(model_->config.text.moe.num_experts, 0);
  const Run alone = run(1, asks, /*one_by_one=*/true);
  std::size_t num_tokens = 0;
  for (const auto& answer : alone.answers) num_tokens += answer->tokens.size();
  ASSERT_GT(num_tokens, 400u) << "the load is too small to show anything";
  for (const int depth : depths()) {
    SCOPED_TRACE("depth " + std::to_string(depth));
    expect_same(asks, alone.answers, run(depth, asks).answers);
  }
  // Weights that were rounded, too, and products in 8 bits, which make other tokens.
  asks = load_in_eight_bits(std::move(asks));
  std::vector<std::vector<CommittedToken>> tokens;
  for (const WeightFormat weights : {WeightFormat::kFp8, WeightFormat::kW8A8}) {
    SCOPED_TRACE(static_cast<int>(weights));
    device = open_device(test_device_name());
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    load(std::move(device).value(), {.weights = weights, .adjust_limits = nullptr});
    if (HasFatalFailure()) return;
    const Run rounded = run(1, asks, /*one_by_one=*/true);
    expect_same(asks, rounded.answers, run(3, asks).answers);
    tokens.emplace_back();
    for (const auto& answer : rounded.answers) {
      tokens.back().insert(tokens.back().end(), answer->tokens.begin(), answer->tokens.end());
    }
  }
  EXPECT_NE(tokens[0], tokens[1]) << "no row was rounded";
}

// Paths are sampled among classes of tokens on the device; the host's masks give the same ones.
TEST_F(DepthEqualityTest, SegmentsHaveTheSameTokensAtEveryDepthAndUnderTheHostsMasks) {
  std::vector<Ask> asks;
  const auto add = [&](const std::string& image_name, int tick, float temperature) {
    SkillRequest request = ask(Skill::kSegment, "circle", image_name);
    request.settings.max_tokens = 90;
    request.settings.temperature = temperature;
    request.settings.seed = 3 + tick;
    asks.push_back({std::move(request), tick, kNever});
    return &asks.back().request;
  };
  constexpr std::size_t kNumTwins = 3;
  for (int i = 0; i < static_cast<int>(kNumTwins); ++i) {
    const std::string picture = i == 1 ? "tall.png" : "wide.png";
    add(picture, i, 0.9f * static_cast<float>(i));
    add(picture, i, 0.9f * static_cast<float>(i))->constraint_mode = ConstraintMode::kHostMask;
  }
  add("single.png", 3, 1.5f)->settings.repetition_penalty = 1.3f;
  add("single.png", 4, 1.2f)->settings.min_tokens = 60;
  add("single.png", 4, 1.2f)->settings.ignore_eos = true;
  asks.back().cancel_tick = 14;
  add("single.png", 5, 1.0f)->settings.confidence = true;
  add("single.png", 6, 1.0f)->spatial_refs = {
      {.is_box = false, .x_center = 0.5f, .y_center = 0.25f}};
  asks.push_back({ask(Skill::kDetect, "circle", "wide.png"), 6, kNever});
  asks.back().request.settings.max_objects = 6;
  model_name_ = "random:moondream3-small:3";
  auto device = open_device(test_device_name());
  ASSERT_TRUE(device.ok()) << device.status().to_string();
  load(std::move(device).value());
  if (HasFatalFailure()) return;
  const Run alone = run(1, asks, /*one_by_one=*/true);
  for (std::size_t i = 0; i < kNumTwins; ++i) {
    EXPECT_EQ(alone.answers[2 * i]->tokens, alone.answers[2 * i + 1]->tokens) << "twins " << i;
  }
  std::size_t num_tokens = 0;
  for (const auto& answer : alone.answers) num_tokens += answer->tokens.size();
  ASSERT_GT(num_tokens, 300u) << "the load is too small to show anything";
  for (const int depth : depths()) {
    SCOPED_TRACE("depth " + std::to_string(depth));
    expect_same(asks, alone.answers, run(depth, asks).answers);
  }
}

// Several names in one request share the picture's prefix, each with its confidences.
TEST_F(DepthEqualityTest, SeveralObjectsAndConfidencesAreTheSameAtEveryDepth) {
  std::vector<Ask> asks;
  int tick = 0;
  for (const Skill skill : {Skill::kDetect, Skill::kPoint, Skill::kSegment}) {
    SkillRequest request = ask(skill, "", skill == Skill::kPoint ? "tall.png" : "wide.png");
    request.objects = {"circle", "square", "star"};
    request.settings.confidence = true;
    request.settings.temperature = skill == Skill::kDetect ? 0.0f : 1.2f;
    request.settings.seed = 5;
    if (skill == Skill::kSegment) {
      request.settings.max_tokens = 60;
      request.settings.min_tokens = 40;
    } else {
      // Random weights see little: another object is made likelier than the end.
      request.settings.max_objects = 7;
      request.settings.logit_bias = {{TokenId(5), 12}};
    }
    // All at once, or one after the other; one goes away.
    for (int object = 0; object < 3; ++object) {
      const bool leaves = skill == Skill::kPoint && object == 1;
      asks.push_back({.request = request,
                      .submit_tick = tick,
                      .cancel_tick = leaves ? tick + 9 : kNever,
                      .object = object});
      tick += skill == Skill::kDetect ? 0 : 1;
    }
  }
  model_name_ = "random:moondream3-small:3";
  auto device = open_device(test_device_name());
  ASSERT_TRUE(device.ok()) << device.status().to_string();
  load(std::move(device).value());
  if (HasFatalFailure()) return;
  const Run alone = run(1, asks, /*one_by_one=*/true);
  std::size_t num_tokens = 0, num_sure = 0;
  for (const auto& answer : alone.answers) {
    num_tokens += answer->tokens.size();
    for (const CommittedToken& token : answer->tokens) {
      num_sure += token.confidence.token > 0 && token.confidence.x > 0 ? 1u : 0u;
    }
  }
  ASSERT_GT(num_tokens, 150u) << "the load is too small to show anything";
  ASSERT_GT(num_sure, 20u) << "nobody says how sure it is";
  EXPECT_NE(alone.answers[6]->tokens, alone.answers[7]->tokens) << "all are about the same object";
  for (const int depth : depths()) {
    SCOPED_TRACE("depth " + std::to_string(depth));
    expect_same(asks, alone.answers, run(depth, asks).answers);
  }
}

// A trained model ends its answers itself: outlines, reasoning with points in it, and all that the mixed load has.
TEST_F(DepthEqualityTest, TheShippedMoondream3GivesTheSameTokensAtEveryDepth) {
  std::vector<Ask> asks = mixed_load();
  int tick = 0;
  for (const char* image_name : {"single.png", "wide.png", "tall.png", "single.png"}) {
    for (const float temperature : {0.0f, 0.8f}) {
      SkillRequest outline = ask(Skill::kSegment, tick % 2 == 0 ? "circle" : "shape", image_name);
      SkillRequest reasons = ask(Skill::kQuery, "How many shapes are there?", image_name);
      reasons.reasoning = true;
      for (SkillRequest& request : {std::ref(outline), std::ref(reasons)}) {
        request.settings.temperature = temperature;
        request.settings.seed = 20 + tick;
        request.settings.max_tokens = 120;
        asks.push_back({request, tick++, kNever});
      }
    }
  }
  asks = sorted_by_submission(std::move(asks));
  model_name_ = GAPLESS_SOURCE_DIR "/models/tiny3";
  auto device = open_device(test_device_name());
  ASSERT_TRUE(device.ok()) << device.status().to_string();
  load(std::move(device).value());
  if (HasFatalFailure()) return;
  const Run alone = run(1, asks, /*one_by_one=*/true);
  const int answer_id = model_->config.tokenizer.answer_id.value;
  int num_ended = 0, num_pointed = 0;
  for (std::size_t i = 0; i < asks.size(); ++i) {
    const SkillRequest& request = asks[i].request;
    const std::vector<CommittedToken>& tokens = alone.answers[i]->tokens;
    const bool ended = alone.answers[i]->reason == FinishReason::kStop;
    if (request.skill == Skill::kSegment) num_ended += ended ? 1 : 0;
    if (!request.reasoning) continue;
    for (const CommittedToken& token : tokens) {
      if (token.token.value == answer_id) break;
      num_pointed += token.token == model_->config.tokenizer.coord_id ? 1 : 0;
    }
  }
  EXPECT_GE(num_ended, 6) << "outlines end by themselves";
  EXPECT_GT(num_pointed, 20) << "reasoning has points";
  for (const int depth : depths()) {
    SCOPED_TRACE("depth " + std::to_string(depth));
    expect_same(asks, alone.answers, run(depth, asks).answers);
  }
}

// Any token but the end begins an object there, so the sampler replaces tokens; sizes are linear.
TEST_F(DepthEqualityTest, ASmallOlderMoondreamGivesTheSameTokensAtEveryDepth) {
  std::vector<Ask> asks = sorted_by_submission(mixed_load());
  for (Ask& asked : asks) {
    GenerationSettings& settings = asked.request.settings;
    settings.max_tokens = std::min(settings.max_tokens.value_or(32), 48);
    if (asked.request.skill != Skill::kPoint && asked.request.skill != Skill::kDetect) {
      // It has no long captions.
      if (asked.request.length == CaptionLength::kLong) {
        asked.request.length = CaptionLength::kNormal;
      }
      continue;
    }
    settings.max_tokens = std::nullopt;
    settings.max_objects = 8;
    asked.request.constraint_mode = ConstraintMode::kDeviceAutomaton;
  }
  model_name_ = "random:moondream-0.5b-small:3";
  auto device = open_device(test_device_name());
  ASSERT_TRUE(device.ok()) << device.status().to_string();
  load(std::move(device).value());
  if (HasFatalFailure()) return;
  const TokenizerConfig& tokens = model_->config.tokenizer;
  ASSERT_TRUE(tokens.any_token_is_coord);
  const Run alone = run(1, asks, /*one_by_one=*/true);
  std::size_t num_tokens = 0, num_coords = 0;
  for (const auto& answer : alone.answers) {
    num_tokens += answer->tokens.size();
    for (const CommittedToken& token : answer->tokens) {
      num_coords += token.token == tokens.coord_id ? 1u : 0u;
    }
  }
  ASSERT_GT(num_tokens, 400u) << "the load is too small to show anything";
  ASSERT_GT(num_coords, 50u) << "no token was replaced";
  for (const int depth : depths()) {
    SCOPED_TRACE("depth " + std::to_string(depth));
    expect_same(asks, alone.answers, run(depth, asks).answers);
  }
}

// Reasoning has coordinates in it, ends by itself or at its limit, and its end may be fed again; the answer is the text
// behind it.
TEST_F(DepthEqualityTest, ReasoningGivesTheSameTokensAtEveryDepth) {
  std::vector<Ask> asks;
  const auto add = [&](SkillRequest request, int submit_tick, int max_tokens, float temperature,
                       int cancel_tick = kNever) {
    request.settings.max_tokens = max_tokens;
    request.settings.temperature = temperature;
    request.settings.seed = 17 + asks.size();
    asks.push_back({std::move(request), submit_tick, cancel_tick});
  };
  const auto reason = [](SkillRequest request) {
    request.reasoning = true;
    return request;
  };
  add(reason(ask(Skill::kQuery, "How many shapes?", "single.png")), 0, 24, 0);
  add(ask(Skill::kQuery, "How many shapes?", "single.png"), 0, 24, 0);
  add(reason(ask(Skill::kQuery, "How many shapes?", "single.png")), 1, 30, 1.5f);
  add(reason(ask(Skill::kQuery, "And why?", "")), 2, 1, 0);
  for (const char* question : {"And why?", "And where?", "And when?"}) {
    add(reason(ask(Skill::kQuery, question, "")), 3, 40, 1.0f);
    asks.back().request.settings.logit_bias = {{TokenId(5), 11}, {TokenId(3), 8.5f}};
  }
  // Ends by itself, whatever a device's rounding makes of the others.
  add(reason(ask(Skill::kQuery, "And who?", "")), 3, 40, 1.0f);
  asks.back().request.settings.logit_bias = {{TokenId(5), 11}, {TokenId(3), 10.5f}};
  add(reason(ask(Skill::kQuery, "What else?", "tall.png")), 4, 60, 1.0f, 20);
  add(reason(ask(Skill::kQuery, "What else?", "tall.png")), 6, 12, 1.0f);
  asks.back().request.settings.frequency_penalty = 1;
  asks.back().request.settings.ignore_eos = true;
  for (const std::string feed : {"once", "twice"}) {
    SCOPED_TRACE(feed);
    model_name_ = "random:moondream3-small:3";
    auto device = open_device(test_device_name());
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    load(std::move(device).value(), {.numerics = {{"answer_feed", feed}}});
    if (HasFatalFailure()) return;
    const int answer_id = model_->config.tokenizer.answer_id.value;
    const int coord_id = model_->config.tokenizer.coord_id.value;
    const Run alone = run(1, asks, /*one_by_one=*/true);
    int num_coordinates = 0, num_early = 0;
    for (std::size_t i = 0; i < asks.size(); ++i) {
      if (!asks[i].request.reasoning || asks[i].cancel_tick != kNever) continue;
      const std::vector<CommittedToken>& tokens = alone.answers[i]->tokens;
      const auto is_end = [&](const CommittedToken& token) {
        return token.token.value == answer_id;
      };
      const auto end = std::find_if(tokens.begin(), tokens.end(), is_end);
      ASSERT_NE(end, tokens.end()) << "request " << i << " never answers";
      const int max_tokens = *asks[i].request.settings.max_tokens;
      EXPECT_LE(end - tokens.begin(), max_tokens);
      num_early += end - tokens.begin() < max_tokens ? 1 : 0;
      EXPECT_EQ(std::count_if(tokens.begin(), tokens.end(), is_end), feed == "once" ? 1 : 2);
      EXPECT_LE(tokens.end() - end, max_tokens + (feed == "once" ? 1 : 2));
      if (alone.answers[i]->reason == FinishReason::kLength) {
        EXPECT_EQ(tokens.end() - end, max_tokens + (feed == "once" ? 1 : 2));
      }
      num_coordinates +=
          static_cast<int>(std::count_if(tokens.begin(), end, [&](const auto& token) {
            return token.token.value == coord_id && token.x > 0;
          }));
    }
    EXPECT_GT(num_coordinates, 2) << "no reasoning has points";
    EXPECT_GT(num_early, 0) << "all reasoning is cut";
    for (const int depth : depths()) {
      SCOPED_TRACE("depth " + std::to_string(depth));
      expect_same(asks, alone.answers, run(depth, asks).answers);
    }
  }
}

// The penalty of a token is there at the very next one, without the host: two tokens that nothing else
// can beat, each paid for when it is used, have to take turns at every depth.
TEST_F(DepthEqualityTest, AFrequencyPenaltySeesTheTokenBefore) {
  constexpr int kTokens = 48;
  const TokenId pair[] = {TokenId(300), TokenId(301)};
  SkillRequest request = ask(Skill::kQuery, "Go on and on.", "");
  request.settings.ignore_eos = true;
  request.settings.max_tokens = kTokens;
  request.settings.logit_bias = {{pair[0], 100}, {pair[1], 100}};
  const auto tokens_at = [&](int depth) {
    std::vector<Ask> asks;
    asks.push_back({request});
    const Run result = run(depth, asks);
    std::vector<TokenId> tokens;
    for (const CommittedToken& token : result.answers[0]->tokens) tokens.push_back(token.token);
    return tokens;
  };
  const auto longest_run = [](const std::vector<TokenId>& tokens) {
    int longest = 0, length = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      length = i > 0 && tokens[i] == tokens[i - 1] ? length + 1 : 1;
      longest = std::max(longest, length);
    }
    return longest;
  };
  const std::vector<TokenId> unpunished = tokens_at(1);
  request.settings.frequency_penalty = 2;
  std::vector<TokenId> at_depth_1;
  for (const int depth : all_depths()) {
    SCOPED_TRACE("depth " + std::to_string(depth));
    const std::vector<TokenId> tokens = tokens_at(depth);
    ASSERT_EQ(tokens.size(), static_cast<std::size_t>(kTokens));
    for (const TokenId token : tokens) EXPECT_TRUE(token == pair[0] || token == pair[1]);
    const auto uses = std::count(tokens.begin(), tokens.end(), pair[0]);
    EXPECT_GT(uses, kTokens / 4);
    EXPECT_LT(uses, kTokens - kTokens / 4);
    EXPECT_LT(longest_run(tokens), longest_run(unpunished));
    if (depth == 1) at_depth_1 = tokens;
    EXPECT_EQ(tokens, at_depth_1);
  }
}

// Prefix cache, batches and depths, with keys and values in 8 bits.
TEST_F(DepthEqualityTest, AnFp8CacheChangesTokensOnceForAllDepths) {
  const std::vector<Ask> asks = load_in_eight_bits(sorted_by_submission(mixed_load()));
  const std::vector<Ask> few(asks.begin(), asks.begin() + 3);
  const Run native = run(1, few, /*one_by_one=*/true);
  auto device = open_device(test_device_name());
  ASSERT_TRUE(device.ok()) << device.status().to_string();
  ModelOptions options;
  options.kv_cache = KvFormat::kFp8;
  load(std::move(device).value(), options);
  if (HasFatalFailure()) return;
  const Run alone = run(1, asks, /*one_by_one=*/true);
  int num_different = 0;
  for (std::size_t i = 0; i < few.size(); ++i) {
    num_different += alone.answers[i]->tokens == native.answers[i]->tokens ? 0 : 1;
  }
  EXPECT_GT(num_different, 0) << "not a logprob differs: is the cache really in 8 bits?";
  for (const int depth : depths()) {
    SCOPED_TRACE("depth " + std::to_string(depth));
    expect_same(asks, alone.answers, run(depth, asks).answers);
  }
}

// e4m3 without a scale ends at 448 (kv_format.h).
TEST_F(DepthEqualityTest, KeysAndValuesLieWellInsideE4m3) {
  run(LoopOptions().depth, sorted_by_submission(mixed_load()));
  const VisionLanguageModel& model = *model_->vision_language_model();
  const DeviceState& state = model.state();
  const DType dtype = model_->kernels->activation_dtype();
  const auto bytes = static_cast<std::size_t>(state.layer_page_bytes() * state.num_pages());
  auto pinned = model_->device->allocate_pinned(bytes);
  auto stream = model_->device->create_stream("read");
  ASSERT_TRUE(pinned.ok() && stream.ok());
  float largest[2] = {0, 0};  // of the keys, of the values
  const TextConfig& text = model.config().text;
  const KvLayout layout{.num_heads = text.n_kv_heads, .head_dim = text.head_dim()};
  for (int layer = 0; layer < text.n_layers; ++layer) {
    ASSERT_TRUE((*stream)->copy_to_host(pinned->data(), state.kv_layer(layer).pages, bytes).ok());
    ASSERT_TRUE((*stream)->synchronize().ok());
    for (std::int64_t slot = 0; slot < state.num_pages() * kPageTokens; ++slot) {
      for (int i = 0; i < 2 * layout.num_heads; ++i) {
        const std::int64_t begin =
            layout.at(i % 2 == 0 ? KvPart::kKeys : KvPart::kValues, slot, i / 2);
        for (std::int64_t at = begin; at < begin + layout.head_dim; ++at) {
          const float value = dtype == DType::kF32 ? pinned->as<float>()[at]
                                                   : bf16_to_f32(pinned->as<std::uint16_t>()[at]);
          largest[i % 2] = std::max(largest[i % 2], std::fabs(value));
        }
      }
    }
  }
  RecordProperty("largest", fmt::format("key {:.2f}, value {:.2f}", largest[0], largest[1]));
  for (const float value : largest) {
    EXPECT_GT(value, 0.5f);  // they were read
    EXPECT_LT(value, kFp8Max / 8);
  }
}

// Of a greedy row without constraints the first alternative is the token itself.
TEST_F(DepthEqualityTest, AlternativesAreThoseOfTheirToken) {
  std::vector<Ask> asks;
  for (const int count : {20, 1, 5}) {
    SkillRequest request = ask(Skill::kQuery, "What do you see?", count == 1 ? "" : "single.png");
    request.settings.logprobs = true;
    request.settings.top_logprobs = count;
    request.settings.ignore_eos = true;
    request.settings.max_tokens = 30;
    asks.push_back({std::move(request), static_cast<int>(asks.size())});
  }
  const Run mixed = run(3, asks);
  const int answer_id = model_->config.tokenizer.answer_id.value;
  for (std::size_t i = 0; i < asks.size(); ++i) {
    ASSERT_EQ(mixed.answers[i]->tokens.size(), 30u);
    for (const CommittedToken& token : mixed.answers[i]->tokens) {
      ASSERT_EQ(static_cast<int>(token.top_logprobs.size()), asks[i].request.settings.top_logprobs);
      double sum = 0;
      float last = 0;
      for (const TopLogprob& one : token.top_logprobs) {
        EXPECT_LE(one.logprob, last);
        last = one.logprob;
        sum += std::exp(one.logprob);
      }
      EXPECT_LE(sum, 1.0 + 1e-5);
      if (token.top_logprobs[0].token == answer_id) continue;  // denied: never sampled
      EXPECT_EQ(token.top_logprobs[0].token, token.token.value);
      EXPECT_EQ(token.top_logprobs[0].logprob, token.logprob);
    }
  }
}

// Objects whose logprobs nobody asks for skip logits (needed_logits.h): the same tokens, values and confidences as with them,
// whoever else is in the batch.
TEST_F(DepthEqualityTest, LogitsThatNobodyReadsChangeNoAnswer) {
  std::vector<Ask> asks;
  const auto add_twins = [&](Skill skill, const char* image_name, float temperature) {
    for (const bool logprobs : {false, true}) {
      SkillRequest request = ask(skill, "circle", image_name);
      request.settings.logprobs = logprobs;
      request.settings.temperature = temperature;
      request.settings.seed = 5;
      request.settings.max_objects = 7;
      request.settings.confidence = true;
      // Without temperature as many objects as there are, else more than that.
      if (temperature > 0) {
        request.settings.logit_bias = {{model_->config.tokenizer.coord_id, 50}};
      }
      asks.push_back({std::move(request), static_cast<int>(asks.size())});
    }
  };
  add_twins(Skill::kDetect, "wide.png", 0);
  add_twins(Skill::kPoint, "wide.png", 1.5f);
  add_twins(Skill::kDetect, "tall.png", 1.2f);
  add_twins(Skill::kPoint, "single.png", 0);
  const std::size_t num_twins = asks.size();
  SkillRequest text = ask(Skill::kQuery, "What do you see?", "single.png");
  text.settings.ignore_eos = true;
  text.settings.max_tokens = 8;  // the others go on without it
  asks.push_back({std::move(text), static_cast<int>(asks.size())});
  const Run alone = run(1, asks, /*one_by_one=*/true);
  std::size_t num_tokens = 0, num_unsure = 0;
  for (std::size_t i = 0; i < num_twins; i += 2) {
    std::vector<CommittedToken> with_all = alone.answers[i + 1]->tokens;
    for (CommittedToken& token : with_all) {
      num_unsure += token.logprob < 0 ? 1u : 0u;
      token.logprob = 0;
    }
    EXPECT_EQ(alone.answers[i]->tokens, with_all) << "twins " << i;
    num_tokens += with_all.size();
  }
  ASSERT_GT(num_tokens, 30u) << "the load is too small to show anything";
  EXPECT_GT(num_unsure, num_tokens / 4) << "logprobs were asked for";
  for (const int depth : depths()) {
    SCOPED_TRACE("depth " + std::to_string(depth));
    expect_same(asks, alone.answers, run(depth, asks).answers);
  }
}

// Weights and products. Rows of activations have scales of their own: what others are in the launch
// does not matter.
TEST_F(DepthEqualityTest, EightBitsDoNotDependOnTheBatchEither) {
  const std::vector<Ask> asks = load_in_eight_bits(sorted_by_submission(mixed_load()));
  constexpr std::size_t kFew = 3;
  const auto tokens_of_few = [](const Run& of) {
    std::vector<std::vector<CommittedToken>> few;
    for (std::size_t i = 0; i < kFew; ++i) few.push_back(of.answers[i]->tokens);
    return few;
  };
  const std::vector<Ask> few(asks.begin(), asks.begin() + kFew);
  const auto native = tokens_of_few(run(1, few, /*one_by_one=*/true));
  for (const WeightFormat weights :
       {WeightFormat::kFp8, WeightFormat::kW8A8, WeightFormat::kInt8}) {
    SCOPED_TRACE(static_cast<int>(weights));
    auto device = open_device(test_device_name());
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    if (weights == WeightFormat::kInt8 && (*device)->kind() != DeviceKind::kCpu) continue;
    load(std::move(device).value(), {.weights = weights, .adjust_limits = nullptr});
    if (HasFatalFailure()) return;
    const Run alone = run(1, asks, /*one_by_one=*/true);
    expect_same(asks, alone.answers, run(3, asks).answers);
    EXPECT_NE(native, tokens_of_few(alone)) << "nothing was rounded";
  }
}

// Prefills and encodes by graphs, padded up to buckets, and op by op.
TEST_F(DepthEqualityTest, GraphsOfFillStepsChangeNoToken) {
  const std::vector<Ask> asks = cut_to_first_tokens(sorted_by_submission(mixed_load()));
  std::vector<Run> runs;
  for (const bool with_graphs : {false, true}) {
    auto device = open_device(test_device_name());
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    ModelOptions options;
    options.adjust_limits = [with_graphs](StepLimits& limits) {
      limits.max_graph_tokens = with_graphs ? limits.max_prefill_tokens : 0;
      limits.max_graph_crops = with_graphs ? limits.max_crops_per_encode : 0;
    };
    load(std::move(device).value(), options);
    if (HasFatalFailure()) return;
    runs.push_back(run(2, asks));
  }
  expect_same(asks, runs[0].answers, runs[1].answers);
}

// Images in one launch or in several, the first of them by a graph where there is one.
TEST_F(DepthEqualityTest, EncodesInPartsChangeNoToken) {
  std::vector<Ask> asks = cut_to_first_tokens(sorted_by_submission(mixed_load()));
  std::erase_if(asks, [](const Ask& asked) { return asked.request.images.empty(); });
  std::vector<Run> runs;
  for (const int max_crops : {13, 1, 2}) {
    auto device = open_device(test_device_name());
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    ModelOptions options;
    options.adjust_limits = [max_crops](StepLimits& limits) {
      limits.max_crops_per_encode = max_crops;
      limits.max_graph_crops = std::min(limits.max_graph_crops, max_crops);
      limits.max_images_per_encode = 4;
    };
    load(std::move(device).value(), options);
    if (HasFatalFailure()) return;
    runs.push_back(run(2, asks));
  }
  for (std::size_t i = 1; i < runs.size(); ++i) {
    expect_same(asks, runs[0].answers, runs[i].answers);
  }
}

TEST_F(DepthEqualityTest, HostMasksGiveTheTokensOfTheDeviceAutomaton) {
  std::vector<Ask> asks;
  const auto add_twins = [&](Skill skill, const char* image_name, bool gaze) {
    for (const float temperature : {0.0f, 1.5f}) {
      for (const auto mode : {ConstraintMode::kDeviceAutomaton, ConstraintMode::kHostMask}) {
        SkillRequest request = ask(skill, "circle", image_name);
        request.constraint_mode = mode;
        request.settings.temperature = temperature;
        request.settings.seed = 5;
        request.settings.max_objects = 8;
        request.settings.confidence = true;
        asks.push_back({.request = std::move(request),
                        .submit_tick = static_cast<int>(asks.size()),
                        .gaze = gaze});
      }
    }
  };
  add_twins(Skill::kDetect, "wide.png", false);
  add_twins(Skill::kPoint, "wide.png", false);
  add_twins(Skill::kPoint, "tall.png", true);  // which has two circles
  const auto add_held_twins = [&](GrammarSpec spec, float temperature, const char* image_name) {
    for (const auto mode : {ConstraintMode::kDeviceAutomaton, ConstraintMode::kHostMask}) {
      SkillRequest request = ask(Skill::kQuery, "What is there?", image_name);
      request.constraint_mode = mode;
      request.settings.grammar = spec;
      request.settings.temperature = temperature;
      request.settings.seed = 9;
      request.settings.max_tokens = 90;
      if (temperature > 1) request.settings.frequency_penalty = 0.5f;
      asks.push_back({.request = std::move(request), .submit_tick = static_cast<int>(asks.size())});
    }
  };
  using Kind = GrammarSpec::Kind;
  for (const float temperature : {0.0f, 0.9f, 1.6f}) {
    add_held_twins({.kind = Kind::kJsonObject}, temperature, "single.png");
    add_held_twins({.kind = Kind::kRegex, .text = "([a-f]{2,30}-(é|ß|語))+[0-9]{1,40}"},
                   temperature, "");
    add_held_twins(
        {.kind = Kind::kJsonSchema, .text = R"({"type": "array", "items": {"type": "object",
        "properties": {"name": {"type": "string", "minLength": 3, "maxLength": 20}, "n": {"type": "number"}},
        "required": ["name"]}, "minItems": 2, "maxItems": 4})"},
        temperature, "");
  }
  for (const int depth : depths()) {
    const Run mixed = run(depth, asks);
    for (std::size_t i = 0; i < asks.size(); i += 2) {
      EXPECT_FALSE(mixed.answers[i]->tokens.empty());
      EXPECT_EQ(mixed.answers[i]->tokens, mixed.answers[i + 1]->tokens) << "requests " << i;
      for (const CommittedToken& token : mixed.answers[i]->tokens) {
        if (!asks[i].request.settings.confidence) break;
        EXPECT_GT(token.confidence.token, 0);
        EXPECT_LE(token.confidence.token, 1);
        EXPECT_GT(token.confidence.x, 0);
      }
      if (asks[i].gaze) {
        EXPECT_LE(mixed.answers[i]->tokens.size(), 3u);  // x, y, end
      }
    }
  }
}

}  // namespace
}  // namespace gapless
