#include "engine/refine_worker.h"

#include <span>
#include <utility>

#include "base/thread_priority.h"

namespace gapless {

RefineWorker::RefineWorker(std::shared_ptr<SegmentRefiner> refiner, std::size_t max_waiting)
    : refiner_(std::move(refiner)), max_waiting_(max_waiting), thread_([this] { run(); }) {}

RefineWorker::~RefineWorker() {
  {
    MutexLock lock(mutex_);
    is_closing_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

bool RefineWorker::try_post(Work& work) {
  {
    MutexLock lock(mutex_);
    if (waiting_.size() >= max_waiting_) return false;
    waiting_.push_back(std::move(work));
  }
  wake_.notify_one();
  return true;
}

StatusOr<std::optional<Outline>> RefineWorker::refine(const Work& work) const {
  if (is_stopped(work.stop)) return stopped_status();
  GAPLESS_ASSIGN_OR_RETURN(const Image image, decode_image(std::as_bytes(std::span(*work.picture)),
                                                           {.exif = work.exif, .stop = work.stop}));
  return refiner_->refine(image, work.path, work.box, work.stop);
}

void RefineWorker::run() {
  yield_to_other_threads();
  while (true) {
    Work work;
    {
      MutexLock lock(mutex_);
      while (!is_closing_ && waiting_.empty()) wake_.wait(lock);
      if (waiting_.empty()) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work.done(refine(work));
  }
}

}  // namespace gapless
