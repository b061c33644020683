// Threads that share the work of one loop: a CPU kernel, the resizing of an image.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace gapless {

// Runs loops. One loop at a time: a loop that comes while another one runs (from another stream's
// thread) runs on its caller's thread alone. Which thread runs which task is left to chance, so a
// task must write what no other task writes, and results cannot depend on the number of threads.
class ThreadPool {
 public:
  // num_threads counts the caller of parallel_for: one less is started.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // One per process: as many threads as the process may use cores, or GAPLESS_CPU_THREADS (1 to
  // kMaxThreads). Started at the first use.
  static ThreadPool& shared();
  static constexpr int kMaxThreads = 256;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Begins task(i) once for every i in [0, num_tasks), in order, and returns when all are done. A
  // task may wait for an earlier one. Any thread, but not from inside a task.
  template <typename Task>
  void parallel_for(std::int64_t num_tasks, const Task& task) {
    run({.call = [](const void* t, std::int64_t i) { (*static_cast<const Task*>(t))(i); },
         .task = &task,
         .num_tasks = num_tasks});
  }

 private:
  struct Loop {
    void (*call)(const void* task, std::int64_t index) = nullptr;
    const void* task = nullptr;
    std::int64_t num_tasks = 0;
  };

  void run(const Loop& loop);
  void run_tasks(const Loop& loop);
  void run_worker();
  // Until a loop newer than `seen` is there, or the pool stops.
  void wait_for_loop(std::uint64_t seen);

  std::mutex caller_mutex_;  // held by the thread whose loop runs

  Mutex mutex_;
  ConditionVariable loop_started_, workers_left_;
  Loop loop_ GAPLESS_GUARDED_BY(mutex_);
  bool loop_open_ GAPLESS_GUARDED_BY(mutex_) = false;  // workers may still join
  bool stopping_ GAPLESS_GUARDED_BY(mutex_) = false;
  std::atomic<int> num_joined_{0};           // written under mutex_
  std::atomic<std::uint64_t> num_loops_{0};  // written under mutex_
  std::atomic<std::int64_t> next_task_{0};

  std::vector<std::thread> workers_;  // last: they use everything above
};

}  // namespace gapless
