#include "tests/server/fake_service.h"

#include <chrono>
#include <sstream>

namespace gapless {

FakeService::~FakeService() {
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, job] : jobs_) job->cancelled.store(true);
  }
  for (std::thread& thread : threads_) thread.join();
}

StatusOr<RequestId> FakeService::submit(SkillRequest request, std::shared_ptr<ResponseSink> sink) {
  GAPLESS_RETURN_IF_ERROR(validate(request));
  if (request.text == "full") {
    return make_error(StatusCode::kResourceExhausted, "too many requests are running");
  }
  auto job = std::make_shared<Job>();
  std::unique_lock lock(mutex_);
  last_request_ = request;
  job->request = std::move(request);
  job->sink = std::move(sink);
  const RequestId id(++num_submitted_);
  job->is_first = num_submitted_.load() == 1;
  jobs_[id] = job;
  ++num_running_;
  threads_.emplace_back([this, job] {
    run(*job);
    job->ended.store(true);
    job->sink.reset();
    --num_running_;
  });
  lock.unlock();
  if (job->is_first && job->request.text == "first fails") {
    while (!job->ended.load()) std::this_thread::yield();
  }
  return id;
}

void FakeService::cancel(RequestId id) {
  std::shared_ptr<Job> job;
  {
    std::lock_guard lock(mutex_);
    job = jobs_.at(id);
  }
  job->cancelled.store(true);
  if (job->request.text != "obedient") return;
  while (!job->ended.load()) std::this_thread::yield();
}

bool FakeService::wait_cancelled(int count) {
  for (int i = 0; i < 6000 && num_cancelled_.load() < count; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return num_cancelled_.load() >= count;
}

SkillRequest FakeService::last_request() const {
  std::lock_guard lock(mutex_);
  return last_request_;
}

bool FakeService::pause(const Job& job, int ms) const {
  for (int i = 0; i < ms && !job.cancelled.load(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return !job.cancelled.load();
}

void FakeService::run(Job& job) {
  ResponseSink& sink = *job.sink;
  const std::string& text = job.request.text;
  SkillResult result;
  result.request_id = "fake";
  result.skill = job.request.skill;
  result.metrics = {740, 0, 1.5, 2.5, 3.5};
  result.metrics.stages[RequestStage::kDevice] = 7'000'000;
  result.metrics.cached_tokens = 730;
  const GenerationSettings& settings = job.request.settings;
  const auto tell_logprobs = [&](std::string_view token, bool special) {
    if (!settings.logprobs) return;
    ScoredToken scored{.text = std::string(token), .bytes = std::string(token), .logprob = -0.5f};
    if (special) scored.bytes.reset();
    TokenLogprob told{scored, {}};
    told.top.assign(static_cast<std::size_t>(settings.top_logprobs), scored);
    sink.on_logprobs({std::move(told)});
  };
  const auto say = [&](std::string_view chunk) {
    result.text += chunk;
    tell_logprobs(chunk, false);
    sink.on_text(chunk, ++result.metrics.output_tokens);
  };
  const auto wait_for_cancel = [&] {
    while (pause(job, 1000)) {
    }
  };

  std::istringstream words(text);
  std::string verb;
  int count = 0;
  int ms = 0;
  words >> verb >> count >> ms;
  if (text == "corrupt") return sink.on_error(data_loss("JPEG: truncated"));
  if (verb == "words") {
    for (int i = 0; i < count && pause(job, ms); ++i) say(fmt::format("w{} ", i));
  } else if (text == "hang") {
    say("first ");
    wait_for_cancel();
  } else if (text == "first fails" && job.is_first) {
    return sink.on_error(Status(StatusCode::kDeviceError, "the device is lost"));
  } else if (text == "silent" || text == "obedient" || text == "first fails") {
    wait_for_cancel();
  } else if (text == "flood") {
    // Large enough that the kernel's own socket buffers, megabytes, are full soon on a busy
    // machine.
    const std::string chunk(64 << 10, 'x');
    while (!job.cancelled.load()) say(chunk);
  } else if (text == "break") {
    say("first ");
    return sink.on_error(Status(StatusCode::kDeviceError, "the device is lost"));
  } else if (text == "unicode") {
    for (const char* chunk : {"na\xC3\xAFve ", "\xE2\x82\xAC", " \xF0\x9F\x98\x80\n\"q\""})
      say(chunk);
  } else if (job.request.skill == Skill::kPoint) {
    tell_logprobs("<|coord|>", true);
    tell_logprobs("<|coord|>", true);
    result.points = {{0.25f, 0.5f}};
  } else if (job.request.skill == Skill::kDetect) {
    result.boxes = {{0.1f, 0.2f, 0.3f, 0.4f}};
    if (text == "nothing") result.boxes.clear();
    if (settings.confidence) result.confidences = {{0.75f, {0.5f, 0.25f, 0.125f, 1}}};
  } else if (job.request.skill == Skill::kSegment) {
    result.boxes = {{0.25f, 0.5f, 0.75f, 1}};
    sink.on_box(result.boxes.front(), result.metrics.output_tokens += 3);
    for (const char* chunk : {"M 0 0", " L 1 0", " Z"}) say(chunk);
    result.text = "M 0 0 L 1 0 Z";
  } else {
    if (job.request.reasoning) {
      for (const char* chunk : {"two ", "dots"}) {
        sink.on_reasoning(chunk, ++result.metrics.output_tokens);
      }
      result.reasoning = Reasoning{.text = "two dots", .grounding = {{4, 8, {{0.25f, 0.5f}}}}};
      result.metrics.reasoning_tokens = result.metrics.output_tokens;
    }
    say(job.request.skill == Skill::kCaption ? "a caption" : text);
  }
  if (job.cancelled.load()) {
    ++num_cancelled_;
    return sink.on_error(Status(StatusCode::kCancelled, "the request was cancelled"));
  }
  sink.on_done(result);
}

std::vector<ServiceMetrics> FakeService::device_metrics() const {
  ServiceMetrics first;
  first.device = "gpu:0";
  first.device_name = "Fake";
  first.num_running = num_running();
  first.num_pages = 100;
  first.page_tokens = 16;
  first.kv_usage = 0.5;
  first.bubble_by_phase = {{"plan", 0.5}};
  ServiceMetrics second = first;
  second.device = "gpu:1";
  second.num_running = 0;
  second.num_waiting = 3;
  second.num_pages = 300;
  second.kv_usage = 0.25;
  second.bubble_by_phase = {{"plan", 0.25}};
  second.lost = lost_one_.load();
  return {first, second};
}

StatusOr<ServiceTimeline> FakeService::timeline(int, std::string_view device) const {
  if (!device.empty() && device != "gpu:0" && device != "gpu:1") {
    return invalid_argument("device: there is no '{}'", device);
  }
  ServiceTimeline timeline;
  timeline.device = device.empty() ? "gpu:0" : device;
  timeline.devices = {"gpu:0", "gpu:1"};
  timeline.depth = depth_.load();
  timeline.max_depth = 2;
  timeline.steps = {{7, "decode", 3, 1, 100, 200, 200, 210}};
  timeline.gaps = {{"starved", "", 210, 300}};
  return timeline;
}

Status FakeService::set_depth(int depth) {
  if (depth < 1 || depth > 2) return invalid_field("depth", "must be 1 or 2");
  depth_.store(depth);
  return ok_status();
}

StatusOr<std::vector<TokenId>> FakeService::tokenize(std::string_view text) const {
  std::vector<TokenId> ids;
  for (const char c : text) ids.emplace_back(static_cast<unsigned char>(c));
  return ids;
}

StatusOr<std::string> FakeService::detokenize(const std::vector<TokenId>& ids) const {
  std::string text;
  for (const TokenId id : ids) {
    if (id.value > 255) return invalid_field("tokens", "has {}, which is no token", id.value);
    text += static_cast<char>(id.value);
  }
  return text;
}

}  // namespace gapless
