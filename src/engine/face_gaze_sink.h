// The gazes that a face's is averaged of, and who waits for it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/mutex.h"
#include "skill/face_gaze.h"
#include "skill/response_sink.h"

namespace gapless {

// One answer of many: when all are there, `sink` gets their average. The first that fails ends it, and the others are
// cancelled. Any thread.
class FaceGazeAnswers : public std::enable_shared_from_this<FaceGazeAnswers> {
 public:
  FaceGazeAnswers(std::shared_ptr<ResponseSink> sink, int count,
                  std::function<void(RequestId)> cancel)
      : sink_(std::move(sink)),
        cancel_(std::move(cancel)),
        results_(static_cast<std::size_t>(count)) {}

  // Of the i-th gaze.
  std::shared_ptr<ResponseSink> sink_of(int i);
  // Once all are submitted. Until then the sink hears of no failure.
  void set_running(std::vector<RequestId> ids);
  // Where not all could be: the sink hears nothing at all.
  void give_up(const std::vector<RequestId>& ids);

 private:
  class One;

  void add(std::size_t i, const SkillResult& result);
  void fail(const Status& status);
  SkillResult average() const GAPLESS_REQUIRES(mutex_);

  const std::shared_ptr<ResponseSink> sink_;
  const std::function<void(RequestId)> cancel_;
  Mutex mutex_;
  std::vector<std::optional<SkillResult>> results_ GAPLESS_GUARDED_BY(mutex_);
  std::size_t num_done_ GAPLESS_GUARDED_BY(mutex_) = 0;
  Status failure_ GAPLESS_GUARDED_BY(mutex_);  // the first
  bool is_running_ GAPLESS_GUARDED_BY(mutex_) = false;
  std::vector<RequestId> running_ GAPLESS_GUARDED_BY(mutex_);
};

}  // namespace gapless
