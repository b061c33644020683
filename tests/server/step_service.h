// An InferenceService that answers as an engine does: one thread, and every step of it gives each
// request that runs its next word. Words depend on the request's text and picture, so that an
// answer that got another's word is seen.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "server/inference_service.h"

namespace gapless {

class StepService final : public InferenceService {
 public:
  StepService();
  ~StepService() override;

  // No step is made before so many requests are there, once.
  void hold_until(int num_requests);

  StatusOr<RequestId> submit(SkillRequest request, std::shared_ptr<ResponseSink> sink) override;
  void cancel(RequestId id) override;
  ServiceInfo info() const override {
    ServiceInfo info{"step-model", 2048, "CPU"};
    info.skills = {"query"};
    return info;
  }
  std::vector<ServiceMetrics> device_metrics() const override;
  StatusOr<std::vector<TokenId>> tokenize(std::string_view) const override {
    return std::vector<TokenId>();
  }
  StatusOr<std::string> detokenize(const std::vector<TokenId>&) const override {
    return std::string();
  }
  TokenId bos_id() const override { return TokenId(0); }

  int num_running() const;
  int num_cancelled() const { return num_cancelled_.load(); }
  int most_at_once() const { return most_at_once_.load(); }

 private:
  struct Job {
    std::uint64_t words = 0;  // what the next one is made from
    int num_left = 0;
    bool cancelled = false;
    SkillResult result;
    std::shared_ptr<ResponseSink> sink;
  };
  void run();
  void step(std::map<RequestId, Job>& jobs);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Job> arrived_;      // guarded by mutex_
  std::vector<RequestId> cancellations_;  // guarded by mutex_
  std::int64_t num_submitted_ = 0;        // guarded by mutex_
  int num_running_ = 0;                   // guarded by mutex_: with those that have arrived
  int hold_ = 0;                          // guarded by mutex_
  bool ending_ = false;                   // guarded by mutex_
  std::atomic<int> num_cancelled_{0};
  std::atomic<int> most_at_once_{0};
  std::thread thread_;  // last: it uses the others
};

}  // namespace gapless
