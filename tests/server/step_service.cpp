#include "tests/server/step_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string_view>

namespace gapless {

StepService::StepService() : thread_([this] { run(); }) {}

StepService::~StepService() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StepService::hold_until(int num_requests) {
  std::lock_guard lock(mutex_);
  hold_ = num_requests;
}

StatusOr<RequestId> StepService::submit(SkillRequest request, std::shared_ptr<ResponseSink> sink) {
  GAPLESS_RETURN_IF_ERROR(validate(request));
  Job job;
  job.words = std::hash<std::string_view>{}(request.text);
  for (const auto& image : request.images) {
    job.words = job.words * 31 ^ std::hash<std::string>{}(*image);
  }
  job.num_left = request.settings.max_tokens.value_or(10);
  job.result.request_id = "step";
  job.result.skill = request.skill;
  job.result.finish_reason = FinishReason::kLength;
  job.sink = std::move(sink);
  std::lock_guard lock(mutex_);
  const RequestId id(++num_submitted_);
  arrived_.emplace(id, std::move(job));
  most_at_once_ = std::max(most_at_once_.load(), ++num_running_);
  changed_.notify_all();
  return id;
}

void StepService::cancel(RequestId id) {
  std::lock_guard lock(mutex_);
  cancellations_.push_back(id);
}

std::vector<ServiceMetrics> StepService::device_metrics() const {
  ServiceMetrics metrics;
  metrics.num_running = num_running();
  return {metrics};
}

int StepService::num_running() const {
  std::lock_guard lock(mutex_);
  return num_running_;
}

void StepService::run() {
  std::map<RequestId, Job> jobs;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      num_running_ = static_cast<int>(jobs.size() + arrived_.size());
      changed_.wait(lock, [&] {
        if (ending_) return true;
        if (num_running_ < hold_) return false;
        hold_ = 0;
        return num_running_ > 0;
      });
      for (auto& [id, job] : jobs) job.cancelled |= ending_;
      if (ending_ && jobs.empty() && arrived_.empty()) return;
      jobs.merge(arrived_);
      arrived_.clear();
      for (const RequestId id : cancellations_) {
        const auto at = jobs.find(id);
        if (at != jobs.end()) at->second.cancelled = true;
      }
      cancellations_.clear();
    }
    step(jobs);
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
}

void StepService::step(std::map<RequestId, Job>& jobs) {
  for (auto at = jobs.begin(); at != jobs.end();) {
    Job& job = at->second;
    if (!job.cancelled && job.num_left > 0) {
      --job.num_left;
      job.words = job.words * 6364136223846793005ULL + 1442695040888963407ULL;
      const std::string word = fmt::format("{:x} ", job.words >> 48);
      job.result.text += word;
      job.sink->on_text(word, ++job.result.metrics.output_tokens);
      ++at;
      continue;
    }
    if (job.cancelled) {
      ++num_cancelled_;
      job.sink->on_error(Status(StatusCode::kCancelled, "the request was cancelled"));
    } else {
      job.sink->on_done(job.result);
    }
    at = jobs.erase(at);
  }
}

}  // namespace gapless
