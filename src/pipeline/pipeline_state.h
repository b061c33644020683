// The pipeline as a pure state machine: which slot holds which step, which sequence is where.
// It knows no device, no model and no clock; the loop asks it before every move and tells it after.
//
// Depth 2, plain rows (F forward, S sampling, C commit; the letters after them are steps):
//
//   host     launch a | launch b | C a ......| launch c | C b ......| launch d | C c ......
//   compute            [ F a ][S a][ F b ][S b]          [ F c ][S c][ F d ][S d]
//   d2h                           ^a          ^b                    ^c
//   slot 0   [ a: launched            committing ][ c: launched            committing ][ ...
//   slot 1               [ b: launched                   committing ][ d: launched ...
//
// With a host-masked row in b (M: its mask, built from the token that C a has committed):
//
//   host     launch a | launch b | C a | M b | launch c | C b | M c | ...
//   compute    [ F a ][S a][ F b      ][S b][ F c      ][S c] ...
//   slot 1              [awaiting finalize][ launched ...
//
// A slot goes   free -> awaiting finalize -> launched -> committing -> free
//               (launch)  (sampling_launched) (begin_commit) (end_commit)
// A row goes    vacant -> seated -> finalized -> vacant
//               (seat)   (finalize_sequence)  (release)
// A seat is the right to be in steps, a row the place on the device. There are kRowsPerSeat times
// as many rows as seats: finalize_sequence frees the seat, release the row. At most max_seats
// sequences are seated and not finalized, and no step has more members.
//
// Invariants, cited by the tests that hold them:
//   I1  One compute stream carries every forward and every sampling, in launch order: no step is
//       launched while the newest one still awaits its sampling.
//   I2  Steps commit in the order in which they were launched.
//   I3  0 <= inflight_refs <= depth for every row: the number of slots whose step has it as a
//       member.
//   I4  A slot is reused only after its commit has finished reading: begin_commit takes the step
//       out of the queue, end_commit frees the slot.
//   I5  Commit before finalize: the sampling of a step is launched only when the previous token of
//       each of its host-masked rows is committed, so when that row is in no other step in flight.
//   I6  A finished sequence is finalized at the commit that saw its end, and released only when
//       inflight_refs reaches 0. In between it is a zombie: it has its row and its pages, but no
//       seat, and commits of it change nothing.
//   I7  In steady state the engine thread makes no device allocation, no pageable copy and no
//       synchronisation but the wait of a commit. (Counted by the device; see loop.h.)
//   I8  The tokens of a request do not depend on the depth. (Follows from the others, from the row
//       invariance of the kernels and from state that lives by row; tests/pipeline_sim holds it.)
//
// An illegal transition changes nothing and returns an error that names the slot and the sequence.
// Threads: the engine thread only. No allocation after the constructor.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "base/status.h"

namespace gapless {

enum class SlotPhase : std::uint8_t {
  kFree,
  kAwaitingFinalize,  // forward launched, sampling not
  kLaunched,          // sampling launched, or nothing to sample
  kCommitting,        // its outputs are being read
};

struct StepMember {
  RowId row;
  bool host_masked = false;
};

class PipelineState {
 public:
  // 1 <= depth <= kMaxDepth; 1 <= max_seats <= kMaxSeats. Rows: max_seats * kRowsPerSeat.
  PipelineState(int depth, int max_seats);

  // Sequences. To be seated takes a seat and a vacant row.
  bool has_free_seat() const { return num_seated_ < max_seats_; }
  int num_seated() const { return num_seated_; }  // without zombies
  Status seat(RowId row, SequenceId sequence);
  Status finalize_sequence(RowId row);
  Status release(RowId row);

  // Steps. A member must be seated and not finalized, and listed once.
  Status launch(SlotId slot, std::span<const StepMember> members);
  Status sampling_launched(SlotId slot);
  Status begin_commit(SlotId slot);
  Status end_commit(SlotId slot);
  // A step whose launch failed, or that a lost device will never finish, leaves without a commit:
  // the newest one, or, when no other is in flight, the one being committed.
  Status abandon(SlotId slot);

  int depth() const { return depth_; }
  SlotPhase phase(SlotId slot) const { return slots_[index(slot)].phase; }
  std::span<const StepMember> members(SlotId slot) const;
  int num_in_flight() const { return num_queued_; }  // without the one being committed
  bool is_empty() const;
  bool can_launch() const { return free_slot().has_value() && !awaiting_finalize().has_value(); }
  std::optional<SlotId> free_slot() const;
  std::optional<SlotId> oldest() const;
  std::optional<SlotId> newest() const;
  std::optional<SlotId> committing() const;
  std::optional<SlotId> awaiting_finalize() const;
  // I5 holds for launching this step's sampling now.
  bool can_finalize(SlotId slot) const;

  bool is_seated(RowId row) const { return rows_[index(row)].sequence.valid(); }
  bool is_finalized(RowId row) const { return rows_[index(row)].finalized; }
  int inflight_refs(RowId row) const { return rows_[index(row)].inflight_refs; }
  SequenceId sequence(RowId row) const { return rows_[index(row)].sequence; }

  // Looks at the whole state: an error that names the invariant which does not hold (I1 to I4, I6), or
  // the seats that are not what they should be.
  Status check() const;

 private:
  friend struct PipelineStateSaboteur;  // tests plant violations through it

  struct Slot {
    SlotPhase phase = SlotPhase::kFree;
    std::int64_t launch_number = 0;
    int num_members = 0;
    std::array<StepMember, kMaxSeats> members;
  };
  struct Row {
    SequenceId sequence;  // invalid: vacant
    bool finalized = false;
    int inflight_refs = 0;
  };

  std::size_t index(SlotId slot) const;
  std::size_t index(RowId row) const;
  Status illegal(std::string_view transition, SlotId slot, std::string_view why) const;
  Status illegal(std::string_view transition, SlotId slot, RowId row, std::string_view why) const;
  Status illegal(std::string_view transition, RowId row, std::string_view why) const;
  void drop_members(Slot& slot);

  const int depth_;
  const int max_seats_;
  int num_seated_ = 0;
  std::int64_t num_launches_ = 0;
  std::array<Slot, kMaxDepth> slots_;
  std::array<SlotId, kMaxDepth> queue_;  // in flight, oldest first
  int num_queued_ = 0;
  std::vector<Row> rows_;
};

}  // namespace gapless
