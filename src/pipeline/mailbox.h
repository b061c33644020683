// The one door into the engine thread: submissions and cancellations from any thread.
//
// The engine collects its mail once per tick; an atomic flag makes an empty box cost no lock. It
// blocks in wait() only when it has nothing else to do.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "base/mutex.h"
#include "pipeline/sequence.h"

namespace gapless {

struct Mail {
  std::vector<std::unique_ptr<Sequence>> arrivals;
  std::vector<SequenceId> cancellations;
};

class Mailbox {
 public:
  // False, and the sequence stays with the caller, when the box is closed.
  [[nodiscard]] bool post(std::unique_ptr<Sequence>& sequence) {
    MutexLock lock(mutex_);
    if (closed_) return false;
    mail_.arrivals.push_back(std::move(sequence));
    has_mail_.store(true, std::memory_order_release);
    arrived_.notify_one();
    return true;
  }

  void post_cancellation(SequenceId sequence) {
    MutexLock lock(mutex_);
    mail_.cancellations.push_back(sequence);
    has_mail_.store(true, std::memory_order_release);
    arrived_.notify_one();
  }

  // No more arrivals.
  void close() {
    MutexLock lock(mutex_);
    closed_ = true;
    arrived_.notify_one();
  }

  // Engine: swaps the mail into `mail`, whose lists must be empty.
  void collect(Mail& mail) {
    if (!has_mail_.load(std::memory_order_acquire)) return;
    MutexLock lock(mutex_);
    std::swap(mail_, mail);
    has_mail_.store(false, std::memory_order_relaxed);
  }

  // Engine: blocks until there is mail. False: closed, and the box is empty.
  bool wait() {
    MutexLock lock(mutex_);
    while (!closed_ && !has_mail_.load(std::memory_order_relaxed)) arrived_.wait(lock);
    return has_mail_.load(std::memory_order_relaxed);
  }

 private:
  Mutex mutex_;
  ConditionVariable arrived_;
  std::atomic<bool> has_mail_{false};
  Mail mail_ GAPLESS_GUARDED_BY(mutex_);
  bool closed_ GAPLESS_GUARDED_BY(mutex_) = false;
};

}  // namespace gapless
