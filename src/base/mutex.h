// Mutexes whose use clang checks: what is GAPLESS_GUARDED_BY(mutex_) may be touched only while mutex_
// is held, and a GAPLESS_REQUIRES(mutex_) function may be called only then. The clang build of
// scripts/test has -Wthread-safety on, as an error; gcc sees a plain std::mutex.
//
// A lambda is checked as a function of its own, which holds nothing; so a wait is a loop:
//
//   MutexLock lock(mutex_);
//   while (items_.empty()) not_empty_.wait(lock);
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define GAPLESS_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define GAPLESS_THREAD_ANNOTATION(x)
#endif

#define GAPLESS_CAPABILITY(name) GAPLESS_THREAD_ANNOTATION(capability(name))
#define GAPLESS_SCOPED_CAPABILITY GAPLESS_THREAD_ANNOTATION(scoped_lockable)
#define GAPLESS_GUARDED_BY(mutex) GAPLESS_THREAD_ANNOTATION(guarded_by(mutex))
#define GAPLESS_REQUIRES(mutex) GAPLESS_THREAD_ANNOTATION(requires_capability(mutex))
#define GAPLESS_ACQUIRE(...) GAPLESS_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define GAPLESS_RELEASE(...) GAPLESS_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define GAPLESS_TRY_ACQUIRE(...) GAPLESS_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))

namespace gapless {

class GAPLESS_CAPABILITY("mutex") Mutex {
 public:
  void lock() GAPLESS_ACQUIRE() { mutex_.lock(); }
  void unlock() GAPLESS_RELEASE() { mutex_.unlock(); }
  [[nodiscard]] bool try_lock() GAPLESS_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex until it goes out of scope, or until unlock().
class GAPLESS_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) GAPLESS_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() GAPLESS_RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() GAPLESS_RELEASE() { lock_.unlock(); }

 private:
  friend class ConditionVariable;
  std::unique_lock<std::mutex> lock_;
};

class ConditionVariable {
 public:
  // Spurious wake-ups happen.
  void wait(MutexLock& lock) { variable_.wait(lock.lock_); }
  // False when `deadline` has passed.
  template <typename Clock, typename Duration>
  bool wait_until(MutexLock& lock, const std::chrono::time_point<Clock, Duration>& deadline) {
    return variable_.wait_until(lock.lock_, deadline) == std::cv_status::no_timeout;
  }
  void notify_one() { variable_.notify_one(); }
  void notify_all() { variable_.notify_all(); }

 private:
  std::condition_variable variable_;
};

}  // namespace gapless
