#include "tests/engine_storm/storm.h"

#include <tuple>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/limits.h"
#include "image/write_png.h"
#include "model/model_loader.h"

namespace gapless {

void Outcome::end(StatusOr<SkillResult> result) {
  MutexLock lock(mutex_);
  if (!ends_.empty()) complaints_.push_back("a second end");
  ends_.push_back(std::move(result));
  changed_.notify_all();
}

void Outcome::complain(std::string what) {
  MutexLock lock(mutex_);
  complaints_.push_back(std::move(what));
}

bool Outcome::has_ended() const {
  MutexLock lock(mutex_);
  return !ends_.empty();
}

StatusOr<SkillResult> Outcome::wait() {
  const auto deadline = std::chrono::steady_clock::now() + kDeadlockGuard;
  MutexLock lock(mutex_);
  while (ends_.empty()) {
    // Nothing that runs can be ended cleanly any more.
    GAPLESS_CHECK_MSG(changed_.wait_until(lock, deadline), "a request never ended");
  }
  return ends_.front();
}

std::vector<std::string> Outcome::complaints() const {
  MutexLock lock(mutex_);
  return complaints_;
}

// Around each event: one at a time, none after the end.
class StormSink::Event {
 public:
  Event(StormSink& sink, const char* name) : sink_(sink) {
    if (sink_.in_event_.exchange(true)) sink_.outcome_->complain("two events at once");
    if (sink_.ended_) sink_.outcome_->complain(std::string("after the end: ") + name);
  }
  ~Event() { sink_.in_event_.store(false); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

 private:
  StormSink& sink_;
};

void StormSink::on_text(std::string_view chunk, int num_tokens) {
  Event event(*this, "text");
  if (chunk.empty()) outcome_->complain("an empty chunk");
  if (num_tokens < num_tokens_) outcome_->complain("fewer tokens than before");
  const bool is_first = text_.empty();
  text_ += chunk;
  num_tokens_ = num_tokens;
  if (is_first && on_first_text) on_first_text();
}

void StormSink::on_logprobs(std::vector<TokenLogprob> tokens) {
  Event event(*this, "logprobs");
  num_logprobs_ += tokens.size();
}

void StormSink::on_done(const SkillResult& result) {
  Event event(*this, "done");
  if (text_ != result.text) {
    outcome_->complain("streamed \"" + text_ + "\", answered \"" + result.text + "\"");
  }
  if (num_tokens_ > result.metrics.output_tokens) outcome_->complain("tokens were lost");
  if (num_logprobs_ > static_cast<std::size_t>(result.metrics.output_tokens)) {
    outcome_->complain("more log probabilities than tokens");
  }
  end(result);
}

void StormSink::on_error(const Status& status) {
  Event event(*this, "error");
  end(status);
}

void StormSink::end(StatusOr<SkillResult> result) {
  ended_ = true;
  outcome_->end(std::move(result));
  if (on_end) on_end();
}

namespace {

StatusOr<std::unique_ptr<LoadedModel>> load_storm_model() {
  GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, open_device("cpu"));
  return load_model(std::move(device), "");
}

}  // namespace

StatusOr<std::unique_ptr<Engine>> start_storm_engine(const EngineOptions& options) {
  GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> model, load_storm_model());
  return Engine::start(std::move(model), options);
}

StatusOr<std::unique_ptr<EngineGroup>> start_storm_group(int num_devices,
                                                         const EngineOptions& options) {
  std::vector<std::string> labels;
  for (int i = 0; i < num_devices; ++i) labels.push_back(fmt::format("cpu:{}", i));
  return EngineGroup::start(
      labels, [](std::size_t) { return load_storm_model(); }, options);
}

namespace {

std::shared_ptr<const std::string> golden_picture(const std::string& name) {
  auto bytes = read_file(GAPLESS_SOURCE_DIR "/tests/golden/tiny/" + name, kMaxImageBytes);
  GAPLESS_CHECK_MSG(bytes.ok(), bytes.status().to_string());
  return std::make_shared<const std::string>(std::move(bytes).value());
}

SkillRequest ask(Skill skill, std::string text, int max_tokens) {
  SkillRequest request;
  request.skill = skill;
  request.text = std::move(text);
  request.settings.temperature = 0.0f;
  request.settings.seed = 1;
  request.settings.max_tokens = max_tokens;
  return request;
}

}  // namespace

std::vector<SkillRequest> storm_requests() {
  const auto single = golden_picture("single.png");
  const auto tall = golden_picture("tall.png");
  std::vector<SkillRequest> all;
  const auto add = [&](SkillRequest request) -> SkillRequest& {
    all.push_back(std::move(request));
    return all.back();
  };
  add(ask(Skill::kQuery, "Hello?", 8));
  SkillRequest& seeded = add(ask(Skill::kQuery, "Tell me something.", 12));
  seeded.settings.temperature = 0.9f;
  seeded.settings.seed = 7;
  seeded.settings.ignore_eos = true;
  SkillRequest& stopped = add(ask(Skill::kQuery, "What do you see?", 16));
  stopped.settings.ignore_eos = true;
  stopped.settings.stop = {"e", "o"};
  SkillRequest& scored = add(ask(Skill::kQuery, "Is it red?", 6));
  scored.settings.logprobs = true;
  scored.settings.top_logprobs = 3;
  add(ask(Skill::kQuery, "How many shapes are there?", 6)).images = {single};
  add(ask(Skill::kQuery, "What is new?", 4)).images = {single, tall};
  add(ask(Skill::kCaption, "", 6)).images = {tall};
  add(ask(Skill::kDetect, "circle", 12)).images = {single};
  SkillRequest& masked = add(ask(Skill::kPoint, "square", 8));
  masked.images = {tall};
  masked.constraint_mode = ConstraintMode::kHostMask;
  add(ask(Skill::kQuery, "What is this?", 4)).images = {
      std::make_shared<const std::string>(single->substr(0, single->size() / 2))};
  std::string too_long;
  for (int i = 0; i < 4000; ++i) too_long += "word ";
  add(ask(Skill::kQuery, too_long, 4));
  return all;
}

SkillRequest long_request() {
  SkillRequest request = ask(Skill::kQuery, "Go on and on.", kLongAnswerTokens);
  request.settings.ignore_eos = true;
  return request;
}

std::shared_ptr<const std::string> plain_picture(int number) {
  Image image;
  image.width = 400;
  image.height = 300;
  image.rgb.assign(400 * 300 * 3, static_cast<std::uint8_t>(number));
  const auto png = encode_png(image);
  GAPLESS_CHECK_MSG(png.ok(), png.status().to_string());
  return std::make_shared<const std::string>(reinterpret_cast<const char*>(png->data()),
                                             png->size());
}

::testing::AssertionResult same_answer(const StatusOr<SkillResult>& expected,
                                       const StatusOr<SkillResult>& actual) {
  if (expected.ok() != actual.ok()) {
    return ::testing::AssertionFailure() << "alone: " << expected.status().to_string()
                                         << ", in the storm: " << actual.status().to_string();
  }
  if (!expected.ok()) {
    if (expected.status().to_string() == actual.status().to_string()) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure()
           << expected.status().to_string() << " became " << actual.status().to_string();
  }
  const auto places = [](const SkillResult& result) {
    std::vector<float> all;
    for (const Point& point : result.points) all.insert(all.end(), {point.x, point.y});
    for (const Box& box : result.boxes) {
      all.insert(all.end(), {box.x_min, box.y_min, box.x_max, box.y_max});
    }
    return all;
  };
  const auto facts = [&](const SkillResult& result) {
    return std::tuple(result.skill, result.finish_reason, result.text, places(result),
                      result.metrics.input_tokens, result.metrics.output_tokens);
  };
  if (facts(*expected) == facts(*actual)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << expected->text << "\" became \"" << actual->text
                                       << "\", or its places or counts changed";
}

}  // namespace gapless
