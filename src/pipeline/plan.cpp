#include "pipeline/plan.h"

#include <algorithm>
#include <utility>

namespace gapless {
namespace {

bool any_needs(std::span<const SeatView> seats, SeatNeed need) {
  return std::any_of(seats.begin(), seats.end(),
                     [need](const SeatView& seat) { return seat.need == need; });
}

// Rules 1, 2 and 5.
std::optional<StepKind> choose_kind(std::span<const SeatView> seats, const FillTurn& turn) {
  const bool encode = any_needs(seats, SeatNeed::kEncode);
  const bool prefill = any_needs(seats, SeatNeed::kPrefill);
  const bool decode = any_needs(seats, SeatNeed::kDecode);
  if (decode &&
      (turn.fills_in_a_row >= kMaxFillsInARow || turn.decode_owed_ns > 0 || !(encode || prefill))) {
    return StepKind::kDecode;
  }
  if (encode && prefill) {
    return turn.last_fill == StepKind::kEncode ? StepKind::kPrefill : StepKind::kEncode;
  }
  if (encode) return StepKind::kEncode;
  if (prefill) return StepKind::kPrefill;
  return std::nullopt;
}

// Host-masked rows go to the front, so that their masks are one contiguous copy.
void add(StepPlan& plan, const SeatView& seat) {
  RowId& last = plan.row_ids[static_cast<std::size_t>(plan.num_rows++)];
  last = seat.row;
  plan.with_regions |= seat.decodes_regions;
  plan.with_grammars |= seat.holds_grammar;
  plan.with_top_logprobs |= seat.asks_top_logprobs;
  if (!seat.host_masked) return;
  std::swap(plan.row_ids[static_cast<std::size_t>(plan.num_host_masked++)], last);
}

void pack_encode(std::span<const SeatView> seats, const StepLimits& limits, StepPlan& plan) {
  std::array<int, kMaxSeats> image_slots;
  int num_crops = 0;
  for (const SeatView& seat : seats) {
    if (seat.need != SeatNeed::kEncode) continue;
    const auto packed_end = image_slots.begin() + plan.num_images;
    if (std::find(image_slots.begin(), packed_end, seat.image_slot) != packed_end) continue;
    // Rule 4: an image that does not fit at all fills the launch for everybody behind it.
    const bool fits = num_crops + seat.num_crops <= limits.max_crops_per_encode;
    if (plan.num_images > 0 && !fits) break;
    if (plan.num_images == std::min(limits.max_images_per_encode, kMaxSeats)) break;
    const auto at = static_cast<std::size_t>(plan.num_images++);
    image_slots[at] = seat.image_slot;
    plan.image_list[at] = {
        .row = seat.row,
        .image = seat.image,
        .first_crop = seat.first_crop,
        .num_crops = std::min(seat.num_crops - seat.first_crop, limits.max_crops_per_encode)};
    num_crops += seat.num_crops;
    if (plan.num_rows == 0 || plan.rows().back() != seat.row) {
      plan.row_ids[static_cast<std::size_t>(plan.num_rows++)] = seat.row;
    }
  }
}

void pack_prefill(std::span<const SeatView> seats, const StepLimits& limits, StepPlan& plan) {
  std::array<std::uint64_t, kMaxSeats> groups;
  int num_tokens = 0;
  int num_pages = 0;
  int num_copies = 0;
  int num_segments = 0;
  for (const SeatView& seat : seats) {
    if (seat.need != SeatNeed::kPrefill) continue;
    const auto packed_end = groups.begin() + plan.num_rows;
    if (seat.prefix_group != 0 &&
        std::find(groups.begin(), packed_end, seat.prefix_group) != packed_end) {
      continue;
    }
    num_tokens += seat.num_tokens;
    num_pages += seat.num_pages;
    num_copies += seat.copies_tail ? 1 : 0;
    num_segments += seat.num_segments;
    if (num_tokens > limits.max_prefill_tokens || num_pages > limits.max_page_deltas ||
        num_copies > limits.max_page_copies || num_segments > limits.max_prefill_sequences) {
      break;
    }
    groups[static_cast<std::size_t>(plan.num_rows)] = seat.prefix_group;
    add(plan, seat);
  }
}

// Rule 6.
void pack_decode(std::span<const SeatView> seats, StepPlan& plan) {
  const auto waits_for_mask = [](const SeatView& seat) {
    return seat.host_masked && !seat.mask_is_ready;
  };
  const bool all_masked = std::all_of(seats.begin(), seats.end(), [&](const SeatView& seat) {
    return seat.need != SeatNeed::kDecode || seat.host_masked;
  });
  for (const SeatView& seat : seats) {
    if (seat.need == SeatNeed::kDecode && (all_masked || !waits_for_mask(seat))) add(plan, seat);
  }
}

}  // namespace

void FillTurn::launched(StepKind kind) {
  if (kind == StepKind::kDecode) {
    fills_in_a_row = 0;
    return;
  }
  ++fills_in_a_row;
  last_fill = kind;
}

void FillTurn::ended(StepKind kind, std::int64_t duration_ns, std::int64_t long_fill_ns) {
  if (kind == StepKind::kDecode) {
    decode_owed_ns = std::max<std::int64_t>(0, decode_owed_ns - duration_ns);
    return;
  }
  last_fill_was_long = duration_ns > long_fill_ns;
  if (last_fill_was_long) decode_owed_ns = duration_ns;
}

std::optional<StepPlan> plan_step(std::span<const SeatView> seats, const StepLimits& limits,
                                  const FillTurn& turn) {
  const auto kind = choose_kind(seats, turn);
  if (!kind) return std::nullopt;
  StepPlan plan;
  plan.kind = *kind;
  switch (*kind) {
    case StepKind::kEncode:
      pack_encode(seats, limits, plan);
      break;
    case StepKind::kPrefill:
      pack_prefill(seats, limits, plan);
      break;
    case StepKind::kDecode:
      pack_decode(seats, plan);
      break;
  }
  return plan;
}

}  // namespace gapless
