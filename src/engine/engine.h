// The whole road for one model on one device: admit, preprocess, the loop, emit.
//
// Threads: submit and cancel may be called from any thread and never block. Behind them:
// preprocessing workers, one engine thread (loop.h), emit workers.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/bounded_queue.h"
#include "base/host_clock.h"
#include "base/mutex.h"
#include "engine/crop_pool.h"
#include "engine/emit.h"
#include "engine/preprocess.h"
#include "model/model_loader.h"
#include "pipeline/loop.h"
#include "skill/response_sink.h"

namespace gapless {

struct EngineOptions {
  LoopOptions loop;
  int num_preprocess_threads = 0;  // 0: half the cores, 2 to 8
  int num_emit_threads = 2;
  // Requests between submit and their last event; one more is refused.
  int max_active_requests = 1024;
  // Crops waiting for their encode step; at least kMaxTilesPerImage + 1.
  int num_staged_crops = 192;
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
  // are prepared once. Choice i takes seed + i; without a seed each takes a random one. All are accepted
  // or none.
  StatusOr<std::vector<RequestId>> submit_choices(SkillRequest request,
                                                  std::vector<std::shared_ptr<ResponseSink>> sinks);

  // The request ends within a step with an error of code kCancelled, unless it ended before.
  void cancel(RequestId id);

  // Submits and waits.
  StatusOr<SkillResult> run(SkillRequest request);

  int num_active() const;
  const LoadedModel& model() const { return *model_; }
  Loop& loop() { return *loop_; }

 private:
  struct Choice {
    std::shared_ptr<ActiveRequest> active;
    std::uint64_t seed = 0;
  };
  struct Job {
    SkillRequest request;
    std::vector<Choice> choices;
    std::int64_t submitted_ns = 0;
  };

  Engine(std::unique_ptr<LoadedModel> model, const EngineOptions& options);
  Status start_threads();
  void preprocess_jobs();
  std::shared_ptr<ActiveRequest> make_active(const SkillRequest& request, RequestId id,
                                             std::shared_ptr<ResponseSink> sink);
  void prepare_job(Job& job);
  void submit_to_loop(const std::shared_ptr<ActiveRequest>& active, PreparedPrompt prompt);
  void end_sequence(RequestId id);
  void retire(RequestId id);

  RealHostClock clock_;
  std::unique_ptr<LoadedModel> model_;
  const EngineOptions options_;
  const std::string id_prefix_;
  std::unique_ptr<Preprocessor> preprocessor_;
  std::unique_ptr<EmitPool> emit_;
  std::unique_ptr<Loop> loop_;

  struct Entry {
    std::shared_ptr<ActiveRequest> active;
    SequenceId sequence;  // invalid until the loop has it
  };
  mutable Mutex mutex_;
  ConditionVariable all_retired_;
  std::unordered_map<RequestId, Entry> active_ GAPLESS_GUARDED_BY(mutex_);
  std::int64_t next_id_ GAPLESS_GUARDED_BY(mutex_) = 1;
  std::mt19937_64 seeds_ GAPLESS_GUARDED_BY(mutex_);  // of requests without one
  bool stopping_ GAPLESS_GUARDED_BY(mutex_) = false;

  std::shared_ptr<CropPool> crops_;
  BoundedQueue<Job> jobs_;
  std::vector<std::thread> preprocess_threads_;
};

}  // namespace gapless
