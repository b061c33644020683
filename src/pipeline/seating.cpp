#include "pipeline/seating.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace gapless {
namespace {

int reserved_pages(const PreparedPrompt& prompt) {
  // The last token of an answer is never an input, so it needs no place in the cache.
  return pages_for_tokens(static_cast<int>(prompt.inputs.size()) + prompt.row.max_generated - 1);
}

Status check_tokens(const PreparedPrompt& prompt, const StepModelInfo& info) {
  for (const TokenInput& input : prompt.inputs) {
    if (input.kind == InputKind::kText && (input.id < 0 || input.id >= info.vocab)) {
      return invalid_argument("prompt: token {} of a vocabulary of {}", input.id, info.vocab);
    }
    if (input.kind == InputKind::kImage && (input.id < 0 || input.id >= info.image_tokens)) {
      return invalid_argument("prompt: image position {} of {}", input.id, info.image_tokens);
    }
  }
  if (prompt.row.num_stop_ids < 0 || prompt.row.num_stop_ids > kMaxStopIds) {
    return invalid_argument("prompt: {} stop ids, at most {}", prompt.row.num_stop_ids,
                            kMaxStopIds);
  }
  if (prompt.row.num_denied_ids < 0 || prompt.row.num_denied_ids > kMaxDeniedIds) {
    return invalid_argument("prompt: {} denied ids, at most {}", prompt.row.num_denied_ids,
                            kMaxDeniedIds);
  }
  if (prompt.row.num_top_logprobs < 0 || prompt.row.num_top_logprobs > kMaxTopLogprobs) {
    return invalid_argument("prompt: {} top_logprobs, at most {}", prompt.row.num_top_logprobs,
                            kMaxTopLogprobs);
  }
  return ok_status();
}

Status check_image(const PreparedPrompt& prompt) {
  const auto is_image = [](const TokenInput& input) { return input.kind == InputKind::kImage; };
  const bool uses_image = std::any_of(prompt.inputs.begin(), prompt.inputs.end(), is_image);
  if (!prompt.image) {
    if (uses_image) return invalid_argument("prompt: image positions without an image");
    return ok_status();
  }
  const int num_crops = static_cast<int>(prompt.image->crops_pinned.size());
  const int num_tiles = prompt.image->tile_rows * prompt.image->tile_cols;
  if (num_tiles < 1 || num_tiles > kMaxTilesPerImage) {
    return invalid_argument("prompt: an image of {} tiles, allowed are 1 to {}", num_tiles,
                            kMaxTilesPerImage);
  }
  if (num_crops != (num_tiles == 1 ? 1 : num_tiles + 1)) {
    return invalid_argument("prompt: {} crops do not make {} tiles", num_crops, num_tiles);
  }
  return ok_status();
}

}  // namespace

Seating::Seating(const StepModelInfo& info, const StepLimits& limits, int max_cached_prefixes,
                 bool foresees_limits)
    : info_(info),
      limits_(limits),
      foresees_limits_(foresees_limits),
      page_pool_(limits.num_pages),
      prefix_cache_(page_pool_, max_cached_prefixes, pages_for_tokens(info.image_tokens + 1)),
      image_slots_(limits.num_image_slots) {
  const auto num_rows = static_cast<std::size_t>(limits.max_rows);
  seats_.reserve(num_rows);
  for (std::size_t i = 0; i < num_rows; ++i) seats_.emplace_back(limits.max_pages_per_row);
  order_.reserve(num_rows);
  views_.reserve(num_rows);
}

Status Seating::check_fits(const PreparedPrompt& prompt) const {
  const int num_tokens = static_cast<int>(prompt.inputs.size());
  const int max_generated = prompt.row.max_generated;
  if (num_tokens < 1) return invalid_argument("prompt: no tokens");
  if (max_generated < 1) return invalid_argument("prompt: max_tokens must be at least 1");
  if (prompt.prefix_len < 0 || prompt.prefix_len > num_tokens) {
    return invalid_argument("prompt: a prefix of {} tokens in a prompt of {}", prompt.prefix_len,
                            num_tokens);
  }
  const bool flagged = (prompt.row.flags & kRowHostMask) != 0;
  if (flagged != (prompt.host_constraint != nullptr)) {
    return invalid_argument("prompt: kRowHostMask and host_constraint disagree");
  }
  GAPLESS_RETURN_IF_ERROR(check_tokens(prompt, info_));
  GAPLESS_RETURN_IF_ERROR(check_image(prompt));
  if (num_tokens > info_.max_context || max_generated > info_.max_context - num_tokens) {
    return make_error(StatusCode::kResourceExhausted,
                      "prompt: {} tokens and {} to generate do not fit in the context of {}",
                      num_tokens, max_generated, info_.max_context);
  }
  if (num_tokens > limits_.max_prefill_tokens) {
    return make_error(StatusCode::kResourceExhausted,
                      "prompt: {} tokens, more than the {} of one prefill", num_tokens,
                      limits_.max_prefill_tokens);
  }
  const int num_pages = reserved_pages(prompt);
  const int most = std::min(page_pool_.num_usable(), limits_.max_pages_per_row);
  if (num_pages > most) {
    return make_error(StatusCode::kResourceExhausted,
                      "prompt: needs {} pages of {} tokens, more than the {} there are", num_pages,
                      kPageTokens, most);
  }
  return ok_status();
}

bool Seating::seat(std::unique_ptr<Sequence>& sequence) {
  const auto vacant = std::find_if(seats_.begin(), seats_.end(),
                                   [](const Seat& seat) { return seat.sequence == nullptr; });
  if (vacant == seats_.end()) return false;
  if (!acquire_pages(*sequence, vacant->pages)) return false;
  if (sequence->prompt.image && sequence->num_cached == 0) {
    const auto image_slot = image_slots_.acquire(sequence->prompt.image->hash);
    if (!image_slot) {
      vacant->pages.release(page_pool_);
      return false;
    }
    sequence->image_slot = *image_slot;
  }
  sequence->row = RowId(static_cast<std::int32_t>(vacant - seats_.begin()));
  order_.push_back(sequence->row);
  vacant->sequence = std::move(sequence);
  return true;
}

bool Seating::acquire_pages(Sequence& sequence, PageTable& pages) {
  if (may_use_prefix(sequence)) {
    const auto hit = prefix_cache_.find(sequence.prompt.image->hash, sequence.prompt.prefix_len);
    if (hit) {
      // The references keep the entry from being reclaimed for our own pages.
      pages.share(page_pool_, hit->full_pages);
      use_prefix(sequence, *hit);
    }
  }
  const int num_own = reserved_pages(sequence.prompt) - pages.size();
  if (prefix_cache_.reclaim(num_own) && pages.extend(page_pool_, num_own)) return true;
  pages.release(page_pool_);
  drop_tail(sequence);
  sequence.num_cached = 0;
  return false;
}

// The full pages are in its table already.
void Seating::use_prefix(Sequence& sequence, const PrefixCache::Hit& hit) {
  sequence.num_cached = sequence.prompt.prefix_len;
  sequence.tail_page = hit.tail_page;
  if (hit.tail_page.valid()) page_pool_.add_ref(hit.tail_page);
}

// A hit must leave at least one token to compute.
bool Seating::may_use_prefix(const Sequence& sequence) const {
  return prefix_cache_.enabled() && sequence.prompt.image && sequence.prompt.prefix_len > 0 &&
         sequence.prompt.prefix_len < sequence.prompt_tokens();
}

std::unique_ptr<Sequence> Seating::vacate(RowId row) {
  Seat& seat = seats_[index(row)];
  GAPLESS_CHECK_MSG(seat.sequence != nullptr, "the seat is vacant");
  drop_image(row);
  drop_tail(*seat.sequence);
  seat.pages.release(page_pool_);
  order_.erase(std::find(order_.begin(), order_.end(), row));
  return std::move(seat.sequence);
}

SeatView Seating::view(RowId row) const {
  const Sequence& sequence = *at(row);
  SeatView view{.row = row,
                .host_masked = sequence.host_masked(),
                .decodes_regions = sequence.decodes_regions(),
                .asks_top_logprobs = sequence.asks_top_logprobs()};
  if (sequence.is_prefilled()) {
    // A row that has reached its length limit in flight is not launched again.
    const bool may_go_on =
        !foresees_limits_ || sequence.num_launched < sequence.prompt.row.max_generated;
    view.need = may_go_on ? SeatNeed::kDecode : SeatNeed::kNothing;
    return view;
  }
  if (sequence.num_cached == 0 && sequence.image_slot.valid() &&
      !image_slots_.is_encoded(sequence.image_slot)) {
    view.need = SeatNeed::kEncode;
    view.num_crops = static_cast<int>(sequence.prompt.image->crops_pinned.size());
    view.image_slot = sequence.image_slot.value;
    return view;
  }
  view.need = SeatNeed::kPrefill;
  view.num_tokens = sequence.prompt_tokens() - sequence.num_cached;
  view.num_pages = pages(row).size();
  view.copies_tail = sequence.tail_page.valid();
  if (may_use_prefix(sequence) && sequence.num_cached == 0) {
    view.prefix_group = short_hash(sequence.prompt.image->hash);
  }
  return view;
}

void Seating::encode_launched(RowId row) {
  image_slots_.set_encoded(at(row)->image_slot);
}

void Seating::prefill_launched(std::span<const RowId> rows) {
  for (const RowId row : rows) {
    Sequence& sequence = *at(row);
    if (!may_use_prefix(sequence) || sequence.num_cached > 0) continue;
    const int prefix_len = sequence.prompt.prefix_len;
    const ContentHash& image = sequence.prompt.image->hash;
    const auto num_pages = static_cast<std::size_t>(pages_for_tokens(prefix_len));
    prefix_cache_.insert(image, prefix_len, pages(row).pages().first(num_pages));
    const auto hit = prefix_cache_.find(image, prefix_len);
    if (!hit) continue;
    for (const RowId other_row : order_) {
      Seat& seat = seats_[index(other_row)];
      Sequence& other = *seat.sequence;
      if (other.is_prefilled() || other.num_cached > 0 || !may_use_prefix(other)) continue;
      if (other.prompt.prefix_len != prefix_len || other.prompt.image->hash != image) continue;
      seat.pages.replace_front(page_pool_, hit->full_pages);
      use_prefix(other, *hit);
    }
  }
}

void Seating::drop_image(RowId row) {
  Sequence& sequence = *at(row);
  if (sequence.image_slot.valid()) image_slots_.release(sequence.image_slot);
  sequence.image_slot = ImageSlotId();
  if (sequence.prompt.image) {
    sequence.prompt.image->crops_pinned.clear();
    sequence.prompt.image->crops_owner.reset();
  }
}

void Seating::drop_tail(Sequence& sequence) {
  if (sequence.tail_page.valid()) page_pool_.drop_ref(sequence.tail_page);
  sequence.tail_page = PageId();
}

void Seating::clear_caches() {
  prefix_cache_.clear();
  image_slots_.clear();
}

SeatingCounts Seating::counts() const {
  return {.rows_in_use = static_cast<int>(order_.size()),
          .image_slots_in_use = image_slots_.num_in_use(),
          .pages_in_use = page_pool_.num_in_use()};
}

}  // namespace gapless
