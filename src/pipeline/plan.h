// Which step comes next: a pure policy over what the seats need.
//
// Work is of two sorts: *fill* steps bring new sequences to their first token (encode an image,
// prefill a prompt), *decode* steps give every running sequence one more token.
//
// The rule, which starves neither:
//   1. Fill steps go first: a sequence that joins earlier shares more decode steps. But after
//      kMaxFillsInARow of them one decode step runs, if any row can decode.
//   2. When an image and a prompt both wait, encode and prefill alternate.
//   3. Within a kind, first come (in order of seating), first served. A step is packed until the
//      next in line does not fit; nobody overtakes the one who does not fit. One exception: a
//      prompt whose image prefix is being computed by an earlier prompt of the same pack waits for
//      the next pack, where it finds the prefix in the cache.
//   4. An image of more crops than a launch takes goes alone, a launch's worth of crops in each
//      step, and steps of every kind may come in between. Its features stay until another image
//      is encoded.
//   5. A fill that took longer than StepLimits::long_fill_ns, as a crop does on a CPU, is followed by
//      as much time of decode steps, as long as any row can decode, and nothing but a decode step
//      is launched behind such a fill while it runs. So rows that decode get half of the device at
//      least, where one step per fill would give them a tenth, and a short request waits for one
//      long fill.
//   6. A host-masked row whose mask is not there yet is left out of a decode step that rows without
//      host masks are in: a step samples only when all of its masks are there, and nothing is launched
//      behind one that does not sample yet. So those rows wait for nobody's mask. Where all rows are
//      host-masked they go together: their forward is launched ahead, and the sampling follows when
//      the masks do. If some went first there, two groups would take turns from then on, each with
//      steps of its own that read all weights.
// So a row that can decode waits for at most kMaxFillsInARow steps, and the first seat in line for
// a fill waits for at most kMaxFillsInARow + 1 (one decode, one step of the other fill kind). Seats
// are given in order of arrival, so the first request in line is seated as soon as others end; but
// while as many images as a step takes wait for their encode, a request that would add one is passed
// by those that need none (Loop::next_to_seat).
//
// But for rule 6 a decode step takes every row that can decode: each has a seat, and there is a graph for each
// batch bucket. Whether anything is launched behind a decode step that is not known yet, run_ahead.h
// says.
//
// Threads: any; no state but the caller's.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "base/ids.h"
#include "base/limits.h"
#include "step/step_model.h"

namespace gapless {

// What one seated sequence needs next. One with several images to encode has a view for each, one
// behind the other.
enum class SeatNeed : std::uint8_t { kNothing, kEncode, kPrefill, kDecode };

struct SeatView {
  RowId row;
  SeatNeed need = SeatNeed::kNothing;
  bool host_masked = false;
  bool mask_is_ready = true;  // of a host-masked row that decodes
  bool decodes_regions = false;
  bool holds_grammar = false;  // on the device
  bool asks_top_logprobs = false;
  // kEncode
  int image = 0;        // of the sequence's
  int num_crops = 0;    // all of the image's
  int first_crop = 0;   // that is not encoded yet
  int image_slot = -1;  // seats that share an image share its slot; it is encoded once
  // kPrefill
  int num_tokens = 0;  // prompt tokens that are not in the cache
  int num_pages = 0;
  int num_segments = 1;            // Sequence::num_segments
  bool copies_tail = false;        // needs one page copied
  std::uint64_t prefix_group = 0;  // same prefix, same group; 0: computes no prefix worth sharing
};

struct PlannedImage {
  RowId row;
  int image = 0;  // of the sequence's
  // Crops [first_crop, first_crop + num_crops) of the image.
  int first_crop = 0;
  int num_crops = 0;
};

struct StepPlan {
  StepKind kind = StepKind::kDecode;
  int num_rows = 0;
  int num_host_masked = 0;  // they come first
  bool with_regions = false;
  bool with_grammars = false;
  bool with_top_logprobs = false;
  std::array<RowId, kMaxSeats> row_ids;  // each once
  int num_images = 0;                    // of an encode
  std::array<PlannedImage, kMaxSeats> image_list;

  std::span<const RowId> rows() const {
    return std::span(row_ids).first(static_cast<std::size_t>(num_rows));
  }
  std::span<const PlannedImage> images() const {
    return std::span(image_list).first(static_cast<std::size_t>(num_images));
  }
};

// What rules 1, 2 and 5 remember of the past.
struct FillTurn {
  int fills_in_a_row = 0;
  StepKind last_fill = StepKind::kPrefill;
  bool last_fill_was_long = false;  // of those that have ended
  std::int64_t decode_owed_ns = 0;  // time of decode steps before the next fill

  void launched(StepKind kind);
  // It took the device so long. `long_fill_ns`: StepLimits.
  void ended(StepKind kind, std::int64_t duration_ns, std::int64_t long_fill_ns);
};

// The next step over `seats` (in order of seating), or nothing when nobody can go on now.
std::optional<StepPlan> plan_step(std::span<const SeatView> seats, const StepLimits& limits,
                                  const FillTurn& turn);

}  // namespace gapless
