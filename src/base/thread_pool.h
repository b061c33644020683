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
  bool join();
  void leave();
  void wait_until_all_left();

  std::mutex caller_mutex_;  // held by the thread whose loop runs

  // Workers join and leave a loop without a lock: a decode step has hundreds of loops of some ten microseconds, and a
  // worker that sleeps for a lock comes too late for one.
  //   gate_: the loop's number, whether workers may still join, and how many have joined. Whoever changes loop_ has seen it closed
  //   and empty; whoever reads loop_ has joined.
  static constexpr std::uint64_t kOpen = 1 << 15, kJoined = kOpen - 1, kOneLoop = 1 << 16;
  static_assert(kMaxThreads < static_cast<int>(kJoined));
  Loop loop_;
  alignas(64) std::atomic<std::uint64_t> gate_{0};
  alignas(64) std::atomic<std::uint64_t> num_loops_{0};  // what a worker without a loop looks at
  alignas(64) std::atomic<std::int64_t> next_task_{0};
  std::atomic<bool> stopping_{false};

  // Of those who sleep. Who is about to sleep says so first and looks once more then; who has something to tell tells it first and
  // looks for sleepers then.
  Mutex mutex_;
  ConditionVariable loop_started_, workers_left_;
  std::atomic<int> num_sleeping_{0};
  std::atomic<bool> caller_sleeps_{false};

  std::vector<std::thread> workers_;  // last: they use everything above
};

}  // namespace gapless
