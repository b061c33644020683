// What the server counts about requests, and /metrics in Prometheus' text format 0.0.4.
//
// Two families of names: vllm:*, which routers and dashboards know, and gapless_*, with buckets
// fine enough for answers that take milliseconds. Any thread; counting is a few atomic adds.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/finish_reason.h"
#include "server/inference_service.h"

namespace gapless {

// Counts of observations at or below each bound, and their sum.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);
  void observe(double value);

  const std::vector<double>& bounds() const { return bounds_; }
  std::uint64_t count_in(std::size_t bucket) const { return buckets_[bucket].load(); }
  double sum() const { return sum_.load(); }

 private:
  std::vector<double> bounds_;
  std::vector<std::atomic<std::uint64_t>> buckets_;  // one more than bounds: above all
  std::atomic<double> sum_{0};
};

// The same observations in both families' buckets.
struct LatencyHistograms {
  LatencyHistograms(std::span<const double> vllm_bounds);
  void observe(double seconds) {
    coarse.observe(seconds);
    fine.observe(seconds);
  }
  Histogram coarse;
  Histogram fine;
};

class ServerMetrics {
 public:
  ServerMetrics();

  // One finished generation.
  void count_result(const SkillResult& result, double e2e_s);
  void count_inter_token(double seconds, int num_tokens);
  void count_failure(const Status& status);
  void count_response(int status);
  void count_abort() { num_aborted_.fetch_add(1, std::memory_order_relaxed); }

  std::atomic<int> num_connections{0};

  // `service` is null while the model loads.
  std::string text(const InferenceService* service) const;

 private:
  LatencyHistograms ttft_;
  LatencyHistograms inter_token_;
  LatencyHistograms e2e_;
  LatencyHistograms prefill_;
  LatencyHistograms decode_;
  LatencyHistograms queue_;
  LatencyHistograms inference_;
  LatencyHistograms time_per_token_;
  struct StageSum {
    std::atomic<double> seconds{0};
    std::atomic<std::uint64_t> num_requests{0};
  };
  std::array<StageSum, kNumRequestStages> stages_;
  Histogram prompt_tokens_;
  Histogram generation_tokens_;
  std::atomic<std::uint64_t> num_prompt_tokens_{0};
  std::atomic<std::uint64_t> num_cached_tokens_{0};  // of the prompts
  std::atomic<std::uint64_t> num_generation_tokens_{0};
  std::array<std::atomic<std::uint64_t>, 4> num_finished_{};               // by FinishReason
  std::array<std::atomic<std::uint64_t>, kSkills.size()> num_by_skill_{};  // by Skill
  std::array<std::atomic<std::uint64_t>, 6> num_responses_{};  // by hundreds of the status
  std::atomic<std::uint64_t> num_refused_{0};                  // 429
  std::atomic<std::uint64_t> num_aborted_{0};
};

}  // namespace gapless
