// An InferenceService whose answers are scripted by the request's text, so that the server is
// tested without a model.
//
//   "words N [MS]"   N chunks "w0 ", "w1 ", ... (MS milliseconds between two)
//   "hang"           one chunk, then nothing until it is cancelled
//   "silent"         nothing at all until it is cancelled
//   "obedient"       the same, and cancel() returns only when its end has been told
//   "flood"          chunks as fast as it can, until it is cancelled
//   "corrupt"        an error before any text: data loss, as of a corrupt picture
//   "break"          one chunk, then a device error
//   "full"           refused by submit: ResourceExhausted
//   "first fails"    the first one's error comes before submit returns; the others are "silent"
//   "unicode"        chunks with characters outside of ASCII
//   anything else    the text itself in one chunk; point and detect: one point or box
//
// Asked for logprobs, a chunk is one token of logprob -0.5 and its own alternative, as often as
// alternatives were asked for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/inference_service.h"

namespace gapless {

class FakeService final : public InferenceService {
 public:
  ~FakeService() override;

  StatusOr<RequestId> submit(SkillRequest request, std::shared_ptr<ResponseSink> sink) override;
  void cancel(RequestId id) override;
  ServiceInfo info() const override {
    ServiceInfo info{"fake-model", 2048, "CPU", {"moondream2", "vikhyatk/moondream2"}};
    info.weight_type = "BF16";
    info.digest = "fa4e";
    info.num_parameters = 27'000'000;
    info.weight_bytes = 54'000'000;
    info.max_running = 8;
    info.skills = {"query", "caption", "point", "detect"};
    if (segments.load()) info.skills.push_back("segment");
    return info;
  }
  std::atomic<bool> segments{false};  // it has the skill
  Status health() const override {
    if (!lost_.load()) return ok_status();
    return Status(StatusCode::kDeviceError, "the device is lost: step 7: some call");
  }
  void lose_device() { lost_.store(true); }
  std::vector<std::string> lost_devices() const override {
    return lost_one_.load() ? std::vector<std::string>{"gpu:1"} : std::vector<std::string>();
  }
  // The second of the two that it has.
  void lose_one_device() { lost_one_.store(true); }
  std::vector<ServiceMetrics> device_metrics() const override;
  StatusOr<std::vector<TokenId>> tokenize(std::string_view text) const override;
  StatusOr<std::string> detokenize(const std::vector<TokenId>& ids) const override;
  TokenId bos_id() const override { return TokenId(0); }

  StatusOr<ServiceTimeline> timeline(int max_steps, std::string_view device) const override;
  StatusOr<std::string> trace(int) const override { return std::string("{\"traceEvents\":[]}"); }
  Status set_depth(int depth) override;

  int num_submitted() const { return num_submitted_.load(); }
  int num_running() const { return num_running_.load(); }
  int num_cancelled() const { return num_cancelled_.load(); }
  // Waits for it, 10 s at most.
  bool wait_cancelled(int count);
  SkillRequest last_request() const;

 private:
  struct Job {
    SkillRequest request;
    std::shared_ptr<ResponseSink> sink;
    std::atomic<bool> cancelled{false};
    std::atomic<bool> ended{false};
    bool is_first = false;
  };
  void run(Job& job);
  // False once the job is cancelled.
  bool pause(const Job& job, int ms) const;

  mutable std::mutex mutex_;
  std::map<RequestId, std::shared_ptr<Job>> jobs_;
  std::vector<std::thread> threads_;
  SkillRequest last_request_;
  std::atomic<bool> lost_{false};
  std::atomic<bool> lost_one_{false};
  std::atomic<int> depth_{2};
  std::atomic<int> num_submitted_{0};
  std::atomic<int> num_running_{0};
  std::atomic<int> num_cancelled_{0};
};

}  // namespace gapless
