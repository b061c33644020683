#include "engine/face_gaze_sink.h"

#include <algorithm>
#include <utility>

namespace gapless {

class FaceGazeAnswers::One final : public ResponseSink {
 public:
  One(std::shared_ptr<FaceGazeAnswers> all, std::size_t i) : all_(std::move(all)), i_(i) {}
  void on_text(std::string_view, int) override {}
  void on_done(const SkillResult& result) override { all_->add(i_, result); }
  void on_error(const Status& status) override { all_->fail(status); }

 private:
  const std::shared_ptr<FaceGazeAnswers> all_;
  const std::size_t i_;
};

std::shared_ptr<ResponseSink> FaceGazeAnswers::sink_of(int i) {
  return std::make_shared<One>(shared_from_this(), static_cast<std::size_t>(i));
}

void FaceGazeAnswers::set_running(std::vector<RequestId> ids) {
  Status failure;
  {
    MutexLock lock(mutex_);
    is_running_ = true;
    running_ = ids;
    failure = failure_;
  }
  if (failure.ok()) return;
  sink_->on_error(failure);
  for (const RequestId id : ids) cancel_(id);
}

void FaceGazeAnswers::give_up(const std::vector<RequestId>& ids) {
  for (const RequestId id : ids) cancel_(id);
}

void FaceGazeAnswers::add(std::size_t i, const SkillResult& result) {
  SkillResult answer;
  {
    MutexLock lock(mutex_);
    results_[i] = result;
    if (++num_done_ < results_.size()) return;
    answer = average();
  }
  sink_->on_done(answer);
}

void FaceGazeAnswers::fail(const Status& status) {
  std::vector<RequestId> running;
  {
    MutexLock lock(mutex_);
    if (!std::exchange(failure_, status).ok() || !is_running_) return;
    running = running_;
  }
  sink_->on_error(status);
  for (const RequestId id : running) cancel_(id);
}

SkillResult FaceGazeAnswers::average() const {
  SkillResult answer = *results_.front();
  std::vector<std::optional<Point>> points;
  GenerationMetrics metrics;
  for (const std::optional<SkillResult>& one : results_) {
    points.push_back(one->points.empty() ? std::nullopt : std::optional(one->points.front()));
    metrics.input_tokens += one->metrics.input_tokens;
    metrics.output_tokens += one->metrics.output_tokens;
    metrics.cached_tokens += one->metrics.cached_tokens;
    metrics.prefill_time_ms = std::max(metrics.prefill_time_ms, one->metrics.prefill_time_ms);
    metrics.decode_time_ms = std::max(metrics.decode_time_ms, one->metrics.decode_time_ms);
    metrics.ttft_ms = std::max(metrics.ttft_ms, one->metrics.ttft_ms);
  }
  metrics.stages = answer.metrics.stages;
  answer.metrics = metrics;
  answer.points.clear();
  if (const std::optional<Point> gaze = average_gaze(points)) answer.points = {*gaze};
  return answer;
}

}  // namespace gapless
