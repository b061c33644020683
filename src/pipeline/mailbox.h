// The one door into the engine thread: submissions and cancellations from any thread.
//
// The engine collects its mail once per tick; an atomic flag makes an empty box cost no lock. It
// blocks in wait() only when it has nothing else to do. Sleeping there and being woken costs up to
// some hundred microseconds on a virtual machine, so somebody who is about to post may say so
// (announce): the engine then waits awake, for a bounded time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
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
  // `most_awake_ns`: the longest time after an announcement to wait awake; 0: never.
  explicit Mailbox(std::int64_t most_awake_ns = 0) : most_awake_ns_(most_awake_ns) {}

  // Mail is on its way, until `retract`, which follows the post or the decision not to.
  void announce() {
    if (most_awake_ns_ == 0) return;
    MutexLock lock(mutex_);
    num_expected_.fetch_add(1, std::memory_order_relaxed);
    has_news_ = true;
    arrived_.notify_one();
  }
  void retract() {
    if (most_awake_ns_ != 0) num_expected_.fetch_sub(1, std::memory_order_relaxed);
  }

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
    while (true) {
      {
        MutexLock lock(mutex_);
        while (!closed_ && !has_news_ && !has_mail()) arrived_.wait(lock);
        if (closed_ || has_mail()) return has_mail();
        has_news_ = false;
      }
      look_for_mail();
    }
  }

 private:
  bool has_mail() const { return has_mail_.load(std::memory_order_acquire); }

  void look_for_mail() const {
    const std::int64_t end_ns = host_now_ns() + most_awake_ns_;
    while (!has_mail() && num_expected_.load(std::memory_order_relaxed) > 0 &&
           host_now_ns() < end_ns) {
      std::this_thread::yield();
    }
  }

  const std::int64_t most_awake_ns_;
  std::atomic<int> num_expected_{0};
  Mutex mutex_;
  ConditionVariable arrived_;
  std::atomic<bool> has_mail_{false};
  Mail mail_ GAPLESS_GUARDED_BY(mutex_);
  bool closed_ GAPLESS_GUARDED_BY(mutex_) = false;
  // Announced since the engine last looked.
  bool has_news_ GAPLESS_GUARDED_BY(mutex_) = false;
};

}  // namespace gapless
