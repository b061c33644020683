#include "base/thread_pool.h"

#include <algorithm>
#include <cstdlib>

#include "base/num_cores.h"

namespace gapless {
namespace {

// Kernels of one step follow each other within microseconds; a worker that slept in between would
// cost more than it brings. Some ten microseconds of looking, then sleep.
constexpr int kLooksBeforeSleep = 2000;
// While a loop runs: its last tasks take longer than that, and who sleeps until they are done comes late to the next loop, some
// hundred microseconds after the others.
constexpr int kLooksInALoop = 8 * kLooksBeforeSleep;

int shared_pool_threads() {
  int count = num_usable_cores();
  if (const char* const wanted = std::getenv("GAPLESS_CPU_THREADS")) {
    if (const int parsed = std::atoi(wanted); parsed > 0) count = parsed;
  }
  return std::clamp(count, 1, ThreadPool::kMaxThreads);
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Whether the condition came true while looking, at most so many times.
template <typename Condition>
bool look_for(const Condition& condition, int looks) {
  for (int look = 0; look < looks; ++look) {
    if (condition()) return true;
    relax();
  }
  return false;
}

}  // namespace

ThreadPool& ThreadPool::shared() {
  static ThreadPool pool(shared_pool_threads());
  return pool;
}

ThreadPool::ThreadPool(int num_threads) {
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { run_worker(); });
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  num_loops_.fetch_add(1);
  {
    MutexLock lock(mutex_);
    loop_started_.notify_all();
  }
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_tasks(const Loop& loop) {
  for (;;) {
    const std::int64_t i = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (i >= loop.num_tasks) return;
    loop.call(loop.task, i);
  }
}

void ThreadPool::run(const Loop& loop) {
  std::unique_lock caller(caller_mutex_, std::defer_lock);
  if (workers_.empty() || loop.num_tasks <= 1 || !caller.try_lock()) {
    for (std::int64_t i = 0; i < loop.num_tasks; ++i) loop.call(loop.task, i);
    return;
  }
  loop_ = loop;
  next_task_.store(0, std::memory_order_relaxed);
  const std::uint64_t last = gate_.load(std::memory_order_relaxed);
  gate_.store(last + kOneLoop + kOpen, std::memory_order_release);
  num_loops_.fetch_add(1);
  if (num_sleeping_.load() > 0) {
    MutexLock lock(mutex_);
    loop_started_.notify_all();
  }
  run_tasks(loop);
  // Every task is taken. Workers that have not joined yet need not; those that have may still work.
  gate_.fetch_and(~kOpen);
  wait_until_all_left();
}

void ThreadPool::wait_until_all_left() {
  const auto all_left = [this] { return (gate_.load() & kJoined) == 0; };
  if (look_for(all_left, kLooksInALoop)) return;
  MutexLock lock(mutex_);
  caller_sleeps_.store(true);
  while (!all_left()) workers_left_.wait(lock);
  caller_sleeps_.store(false);
}

bool ThreadPool::join() {
  std::uint64_t gate = gate_.load();
  while ((gate & kOpen) != 0) {
    if (gate_.compare_exchange_weak(gate, gate + 1)) return true;
  }
  return false;
}

void ThreadPool::leave() {
  if ((gate_.fetch_sub(1) & kJoined) != 1 || !caller_sleeps_.load()) return;
  MutexLock lock(mutex_);
  workers_left_.notify_one();
}

void ThreadPool::wait_for_loop(std::uint64_t seen) {
  const auto is_newer = [&] { return num_loops_.load() != seen; };
  look_for([&] { return is_newer() || gate_.load() % kOneLoop == 0; }, kLooksInALoop);
  if (look_for(is_newer, kLooksBeforeSleep)) return;
  MutexLock lock(mutex_);
  num_sleeping_.fetch_add(1);
  while (!is_newer()) loop_started_.wait(lock);
  num_sleeping_.fetch_sub(1);
}

void ThreadPool::run_worker() {
  for (std::uint64_t seen = 0; !stopping_.load();) {
    wait_for_loop(seen);
    // Before it joins: a loop that begins after that is looked for again.
    seen = num_loops_.load();
    if (!join()) continue;
    run_tasks(loop_);
    leave();
  }
}

}  // namespace gapless
