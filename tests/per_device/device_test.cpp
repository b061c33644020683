// What device.h promises, on whichever device GAPLESS_TEST_DEVICE names.
#include "device/device.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "tests/per_device/test_device.h"

namespace gapless {
namespace {

constexpr std::size_t kSmallBytes = 4096;
// Long enough that a stream which does not wait is seen to run ahead.
constexpr std::size_t kLargeBytes = 16u << 20;

std::span<std::uint8_t> bytes_of(const PinnedBuffer& buffer) {
  return {buffer.as<std::uint8_t>(), buffer.size_bytes()};
}

bool all_equal(const PinnedBuffer& buffer, std::uint8_t value) {
  const auto bytes = bytes_of(buffer);
  // Each is the one before it.
  return bytes[0] == value && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

void fill_with_count(const PinnedBuffer& buffer, std::uint8_t first) {
  std::ranges::generate(bytes_of(buffer), [value = first]() mutable { return value++; });
}

class DeviceContractTest : public DeviceTest {
 protected:
  std::unique_ptr<Stream> stream(std::string_view name = "test") {
    return device_->create_stream(name).value();
  }
  std::unique_ptr<Event> event() { return device_->create_event().value(); }
  Buffer buffer(std::size_t bytes) { return device_->allocate(bytes).value(); }
  PinnedBuffer pinned(std::size_t bytes) { return device_->allocate_pinned(bytes).value(); }
};

// Says in the log which device ran, and fails when it is not the one that was asked for.
TEST_F(DeviceContractTest, TheDeviceAskedForIsTheOneThatRuns) {
  const DeviceInfo info = device_->info().value();
  std::printf("device under test: %s -> %s\n", test_device_name().c_str(), info.name.c_str());
  EXPECT_EQ(info.kind, test_device_kind());
  EXPECT_GT(info.total_memory_bytes, 0u);
  EXPECT_GT(info.free_memory_bytes, 0u);
  EXPECT_LE(info.free_memory_bytes, info.total_memory_bytes);
  EXPECT_EQ(info.kind == DeviceKind::kCuda, info.num_multiprocessors > 0);
  EXPECT_EQ(info.kind == DeviceKind::kCpu, info.name == "CPU");
}

TEST_F(DeviceContractTest, AllocationsAreAlignedAndDistinct) {
  const Buffer first = buffer(1);
  const Buffer second = buffer(300);
  const PinnedBuffer third = pinned(300);
  for (void* data : {first.data(), second.data(), third.data()}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 256, 0u);
  }
  EXPECT_NE(first.data(), second.data());
  EXPECT_EQ(second.size_bytes(), 300u);
  EXPECT_EQ(buffer(0).data(), nullptr);
  EXPECT_EQ(pinned(0).data(), nullptr);
}

TEST_F(DeviceContractTest, TooMuchMemoryIsRefusedAndTheDeviceStaysUsable) {
  const auto refused = device_->allocate(std::size_t{1} << 50);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(buffer(kSmallBytes).data(), nullptr);
  GAPLESS_ASSERT_OK(stream()->synchronize());
}

TEST_F(DeviceContractTest, CopiesUpAcrossAndDown) {
  const auto work = stream();
  const PinnedBuffer in = pinned(kSmallBytes);
  const PinnedBuffer out = pinned(kSmallBytes);
  const Buffer a = buffer(kSmallBytes);
  const Buffer b = buffer(kSmallBytes);
  fill_with_count(in, 3);
  GAPLESS_ASSERT_OK(work->copy_to_device(a.data(), in.data(), kSmallBytes));
  GAPLESS_ASSERT_OK(work->copy_on_device(b.data(), a.data(), kSmallBytes));
  GAPLESS_ASSERT_OK(work->fill_bytes(b.as<std::uint8_t>() + 16, 0xee, 16));
  GAPLESS_ASSERT_OK(work->copy_to_host(out.data(), b.data(), kSmallBytes));
  GAPLESS_ASSERT_OK(work->synchronize());
  std::vector<std::uint8_t> expected(bytes_of(in).begin(), bytes_of(in).end());
  std::fill_n(expected.begin() + 16, 16, std::uint8_t{0xee});
  EXPECT_TRUE(std::ranges::equal(bytes_of(out), expected));
}

// Of whatever size, and no byte beside it.
TEST_F(DeviceContractTest, AFillWithZerosReachesEveryByte) {
  constexpr std::size_t kBytes = (std::size_t{3} << 20) + 77, kBegin = 4097, kEnd = kBytes - 5000;
  Buffer data = device_->allocate(kBytes).value();
  PinnedBuffer seen = device_->allocate_pinned(kBytes).value();
  const auto work = device_->create_stream("work").value();
  GAPLESS_ASSERT_OK(work->fill_bytes(data.data(), 0xee, kBytes));
  GAPLESS_ASSERT_OK(work->fill_bytes(data.as<std::uint8_t>() + kBegin, 0, kEnd - kBegin));
  GAPLESS_ASSERT_OK(work->copy_to_host(seen.data(), data.data(), kBytes));
  GAPLESS_ASSERT_OK(work->synchronize());
  for (std::size_t i = 0; i < kBytes; ++i) {
    const bool inside = kBegin <= i && i < kEnd;
    ASSERT_EQ(seen.as<std::uint8_t>()[i], inside ? 0 : 0xee) << i;
  }
}

TEST_F(DeviceContractTest, PartsOfPinnedBuffersCopy) {
  const auto work = stream();
  const PinnedBuffer host = pinned(64);
  const Buffer data = buffer(64);
  fill_with_count(host, 0);
  GAPLESS_ASSERT_OK(work->copy_to_device(data.data(), host.as<std::uint8_t>() + 8, 8));
  GAPLESS_ASSERT_OK(work->copy_to_host(host.as<std::uint8_t>() + 56, data.data(), 8));
  GAPLESS_ASSERT_OK(work->synchronize());
  EXPECT_TRUE(std::ranges::equal(bytes_of(host).subspan(56), bytes_of(host).subspan(8, 8)));
}

TEST_F(DeviceContractTest, WorkOnOneStreamRunsInOrder) {
  const auto work = stream();
  const Buffer data = buffer(kLargeBytes);
  const PinnedBuffer out = pinned(kSmallBytes);
  for (int value = 1; value <= 5; ++value) {
    GAPLESS_ASSERT_OK(work->fill_bytes(data.data(), static_cast<std::uint8_t>(value), kLargeBytes));
  }
  const std::uint8_t* const tail = data.as<std::uint8_t>() + kLargeBytes - kSmallBytes;
  GAPLESS_ASSERT_OK(work->copy_to_host(out.data(), tail, kSmallBytes));
  GAPLESS_ASSERT_OK(work->synchronize());
  EXPECT_TRUE(all_equal(out, 5));
}

TEST_F(DeviceContractTest, AStreamWaitsForAnotherStreamsEvent) {
  const auto producer = stream("producer");
  const auto consumer = stream("consumer");
  const auto made = event();
  const Buffer data = buffer(kLargeBytes);
  const PinnedBuffer out = pinned(kSmallBytes);
  const std::uint8_t* const tail = data.as<std::uint8_t>() + kLargeBytes - kSmallBytes;
  for (int value = 1; value <= 8; ++value) {
    GAPLESS_ASSERT_OK(
        producer->fill_bytes(data.data(), static_cast<std::uint8_t>(value), kLargeBytes));
    GAPLESS_ASSERT_OK(producer->record(*made));
    GAPLESS_ASSERT_OK(consumer->wait(*made));
    GAPLESS_ASSERT_OK(consumer->copy_to_host(out.data(), tail, kSmallBytes));
    GAPLESS_ASSERT_OK(consumer->synchronize());
    ASSERT_TRUE(all_equal(out, static_cast<std::uint8_t>(value)));
  }
}

TEST_F(DeviceContractTest, TheHostWaitsForAnEvent) {
  const auto work = stream();
  const auto done = event();
  const Buffer data = buffer(kLargeBytes);
  const PinnedBuffer out = pinned(kLargeBytes);
  for (int value = 1; value <= 3; ++value) {
    GAPLESS_ASSERT_OK(work->fill_bytes(data.data(), static_cast<std::uint8_t>(value), kLargeBytes));
    GAPLESS_ASSERT_OK(work->copy_to_host(out.data(), data.data(), kLargeBytes));
    GAPLESS_ASSERT_OK(work->record(*done));
    GAPLESS_ASSERT_OK(done->synchronize());
    ASSERT_TRUE(all_equal(out, static_cast<std::uint8_t>(value)));
    EXPECT_TRUE(done->is_complete().value());
  }
}

// 4 GB of writing take every device longer than the host takes to ask.
TEST_F(DeviceContractTest, ABoundedWaitSaysWhetherTheWorkIsDone) {
  constexpr std::int64_t kHour = 3'600'000'000'000;
  const auto work = stream();
  const auto done = event();
  const Buffer data = buffer(4 * kLargeBytes);
  for (int i = 0; i < 64; ++i) {
    GAPLESS_ASSERT_OK(work->fill_bytes(data.data(), 1, data.size_bytes()));
  }
  GAPLESS_ASSERT_OK(work->record(*done));
  const StatusOr<bool> passed = done->is_complete();
  ASSERT_TRUE(passed.ok()) << passed.status().to_string();
  EXPECT_FALSE(*passed);
  const std::int64_t num_before = device_->counters().event_waits;
  EXPECT_FALSE(done->synchronize_within(0).value());
  EXPECT_FALSE(done->synchronize_within(1000).value());
  EXPECT_TRUE(done->synchronize_within(kHour).value());
  EXPECT_TRUE(done->synchronize_within(0).value()) << "it stays done";
  EXPECT_EQ(device_->counters().event_waits - num_before, 4) << "the wait that I7 counts";
}

TEST_F(DeviceContractTest, AnEventThatWasNeverRecordedPasses) {
  const auto work = stream();
  const auto never = event();
  EXPECT_TRUE(never->is_complete().value());
  EXPECT_TRUE(never->synchronize_within(0).value());
  GAPLESS_ASSERT_OK(never->synchronize());
  GAPLESS_ASSERT_OK(work->wait(*never));
  GAPLESS_ASSERT_OK(work->synchronize());
}

TEST_F(DeviceContractTest, AReplayedGraphReadsWhatMemoryHoldsThen) {
  const auto work = stream();
  const PinnedBuffer in = pinned(kSmallBytes);
  const PinnedBuffer out = pinned(kSmallBytes);
  const Buffer a = buffer(kSmallBytes);
  const Buffer b = buffer(kSmallBytes);
  std::ranges::fill(bytes_of(in), std::uint8_t{1});
  std::ranges::fill(bytes_of(out), std::uint8_t{0});

  GAPLESS_ASSERT_OK(work->begin_capture());
  GAPLESS_ASSERT_OK(work->copy_to_device(a.data(), in.data(), kSmallBytes));
  GAPLESS_ASSERT_OK(work->copy_on_device(b.data(), a.data(), kSmallBytes));
  GAPLESS_ASSERT_OK(work->copy_to_host(out.data(), b.data(), kSmallBytes));
  const std::unique_ptr<Graph> graph = work->end_capture().value();
  GAPLESS_ASSERT_OK(work->synchronize());
  EXPECT_TRUE(all_equal(out, 0)) << "captured work ran";

  const auto done = event();
  for (const std::uint8_t value : {std::uint8_t{7}, std::uint8_t{9}}) {
    std::ranges::fill(bytes_of(in), value);
    GAPLESS_ASSERT_OK(work->launch(*graph));
    GAPLESS_ASSERT_OK(work->record(*done));
    GAPLESS_ASSERT_OK(done->synchronize());
    EXPECT_TRUE(all_equal(out, value));
  }
}

// The flag is what memory holds when the condition's turn comes, whatever it was when the graph was launched.
TEST_F(DeviceContractTest, AGraphLeavesOutWhatItsFlagForbids) {
  constexpr std::uint8_t kBefore = 1, kInside = 2, kAgain = 3, kBehind = 4;
  const auto work = stream();
  const PinnedBuffer flag_pinned = pinned(4), out = pinned(4 * kSmallBytes);
  const Buffer flag = buffer(4), data = buffer(4 * kSmallBytes);
  const auto part = [&](int i) { return data.as<std::uint8_t>() + i * kSmallBytes; };
  GAPLESS_ASSERT_OK(work->fill_bytes(flag.data(), 1, 4));
  GAPLESS_ASSERT_OK(work->synchronize());
  GAPLESS_ASSERT_OK(work->begin_capture());
  GAPLESS_ASSERT_OK(work->copy_to_device(flag.data(), flag_pinned.data(), 4));
  GAPLESS_ASSERT_OK(work->fill_bytes(part(0), kBefore, kSmallBytes));
  GAPLESS_ASSERT_OK(work->begin_if(flag.as<std::uint32_t>()));
  GAPLESS_ASSERT_OK(work->fill_bytes(part(1), kInside, 2 * kSmallBytes));
  GAPLESS_ASSERT_OK(work->fill_bytes(part(2), kAgain, kSmallBytes));
  GAPLESS_ASSERT_OK(work->end_if());
  GAPLESS_ASSERT_OK(work->copy_on_device(part(3), part(2), kSmallBytes));
  GAPLESS_ASSERT_OK(work->fill_bytes(part(3) + 1, kBehind, kSmallBytes - 1));
  const std::unique_ptr<Graph> graph = work->end_capture().value();
  for (const std::uint32_t holds : {1u, 0u, 0u, 7u, 0u, 0x80000000u}) {
    SCOPED_TRACE(holds);
    *flag_pinned.as<std::uint32_t>() = holds;
    GAPLESS_ASSERT_OK(work->fill_bytes(data.data(), 0xee, 4 * kSmallBytes));
    GAPLESS_ASSERT_OK(work->launch(*graph));
    GAPLESS_ASSERT_OK(work->copy_to_host(out.data(), data.data(), 4 * kSmallBytes));
    GAPLESS_ASSERT_OK(work->synchronize());
    const std::uint8_t* const seen = out.as<std::uint8_t>();
    for (const std::size_t at : {std::size_t{0}, kSmallBytes - 1}) {
      EXPECT_EQ(seen[at], kBefore);
      EXPECT_EQ(seen[kSmallBytes + at], holds != 0 ? kInside : 0xee);
      EXPECT_EQ(seen[2 * kSmallBytes + at], holds != 0 ? kAgain : 0xee);
    }
    EXPECT_EQ(seen[3 * kSmallBytes], holds != 0 ? kAgain : 0xee)
        << "came before the condition's work";
    EXPECT_EQ(seen[4 * kSmallBytes - 1], kBehind) << "work behind the condition is not part of it";
  }
}

TEST_F(DeviceContractTest, AGraphMayHaveSeveralConditions) {
  const auto work = stream();
  const PinnedBuffer flags_pinned = pinned(8), out = pinned(2);
  const Buffer flags = buffer(8), data = buffer(2);
  GAPLESS_ASSERT_OK(work->begin_capture());
  for (int i = 0; i < 2; ++i) {
    GAPLESS_ASSERT_OK(work->begin_if(flags.as<std::uint32_t>() + i));
    GAPLESS_ASSERT_OK(work->fill_bytes(data.as<std::uint8_t>() + i, 5, 1));
    GAPLESS_ASSERT_OK(work->end_if());
  }
  const std::unique_ptr<Graph> graph = work->end_capture().value();
  for (const std::uint32_t first : {0u, 1u}) {
    flags_pinned.as<std::uint32_t>()[0] = first;
    flags_pinned.as<std::uint32_t>()[1] = 1 - first;
    GAPLESS_ASSERT_OK(work->copy_to_device(flags.data(), flags_pinned.data(), 8));
    GAPLESS_ASSERT_OK(work->fill_bytes(data.data(), 0, 2));
    GAPLESS_ASSERT_OK(work->launch(*graph));
    GAPLESS_ASSERT_OK(work->copy_to_host(out.data(), data.data(), 2));
    GAPLESS_ASSERT_OK(work->synchronize());
    EXPECT_EQ(out.as<std::uint8_t>()[0], first * 5);
    EXPECT_EQ(out.as<std::uint8_t>()[1], (1 - first) * 5);
  }
}

TEST_F(DeviceContractTest, ConditionsAreNotNestedAndEndBeforeTheirCapture) {
  const auto work = stream();
  const Buffer flag = buffer(4), data = buffer(kSmallBytes);
  const PinnedBuffer out = pinned(kSmallBytes);
  EXPECT_EQ(work->end_if().code(), StatusCode::kInvalidArgument);
  GAPLESS_ASSERT_OK(work->fill_bytes(flag.data(), 1, 4));
  GAPLESS_ASSERT_OK(work->begin_capture());
  GAPLESS_ASSERT_OK(work->begin_if(flag.as<std::uint32_t>()));
  EXPECT_EQ(work->begin_if(flag.as<std::uint32_t>()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(work->end_capture().status().code(), StatusCode::kInvalidArgument);
  GAPLESS_ASSERT_OK(work->fill_bytes(data.data(), 6, kSmallBytes));
  GAPLESS_ASSERT_OK(work->end_if());
  const std::unique_ptr<Graph> graph = work->end_capture().value();
  // The refusals did no harm to the capture.
  GAPLESS_ASSERT_OK(work->launch(*graph));
  GAPLESS_ASSERT_OK(work->copy_to_host(out.data(), data.data(), kSmallBytes));
  GAPLESS_ASSERT_OK(work->synchronize());
  EXPECT_TRUE(all_equal(out, 6));
}

// As a library's kernels do: each reads what its own fill left, and counts there. Here copies read, and fills count.
TEST_F(DeviceContractTest, AGraphReadsZerosInWhatItTook) {
  constexpr int kCounts = 3;
  const auto work = stream();
  const Buffer arena = buffer(kCounts * kSmallBytes), seen = buffer(kCounts * kSmallBytes);
  const PinnedBuffer out = pinned(kCounts * kSmallBytes);
  GAPLESS_ASSERT_OK(work->begin_capture());
  GAPLESS_ASSERT_OK(work->fill_bytes(seen.data(), 1, seen.size_bytes()));
  for (int i = 0; i < kCounts; ++i) {
    void* counter = work->take_zeros(arena, kSmallBytes);
    ASSERT_EQ(counter != nullptr, test_device_kind() == DeviceKind::kCuda);
    if (counter == nullptr) counter = arena.data();
    GAPLESS_ASSERT_OK(work->fill_bytes(counter, 0, kSmallBytes));
    GAPLESS_ASSERT_OK(
        work->copy_on_device(seen.as<std::byte>() + i * kSmallBytes, counter, kSmallBytes));
    GAPLESS_ASSERT_OK(work->fill_bytes(counter, 9, kSmallBytes));
  }
  const std::unique_ptr<Graph> graph = work->end_capture().value();
  for (int launch = 0; launch < 3; ++launch) {
    GAPLESS_ASSERT_OK(work->launch(*graph));
    GAPLESS_ASSERT_OK(work->copy_to_host(out.data(), seen.data(), seen.size_bytes()));
    GAPLESS_ASSERT_OK(work->synchronize());
    EXPECT_TRUE(all_equal(out, 0)) << "launch " << launch;
  }
}

// Who writes before the fill that is left out finds out, which nobody does but this test.
TEST_F(DeviceContractTest, AGraphLeavesOutFillsOfTheZerosThatItTookAndNoOthers) {
  if (test_device_kind() != DeviceKind::kCuda) GTEST_SKIP() << "elsewhere no fill is left out";
  const auto work = stream();
  const Buffer arena = buffer(4 * kSmallBytes), seen = buffer(4 * kSmallBytes);
  const PinnedBuffer out = pinned(4 * kSmallBytes);
  GAPLESS_ASSERT_OK(work->begin_capture());
  auto* const first = static_cast<std::byte*>(work->take_zeros(arena, kSmallBytes));
  auto* const second = static_cast<std::byte*>(work->take_zeros(arena, kSmallBytes));
  ASSERT_EQ(first, arena.as<std::byte>());
  ASSERT_EQ(second, first + kSmallBytes);
  GAPLESS_ASSERT_OK(work->fill_bytes(arena.data(), 5, arena.size_bytes()));
  GAPLESS_ASSERT_OK(work->fill_bytes(first, 0, kSmallBytes / 2));           // left out
  GAPLESS_ASSERT_OK(work->fill_bytes(second, 0, kSmallBytes + 1));          // more than was taken
  GAPLESS_ASSERT_OK(work->fill_bytes(second + 3 * kSmallBytes / 2, 0, 1));  // not taken
  GAPLESS_ASSERT_OK(work->copy_on_device(seen.data(), arena.data(), arena.size_bytes()));
  const std::unique_ptr<Graph> graph = work->end_capture().value();
  for (int launch = 0; launch < 2; ++launch) {
    GAPLESS_ASSERT_OK(work->launch(*graph));
    GAPLESS_ASSERT_OK(work->copy_to_host(out.data(), seen.data(), seen.size_bytes()));
    GAPLESS_ASSERT_OK(work->synchronize());
    std::vector<std::uint8_t> expected(4 * kSmallBytes, 5);
    std::fill_n(expected.begin() + kSmallBytes, kSmallBytes + 1, std::uint8_t{0});
    expected[5 * kSmallBytes / 2] = 0;
    EXPECT_TRUE(std::ranges::equal(bytes_of(out), expected)) << "launch " << launch;
  }
}

TEST_F(DeviceContractTest, ZerosAreTakenInACaptureFromOneArenaUntilItIsUsedUp) {
  const auto work = stream();
  const Buffer arena = buffer(2 * kSmallBytes), other = buffer(kSmallBytes), flag = buffer(4);
  EXPECT_EQ(work->take_zeros(arena, kSmallBytes), nullptr) << "no capture";
  if (test_device_kind() != DeviceKind::kCuda) return;
  for (int capture = 0; capture < 2; ++capture) {
    GAPLESS_ASSERT_OK(work->begin_capture());
    EXPECT_EQ(work->take_zeros(arena, kSmallBytes), arena.data());
    GAPLESS_ASSERT_OK(work->begin_if(flag.as<std::uint32_t>()));
    EXPECT_EQ(work->take_zeros(arena, kSmallBytes), nullptr) << "a body's fills stay";
    GAPLESS_ASSERT_OK(work->end_if());
    EXPECT_EQ(work->take_zeros(other, kSmallBytes), nullptr);
    EXPECT_EQ(work->take_zeros(arena, kSmallBytes + 1), nullptr) << "more than is left";
    EXPECT_EQ(work->take_zeros(arena, kSmallBytes), arena.as<std::byte>() + kSmallBytes);
    EXPECT_EQ(work->take_zeros(arena, 1), nullptr);
    GAPLESS_ASSERT_OK(work->end_capture().status());
  }
}

// A step that has no graph: its work may run or not, and the stream is as before.
TEST_F(DeviceContractTest, WorkUnderAFlagThatIsSetRunsWithoutAGraphToo) {
  const auto work = stream();
  const Buffer flag = buffer(4), data = buffer(kSmallBytes);
  const PinnedBuffer out = pinned(kSmallBytes);
  GAPLESS_ASSERT_OK(work->fill_bytes(flag.data(), 1, 4));
  GAPLESS_ASSERT_OK(work->begin_if(flag.as<std::uint32_t>()));
  GAPLESS_ASSERT_OK(work->fill_bytes(data.data(), 6, kSmallBytes));
  GAPLESS_ASSERT_OK(work->end_if());
  GAPLESS_ASSERT_OK(work->copy_to_host(out.data(), data.data(), kSmallBytes));
  GAPLESS_ASSERT_OK(work->synchronize());
  EXPECT_TRUE(all_equal(out, 6));
}

// Both branches read what came before, and what comes behind reads both; also in a condition.
TEST_F(DeviceContractTest, ABranchBeginsAndEndsWithTheOtherOne) {
  const auto work = stream();
  const Buffer flag = buffer(4);
  const Buffer a = buffer(kLargeBytes), b = buffer(kLargeBytes), c = buffer(kLargeBytes);
  const PinnedBuffer in = pinned(kLargeBytes), out = pinned(2 * kLargeBytes);
  auto* const seen = out.as<std::uint8_t>();
  GAPLESS_ASSERT_OK(work->fill_bytes(flag.data(), 1, 4));
  for (const bool in_condition : {false, true}) {
    SCOPED_TRACE(in_condition);
    GAPLESS_ASSERT_OK(work->begin_capture());
    if (in_condition) GAPLESS_ASSERT_OK(work->begin_if(flag.as<std::uint32_t>()));
    GAPLESS_ASSERT_OK(work->copy_to_device(a.data(), in.data(), kLargeBytes));
    GAPLESS_ASSERT_OK(work->begin_branch());
    GAPLESS_ASSERT_OK(work->copy_on_device(b.data(), a.data(), kLargeBytes));
    GAPLESS_ASSERT_OK(work->end_branch());
    GAPLESS_ASSERT_OK(work->copy_on_device(c.data(), a.data(), kLargeBytes));
    GAPLESS_ASSERT_OK(work->join_branch());
    // Seen by a branch that is not joined.
    GAPLESS_ASSERT_OK(work->fill_bytes(a.data(), 0x77, kLargeBytes));
    GAPLESS_ASSERT_OK(work->copy_to_host(seen, b.data(), kLargeBytes));
    GAPLESS_ASSERT_OK(work->copy_to_host(seen + kLargeBytes, c.data(), kLargeBytes));
    if (in_condition) GAPLESS_ASSERT_OK(work->end_if());
    const std::unique_ptr<Graph> graph = work->end_capture().value();
    for (const std::uint8_t value : {std::uint8_t{3}, std::uint8_t{4}, std::uint8_t{5}}) {
      std::ranges::fill(bytes_of(in), value);
      GAPLESS_ASSERT_OK(work->launch(*graph));
      GAPLESS_ASSERT_OK(work->synchronize());
      EXPECT_TRUE(all_equal(out, value));
    }
  }
}

// Of which nothing is left in the graph.
TEST_F(DeviceContractTest, ABranchMayBeEmpty) {
  const auto work = stream();
  const Buffer data = buffer(kSmallBytes);
  const PinnedBuffer out = pinned(kSmallBytes);
  GAPLESS_ASSERT_OK(work->begin_capture());
  for (std::uint8_t value = 1; value <= 3; ++value) {
    GAPLESS_ASSERT_OK(work->begin_branch());
    GAPLESS_ASSERT_OK(work->end_branch());
    GAPLESS_ASSERT_OK(work->fill_bytes(data.data(), value, kSmallBytes));
    GAPLESS_ASSERT_OK(work->join_branch());
    GAPLESS_ASSERT_OK(work->begin_branch());
    GAPLESS_ASSERT_OK(work->fill_bytes(data.data(), value + 10, kSmallBytes));
    GAPLESS_ASSERT_OK(work->end_branch());
    GAPLESS_ASSERT_OK(work->join_branch());
  }
  GAPLESS_ASSERT_OK(work->copy_to_host(out.data(), data.data(), kSmallBytes));
  const std::unique_ptr<Graph> graph = work->end_capture().value();
  GAPLESS_ASSERT_OK(work->launch(*graph));
  GAPLESS_ASSERT_OK(work->synchronize());
  EXPECT_TRUE(all_equal(out, 13));
}

TEST_F(DeviceContractTest, AGraphRunsOnAnyStreamAndMayGoWhileItRuns) {
  const auto recorder = stream("recorder");
  const auto player = stream("player");
  const Buffer data = buffer(kLargeBytes);
  const PinnedBuffer out = pinned(kLargeBytes);
  GAPLESS_ASSERT_OK(recorder->begin_capture());
  GAPLESS_ASSERT_OK(recorder->fill_bytes(data.data(), 5, kLargeBytes));
  GAPLESS_ASSERT_OK(recorder->copy_to_host(out.data(), data.data(), kLargeBytes));
  std::unique_ptr<Graph> graph = recorder->end_capture().value();
  GAPLESS_ASSERT_OK(player->launch(*graph));
  graph.reset();
  GAPLESS_ASSERT_OK(player->synchronize());
  EXPECT_TRUE(all_equal(out, 5));
}

TEST_F(DeviceContractTest, ACaptureRefusesWhatItCannotHold) {
  const auto work = stream();
  const auto point = event();
  const Buffer data = buffer(kSmallBytes);
  EXPECT_EQ(work->end_capture().status().code(), StatusCode::kInvalidArgument);
  GAPLESS_ASSERT_OK(work->begin_capture());
  EXPECT_EQ(work->begin_capture().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(work->record(*point).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(work->wait(*point).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(work->synchronize().code(), StatusCode::kInvalidArgument);
  GAPLESS_ASSERT_OK(work->fill_bytes(data.data(), 1, kSmallBytes));
  const std::unique_ptr<Graph> graph = work->end_capture().value();
  // The refusals did no harm to the capture.
  GAPLESS_ASSERT_OK(work->launch(*graph));
  GAPLESS_ASSERT_OK(work->synchronize());
}

TEST_F(DeviceContractTest, PageableMemoryIsRefusedAndCounted) {
  const auto work = stream();
  const Buffer data = buffer(kSmallBytes);
  const PinnedBuffer host = pinned(kSmallBytes);
  std::vector<std::uint8_t> pageable(kSmallBytes);
  const auto up = work->copy_to_device(data.data(), pageable.data(), kSmallBytes);
  const auto down = work->copy_to_host(pageable.data(), data.data(), kSmallBytes);
  // Begins in pinned memory, ends beyond it.
  const auto beyond = work->copy_to_host(host.as<std::uint8_t>() + 1, data.data(), kSmallBytes);
  for (const Status& status : {up, down, beyond}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("stream test"), std::string::npos) << status.message();
  }
  EXPECT_EQ(device_->counters().pageable_copies, 3);
  GAPLESS_ASSERT_OK(work->copy_to_host(host.data(), data.data(), kSmallBytes));
  GAPLESS_ASSERT_OK(work->synchronize());
  EXPECT_EQ(device_->counters().pageable_copies, 3);
}

TEST_F(DeviceContractTest, PinnedMemoryThatWasFreedIsPageable) {
  const auto work = stream();
  const Buffer data = buffer(kSmallBytes);
  void* freed = nullptr;
  {
    const PinnedBuffer host = pinned(kSmallBytes);
    freed = host.data();
    GAPLESS_ASSERT_OK(work->copy_to_host(freed, data.data(), kSmallBytes));
    GAPLESS_ASSERT_OK(work->synchronize());
  }
  EXPECT_EQ(work->copy_to_host(freed, data.data(), kSmallBytes).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(DeviceContractTest, ASecondCaptureBeginsEmpty) {
  const auto work = stream();
  const Buffer data = buffer(kSmallBytes);
  const PinnedBuffer out = pinned(kSmallBytes);
  GAPLESS_ASSERT_OK(work->begin_capture());
  GAPLESS_ASSERT_OK(work->fill_bytes(data.data(), 1, kSmallBytes));
  const std::unique_ptr<Graph> fills = work->end_capture().value();
  GAPLESS_ASSERT_OK(work->begin_capture());
  const std::unique_ptr<Graph> nothing = work->end_capture().value();
  GAPLESS_ASSERT_OK(work->fill_bytes(data.data(), 9, kSmallBytes));
  GAPLESS_ASSERT_OK(work->launch(*nothing));
  GAPLESS_ASSERT_OK(work->copy_to_host(out.data(), data.data(), kSmallBytes));
  GAPLESS_ASSERT_OK(work->synchronize());
  EXPECT_TRUE(all_equal(out, 9));
}

void expect_counters(const DeviceCounters& before, const DeviceCounters& after,
                     const DeviceCounters& expected) {
  EXPECT_EQ(after.allocations - before.allocations, expected.allocations);
  EXPECT_EQ(after.pageable_copies - before.pageable_copies, expected.pageable_copies);
  EXPECT_EQ(after.synchronizations - before.synchronizations, expected.synchronizations);
  EXPECT_EQ(after.event_waits - before.event_waits, expected.event_waits);
}

TEST_F(DeviceContractTest, StartUpAndShutDownAreCounted) {
  DeviceCounters before = device_->counters();
  {
    const Buffer data = buffer(kSmallBytes);
    const PinnedBuffer host = pinned(kSmallBytes);
    const auto work = stream();
    const auto point = event();
    GAPLESS_ASSERT_OK(work->begin_capture());
    const std::unique_ptr<Graph> graph = work->end_capture().value();
    expect_counters(before, device_->counters(), {.allocations = 5});
    before = device_->counters();
    GAPLESS_ASSERT_OK(work->synchronize());
    ASSERT_TRUE(device_->clock_offset_ns().ok());
    expect_counters(before, device_->counters(), {.synchronizations = 2});
    before = device_->counters();
  }
  // The two buffers; streams, events and graphs go without a count.
  expect_counters(before, device_->counters(), {.synchronizations = 2});
}

TEST_F(DeviceContractTest, ASteadyStepCostsOneEventWaitAndNothingForbidden) {
  const auto up = stream("h2d");
  const auto compute = stream("compute");
  const auto down = stream("d2h");
  const auto uploaded = event();
  const auto computed = event();
  const auto done = event();
  const PinnedBuffer in = pinned(kSmallBytes);
  const PinnedBuffer out = pinned(kSmallBytes);
  const Buffer inputs = buffer(kSmallBytes);
  const Buffer outputs = buffer(kSmallBytes);
  GAPLESS_ASSERT_OK(compute->begin_capture());
  GAPLESS_ASSERT_OK(compute->copy_on_device(outputs.data(), inputs.data(), kSmallBytes));
  const std::unique_ptr<Graph> graph = compute->end_capture().value();

  const DeviceCounters before = device_->counters();
  constexpr int kNumSteps = 20;
  for (int step = 0; step < kNumSteps; ++step) {
    fill_with_count(in, static_cast<std::uint8_t>(step));
    GAPLESS_ASSERT_OK(up->copy_to_device(inputs.data(), in.data(), kSmallBytes));
    GAPLESS_ASSERT_OK(up->record(*uploaded));
    GAPLESS_ASSERT_OK(compute->wait(*uploaded));
    GAPLESS_ASSERT_OK(compute->launch(*graph));
    GAPLESS_ASSERT_OK(compute->record(*computed));
    GAPLESS_ASSERT_OK(down->wait(*computed));
    GAPLESS_ASSERT_OK(down->copy_to_host(out.data(), outputs.data(), kSmallBytes));
    GAPLESS_ASSERT_OK(down->record(*done));
    GAPLESS_ASSERT_OK(done->synchronize());
    ASSERT_TRUE(done->is_complete().value());
    ASSERT_TRUE(std::ranges::equal(bytes_of(in), bytes_of(out)));
  }
  expect_counters(before, device_->counters(), {.event_waits = kNumSteps});
  EXPECT_EQ(device_->counters().forbidden_in_steady_state() - before.forbidden_in_steady_state(),
            0);
}

TEST_F(DeviceContractTest, FreedMemoryComesBack) {
  std::size_t free_bytes_during = 0;
  {
    const Buffer data = buffer(kLargeBytes);
    const DeviceInfo info = device_->info().value();
    EXPECT_LT(info.free_memory_bytes, info.total_memory_bytes);
    free_bytes_during = info.free_memory_bytes;
  }
  EXPECT_GE(device_->info().value().free_memory_bytes, free_bytes_during + kLargeBytes);
}

TEST_F(DeviceContractTest, BuffersMove) {
  Buffer first = buffer(kSmallBytes);
  void* const data = first.data();
  Buffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.size_bytes(), kSmallBytes);
  const DeviceCounters before = device_->counters();
  second = Buffer();
  expect_counters(before, device_->counters(), {.synchronizations = 1});
  EXPECT_EQ(second.data(), nullptr);
}

// Buffers go before the streams that still use them, as members of one object may.
TEST_F(DeviceContractTest, EverythingMayBeDestroyedWithWorkQueued) {
  auto producer = stream("producer");
  auto consumer = stream("consumer");
  auto made = event();
  Buffer data = buffer(kLargeBytes);
  PinnedBuffer out = pinned(kLargeBytes);
  for (int i = 0; i < 4; ++i) {
    GAPLESS_ASSERT_OK(producer->fill_bytes(data.data(), 1, kLargeBytes));
  }
  GAPLESS_ASSERT_OK(producer->record(*made));
  GAPLESS_ASSERT_OK(consumer->wait(*made));
  GAPLESS_ASSERT_OK(consumer->copy_to_host(out.data(), data.data(), kLargeBytes));
  made.reset();
  data = Buffer();
  EXPECT_TRUE(all_equal(out, 1)) << "the memory went before the work that used it";
  out = PinnedBuffer();
  consumer.reset();
  producer.reset();
  device_.reset();
}

TEST_F(DeviceContractTest, AStreamRunsItsQueueBeforeItGoes) {
  const PinnedBuffer out = pinned(kLargeBytes);
  const Buffer data = buffer(kLargeBytes);
  {
    const auto work = stream();
    GAPLESS_ASSERT_OK(work->fill_bytes(data.data(), 6, kLargeBytes));
    GAPLESS_ASSERT_OK(work->copy_to_host(out.data(), data.data(), kLargeBytes));
  }
  EXPECT_TRUE(all_equal(out, 6));
}

// Catches a wrong unit or sign: either clock would run away from the other.
TEST_F(DeviceContractTest, TheClocksRunTogether) {
  const std::int64_t first_ns = device_->clock_offset_ns().value();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const std::int64_t second_ns = device_->clock_offset_ns().value();
  EXPECT_LT(std::abs(second_ns - first_ns), 100'000'000);
  EXPECT_GT(host_now_ns() - second_ns, 0) << "the device's clock";
}

TEST_F(DeviceContractTest, SeveralThreadsUseTheDevice) {
  std::vector<std::thread> threads;
  std::vector<int> num_wrong(4, 0);
  for (std::size_t t = 0; t < num_wrong.size(); ++t) {
    threads.emplace_back([this, t, &num_wrong] {
      for (int i = 0; i < 10; ++i) {
        const auto work = stream();
        const Buffer data = buffer(kSmallBytes);
        const PinnedBuffer out = pinned(kSmallBytes);
        const auto value = static_cast<std::uint8_t>(t * 10 + static_cast<std::size_t>(i));
        const bool ok = work->fill_bytes(data.data(), value, kSmallBytes).ok() &&
                        work->copy_to_host(out.data(), data.data(), kSmallBytes).ok() &&
                        work->synchronize().ok() && all_equal(out, value);
        num_wrong[t] += ok ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::accumulate(num_wrong.begin(), num_wrong.end(), 0), 0);
}

TEST(OpenDeviceTest, RefusesNamesItDoesNotKnow) {
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cpu:0", "CPU"}) {
    const auto device = open_device(name);
    ASSERT_FALSE(device.ok()) << name;
    EXPECT_EQ(device.status().code(), StatusCode::kInvalidArgument) << name;
  }
}

TEST(OpenDeviceTest, SaysWhyThereIsNoSuchGpu) {
  const auto device = open_device("cuda:4096");
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(device.status().message().starts_with("no CUDA device: cuda:4096: "))
      << device.status().message();
}

TEST(OpenDeviceTest, TheGpuBehindTheLastIsNotThere) {
  int num_gpus = 0;
  const auto name = [&] { return "cuda:" + std::to_string(num_gpus); };
  while (num_gpus < 64 && open_device(name()).ok()) ++num_gpus;
  const auto device = open_device(name());
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(device.status().message().starts_with("no CUDA device: " + name() + ": "))
      << device.status().message();
}

}  // namespace
}  // namespace gapless
