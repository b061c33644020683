// The emit stage: tokens leave the engine thread here and become text, points and boxes on worker
// threads. Detokenising, stop strings and formatting never hold the engine up.
//
// A request always goes to the same worker, so its events stay in order. The queues need no bound
// of their own: they hold at most max_generated tokens for each admitted request.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "engine/refine_worker.h"
#include "pipeline/prepared_prompt.h"
#include "skill/response_sink.h"
#include "skill/skill_decoder.h"

namespace gapless {

class EmitPool;

// One admitted request from submission to its last event.
class ActiveRequest final : public TokenSink, public std::enable_shared_from_this<ActiveRequest> {
 public:
  struct Setup {
    RequestId id;
    std::string public_id;
    Skill skill = Skill::kQuery;
    std::unique_ptr<SkillDecoder> decoder;
    const Tokenizer* tokenizer = nullptr;  // set when the request asks for logprobs; outlives this
    std::shared_ptr<ResponseSink> sink;
    // Asks the engine to end the sequence early (a stop string was found). Any thread.
    std::function<void()> end_early;
    // Called once, before the last event: whoever gets it may ask again at once. Any thread.
    std::function<void()> on_ending = [] {};
    // Called once, after the last event. Any thread.
    std::function<void()> on_retired;
    // Of a segment that is made exact: who does it, and of which picture. Outlives this.
    RefineWorker* refiner = nullptr;
    std::shared_ptr<const std::string> picture;
    ExifOrientation exif = ExifOrientation::kApply;
  };
  ActiveRequest(Setup setup, EmitPool& emit_pool) : setup_(std::move(setup)), emit_(emit_pool) {}

  RequestId id() const { return setup_.id; }

  // Set by preprocessing before submission to the loop.
  void set_num_input_tokens(int count) { num_input_tokens_ = count; }

  // The stages up to kQueue and the parts of kPrepare, which began at begin_ns.
  void set_preparation(const StageTimes& stages, std::int64_t begin_ns) {
    stages_ = stages;
    prepare_begin_ns_ = begin_ns;
  }

  // True the first time.
  bool request_cancel() { return !cancelled_.exchange(true); }
  bool cancel_requested() const { return cancelled_.load(); }

  // A request that never reached the loop.
  void fail(const Status& status);

  // TokenSink, on the engine thread: hand over and return.
  void on_token(const CommittedToken& token) override;
  void on_finished(FinishReason reason, const Status& status, const SequenceTimes& times) override;

 private:
  friend class EmitPool;
  // On the emit worker.
  void emit_token(const CommittedToken& token);
  void emit_end(FinishReason reason, const Status& status, const SequenceTimes& times);
  // What ends a request: of a segment when it was made exact, on the refiner's thread.
  void hand_on_result(const SkillResult& result);
  void hand_on_refined(SkillResult result, const StatusOr<std::optional<Outline>>& refined);
  // The last event, and nothing after it.
  void end_with(const SkillResult& result);
  void end_with(const Status& error);
  void hand_on_logprobs();
  void hand_on_reasoning();
  StageTimes stages_until_first_text(const SequenceTimes& times) const;

  Setup setup_;
  EmitPool& emit_;
  std::atomic<bool> cancelled_{false};
  std::atomic<int> num_input_tokens_{0};
  StageTimes stages_;  // of the preparation
  std::int64_t prepare_begin_ns_ = 0;
  std::int64_t first_text_ns_ = 0;
  int num_output_tokens_ = 0;
  int num_logprobs_handed_on_ = 0;
  std::deque<TokenLogprob> pending_logprobs_;  // of tokens that are not final
  bool ended_early_ = false;
};

class EmitPool {
 public:
  explicit EmitPool(int num_workers);
  // Emits what is queued, then ends the workers.
  ~EmitPool();

  void post_token(std::shared_ptr<ActiveRequest> request, const CommittedToken& token);
  void post_end(std::shared_ptr<ActiveRequest> request, FinishReason reason, Status status,
                const SequenceTimes& times);

 private:
  struct End {
    FinishReason reason;
    Status status;
    SequenceTimes times;
  };
  struct Item {
    std::shared_ptr<ActiveRequest> request;
    CommittedToken token;
    std::unique_ptr<End> end;  // set for a request's last item
  };
  struct Worker {
    Mutex mutex;
    ConditionVariable wake;
    std::vector<Item> queue GAPLESS_GUARDED_BY(mutex);
    bool stopping GAPLESS_GUARDED_BY(mutex) = false;
    std::thread thread;
  };
  void post(Item item);
  static void run(Worker& worker);

  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace gapless
