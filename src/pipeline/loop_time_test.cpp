// The ledger's states advance with the clock, whatever the loop does, in virtual time.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "pipeline/loop.h"
#include "sim/fake_model.h"
#include "sim/sim_device.h"

namespace gapless {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;

// Reads the states and holds them against the clock.
class Reader {
 public:
  Reader(const Loop& loop, SimDevice& device)
      : loop_(loop), device_(device), start_ns_(device.now_ns()) {}

  DeviceTime read() {
    const DeviceTime time = loop_.ledger().device_time(device_.now_ns());
    EXPECT_EQ(time.all_ns(), device_.now_ns() - start_ns_);
    const DeviceTime growth = time - last_;
    EXPECT_GE(growth.busy_ns(), 0);
    EXPECT_GE(growth.preparing_ns(), 0);
    EXPECT_GE(growth.starved_ns(), 0);
    EXPECT_GE(growth.bubble_ns(), 0);
    last_ = time;
    return time;
  }

 private:
  const Loop& loop_;
  SimDevice& device_;
  const std::int64_t start_ns_;
  DeviceTime last_;
};

struct Sink : TokenSink {
  explicit Sink(std::function<void()> call) : on_each_token(std::move(call)) {}
  void on_token(const CommittedToken&) override { on_each_token(); }
  void on_finished(FinishReason, const Status&, const SequenceTimes& when) override {
    times = when;
  }
  std::function<void()> on_each_token;
  SequenceTimes times;
};

class LoopTimeTest : public ::testing::Test {
 protected:
  void make_loop(int depth, std::int64_t clock_offset_ns = 0) {
    TearDown();  // of the one before
    FakeModelConfig config = FakeModelConfig::small();
    config.forward_ns = [this](const StepShape& shape) {
      return shape.kind == StepKind::kDecode ? decode_ns() : 5 * kSecondNs;
    };
    config.sampling_ns = [](const StepShape&) { return std::int64_t{10'000}; };
    SimConfig device_config;
    device_config.clock_offset_ns = clock_offset_ns;
    device_ = std::make_unique<SimDevice>(device_config);
    model_ = FakeModel::create(*device_, config).value();
    LoopOptions options;
    options.depth = depth;
    options.host_delay_ns = host_delay_ns_;
    options.naps = naps_;
    options.foresees_limits = foresees_limits_;
    loop_ = Loop::create(*device_, *model_, device_->host_clock(), options).value();
    reader_ = std::make_unique<Reader>(*loop_, *device_);
  }
  void TearDown() override {
    loop_.reset();
    model_.reset();
  }

  std::shared_ptr<Sink> submit(int num_tokens) {
    PreparedPrompt prompt;
    prompt.inputs.resize(5, TokenInput{.id = 3});
    prompt.row.max_generated = num_tokens;
    prompt.row.sampling.seed = fake_seed(1, -1);
    auto sink = std::make_shared<Sink>([this] { reader_->read(); });
    EXPECT_TRUE(loop_->submit(std::move(prompt), sink).ok());
    return sink;
  }
  void tick_until_idle() {
    while (loop_->tick() == Loop::Tick::kWorked) reader_->read();
  }
  // Nothing happens, and somebody looks now and then.
  void pause(std::int64_t ns) {
    for (int i = 0; i < 4; ++i) {
      device_->host_busy(ns / 4);
      reader_->read();
    }
  }

  std::function<std::int64_t()> decode_ns = [] { return std::int64_t{100'000}; };
  std::int64_t host_delay_ns_ = 50'000;
  bool naps_ = true;
  bool foresees_limits_ = true;
  std::unique_ptr<SimDevice> device_;
  std::unique_ptr<FakeModel> model_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Reader> reader_;
};

// A server that slept for 160 s and is then watched for 15 s, in which a request comes.
TEST_F(LoopTimeTest, AWindowGainsItsOwnLengthAndNotThePauseBeforeIt) {
  for (const int depth : {1, 2, 4}) {
    SCOPED_TRACE(depth);
    make_loop(depth);
    tick_until_idle();
    pause(160 * kSecondNs);
    const DeviceTime before = reader_->read();
    EXPECT_EQ(before.starved_ns(), before.all_ns()) << "already before the next step";
    const std::int64_t begin_ns = device_->now_ns();

    device_->host_busy(2 * kSecondNs);
    {
      const Loop::Preparation preparation(*loop_, device_->now_ns());
      pause(kSecondNs);
      submit(20);
    }
    tick_until_idle();
    device_->host_busy(15 * kSecondNs - (device_->now_ns() - begin_ns));

    const DeviceTime window = reader_->read() - before;
    EXPECT_EQ(window.all_ns(), 15 * kSecondNs);
    EXPECT_EQ(window.preparing_ns(), kSecondNs);
    EXPECT_NEAR(static_cast<double>(window.busy_ns()), 5e9 + 20 * 110e3, 0.2e6);
    EXPECT_LT(window.bubble_ns(), 3'000'000);
    EXPECT_NEAR(static_cast<double>(window.starved_ns()), 9e9, 5e6);
  }
}

TEST_F(LoopTimeTest, WakingUpForAPromptIsABubble) {
  make_loop(2);
  tick_until_idle();
  pause(kSecondNs);
  submit(1);
  device_->host_busy(300'000);  // the engine thread comes late
  tick_until_idle();
  const DeviceTime time = reader_->read();
  EXPECT_GE(time.bubble_ns(HostPhaseKind::kOther), 300'000);
  EXPECT_LT(time.bubble_ns(), 600'000);
}

TEST_F(LoopTimeTest, AClockThatIsOffChangesNothing) {
  make_loop(2, 123'456'789'000);
  tick_until_idle();
  pause(kSecondNs);
  submit(10);
  tick_until_idle();
  pause(kSecondNs);
  const DeviceTime time = reader_->read();
  EXPECT_NEAR(static_cast<double>(time.starved_ns()), 2e9, 5e6);
  EXPECT_NEAR(static_cast<double>(time.busy_ns()), 5e9, 5e6);
}

// A slot holds the stamps of its steps one after the other: prefills, which sample apart, and decode
// steps, whose sampling begins where their forward ends.
TEST_F(LoopTimeTest, EachStepHasTimesOfItsOwn) {
  for (const int depth : {1, 2, 4}) {
    SCOPED_TRACE(depth);
    make_loop(depth);
    for (int i = 0; i < 3; ++i) {
      submit(12);
      tick_until_idle();
    }
    int num_decodes = 0;
    for (const StepRecord& record : loop_->ledger().records()) {
      SCOPED_TRACE(record.number);
      EXPECT_LT(record.forward_begin_ns, record.forward_end_ns);
      EXPECT_LE(record.forward_end_ns, record.sampling_begin_ns);
      EXPECT_LT(record.sampling_begin_ns, record.sampling_end_ns);
      EXPECT_LE(record.sampling_end_ns, record.wait_end_ns);
      num_decodes += record.kind == StepKind::kDecode ? 1 : 0;
    }
    EXPECT_GE(num_decodes, 3 * 11);
  }
}

// A GPU's clock counts from another time than the host's: the epoch, not the start of the machine.
constexpr std::int64_t kEpochOffsetNs = -1'700'000'000'000'000'000;

// Steps of 2 ms, some 4 % shorter than others: the host sleeps for most of them, and nothing is later, though it comes to wait
// for a step when a fifth of it is over.
TEST_F(LoopTimeTest, SleepingThroughWhatIsSureDelaysNothing) {
  constexpr int kNumTokens = 40;
  host_delay_ns_ = 400'000;
  for (const int depth : {1, 2, 4}) {
    SCOPED_TRACE(depth);
    std::array<std::int64_t, 2> took_ns{};
    for (const bool naps : {false, true}) {
      naps_ = naps;
      int num_steps = 0;
      decode_ns = [&num_steps] { return 2'000'000 - 80'000 * (num_steps++ % 3 == 0 ? 1 : 0); };
      make_loop(depth, kEpochOffsetNs);
      for (int request = 0; request < 3; ++request) {
        const auto sink = submit(kNumTokens);
        tick_until_idle();
        took_ns[naps ? 1 : 0] += sink->times.finished_ns - sink->times.first_token_ns;
      }
      const double slept = static_cast<double>(device_->slept_ns());
      if (naps) {
        EXPECT_GT(slept, 0.5 * static_cast<double>(took_ns[1]));
      } else {
        EXPECT_EQ(slept, 0);
      }
    }
    EXPECT_EQ(took_ns[0], took_ns[1]);
  }
}

TEST_F(LoopTimeTest, AStepOfZombiesIsWaitedForAwake) {
  decode_ns = [] { return std::int64_t{2'000'000}; };
  foresees_limits_ = false;
  make_loop(2);
  int num_live = 0;
  int num_dead = 0;
  for (int request = 0; request < 3; ++request) {
    submit(20);
    tick_until_idle();
  }
  for (const StepRecord& record : loop_->ledger().records()) {
    if (record.kind != StepKind::kDecode) continue;
    (record.num_zombies > 0 ? num_dead : num_live) += 1;
  }
  ASSERT_GE(num_dead, 2);
  const double naps =
      static_cast<double>(device_->slept_ns()) / (SureTime::kSureShare * 2'010'000 - 150'000);
  EXPECT_LT(naps, num_live - SureTime::kRemembered + 0.5);
  EXPECT_GT(naps, num_live - SureTime::kRemembered - 3);
}

TEST_F(LoopTimeTest, ASequenceKnowsItsWay) {
  make_loop(2);
  tick_until_idle();
  const std::int64_t queued_ns = device_->now_ns();
  const auto sink = submit(2);
  tick_until_idle();
  EXPECT_EQ(sink->times.queued_ns, queued_ns);
  EXPECT_GE(sink->times.first_launched_ns, queued_ns);
  EXPECT_EQ(sink->times.first_launched_ns, sink->times.prefill_launched_ns) << "without an image";
  EXPECT_GT(sink->times.first_token_ns, sink->times.first_launched_ns + 5 * kSecondNs - 1);
}

}  // namespace
}  // namespace gapless
