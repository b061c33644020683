// Segments that wait to be made exact, behind the loop and beside the emit stage: the engine never waits for it.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/status.h"
#include "image/decode_image.h"
#include "image/stop_check.h"
#include "refine/segment_refiner.h"

namespace gapless {

// One thread. A picture is decoded once more for it, so that nobody keeps pixels while an answer is written.
class RefineWorker {
 public:
  struct Work {
    std::shared_ptr<const std::string> picture;  // encoded
    ExifOrientation exif = ExifOrientation::kApply;
    std::string path;
    MarkBox box;
    StopCheck stop;  // asked from the worker's thread
    // Called once, on the worker's thread. nullopt: there is nothing better than the path. Cancelled: `stop` said so.
    std::function<void(StatusOr<std::optional<Outline>>)> done;
  };

  // `refiner` may be shared with other workers. At most max_waiting wait for their turn.
  RefineWorker(std::shared_ptr<SegmentRefiner> refiner, std::size_t max_waiting);
  // Ends when all that was accepted is done.
  ~RefineWorker();

  // False: as many as may are waiting; `work` is as it was.
  bool try_post(Work& work);

 private:
  void run();
  StatusOr<std::optional<Outline>> refine(const Work& work) const;

  const std::shared_ptr<SegmentRefiner> refiner_;
  const std::size_t max_waiting_;
  Mutex mutex_;
  ConditionVariable wake_;
  std::deque<Work> waiting_ GAPLESS_GUARDED_BY(mutex_);
  bool is_closing_ GAPLESS_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace gapless
