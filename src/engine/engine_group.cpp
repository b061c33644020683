#include "engine/engine_group.h"

#include <algorithm>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "base/num_cores.h"
#include "engine/face_gaze_sink.h"
#include "engine/promise_sink.h"

namespace gapless {
namespace {

// Prefixes that a device's cache has room for.
int known_pictures_of(const Engine& engine, const LoopOptions& loop) {
  const StepModel& model = *engine.model().model;
  if (model.info().image_tokens == 0) return 0;
  const int pages = (model.info().image_tokens + kPageTokens) / kPageTokens;
  return std::min(loop.max_cached_prefixes, model.limits().num_pages / pages);
}

// For the engine's own thread, which waits awake for a prompt that is on its way, and for those who read requests and write
// answers. A resize waits for the last of its threads, and so for one that has no core.
constexpr int kCoresBesideResizing = 3;

}  // namespace

EngineOptions share_of_host(const EngineOptions& options, int num_engines, int num_cores) {
  EngineOptions shared = options;
  if (shared.num_resize_threads == 0) {
    const int cores = std::max(1, num_cores / num_engines);
    shared.num_resize_threads = std::max((cores + 1) / 2, cores - kCoresBesideResizing);
  }
  if (num_engines <= 1) return shared;
  if (shared.num_preprocess_threads == 0) {
    shared.num_preprocess_threads = std::clamp(num_cores / 2 / num_engines, 2, 8);
  }
  return shared;
}

// What a request adds to its device's account; given back with the last of its sinks.
class EngineGroup::Charge {
 public:
  Charge(std::shared_ptr<Account> account, DeviceChooser::Choice choice)
      : account_(std::move(account)), choice_(choice) {}
  ~Charge() {
    MutexLock lock(account_->mutex);
    account_->chooser.end(choice_);
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

  void accepted(const RequestOutline& request) {
    MutexLock lock(account_->mutex);
    account_->chooser.accepted(choice_, request);
  }
  void learn(Skill skill, int answer_tokens) {
    MutexLock lock(account_->mutex);
    account_->chooser.learn(skill, answer_tokens);
  }
  int device() const { return choice_.device; }

 private:
  const std::shared_ptr<Account> account_;
  const DeviceChooser::Choice choice_;
};

class EngineGroup::ChargedSink final : public ResponseSink {
 public:
  ChargedSink(std::shared_ptr<ResponseSink> sink, std::shared_ptr<Charge> charge)
      : sink_(std::move(sink)), charge_(std::move(charge)) {}

  void on_text(std::string_view chunk, int num_tokens) override {
    sink_->on_text(chunk, num_tokens);
  }
  void on_reasoning(std::string_view chunk, int num_tokens) override {
    sink_->on_reasoning(chunk, num_tokens);
  }
  void on_box(const Box& box, int num_tokens) override { sink_->on_box(box, num_tokens); }
  void on_logprobs(std::vector<TokenLogprob> tokens) override {
    sink_->on_logprobs(std::move(tokens));
  }
  // The account is right before the client knows: it may ask again at once.
  void on_done(const SkillResult& result) override {
    charge_->learn(result.skill, result.metrics.output_tokens);
    charge_.reset();
    sink_->on_done(result);
  }
  void on_error(const Status& status) override {
    charge_.reset();
    sink_->on_error(status);
  }

 private:
  const std::shared_ptr<ResponseSink> sink_;
  std::shared_ptr<Charge> charge_;
};

StatusOr<std::unique_ptr<EngineGroup>> EngineGroup::start(std::vector<std::string> labels,
                                                          const LoadModel& load,
                                                          const EngineOptions& options) {
  GAPLESS_CHECK(!labels.empty());
  const int count = static_cast<int>(labels.size());
  std::unique_ptr<EngineGroup> group(
      new EngineGroup(std::move(labels), options.loop.on_device_lost));
  const EngineOptions shared = share_of_host(options, count, num_usable_cores());
  std::vector<std::future<StatusOr<std::unique_ptr<Engine>>>> starting;
  for (int i = 0; i < count; ++i) {
    starting.push_back(std::async(std::launch::async, [&group = *group, &load, &shared, i] {
      return group.start_one(i, load, shared);
    }));
  }
  Status failed;
  for (auto& one : starting) {
    StatusOr<std::unique_ptr<Engine>> engine = one.get();
    if (engine.ok()) {
      group->engines_.push_back(std::move(engine).value());
    } else if (failed.ok()) {
      failed = engine.status();
    }
  }
  GAPLESS_RETURN_IF_ERROR(failed);
  const Engine& first = *group->engines_.front();
  group->account_ = std::make_shared<Account>(
      DeviceChooser::Options{.num_devices = count,
                             .picture_tokens = first.model().model->info().image_tokens,
                             .max_known_pictures = known_pictures_of(first, options.loop)});
  return group;
}

EngineGroup::EngineGroup(std::vector<std::string> labels,
                         std::function<void(const Status&)> on_all_lost)
    : labels_(std::move(labels)), on_all_lost_(std::move(on_all_lost)), lost_(labels_.size()) {}

EngineGroup::~EngineGroup() {
  MutexLock lock(gazes_mutex_);
  is_closing_ = true;
}

void EngineGroup::cancel_gaze(RequestId id) {
  MutexLock lock(gazes_mutex_);
  if (!is_closing_) cancel(id);
}

StatusOr<std::unique_ptr<Engine>> EngineGroup::start_one(int device, const LoadModel& load,
                                                         EngineOptions options) {
  options.loop.on_device_lost = [this, device](const Status& status) {
    on_device_lost(device, status);
  };
  const auto start = [&]() -> StatusOr<std::unique_ptr<Engine>> {
    GAPLESS_ASSIGN_OR_RETURN(auto model, load(static_cast<std::size_t>(device)));
    return Engine::start(std::move(model), options);
  };
  StatusOr<std::unique_ptr<Engine>> engine = start();
  if (engine.ok() || size() == 1) return engine;
  return engine.status().with_context(label(device));
}

void EngineGroup::on_device_lost(int device, const Status& status) {
  bool all = true;
  {
    MutexLock lock(mutex_);
    lost_[static_cast<std::size_t>(device)] = status;
    for (const Status& one : lost_) all = all && !one.ok();
    if (all) all_lost_ = status;
  }
  if (!all) {
    log_error("{}: {}: the other devices go on", label(device), status.message());
  } else if (on_all_lost_) {
    on_all_lost_(status);
  }
}

Status EngineGroup::device_status() const {
  MutexLock lock(mutex_);
  return all_lost_;
}

std::vector<std::string> EngineGroup::lost_devices() const {
  MutexLock lock(mutex_);
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < lost_.size(); ++i) {
    if (!lost_[i].ok()) labels.push_back(labels_[i]);
  }
  return labels;
}

std::int64_t EngineGroup::tokens_to_do(int device) const {
  MutexLock lock(account_->mutex);
  return account_->chooser.tokens_to_do(device);
}

RequestId EngineGroup::outer_id(RequestId inner, int device) const {
  return RequestId(inner.value * size() + device);
}

void EngineGroup::cancel(RequestId id) {
  if (!id.valid()) return;
  engine(static_cast<int>(id.value % size())).cancel(RequestId(id.value / size()));
}

StatusOr<RequestId> EngineGroup::submit(SkillRequest request, std::shared_ptr<ResponseSink> sink) {
  std::vector<std::shared_ptr<ResponseSink>> sinks;
  sinks.push_back(std::move(sink));
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<RequestId> ids,
                           submit_choices(std::move(request), std::move(sinks)));
  return ids.front();
}

StatusOr<RequestId> EngineGroup::submit_face_gaze(const SkillRequest& request,
                                                  std::shared_ptr<ResponseSink> sink) {
  GAPLESS_RETURN_IF_ERROR(validate(request));
  const std::vector<SkillRequest> gazes = face_gaze_requests(request);
  auto answers = std::make_shared<FaceGazeAnswers>(std::move(sink), static_cast<int>(gazes.size()),
                                                   [this](RequestId id) { cancel_gaze(id); });
  std::vector<RequestId> ids;
  for (std::size_t i = 0; i < gazes.size(); ++i) {
    const StatusOr<RequestId> id = submit(gazes[i], answers->sink_of(static_cast<int>(i)));
    if (!id.ok()) {
      answers->give_up(ids);
      return id.status();
    }
    ids.push_back(*id);
  }
  const RequestId first = ids.front();
  answers->set_running(std::move(ids));
  return first;
}

StatusOr<std::vector<RequestId>> EngineGroup::submit_choices(
    SkillRequest request, std::vector<std::shared_ptr<ResponseSink>> sinks) {
  if (sinks.size() == 1 && asks_for_face_gaze(request)) {
    GAPLESS_ASSIGN_OR_RETURN(const RequestId id, submit_face_gaze(request, sinks.front()));
    return std::vector{id};
  }
  const RequestOutline outline = outline_of(request, static_cast<int>(sinks.size()));
  std::vector<bool> refused(labels_.size());
  Status reason;
  {
    MutexLock lock(mutex_);
    for (std::size_t i = 0; i < lost_.size(); ++i) refused[i] = !lost_[i].ok();
    reason = all_lost_;
  }
  while (true) {
    std::optional<DeviceChooser::Choice> choice;
    {
      MutexLock lock(account_->mutex);
      choice = account_->chooser.choose(outline, refused);
    }
    if (!choice) return reason;
    auto charge = std::make_shared<Charge>(account_, *choice);
    std::vector<std::shared_ptr<ResponseSink>> charged;
    for (const auto& sink : sinks) charged.push_back(std::make_shared<ChargedSink>(sink, charge));
    // A copy: pictures are shared, and another device may be asked.
    StatusOr<std::vector<RequestId>> ids =
        engine(choice->device).submit_choices(request, std::move(charged));
    if (ids.ok()) {
      charge->accepted(outline);
      for (RequestId& id : *ids) id = outer_id(id, choice->device);
      return ids;
    }
    reason = ids.status();
    const bool is_of_the_device = reason.code() == StatusCode::kResourceExhausted ||
                                  reason.code() == StatusCode::kDeviceError;
    if (!is_of_the_device) return reason;
    refused[static_cast<std::size_t>(choice->device)] = true;
  }
}

StatusOr<SkillResult> EngineGroup::run(SkillRequest request) {
  auto sink = std::make_shared<PromiseSink>();
  auto future = sink->future();
  GAPLESS_ASSIGN_OR_RETURN([[maybe_unused]] const RequestId id, submit(std::move(request), sink));
  return future.get();
}

}  // namespace gapless
