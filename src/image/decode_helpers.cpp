#include "image/decode_helpers.h"

#include "base/look_for.h"
#include "image/picture_rows.h"

namespace gapless {

void DecodeHelpers::help() {
  (void)look_for([this] { return has_news_.load(std::memory_order_acquire); }, kLooksForRows);
  const std::function<void()>* work = nullptr;
  {
    MutexLock lock(mutex_);
    while (work_ == nullptr && !closed_) changed_.wait(lock);
    if (closed_) return;
    work = work_;
    ++num_helping_;
  }
  (*work)();
  MutexLock lock(mutex_);
  --num_helping_;
  changed_.notify_all();
}

void DecodeHelpers::offer(const std::function<void()>& work) {
  MutexLock lock(mutex_);
  work_ = &work;
  has_news_.store(true, std::memory_order_release);
  changed_.notify_all();
}

void DecodeHelpers::close() {
  MutexLock lock(mutex_);
  closed_ = true;
  has_news_.store(true, std::memory_order_release);
  changed_.notify_all();
  while (num_helping_ > 0) changed_.wait(lock);
}

}  // namespace gapless
