// What one step leaves behind: when the host did its part, and when the device did its own.
// All times are host_now_ns() nanoseconds; device stamps are brought to that clock.
#pragma once

#include <cstdint>

#include "step/step_model.h"

namespace gapless {

enum class HostPhaseKind : std::uint8_t {
  kPlan,      // choosing the next step
  kLaunch,    // filling inputs and enqueueing
  kWait,      // a commit waits for the device: not work, but in a gap it is the way of the tokens
  kCommit,    // tokens into sequences, results out, seats back
  kFinalize,  // masks built, sampling enqueued
  kIdle,      // nothing to do
  kOther,     // anything else: mail, admission, the path between two phases
};
inline constexpr int kNumHostPhaseKinds = 7;
const char* host_phase_name(HostPhaseKind kind);

const char* step_kind_name(StepKind kind);  // "encode", "prefill", "decode"

struct HostPhase {
  HostPhaseKind kind = HostPhaseKind::kOther;
  std::int64_t step = -1;  // StepRecord::number, or -1
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

struct StepRecord {
  std::int64_t number = 0;  // in launch order
  StepKind kind = StepKind::kDecode;
  int slot = 0;
  int num_rows = 0;     // sequences in the step, zombies included
  int num_zombies = 0;  // of those, finalized before the commit
  int num_host_masked = 0;
  int num_tokens = 0;         // prefill: packed tokens
  int num_cached_tokens = 0;  // in the KV cache before the step, all rows together

  // Host.
  std::int64_t plan_begin_ns = 0;
  std::int64_t launch_begin_ns = 0;
  std::int64_t launch_end_ns = 0;
  std::int64_t finalize_begin_ns = 0;  // 0: sampling went with the launch
  std::int64_t finalize_end_ns = 0;
  std::int64_t commit_begin_ns = 0;
  std::int64_t wait_end_ns = 0;
  std::int64_t commit_end_ns = 0;

  // Device, stamped by itself.
  std::int64_t forward_begin_ns = 0;
  std::int64_t forward_end_ns = 0;
  std::int64_t sampling_begin_ns = 0;
  std::int64_t sampling_end_ns = 0;
};

}  // namespace gapless
