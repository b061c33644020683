#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace gapless {
namespace {

TEST(ThreadPoolTest, RunsEveryTaskOnce) {
  for (const int num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (const int num_tasks : {0, 1, 2, 3, 100, 10'000}) {
      std::vector<int> runs(num_tasks, 0);  // plain: each task has its own element
      pool.parallel_for(num_tasks, [&](std::int64_t i) { ++runs[i]; });
      EXPECT_EQ(runs, std::vector<int>(num_tasks, 1)) << num_threads << " threads";
    }
  }
}

TEST(ThreadPoolTest, ManyShortLoopsInARow) {
  ThreadPool pool(3);
  std::vector<std::int64_t> sums(4, 0);
  for (int loop = 0; loop < 5'000; ++loop) {
    pool.parallel_for(4, [&](std::int64_t i) { sums[i] += i; });
  }
  EXPECT_EQ(sums, (std::vector<std::int64_t>{0, 5'000, 10'000, 15'000}));
}

// Also when a worker needs so long that the caller sleeps for it, and after a pause in which the worker has slept.
TEST(ThreadPoolTest, ALoopIsOverWhenEveryTaskIs) {
  ThreadPool pool(2);
  const std::thread::id caller = std::this_thread::get_id();
  for (int loop = 0; loop < 20; ++loop) {
    std::atomic<int> begun{0}, done{0};
    pool.parallel_for(2, [&](std::int64_t) {
      begun.fetch_add(1);
      while (begun.load() < 2) std::this_thread::yield();  // each thread has one
      if (std::this_thread::get_id() != caller) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
      done.fetch_add(1);
    });
    EXPECT_EQ(done.load(), 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(loop % 2 * 3));
  }
}

// Two streams may run kernels at the same time: both loops finish, whoever has the workers.
TEST(ThreadPoolTest, LoopsFromSeveralThreads) {
  ThreadPool pool(3);
  std::atomic<int> total{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int loop = 0; loop < 500; ++loop) {
        pool.parallel_for(7, [&](std::int64_t) { total.fetch_add(1); });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total.load(), 4 * 500 * 7);
}

// A task that waits for an earlier one always sees it done, also when its caller is alone.
TEST(ThreadPoolTest, ATaskMayWaitForAnEarlierOne) {
  for (const int num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    for (int loop = 0; loop < 200; ++loop) {
      std::vector<std::atomic<int>> done(20);
      pool.parallel_for(20, [&](std::int64_t i) {
        if (i > 0) done[static_cast<std::size_t>(i - 1)].wait(0);
        done[static_cast<std::size_t>(i)].store(1);
        done[static_cast<std::size_t>(i)].notify_all();
      });
      EXPECT_EQ(done.back().load(), 1);
    }
  }
}

}  // namespace
}  // namespace gapless
