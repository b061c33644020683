#include "image/decode_helpers.h"

namespace gapless {

void DecodeHelpers::help() {
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
  changed_.notify_all();
}

void DecodeHelpers::close() {
  MutexLock lock(mutex_);
  closed_ = true;
  changed_.notify_all();
  while (num_helping_ > 0) changed_.wait(lock);
}

}  // namespace gapless
