// A random schedule: an engine, the requests that come to it and what goes wrong, all from one
// seed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/loop.h"
#include "sim/fake_model.h"
#include "sim/sim_device.h"

namespace gapless {

// kGrammar: held to a grammar on the device.
enum class RowKind : std::uint8_t { kPlain, kAutomaton, kHostMask, kGrammar };

struct SimRequest {
  std::int64_t arrival_ns = 0;
  RowKind kind = RowKind::kPlain;
  int num_text_tokens = 1;
  std::vector<int> images;  // indices into Schedule::images
  int max_generated = 1;
  int stop_after = -1;  // sampled tokens before the model wants to stop; -1: never
  std::uint32_t seed = 0;
  std::int64_t cancel_ns = -1;  // cancelled at this time; -1: never
  int cancel_at_token = -1;     // cancelled from on_token of this token
};

struct SimImage {
  int tile_rows = 1;
  int tile_cols = 1;
  int num_crops() const { return tile_rows * tile_cols == 1 ? 1 : tile_rows * tile_cols + 1; }
};

struct Schedule {
  std::uint64_t seed = 0;
  LoopOptions loop;
  FakeModelConfig model;
  SimConfig device;
  std::vector<SimImage> images;
  std::vector<SimRequest> requests;
  bool has_faults() const {
    return !device.faults.failing_calls.empty() || !device.faults.failing_ops.empty() ||
           !device.faults.hanging_ops.empty();
  }
};

// Deterministic numbers, the same on every platform.
class SimRandom {
 public:
  explicit SimRandom(std::uint64_t seed) : state_(seed * 2 + 1) {}
  std::uint64_t next();
  // In [low, high].
  int between(int low, int high);
  bool chance(double probability);

 private:
  std::uint64_t state_;
};

Schedule make_schedule(std::uint64_t seed);
// The same with more seats than 64, and requests for all of them at once.
Schedule make_crowded_schedule(std::uint64_t seed);

// Kernels that StepSlot::create captures: the first calls of their kind on the device.
std::int64_t num_captured_kernels(const LoopOptions& loop, const StepLimits& limits);

// "seed 17: depth 3, 5 requests, ..."
std::string describe(const Schedule& schedule);

// The automata that requests of kind kAutomaton run: coordinates and sizes, a choice of words, a segment, and
// reasoning before an answer.
std::vector<AutomatonState> sim_automata();
std::vector<std::uint8_t> sim_token_classes(int vocab);

}  // namespace gapless
