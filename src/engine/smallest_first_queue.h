// Jobs of known cost that wait for workers, within a budget: what runs at once costs at most so
// much.
//
//   1. The smallest job goes first; of equal ones the one that came first.
//   2. A job that was overtaken max_overtaken times is due: nobody is handed out before it.
//   3. The next job waits until its cost and that of all that run fit the budget.
//
// So a small job waits for those that run, not for the large ones in front of it, and a large one
// is not put off for ever. As the smallest is next, nothing else fits when it does not; when a due
// job does not fit yet, the budget fills up for it.
//
// Threads: any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"

namespace gapless {

template <typename T>
class SmallestFirstQueue {
 public:
  struct Options {
    std::size_t capacity = 0;  // jobs that wait
    std::int64_t budget = 0;   // of those that run
    int max_overtaken = 0;
  };

  explicit SmallestFirstQueue(const Options& options) : options_(options) {}
  // Every turn must be over.
  ~SmallestFirstQueue() { GAPLESS_CHECK(cost_running_ == 0); }
  SmallestFirstQueue(const SmallestFirstQueue&) = delete;
  SmallestFirstQueue& operator=(const SmallestFirstQueue&) = delete;

  // A job that runs. Its cost goes back to the budget with the turn.
  class Turn {
   public:
    Turn(SmallestFirstQueue& queue, T job, std::int64_t cost)
        : queue_(&queue), job_(std::move(job)), cost_(cost) {}
    Turn(Turn&& other) noexcept
        : queue_(std::exchange(other.queue_, nullptr)),
          job_(std::move(other.job_)),
          cost_(other.cost_) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
      if (queue_ != nullptr) queue_->give_back(cost_);
    }
    T& job() { return job_; }
    std::int64_t cost() const { return cost_; }

   private:
    SmallestFirstQueue* queue_;
    T job_;
    const std::int64_t cost_;
  };

  // 0 <= cost <= budget. False when full or closed; `job` is moved from only on success.
  [[nodiscard]] bool try_push(T& job, std::int64_t cost) {
    GAPLESS_CHECK(cost >= 0 && cost <= options_.budget);
    {
      MutexLock lock(mutex_);
      if (closed_ || waiting_.size() >= options_.capacity) return false;
      waiting_.push_back({std::move(job), cost, 0});
    }
    changed_.notify_one();
    return true;
  }

  // Blocks until a job is there and fits. nullopt once closed.
  std::optional<Turn> pop() {
    MutexLock lock(mutex_);
    while (!closed_ && !next_fits()) changed_.wait(lock);
    if (closed_) return std::nullopt;
    const auto next = find_next();
    for (auto one = waiting_.begin(); one != next; ++one) ++one->num_overtaken;
    cost_running_ += next->cost;
    Turn turn(*this, std::move(next->job), next->cost);
    waiting_.erase(next);
    const bool another = next_fits();
    lock.unlock();
    if (another) changed_.notify_one();
    return turn;
  }

  // Takes out the jobs that wait and of which it is true.
  template <typename Predicate>
  std::vector<T> take_if(const Predicate& predicate) {
    std::vector<T> taken;
    {
      MutexLock lock(mutex_);
      for (auto one = waiting_.begin(); one != waiting_.end();) {
        if (predicate(one->job)) {
          taken.push_back(std::move(one->job));
          one = waiting_.erase(one);
        } else {
          ++one;
        }
      }
    }
    changed_.notify_one();  // the next one may be another
    return taken;
  }

  // Wakes everybody: nothing is handed out or taken any more.
  void close() {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }

  std::size_t num_waiting() const {
    MutexLock lock(mutex_);
    return waiting_.size();
  }
  std::int64_t cost_running() const {
    MutexLock lock(mutex_);
    return cost_running_;
  }
  std::int64_t budget() const { return options_.budget; }

 private:
  struct Waiting {
    T job;
    std::int64_t cost = 0;
    int num_overtaken = 0;
  };
  using Iterator = typename std::list<Waiting>::iterator;

  // waiting_ is in order of arrival.
  Iterator find_next() GAPLESS_REQUIRES(mutex_) {
    const auto due = std::find_if(waiting_.begin(), waiting_.end(), [this](const Waiting& one) {
      return one.num_overtaken >= options_.max_overtaken;
    });
    if (due != waiting_.end()) return due;
    return std::min_element(waiting_.begin(), waiting_.end(),
                            [](const Waiting& a, const Waiting& b) { return a.cost < b.cost; });
  }
  bool next_fits() GAPLESS_REQUIRES(mutex_) {
    if (waiting_.empty()) return false;
    return find_next()->cost <= options_.budget - cost_running_;
  }

  void give_back(std::int64_t cost) {
    {
      MutexLock lock(mutex_);
      cost_running_ -= cost;
    }
    changed_.notify_one();
  }

  const Options options_;
  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::list<Waiting> waiting_ GAPLESS_GUARDED_BY(mutex_);
  std::int64_t cost_running_ GAPLESS_GUARDED_BY(mutex_) = 0;
  bool closed_ GAPLESS_GUARDED_BY(mutex_) = false;
};

}  // namespace gapless
