#include "engine/engine.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <random>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/num_cores.h"
#include "base/thread_priority.h"
#include "engine/promise_sink.h"
#include "skill/tool_use.h"

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

// Threads that compile grammars: a long one does not keep a short one waiting.
constexpr int kNumCompilers = 2;

// How long its compiling may take, compared with others'.
std::int64_t cost_of(const GrammarSpec& spec) {
  std::int64_t num_bytes = std::ssize(spec.text);
  for (const std::string& choice : spec.choices) num_bytes += std::ssize(choice);
  return num_bytes;
}

std::int64_t image_bytes_of(const SkillRequest& request) {
  std::int64_t num_bytes = 0;
  for (const auto& image : request.images) num_bytes += std::ssize(*image);
  return num_bytes;
}

// Whether its quick part is some 0.1 ms of work at most, so that it would be felt to wake a thread for it.
bool is_begun_at_once(const SkillRequest& request) {
  constexpr std::int64_t kMostHashed = 256 << 10;
  constexpr std::int64_t kMostTokenised = 2 << 10;
  std::int64_t text_bytes = std::ssize(request.text);
  for (const std::string& object : request.objects) text_bytes += std::ssize(object);
  return text_bytes <= kMostTokenised && request.messages.empty() && !request.tools &&
         !request.settings.grammar && image_bytes_of(request) <= kMostHashed;
}

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
      compiling_({.capacity = static_cast<std::size_t>(options.max_active_requests),
                  .budget = std::numeric_limits<std::int64_t>::max(),
                  .max_overtaken = kMaxOvertaken}),
      quick_({.capacity = static_cast<std::size_t>(options.max_active_requests),
              .budget = std::numeric_limits<std::int64_t>::max(),
              .max_overtaken = kMaxOvertaken}),
      decoding_({.capacity = static_cast<std::size_t>(options.max_active_requests),
                 .budget = options.picture_memory_bytes,
                 .max_overtaken = kMaxOvertaken}) {}

Status Engine::start_threads() {
  StepModel& step_model = *model_->model;
  GAPLESS_ASSIGN_OR_RETURN(crops_, CropPool::create(*model_->device, options_.num_staged_crops,
                                                    step_model.info().crop_bytes));
  if (options_.num_resize_threads > 0 && model_->device->kind() != DeviceKind::kCpu) {
    resize_pool_ = std::make_unique<ThreadPool>(options_.num_resize_threads);
  }
  preprocessor_ = std::make_unique<Preprocessor>(
      *model_, crops_, resize_pool_ ? *resize_pool_ : ThreadPool::shared());
  grammars_ = std::make_unique<GrammarStore>(model_->tokenizer.text_of_tokens(),
                                             model_->prompts.config().eos_id.value);
  if (options_.refiner != nullptr) {
    refine_ = std::make_unique<RefineWorker>(options_.refiner, kMaxWaitingRefinements);
  }
  emit_ = std::make_unique<EmitPool>(options_.num_emit_threads);
  LoopOptions loop_options = options_.loop;
  loop_options.max_waiting = options_.max_active_requests;
  loop_options.on_device_lost = [this](const Status& status) { on_device_lost(status); };
  GAPLESS_ASSIGN_OR_RETURN(loop_, Loop::create(*model_->device, step_model, clock_, loop_options));
  loop_->start();
  int num_threads = options_.num_preprocess_threads;
  if (num_threads == 0) {
    num_threads = std::clamp(num_usable_cores() / 2, 2, 8);
  }
  for (int i = 0; i < num_threads; ++i) {
    preprocess_threads_.emplace_back([this] { decode_jobs(); });
  }
  preprocess_threads_.emplace_back([this] { begin_jobs(); });
  for (int i = 0; i < kNumCompilers; ++i) {
    preprocess_threads_.emplace_back([this] { compile_jobs(); });
  }
  return ok_status();
}

// Calls that would give something back to a lost device may never return, so that is left to the end
// of the process.
void Engine::keep_what_the_device_holds() {
  struct Kept {
    std::unique_ptr<Loop> loop;
    std::shared_ptr<CropPool> crops;
    std::unique_ptr<LoadedModel> model;
  };
  static Mutex mutex;
  static auto& all_kept = *new std::vector<Kept>();
  loop_->stop();
  MutexLock lock(mutex);
  all_kept.push_back({std::move(loop_), std::move(crops_), std::move(model_)});
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
  compiling_.close();
  quick_.close();
  decoding_.close();
  if (crops_) crops_->close();
  for (std::thread& thread : preprocess_threads_) thread.join();
  // Before the emit workers: the loop's last events go there.
  if (loop_ && !device_status().ok()) {
    preprocessor_.reset();
    keep_what_the_device_holds();
  }
  loop_.reset();
  emit_.reset();
  refine_.reset();
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
  GAPLESS_RETURN_IF_ERROR(hold_to_tools(model_->prompts.config(), request));
  GAPLESS_RETURN_IF_ERROR(validate(request));
  if (!request.objects.empty() && request.objects.size() != sinks.size()) {
    return invalid_field("objects", "has {} names where {} can be answered", request.objects.size(),
                         sinks.size());
  }
  const auto max_active = static_cast<std::size_t>(options_.max_active_requests);
  if (sinks.size() > max_active) {  // whenever it is asked for
    return invalid_argument("{} answers at once, more than the {} requests that may run together",
                            sinks.size(), max_active)
        .with_field(request.objects.empty() ? "n" : "objects");
  }
  GAPLESS_RETURN_IF_ERROR(device_status());
  const std::optional<std::uint64_t> seed = request.settings.seed;
  // A grammar that is known, and lies where it is walked, costs no wait; what it takes to be whole is found out by the compilers
  // as well.
  std::shared_ptr<TokenGrammar> grammar;
  if (request.settings.grammar && !request.settings.complete) {
    if (const auto known = grammars_->find(*request.settings.grammar)) {
      GAPLESS_ASSIGN_OR_RETURN(grammar, *known);
    }
  }

  MutexLock lock(mutex_);
  if (stopping_) return make_error(StatusCode::kUnavailable, "the engine is shutting down");
  if (num_not_ended_ + sinks.size() > max_active) {
    return make_error(StatusCode::kResourceExhausted, "{} requests are running already",
                      num_not_ended_);
  }
  num_not_ended_ += sinks.size();
  std::vector<RequestId> ids;
  const std::int64_t now_ns = host_now_ns();
  const std::int64_t since_ns = request.received_ns != 0 ? request.received_ns : now_ns;
  Job job{.submitted_ns = now_ns, .preparation = Loop::Preparation(*loop_, since_ns)};
  job.interest = std::make_shared<Interest>();
  job.interest->num_choices.store(static_cast<int>(sinks.size()));
  for (std::shared_ptr<ResponseSink>& sink : sinks) {
    ids.emplace_back(next_id_++);
    const auto active = make_active(request, ids.back(), std::move(sink));
    job.choices.push_back({active, seed ? *seed + job.choices.size() : seeds_()});
    active_.emplace(ids.back(), Entry{active, SequenceId(), job.interest});
  }
  job.request = std::move(request);
  job.grammar = std::move(grammar);
  const bool on_device = may_use_device(job);
  if (on_device) job.device_grammar = model_->model->grammars()->find(job.grammar);
  // Decoders yield to other threads: what one of them has locked may stay so for long.
  if (num_decoding_.load(std::memory_order_relaxed) == 0 && is_begun_at_once(job.request)) {
    lock.unlock();
    begin_job(job);
    return ids;
  }
  // The lanes are as large as the number of requests that have not ended, so they have room.
  if (job.request.settings.grammar &&
      (job.grammar == nullptr || (on_device && job.device_grammar == nullptr))) {
    // One that is compiled only goes up.
    const std::int64_t cost = job.grammar ? 0 : cost_of(*job.request.settings.grammar);
    GAPLESS_CHECK(compiling_.try_push(job, cost));
  } else {
    GAPLESS_CHECK(enter(job));
  }
  return ids;
}

bool Engine::enter(Job& job) {
  return quick_.try_push(job, image_bytes_of(job.request));
}

std::shared_ptr<ActiveRequest> Engine::make_active(const SkillRequest& request, RequestId id,
                                                   std::shared_ptr<ResponseSink> sink) {
  ActiveRequest::Setup setup;
  setup.id = id;
  setup.public_id = fmt::format("{}-{}", id_prefix_, id.value);
  setup.skill = request.skill;
  setup.sink = std::move(sink);
  const TokenizerConfig& tokens = model_->prompts.config();
  setup.decoder = make_skill_decoder(request, model_->tokenizer,
                                     {.coord = tokens.coord_id,
                                      .size = tokens.size_id,
                                      .answer = tokens.answer_id,
                                      .num_answers_fed_again = tokens.num_answer_ids_fed_again,
                                      .start_ground_points = tokens.start_ground_points_id,
                                      .end_ground = tokens.end_ground_id},
                                     tokens.chat);
  if (request.settings.logprobs) setup.tokenizer = &model_->tokenizer;
  if (request.skill == Skill::kSegment && refine_ != nullptr) {
    setup.refiner = refine_.get();
    setup.picture = request.images.front();
    setup.exif =
        request.apply_exif_orientation ? ExifOrientation::kApply : ExifOrientation::kIgnore;
  }
  setup.end_early = [this, id] { end_sequence(id); };
  setup.on_ending = [this] {
    MutexLock lock(mutex_);
    --num_not_ended_;
  };
  setup.on_retired = [this, id] { retire(id); };
  return std::make_shared<ActiveRequest>(std::move(setup), *emit_);
}

void Engine::cancel(RequestId id) {
  {
    MutexLock lock(mutex_);
    const auto found = active_.find(id);
    if (found == active_.end()) return;
    const Entry& entry = found->second;
    if (entry.active->request_cancel() && entry.interest->num_choices.fetch_sub(1) == 1) {
      (void)entry.interest->given_up.request_stop();
    }
  }
  drop_unwanted();
  end_sequence(id);
}

StatusOr<SkillResult> Engine::run(SkillRequest request) {
  auto sink = std::make_shared<PromiseSink>();
  auto future = sink->future();
  GAPLESS_ASSIGN_OR_RETURN([[maybe_unused]] const RequestId id, submit(std::move(request), sink));
  return future.get();
}

bool Engine::takes_tools() const {
  return gapless::takes_tools(model_->prompts.config());
}

int Engine::num_active() const {
  MutexLock lock(mutex_);
  return static_cast<int>(active_.size());
}

// ---- preprocessing

void Engine::compile_jobs() {
  yield_to_other_threads();
  while (std::optional<Lane::Turn> turn = compiling_.pop()) {
    Job& job = turn->job();
    if (!keep_wanted(job)) continue;
    StatusOr<std::shared_ptr<TokenGrammar>> grammar = grammars_->get(*job.request.settings.grammar);
    if (!grammar.ok()) {
      fail_job(job, grammar.status());
      continue;
    }
    job.grammar = std::move(grammar).value();
    if (job.request.settings.complete) (void)job.grammar->closing();
    if (may_use_device(job)) {
      auto held = model_->model->grammars()->hold(job.grammar, job.grammar->grammar());
      if (!held.ok()) {
        fail_job(job, held.status());
        continue;
      }
      job.device_grammar = std::move(held).value();
    }
    const std::shared_ptr<Interest> interest = job.interest;
    if (!enter(job)) {
      fail_job(job, stop_reason());
      continue;
    }
    // Whoever cancelled it meanwhile found it in no lane.
    if (interest->given_up.stop_requested()) drop_unwanted();
  }
}

void Engine::begin_jobs() {
  while (std::optional<Lane::Turn> turn = quick_.pop()) begin_job(turn->job());
}

bool Engine::may_use_device(const Job& job) const {
  const SkillRequest& request = job.request;
  return job.grammar != nullptr && job.grammar->fits_device() && !request.settings.complete &&
         request.constraint_mode == ConstraintMode::kDeviceAutomaton &&
         model_->model->grammars() != nullptr;
}

Status Engine::constrain(const Job& job, PreparedPrompt& prompt) const {
  if (job.device_grammar != nullptr) {
    prompt.row.grammar = job.device_grammar->index;
    prompt.device_grammar = job.device_grammar;
    return ok_status();
  }
  prompt.row.flags |= kRowHostMask;
  if (!job.request.settings.complete) {
    prompt.host_constraint = grammars_->constraint(job.grammar);
    return ok_status();
  }
  GAPLESS_ASSIGN_OR_RETURN(prompt.host_constraint,
                           grammars_->complete_constraint(job.grammar, prompt.row.max_generated));
  return ok_status();
}

void Engine::begin_job(Job& job) {
  if (!keep_wanted(job)) return;
  job.taken_ns = host_now_ns();
  if (job.request.received_ns != 0) {
    job.stages[RequestStage::kRead] = job.submitted_ns - job.request.received_ns;
  }
  job.stages[RequestStage::kQueue] = job.taken_ns - job.submitted_ns;
  Preprocessor::Constrain constrain_prompt;
  if (job.grammar != nullptr) {
    constrain_prompt = [&](PreparedPrompt& prompt) { return constrain(job, prompt); };
  }
  StatusOr<Preprocessor::Begun> begun = preprocessor_->begin(
      job.request, static_cast<int>(job.choices.size()), job.stages, constrain_prompt);
  if (!begun.ok()) return fail_job(job, begun.status());
  job.prompts = std::move(begun->prompts);
  if (begun->decode_bytes == 0) return submit_job(job);
  if (begun->decode_bytes > decoding_.budget()) {
    return fail_job(job, invalid_argument("the picture takes {} MB to decode, more than the {} MB "
                                          "that there are for pictures (--picture-memory-mb)",
                                          begun->decode_bytes >> 20, decoding_.budget() >> 20)
                             .with_field("image_url"));
  }
  const std::shared_ptr<Interest> interest = job.interest;
  if (!decoding_.try_push(job, begun->decode_bytes)) return fail_job(job, stop_reason());
  // Whoever cancelled it meanwhile found it in neither lane.
  if (interest->given_up.stop_requested()) drop_unwanted();
}

void Engine::decode_jobs() {
  yield_to_other_threads();
  while (std::optional<Lane::Turn> turn = decoding_.pop()) {
    num_decoding_.fetch_add(1, std::memory_order_relaxed);
    decode_job(turn->job());
    num_decoding_.fetch_sub(1, std::memory_order_relaxed);
  }
}

void Engine::decode_job(Job& job) {
  if (job.interest->given_up.stop_requested()) return fail_job(job, stop_reason());
  const Status status = preprocessor_->finish(job.request, job.prompts,
                                              job.interest->given_up.get_token(), job.stages);
  if (status.ok()) return submit_job(job);
  fail_job(job, status.code() == StatusCode::kCancelled ? stop_reason() : status);
}

void Engine::submit_job(Job& job) {
  for (std::size_t i = 0; i < job.choices.size(); ++i) {
    const Choice& choice = job.choices[i];
    PreparedPrompt& prompt = job.prompts[i];
    prompt.submitted_ns = job.submitted_ns;
    prompt.row.sampling.seed = choice.seed;
    choice.active->set_preparation(job.stages, job.taken_ns);
    submit_to_loop(choice.active, std::move(prompt));
  }
}

void Engine::fail_job(const Job& job, const Status& status) {
  for (const Choice& choice : job.choices) choice.active->fail(status);
}

bool Engine::keep_wanted(Job& job) const {
  std::erase_if(job.choices, [this](const Choice& choice) {
    if (!choice.active->cancel_requested()) return false;
    choice.active->fail(stop_reason());
    return true;
  });
  return !job.choices.empty();
}

void Engine::drop_unwanted() {
  const auto is_given_up = [](const Job& job) { return job.interest->given_up.stop_requested(); };
  for (Lane* lane : {&compiling_, &quick_, &decoding_}) {
    for (const Job& job : lane->take_if(is_given_up)) fail_job(job, stop_reason());
  }
}

Status Engine::stop_reason() const {
  const Status lost = device_status();
  return lost.ok() ? Status(StatusCode::kCancelled, "the request was cancelled") : lost;
}

// What has not reached the loop ends here; the rest the loop ends.
void Engine::on_device_lost(const Status& status) {
  if (options_.loop.on_device_lost) options_.loop.on_device_lost(status);
  {
    MutexLock lock(mutex_);
    for (const auto& [id, entry] : active_) {
      (void)entry.active->request_cancel();
      (void)entry.interest->given_up.request_stop();
    }
  }
  drop_unwanted();
}

void Engine::submit_to_loop(const std::shared_ptr<ActiveRequest>& active, PreparedPrompt prompt) {
  active->set_num_input_tokens(static_cast<int>(prompt.inputs.size()));
  MutexLock lock(mutex_);
  if (active->cancel_requested()) {
    lock.unlock();
    return active->fail(stop_reason());
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
