// The whole road for one model on one device: admit, preprocess, the loop, emit.
//
// Threads: submit and cancel may be called from any thread and never block. Behind them:
// preprocessing workers, one engine thread (loop.h), emit workers. While no picture is decoded, submit does the quick part
// of a small request's preprocessing itself, some 0.1 ms: to wake a worker for it would take as long.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/host_clock.h"
#include "base/limits.h"
#include "base/mutex.h"
#include "base/thread_pool.h"
#include "constraint/token_grammar.h"
#include "engine/crop_pool.h"
#include "engine/emit.h"
#include "engine/preprocess.h"
#include "engine/smallest_first_queue.h"
#include "model/model_loader.h"
#include "pipeline/loop.h"
#include "skill/response_sink.h"

namespace gapless {

struct EngineOptions {
  LoopOptions loop;
  int num_preprocess_threads = 0;  // that decode pictures; 0: half the cores, 2 to 8
  // Memory for all pictures that are being decoded, rasters and codecs. A picture that takes more
  // alone is refused, others wait for their turn.
  std::int64_t picture_memory_bytes = kDefaultPictureMemoryBytes;
  // Threads that share the cutting of one picture, where the device is not the CPU; 0: all cores, shared
  // with every other engine of the process.
  int num_resize_threads = 0;
  int num_emit_threads = 2;
  // Requests between submit and their last event; one more is refused.
  int max_active_requests = 1024;
  // Crops waiting for their encode step; at least kMaxTilesPerImage + 1.
  int num_staged_crops = 192;
  // Makes segments exact; nullptr: they stay as the model wrote them. Engines may share one.
  std::shared_ptr<SegmentRefiner> refiner = nullptr;
};

class Engine {
 public:
  static StatusOr<std::unique_ptr<Engine>> start(std::unique_ptr<LoadedModel> model,
                                                 const EngineOptions& options);
  // Cancels what is still running; every request gets its last event before this returns.
  ~Engine();

  // Validates and queues. ResourceExhausted when max_active_requests are running: try again later.
  // Errors that only show later (a corrupt image, a prompt that is too long) go to the sink.
  // Without a seed every request takes a random one.
  StatusOr<RequestId> submit(SkillRequest request, std::shared_ptr<ResponseSink> sink);

  // Several answers to one request, each with an id and a sink of its own. Its pictures and its prompt
  // are prepared once. Of a request that names several objects choice i is about the i-th, and there are as many
  // sinks as names. Choice i takes seed + i; without a seed each takes a random one. All are accepted
  // or none.
  StatusOr<std::vector<RequestId>> submit_choices(SkillRequest request,
                                                  std::vector<std::shared_ptr<ResponseSink>> sinks);

  // The request ends within a step with an error of code kCancelled, unless it ended before.
  void cancel(RequestId id);

  // Submits and waits.
  StatusOr<SkillResult> run(SkillRequest request);

  // Not OK once the device is lost: then every request ends with this error, those that have not
  // reached the device included, and nothing is accepted any more. loop.on_device_lost of the
  // options is told first.
  Status device_status() const { return loop_->device_status(); }

  int num_active() const;
  // Requests whose pictures wait to be decoded, and the memory of those that are.
  std::size_t num_pictures_waiting() const { return decoding_.num_waiting(); }
  std::int64_t picture_memory_in_use() const { return decoding_.cost_running(); }
  const LoadedModel& model() const { return *model_; }
  // Whether chats may have functions to call.
  bool takes_tools() const;
  Loop& loop() { return *loop_; }

 private:
  struct Choice {
    std::shared_ptr<ActiveRequest> active;
    std::uint64_t seed = 0;
  };
  // Who still wants a job's work: when nobody does, it is given up.
  struct Interest {
    std::atomic<int> num_choices{0};  // that were not cancelled
    std::stop_source given_up;
  };
  struct Job {
    SkillRequest request;
    std::vector<Choice> choices;
    std::int64_t submitted_ns = 0;
    Loop::Preparation preparation;
    std::shared_ptr<Interest> interest;
    // Once its quick part is done.
    std::vector<PreparedPrompt> prompts;
    StageTimes stages;
    std::int64_t taken_ns = 0;
    std::shared_ptr<TokenGrammar> grammar;  // of a request that asks for one
    // Where it lies on the device; nullptr: its masks are built by the host.
    std::shared_ptr<const DeviceGrammar> device_grammar;
  };
  // Two lanes, each with threads of its own, so that a text or a known picture never waits for a
  // decoder: first every job gets its quick part (the cost is bytes to hash; a small one mostly gets it in submit), then those with
  // new pictures are decoded (the cost is memory). In front of both, a request with a grammar waits until it is compiled
  // (the cost is the length of its text), so that nobody waits for another's.
  using Lane = SmallestFirstQueue<Job>;

  Engine(std::unique_ptr<LoadedModel> model, const EngineOptions& options);
  Status start_threads();
  void begin_jobs();
  void compile_jobs();
  // Into the quick lane. False: the engine is closing.
  bool enter(Job& job);
  void decode_jobs();
  void decode_job(Job& job);
  std::shared_ptr<ActiveRequest> make_active(const SkillRequest& request, RequestId id,
                                             std::shared_ptr<ResponseSink> sink);
  // Whether the rows of this job walk their grammar on the device, where there is room.
  bool may_use_device(const Job& job) const;
  Status constrain(const Job& job, PreparedPrompt& prompt) const;
  // Its quick part; then it is in the loop's hands, or waits to be decoded.
  void begin_job(Job& job);
  void submit_job(Job& job);
  static void fail_job(const Job& job, const Status& status);
  // Ends the choices that were cancelled. False: there are no others.
  bool keep_wanted(Job& job) const;
  // Ends the jobs in the lanes that nobody wants any more.
  void drop_unwanted();
  void on_device_lost(const Status& status);
  void keep_what_the_device_holds();
  Status stop_reason() const;
  void submit_to_loop(const std::shared_ptr<ActiveRequest>& active, PreparedPrompt prompt);
  void end_sequence(RequestId id);
  void retire(RequestId id);

  RealHostClock clock_;
  std::unique_ptr<LoadedModel> model_;
  const EngineOptions options_;
  const std::string id_prefix_;
  std::unique_ptr<ThreadPool> resize_pool_;  // nullptr: the shared one
  std::unique_ptr<Preprocessor> preprocessor_;
  std::unique_ptr<RefineWorker> refine_;  // nullptr: none
  std::unique_ptr<EmitPool> emit_;
  std::unique_ptr<Loop> loop_;
  std::atomic<int> num_decoding_{0};  // threads that do so now: the lane knows, but under its lock

  struct Entry {
    std::shared_ptr<ActiveRequest> active;
    SequenceId sequence;  // invalid until the loop has it
    std::shared_ptr<Interest> interest;
  };
  mutable Mutex mutex_;
  ConditionVariable all_retired_;
  std::unordered_map<RequestId, Entry> active_ GAPLESS_GUARDED_BY(mutex_);
  // Of active_, those whose last event is still to come.
  std::size_t num_not_ended_ GAPLESS_GUARDED_BY(mutex_) = 0;
  std::int64_t next_id_ GAPLESS_GUARDED_BY(mutex_) = 1;
  std::mt19937_64 seeds_ GAPLESS_GUARDED_BY(mutex_);  // of requests without one
  bool stopping_ GAPLESS_GUARDED_BY(mutex_) = false;

  std::shared_ptr<CropPool> crops_;
  std::unique_ptr<GrammarStore> grammars_;
  Lane compiling_;
  Lane quick_;
  Lane decoding_;
  std::vector<std::thread> preprocess_threads_;
};

}  // namespace gapless
