#include "engine/engine.h"

#include <algorithm>
#include <future>
#include <random>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace gapless {
namespace {

// Distinguishes the request ids of two runs of the server.
std::string random_id_prefix() {
  std::random_device device;
  return fmt::format("{:08x}", device());
}

std::uint64_t random_seed() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

class PromiseSink final : public ResponseSink {
 public:
  void on_text(std::string_view, int) override {}
  void on_done(const SkillResult& result) override { promise_.set_value(result); }
  void on_error(const Status& status) override { promise_.set_value(status); }
  std::future<StatusOr<SkillResult>> future() { return promise_.get_future(); }

 private:
  std::promise<StatusOr<SkillResult>> promise_;
};

}  // namespace

StatusOr<std::unique_ptr<Engine>> Engine::start(std::unique_ptr<LoadedModel> model,
                                                const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine(std::move(model), options));
  GAPLESS_RETURN_IF_ERROR(engine->start_threads());
  return engine;
}

Engine::Engine(std::unique_ptr<LoadedModel> model, const EngineOptions& options)
    : model_(std::move(model)),
      options_(options),
      id_prefix_(random_id_prefix()),
      seeds_(random_seed()),
      jobs_(static_cast<std::size_t>(options.max_active_requests)) {}

Status Engine::start_threads() {
  StepModel& step_model = *model_->model;
  GAPLESS_ASSIGN_OR_RETURN(crops_, CropPool::create(*model_->device, options_.num_staged_crops,
                                                    step_model.info().crop_bytes));
  preprocessor_ = std::make_unique<Preprocessor>(*model_, crops_);
  emit_ = std::make_unique<EmitPool>(options_.num_emit_threads);
  LoopOptions loop_options = options_.loop;
  loop_options.max_waiting = options_.max_active_requests;
  GAPLESS_ASSIGN_OR_RETURN(loop_, Loop::create(*model_->device, step_model, clock_, loop_options));
  loop_->start();
  int num_threads = options_.num_preprocess_threads;
  if (num_threads == 0) {
    num_threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 2, 8);
  }
  for (int i = 0; i < num_threads; ++i) {
    preprocess_threads_.emplace_back([this] { preprocess_jobs(); });
  }
  return ok_status();
}

Engine::~Engine() {
  std::vector<RequestId> running;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (const auto& [id, entry] : active_) running.push_back(id);
  }
  for (const RequestId id : running) cancel(id);
  {
    MutexLock lock(mutex_);
    while (!active_.empty()) all_retired_.wait(lock);
  }
  jobs_.close();
  if (crops_) crops_->close();
  for (std::thread& thread : preprocess_threads_) thread.join();
  loop_.reset();  // before the emit workers: its last events go there
  emit_.reset();
}

StatusOr<RequestId> Engine::submit(SkillRequest request, std::shared_ptr<ResponseSink> sink) {
  std::vector<std::shared_ptr<ResponseSink>> sinks;
  sinks.push_back(std::move(sink));
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<RequestId> ids,
                           submit_choices(std::move(request), std::move(sinks)));
  return ids.front();
}

StatusOr<std::vector<RequestId>> Engine::submit_choices(
    SkillRequest request, std::vector<std::shared_ptr<ResponseSink>> sinks) {
  GAPLESS_RETURN_IF_ERROR(validate(request));
  const std::optional<std::uint64_t> seed = request.settings.seed;

  MutexLock lock(mutex_);
  if (stopping_) return make_error(StatusCode::kUnavailable, "the engine is shutting down");
  if (active_.size() + sinks.size() > static_cast<std::size_t>(options_.max_active_requests)) {
    return make_error(StatusCode::kResourceExhausted, "{} requests are running already",
                      active_.size());
  }
  std::vector<RequestId> ids;
  Job job{.submitted_ns = host_now_ns()};
  for (std::shared_ptr<ResponseSink>& sink : sinks) {
    ids.emplace_back(next_id_++);
    const auto active = make_active(request, ids.back(), std::move(sink));
    job.choices.push_back({active, seed ? *seed + job.choices.size() : seeds_()});
    active_.emplace(ids.back(), Entry{active, SequenceId()});
  }
  job.request = std::move(request);
  // The queue is as large as the number of active requests, so it has room.
  GAPLESS_CHECK(jobs_.try_push(std::move(job)));
  return ids;
}

std::shared_ptr<ActiveRequest> Engine::make_active(const SkillRequest& request, RequestId id,
                                                   std::shared_ptr<ResponseSink> sink) {
  ActiveRequest::Setup setup;
  setup.id = id;
  setup.public_id = fmt::format("{}-{}", id_prefix_, id.value);
  setup.skill = request.skill;
  setup.sink = std::move(sink);
  const TokenizerConfig& tokens = model_->config.tokenizer;
  setup.decoder = make_skill_decoder(request, model_->tokenizer, {tokens.coord_id, tokens.size_id});
  if (request.settings.logprobs) setup.tokenizer = &model_->tokenizer;
  setup.end_early = [this, id] { end_sequence(id); };
  setup.on_retired = [this, id] { retire(id); };
  return std::make_shared<ActiveRequest>(std::move(setup), *emit_);
}

void Engine::cancel(RequestId id) {
  {
    MutexLock lock(mutex_);
    const auto found = active_.find(id);
    if (found == active_.end()) return;
    found->second.active->request_cancel();
  }
  end_sequence(id);
}

StatusOr<SkillResult> Engine::run(SkillRequest request) {
  auto sink = std::make_shared<PromiseSink>();
  auto future = sink->future();
  GAPLESS_ASSIGN_OR_RETURN([[maybe_unused]] const RequestId id, submit(std::move(request), sink));
  return future.get();
}

int Engine::num_active() const {
  MutexLock lock(mutex_);
  return static_cast<int>(active_.size());
}

void Engine::preprocess_jobs() {
  while (std::optional<Job> job = jobs_.pop()) prepare_job(*job);
}

void Engine::prepare_job(Job& job) {
  std::erase_if(job.choices, [](const Choice& choice) {
    if (!choice.active->cancel_requested()) return false;
    choice.active->fail(Status(StatusCode::kCancelled, "the request was cancelled"));
    return true;
  });
  if (job.choices.empty()) return;
  const int num_choices = static_cast<int>(job.choices.size());
  auto prompts = preprocessor_->prepare_choices(job.request, num_choices);
  for (std::size_t i = 0; i < job.choices.size(); ++i) {
    const Choice& choice = job.choices[i];
    if (!prompts.ok()) {
      choice.active->fail(prompts.status());
      continue;
    }
    PreparedPrompt& prompt = (*prompts)[i];
    prompt.submitted_ns = job.submitted_ns;
    prompt.row.sampling.seed = choice.seed;
    submit_to_loop(choice.active, std::move(prompt));
  }
}

void Engine::submit_to_loop(const std::shared_ptr<ActiveRequest>& active, PreparedPrompt prompt) {
  active->set_num_input_tokens(static_cast<int>(prompt.inputs.size()));
  MutexLock lock(mutex_);
  if (active->cancel_requested()) {
    lock.unlock();
    return active->fail(Status(StatusCode::kCancelled, "the request was cancelled"));
  }
  // Under the lock, so that a cancel from now on finds the sequence.
  const StatusOr<SequenceId> sequence = loop_->submit(std::move(prompt), active);
  if (sequence.ok()) {
    const auto found = active_.find(active->id());
    if (found != active_.end()) found->second.sequence = *sequence;
    return;
  }
  lock.unlock();
  active->fail(sequence.status());
}

void Engine::end_sequence(RequestId id) {
  MutexLock lock(mutex_);
  const auto found = active_.find(id);
  if (found != active_.end() && found->second.sequence.valid()) {
    loop_->cancel(found->second.sequence);
  }
}

void Engine::retire(RequestId id) {
  MutexLock lock(mutex_);
  active_.erase(id);
  if (active_.empty()) all_retired_.notify_all();
}

}  // namespace gapless
