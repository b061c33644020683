// A bounded multi-producer, multi-consumer queue; the door between threads.
//
// try_push never blocks (admission refuses instead); push and pop block; close() wakes everybody:
// push then fails, pop drains what is left and then returns nullopt.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"

namespace gapless {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) { GAPLESS_CHECK(capacity > 0); }
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // False when full or closed; `item` is moved from only on success.
  [[nodiscard]] bool try_push(T& item) {
    {
      MutexLock lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    not_empty_.notify_one();
    return true;
  }
  [[nodiscard]] bool try_push(T&& item) { return try_push(item); }

  // Blocks while full. False when closed.
  [[nodiscard]] bool push(T item) {
    {
      MutexLock lock(mutex_);
      while (!closed_ && items_.size() >= capacity_) not_full_.wait(lock);
      if (closed_) return false;
      items_.push_back(std::move(item));
    }
    not_empty_.notify_one();
    return true;
  }

  // Blocks while empty. nullopt once closed and drained.
  std::optional<T> pop() {
    std::optional<T> item;
    {
      MutexLock lock(mutex_);
      while (!closed_ && items_.empty()) not_empty_.wait(lock);
      item = take();
    }
    if (item) not_full_.notify_one();
    return item;
  }

  std::optional<T> try_pop() {
    std::optional<T> item;
    {
      MutexLock lock(mutex_);
      item = take();
    }
    if (item) not_full_.notify_one();
    return item;
  }

  void close() {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    not_empty_.notify_all();
    not_full_.notify_all();
  }

  std::size_t size() const {
    MutexLock lock(mutex_);
    return items_.size();
  }
  std::size_t capacity() const { return capacity_; }

 private:
  std::optional<T> take() GAPLESS_REQUIRES(mutex_) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  const std::size_t capacity_;
  mutable Mutex mutex_;
  ConditionVariable not_empty_;
  ConditionVariable not_full_;
  std::deque<T> items_ GAPLESS_GUARDED_BY(mutex_);
  bool closed_ GAPLESS_GUARDED_BY(mutex_) = false;
};

}  // namespace gapless
