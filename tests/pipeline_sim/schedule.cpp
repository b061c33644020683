#include "tests/pipeline_sim/schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"
#include "pipeline/step_graphs.h"
#include "sim/sim_device.h"

namespace gapless {
namespace {

SimTimes random_times(SimRandom& random) {
  if (random.chance(0.2)) return SimTimes::free();
  SimTimes times;
  times.host_call_ns = random.between(0, 2000);
  times.launch_latency_ns = random.between(0, 5000);
  times.event_latency_ns = random.between(0, 3000);
  times.wake_ns = random.between(0, 3000);
  times.copy_latency_ns = random.between(0, 20000);
  times.copy_bytes_per_ns = random.chance(0.2) ? 0.05 : 50;
  return times;
}

FakeModelConfig random_model(SimRandom& random) {
  FakeModelConfig config = FakeModelConfig::small();
  StepLimits& limits = config.limits;
  limits.max_seats = random.between(1, 6);
  limits.max_prefill_sequences = random.between(1, std::min(3, limits.max_seats));
  limits.num_pages = random.between(8, 40);
  limits.num_image_slots = random.between(1, 4);
  limits.max_images_per_encode = random.between(1, 3);
  limits.max_crops_per_encode = random.between(1, limits.max_crops_per_encode);
  limits.max_page_copies = random.between(1, 3);
  limits.max_page_deltas = limits.max_pages_per_row * random.between(1, 3);
  if (random.chance(0.5)) limits.max_graph_tokens = random.between(1, limits.max_prefill_tokens);
  if (random.chance(0.5)) limits.max_graph_crops = random.between(1, limits.max_crops_per_encode);
  config.automata = sim_automata();
  config.token_classes = sim_token_classes(config.vocab);
  const int step_ns = random.between(0, 50'000);
  const int sampling_ns = random.between(0, 20'000);
  config.forward_ns = [step_ns](const StepShape& shape) {
    const int work = shape.kind == StepKind::kDecode ? 1 : 3;
    return std::int64_t{step_ns} * work;
  };
  config.sampling_ns = [sampling_ns](const StepShape&) { return std::int64_t{sampling_ns}; };
  return config;
}

SimRequest random_request(SimRandom& random, int num_images, std::int64_t span_ns) {
  SimRequest request;
  request.arrival_ns =
      static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(span_ns + 1));
  request.kind = static_cast<RowKind>(random.between(0, 2));
  request.num_text_tokens = random.between(1, random.chance(0.2) ? 60 : 12);
  while (request.images.size() < 3 && random.chance(request.images.empty() ? 0.5 : 0.4)) {
    request.images.push_back(random.between(0, num_images - 1));
  }
  request.max_generated = random.between(1, random.chance(0.2) ? 40 : 10);
  if (random.chance(0.6)) request.stop_after = random.between(0, request.max_generated);
  request.seed = static_cast<std::uint32_t>(random.next());
  // Not drawn, so that the rest of a seed's schedule is what it was.
  if (request.kind != RowKind::kAutomaton && request.seed % 3 == 0) {
    request.kind = RowKind::kGrammar;
  }
  if (random.chance(0.15)) {
    request.cancel_ns = request.arrival_ns + random.between(0, 400'000);
  } else if (random.chance(0.1)) {
    request.cancel_at_token = random.between(0, 5);
  }
  return request;
}

SimFaultScript random_faults(SimRandom& random, const Schedule& schedule) {
  SimFaultScript faults;
  faults.seed = random.next();
  if (random.chance(0.5)) {
    faults.slow_probability = 0.1;
    faults.max_slowdown = 20;
  }
  if (!random.chance(0.3)) return faults;
  if (random.chance(0.25)) {
    faults.failing_ops.push_back(random.between(1, 300));
    return faults;
  }
  constexpr SimCall kCalls[] = {SimCall::kCopyToDevice, SimCall::kCopyToHost,
                                SimCall::kRecord,       SimCall::kWait,
                                SimCall::kLaunch,       SimCall::kEnqueueKernel};
  const int num_failures = random.between(1, 3);
  for (int i = 0; i < num_failures; ++i) {
    const SimCall call = kCalls[random.between(0, 5)];
    std::int64_t number = random.between(1, 40);
    if (call == SimCall::kEnqueueKernel) {
      number += num_captured_kernels(schedule.loop, schedule.model.limits);
    }
    faults.failing_calls.push_back({call, number});
  }
  // And now and then the device does not come back.
  if (random.chance(0.1)) faults.failing_calls.push_back({SimCall::kEventSynchronize, 20});
  if (random.chance(0.1)) faults.failing_calls.push_back({SimCall::kStreamSynchronize, 5});
  return faults;
}

}  // namespace

std::uint64_t SimRandom::next() {
  state_ += 0x9e3779b97f4a7c15ULL;
  std::uint64_t x = state_;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

int SimRandom::between(int low, int high) {
  return low + static_cast<int>(next() % static_cast<std::uint64_t>(high - low + 1));
}

bool SimRandom::chance(double probability) {
  return static_cast<double>(next() >> 11) * 0x1.0p-53 < probability;
}

Schedule make_schedule(std::uint64_t seed) {
  SimRandom random(seed);
  Schedule schedule;
  schedule.seed = seed;
  schedule.loop.depth = random.between(1, kMaxDepth);
  schedule.loop.max_cached_prefixes = random.chance(0.7) ? random.between(1, 4) : 0;
  schedule.loop.host_delay_ns = random.chance(0.3) ? random.between(0, 60'000) : 0;
  schedule.loop.ledger_capacity = 16;
  schedule.model = random_model(random);
  const int num_images = random.between(1, 3);
  for (int i = 0; i < num_images; ++i) {
    schedule.images.push_back({random.between(1, 2), random.between(1, 3)});
  }
  const int num_requests = random.between(1, 14);
  const std::int64_t span_ns = random.chance(0.3) ? 0 : random.between(0, 3'000'000);
  for (int i = 0; i < num_requests; ++i) {
    schedule.requests.push_back(random_request(random, num_images, span_ns));
  }
  std::sort(schedule.requests.begin(), schedule.requests.end(),
            [](const auto& a, const auto& b) { return a.arrival_ns < b.arrival_ns; });
  schedule.device.times = random_times(random);
  schedule.device.record_timeline = false;
  schedule.device.clock_offset_ns = random.between(-1000, 1000);
  schedule.device.faults = random_faults(random, schedule);
  return schedule;
}

Schedule make_crowded_schedule(std::uint64_t seed) {
  Schedule schedule = make_schedule(seed);
  SimRandom random(seed);
  StepLimits& limits = schedule.model.limits;
  limits.max_seats = random.between(65, kMaxSeats);
  limits.max_prefill_sequences = random.between(1, 32);
  limits.num_pages = limits.max_seats * random.between(2, 6);
  limits.max_page_deltas = std::max(limits.max_seats, limits.max_page_deltas);
  schedule.requests.clear();
  const int num_requests = random.between(limits.max_seats, 2 * limits.max_seats);
  for (int i = 0; i < num_requests; ++i) {
    SimRequest request =
        random_request(random, static_cast<int>(schedule.images.size()), /*span_ns=*/0);
    request.max_generated = random.between(10, 60);
    schedule.requests.push_back(std::move(request));
  }
  return schedule;
}

std::int64_t num_captured_kernels(const LoopOptions& loop, const StepLimits& limits) {
  // FakeModel's kernels: one per forward and sampling, and the slot's stamps around them.
  const auto kernels_of = [](StepPart part, const StepShape& shape) {
    const int forward = shape.kind == StepKind::kEncode ? 2 : 3;
    switch (part) {
      case StepPart::kForward:
        return forward;
      case StepPart::kSampling:
        return 3;
      case StepPart::kBoth:
        return forward + 2;
    }
    return 0;
  };
  SimDevice device;
  auto stream = device.create_stream("compute");
  GAPLESS_CHECK(stream.ok());
  std::int64_t count = 0;
  const auto enqueue = [&](StepPart part, const StepShape& shape) {
    count += kernels_of(part, shape);
    return ok_status();
  };
  StepGraphs graphs;
  GAPLESS_CHECK(graphs.capture(**stream, limits, enqueue).ok());
  return loop.depth * count;
}

std::string describe(const Schedule& schedule) {
  return fmt::format(
      "seed {}: depth {}, {} seats, {} pages, {} requests, {} failing calls, {} failing ops",
      schedule.seed, schedule.loop.depth, schedule.model.limits.max_seats,
      schedule.model.limits.num_pages, schedule.requests.size(),
      schedule.device.faults.failing_calls.size(), schedule.device.faults.failing_ops.size());
}

std::vector<AutomatonState> sim_automata() {
  return {
      {2, {kFakeCoordId, kFakeStopId}, {1, 0}},                           // 0: x, or the end
      {1, {kFakeCoordId}, {2}},                                           // 1: y
      {1, {kFakeSizeId}, {0}},                                            // 2: size
      {3, {5, 6, 7}, {4, 4, 3}},                                          // 3: a word
      {2, {8, kFakeStopId}, {3, 4}},                                      // 4: another, or the end
      {3, {9, kFakeStopId, 10}, {6, kForbiddenEdge, kForbiddenEdge}, 1},  // 5: reasoning
      {1, {9}, {kNoAutomaton}},  // 6: its end once more, then the answer
      {1, {kFakeCoordId}, {8}},  // 7: a segment's box, then its path of classes
      {1, {kFakeCoordId}, {9}},
      {1, {kFakeSizeId}, {10}},
      {0, {}, {}, 0, -1, 1u << 1, {0, 11}},
      {0, {}, {}, 0, -1, 1u << 2, {0, 0, 12}},
      {1, {kFakeStopId}, {12}, 0, -1, 1u << 1 | 1u << 2, {0, 11, 12}},
  };
}

std::vector<std::uint8_t> sim_token_classes(int vocab) {
  std::vector<std::uint8_t> classes(static_cast<std::size_t>(vocab));
  for (std::size_t token = 3; token < classes.size(); ++token) {
    classes[token] = static_cast<std::uint8_t>(token % 3);
  }
  return classes;
}

}  // namespace gapless
