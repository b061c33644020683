// The engine loop: one thread per device that keeps the device fed.
//
// A tick launches the next step (t+1), commits the oldest one when the pipeline is full (t), and
// finalizes t+1 if rows of it wait for masks. It is the same for depth 1 (blocking: nothing is
// launched before the step before it is committed) and for depth 2 to 4, and for every kind of
// step. The order of things is pipeline_state.h's, the choice of the next step plan.h's, whether it
// is worth launching before the decode step ahead of it is known run_ahead.h's, how much of a wait is
// slept through sure_time.h's; rows and pages are
// seating.h's, buffers and streams step_slot.h's.
//
// In steady state the engine thread makes no device allocation, no pageable copy and no
// synchronisation but the wait of each commit (I7): forbidden_calls() stays 0 after create().
//
// Errors. A sequence whose step cannot be launched finishes with an error that says which call
// failed; the others go on. When the device is lost (a wait fails, a step does not end within
// step_timeout_ns, or it does not drain) every sequence finishes with that error, and so does every
// later submit. The error names the step and the call. on_finished comes exactly once for each
// accepted prompt, whatever happens.
//
// Threads: submit, cancel, Preparation, counts, device_bytes, device_status, ledger, forbidden_calls,
// depth, active_depth and set_active_depth from any. start, stop and drain from one thread. tick(),
// state() and num_cached_pages() from the engine thread: the one that start() makes, or, when
// start() is not called, the caller's (tests, simulations).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/host_clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/status.h"
#include "device/device.h"
#include "observe/ledger.h"
#include "pipeline/mailbox.h"
#include "pipeline/pipeline_state.h"
#include "pipeline/plan.h"
#include "pipeline/prepared_prompt.h"
#include "pipeline/run_ahead.h"
#include "pipeline/seating.h"
#include "pipeline/step_slot.h"
#include "pipeline/sure_time.h"
#include "step/step_model.h"

namespace gapless {

struct LoopOptions {
  int depth = 2;  // 1 .. kMaxDepth
  // Artificial host work in the commit of every decode step, for benchmarks of the bubble.
  std::int64_t host_delay_ns = 0;
  // False, for benchmarks: the end of an answer at its length limit comes as a surprise, as a stop
  // token does, so that answers of chosen lengths leave zombies. The tokens are the same.
  bool foresees_limits = true;
  int max_waiting = kMaxWaitingRequests;         // accepted prompts that have no seat yet
  int max_cached_prefixes = kMaxCachedPrefixes;  // 0: no prefix cache
  std::size_t ledger_capacity = 4096;            // steps
  // The host waits so long for a step, then takes the device for lost. 0: for ever. The wait for a
  // step begins when the steps before it have ended, so this bounds one step, not a queue of them.
  std::int64_t step_timeout_ns = 0;
  // Sleeps through the part of a step that is sure (sure_time.h), instead of waiting awake for all of
  // it. Nothing changes on the CPU device, which tells who waits for it.
  bool naps = false;
  // Called once, when the device is lost: after device_status() says so, before any sequence
  // finishes because of it. On the engine thread.
  std::function<void(const Status&)> on_device_lost = {};
};

class Loop {
 public:
  // Allocates every buffer and captures every graph. device, model and clock outlive the loop.
  static StatusOr<std::unique_ptr<Loop>> create(Device& device, StepModel& model, HostClock& clock,
                                                const LoopOptions& options);
  // stop(), when that has not been done.
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Hands a prompt to the engine thread. InvalidArgument: it makes no sense. ResourceExhausted: it
  // can never fit, or too many are waiting. Unavailable: the loop is stopping. DeviceError: the
  // device is lost. After an error the sink is not called.
  StatusOr<SequenceId> submit(PreparedPrompt prompt, std::shared_ptr<TokenSink> sink);

  // Finishes the sequence with kCancelled at the next tick; nothing when it has finished already.
  void cancel(SequenceId sequence);

  // A request that is on its way to submit(). While one lives, idle time of the device counts as
  // preparing, and the engine thread waits awake for its prompt for a while, where the device leaves
  // it a core. To be held until submit() has returned, or until it is known that there will be none;
  // at most as long as the loop.
  class Preparation {
   public:
    Preparation() = default;
    // Since then it was there.
    Preparation(Loop& loop, std::int64_t since_ns);
    Preparation(Preparation&& other) noexcept : loop_(std::exchange(other.loop_, nullptr)) {}
    Preparation& operator=(Preparation&& other) noexcept {
      std::swap(loop_, other.loop_);
      return *this;
    }
    ~Preparation();

   private:
    Loop* loop_ = nullptr;
  };

  // Starts the engine thread. Without it the caller ticks, after drain() too, until kIdle.
  void start();
  // Refuses new prompts, finishes those that were accepted, ends the engine thread.
  void drain();
  // Refuses new prompts, cancels those that were accepted, ends the engine thread.
  void stop();

  enum class Tick { kWorked, kIdle };
  // One turn of the loop. kIdle: there is nothing to do until somebody submits.
  Tick tick();

  struct Counts {
    int waiting = 0;
    int running = 0;  // have a seat
    int steps_in_flight = 0;
    SeatingCounts seats;
  };
  // As of the end of the last tick.
  Counts counts() const;
  // Device memory of the steps in flight.
  std::size_t device_bytes() const;
  // Not OK once the device is lost. It stays so.
  Status device_status() const;
  const Ledger& ledger() const { return ledger_; }
  Ledger& ledger() { return ledger_; }
  // Calls since create() that may stall the device; I7 wants 0.
  std::int64_t forbidden_calls() const;
  // Steps that it was made for.
  int depth() const { return state_.depth(); }
  // Lets at most so many steps be in flight from the next tick on, 1 .. depth(), so that blocking
  // and pipelined can be compared while requests run. The tokens stay the same (I8). Any thread.
  void set_active_depth(int depth);
  int active_depth() const { return active_depth_.load(std::memory_order_relaxed); }

  // For tests and simulations, from the engine thread.
  const PipelineState& state() const { return state_; }
  // Pages that only the prefix cache holds.
  int num_cached_pages() const { return seating_.num_cached_pages(); }

 private:
  friend struct LoopSaboteur;  // tests plant violations through it

  // The step in one slot, as the host knows it.
  struct Step {
    StepPlan plan;
    StepRecord record;
    int num_ended = 0;  // rows that ended at its commit
  };

  Loop(Device& device, StepModel& model, HostClock& clock, const LoopOptions& options);
  Status check_limits() const;
  Status allocate();
  void run();

  // The parts of a tick (loop.cpp).
  bool has_work() const;
  bool may_launch() const;
  bool awaits_ends() const;
  void take_mail();
  void seat_waiting();
  std::deque<std::unique_ptr<Sequence>>::iterator next_to_seat();
  bool launch_next();
  void commit_oldest();
  void finalize_ready();

  // What they are made of (loop_steps.cpp).
  Status launch(SlotId slot);
  void note_launched(SlotId slot);
  bool mask_is_ready(RowId row) const;
  void build_masks(SlotId slot);
  Status wait_for(SlotId slot);
  SureTime::Work work_of(const Step& step) const;
  void nap(const Step& step, const SureTime::Work& work);
  void commit_outputs(SlotId slot);
  void commit_row(Sequence& sequence, const StepSlot& slot, int i);
  void finish(Sequence& sequence, FinishReason reason, const Status& status);
  void finish_seated(RowId row, FinishReason reason, const Status& status);
  void release_if_done(RowId row);
  void fail_launch(SlotId slot, const Status& status);
  void lose_device(const Status& status);
  void cancel_one(SequenceId sequence);
  void cancel_all();
  void remember(const Step& step);
  void publish_counts();
  void add_phase(HostPhaseKind kind, SlotId slot, std::int64_t begin_ns, std::int64_t end_ns);
  // An illegal transition is a bug of the loop.
  static void must(const Status& transition);
  static std::size_t index(SlotId slot) { return static_cast<std::size_t>(slot.value); }
  Step& step(SlotId slot) { return steps_[index(slot)]; }

  Device& device_;
  StepModel& model_;
  HostClock& clock_;
  const LoopOptions options_;
  PipelineStreams streams_;
  std::vector<std::unique_ptr<StepSlot>> slots_;
  std::array<Step, kMaxDepth> steps_;
  PipelineState state_;
  Seating seating_;
  FillTurn fill_turn_;
  RunAhead run_ahead_;
  SureTime sure_time_;
  std::int64_t device_free_ns_ = 0;  // end of the last step that was committed, on the host's clock
  std::deque<std::unique_ptr<Sequence>> waiting_;  // accepted, no seat yet, in order of arrival
  bool seats_changed_ = true;  // or rows, pages, image places: since the first in line did not fit
  Mail mail_;
  std::int64_t num_steps_ = 0;
  std::optional<std::int64_t> idle_since_ns_;
  std::int64_t idle_until_ns_ = 0;                 // when the first prompt of the mail was posted
  Status lost_;                                    // not OK: the device is gone
  std::vector<std::shared_ptr<const void>> kept_;  // what its steps may still read
  Ledger ledger_;
  std::int64_t forbidden_before_ = 0;

  // Shared with other threads.
  Mailbox mailbox_;
  std::atomic<std::int64_t> next_sequence_{0};
  std::atomic<int> num_waiting_{0};
  std::atomic<bool> cancel_everything_{false};
  std::atomic<int> active_depth_;
  mutable Mutex shared_mutex_;
  Counts counts_ GAPLESS_GUARDED_BY(shared_mutex_);
  Status shared_lost_ GAPLESS_GUARDED_BY(shared_mutex_);
  std::thread thread_;
};

}  // namespace gapless
