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
  const int num_image_tokens = static_cast<int>(prompt.images.size()) * info.image_tokens;
  for (const TokenInput& input : prompt.inputs) {
    if (input.kind == InputKind::kText && (input.id < 0 || input.id >= info.vocab)) {
      return invalid_argument("prompt: token {} of a vocabulary of {}", input.id, info.vocab);
    }
    if (input.kind == InputKind::kImage && (input.id < 0 || input.id >= num_image_tokens)) {
      return invalid_argument("prompt: image position {} of {}", input.id, num_image_tokens);
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
  const int num_top_logprobs = prompt.row.sampling.num_top_logprobs;
  if (num_top_logprobs < 0 || num_top_logprobs > kMaxTopLogprobs) {
    return invalid_argument("prompt: {} top_logprobs, at most {}", num_top_logprobs,
                            kMaxTopLogprobs);
  }
  return ok_status();
}

Status check_notes(const PreparedPrompt& prompt, const StepModelInfo& info) {
  const std::size_t num_notes = prompt.token_notes.size();
  if (num_notes > 0 && (prompt.row.flags & kRowAdjustsLogits) == 0) {
    return invalid_argument("prompt: token notes without kRowAdjustsLogits");
  }
  // Images' positions have no notes, and their blocks may be cached.
  const std::size_t num_computed =
      prompt.inputs.size() - static_cast<std::size_t>(prompt.prefix_len);
  if (num_notes > num_computed + 1 + kMaxLogitBiases) {
    return invalid_argument("prompt: {} token notes for {} tokens", num_notes, num_computed);
  }
  for (const TokenNote& note : prompt.token_notes) {
    if (note.token < 0 || note.token >= info.vocab) {
      return invalid_argument("prompt: a note of token {} of a vocabulary of {}", note.token,
                              info.vocab);
    }
  }
  return ok_status();
}

Status check_crops(const PreparedImage& image) {
  const int num_crops = static_cast<int>(image.crops_pinned.size());
  const int num_tiles = image.tile_rows * image.tile_cols;
  if (num_tiles < 1 || num_tiles > kMaxTilesPerImage) {
    return invalid_argument("prompt: an image of {} tiles, allowed are 1 to {}", num_tiles,
                            kMaxTilesPerImage);
  }
  if (num_crops != (num_tiles == 1 ? 1 : num_tiles + 1)) {
    return invalid_argument("prompt: {} crops do not make {} tiles", num_crops, num_tiles);
  }
  return ok_status();
}

Status check_images(const PreparedPrompt& prompt, const StepModelInfo& info,
                    const StepLimits& limits) {
  const int num_images = static_cast<int>(prompt.images.size());
  const int most = std::min(limits.num_image_slots, limits.max_prefill_sequences);
  if (num_images > most) {
    return make_error(StatusCode::kResourceExhausted, "prompt: {} images, at most {} fit a step",
                      num_images, most);
  }
  if (num_images > 1 && prompt.prefix_len <= num_images * info.image_tokens) {
    return invalid_argument("prompt: a prefix of {} tokens is too short for {} images",
                            prompt.prefix_len, num_images);
  }
  for (const PreparedImage& image : prompt.images) GAPLESS_RETURN_IF_ERROR(check_crops(image));
  return ok_status();
}

// With which both begin.
int num_common_images(const Sequence& a, const Sequence& b) {
  int count = std::min(a.num_images(), b.num_images());
  const auto hash_of = [&count](const Sequence& sequence) {
    return sequence.prompt.images[static_cast<std::size_t>(count - 1)].prefix_hash;
  };
  while (count > 0 && hash_of(a) != hash_of(b)) --count;
  return count;
}

}  // namespace

Seating::Seating(const StepModelInfo& info, const StepLimits& limits, int max_cached_prefixes,
                 bool foresees_limits)
    : info_(info),
      limits_(limits),
      foresees_limits_(foresees_limits),
      page_pool_(limits.num_pages),
      prefix_cache_(page_pool_, max_cached_prefixes, limits.max_pages_per_row),
      image_slots_(limits.num_image_slots) {
  const auto num_rows = static_cast<std::size_t>(limits.num_rows());
  seats_.reserve(num_rows);
  for (std::size_t i = 0; i < num_rows; ++i) seats_.emplace_back(limits.max_pages_per_row);
  order_.reserve(num_rows);
  views_.reserve(num_rows + static_cast<std::size_t>(limits.num_image_slots));
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
  GAPLESS_RETURN_IF_ERROR(check_notes(prompt, info_));
  GAPLESS_RETURN_IF_ERROR(check_images(prompt, info_, limits_));
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

bool Seating::needs_encode(const Sequence& sequence) {
  const auto hit = find_longer_prefix(sequence);
  const auto& images = sequence.prompt.images;
  return std::any_of(
      images.begin() + (hit ? hit->num_images : 0), images.end(),
      [this](const PreparedImage& image) { return !image_slots_.holds(image.hash); });
}

bool Seating::seat(std::unique_ptr<Sequence>& sequence) {
  const auto vacant = std::find_if(seats_.begin(), seats_.end(),
                                   [](const Seat& seat) { return seat.sequence == nullptr; });
  if (vacant == seats_.end()) return false;
  if (!acquire_pages(*sequence, vacant->pages)) return false;
  if (!acquire_image_slots(*sequence)) {
    release_pages(*sequence, vacant->pages);
    return false;
  }
  sequence->row = RowId(static_cast<std::int32_t>(vacant - seats_.begin()));
  order_.push_back(sequence->row);
  vacant->sequence = std::move(sequence);
  return true;
}

bool Seating::acquire_pages(Sequence& sequence, PageTable& pages) {
  if (const auto hit = find_longer_prefix(sequence)) {
    // The references keep the entry from being reclaimed for our own pages.
    pages.share(page_pool_, hit->pages.full_pages);
    use_prefix(sequence, *hit);
  }
  const int num_own = reserved_pages(sequence.prompt) - pages.size();
  if (prefix_cache_.reclaim(num_own) && pages.extend(page_pool_, num_own)) return true;
  release_pages(sequence, pages);
  return false;
}

void Seating::release_pages(Sequence& sequence, PageTable& pages) {
  pages.release(page_pool_);
  if (sequence.tail_page.valid()) page_pool_.drop_ref(sequence.tail_page);
  sequence.tail_page = PageId();
  sequence.num_cached = 0;
  sequence.num_cached_images = 0;
}

// All or nothing, so that two sequences cannot wait for each other's.
bool Seating::acquire_image_slots(Sequence& sequence) {
  for (auto i = static_cast<std::size_t>(sequence.num_cached_images);
       i < sequence.image_slots.size(); ++i) {
    const auto slot = image_slots_.acquire(sequence.prompt.images[i].hash);
    if (!slot) {
      release_image_slots(sequence);
      return false;
    }
    sequence.image_slots[i] = *slot;
  }
  return true;
}

void Seating::release_image_slots(Sequence& sequence) {
  for (ImageSlotId& slot : sequence.image_slots) {
    if (slot.valid()) image_slots_.release(slot);
    slot = ImageSlotId();
  }
}

// ---- prefixes

int Seating::prefix_end_of(const Sequence& sequence, int num_images) const {
  return prefix_end(sequence.prompt, num_images, info_.image_tokens);
}

// A hit must leave at least one token to compute.
bool Seating::may_use_prefix(const Sequence& sequence, int num_images) const {
  const int end = prefix_end_of(sequence, num_images);
  return prefix_cache_.enabled() && end > 0 && end < sequence.prompt_tokens();
}

std::optional<Seating::PrefixHit> Seating::find_longer_prefix(const Sequence& sequence) {
  for (int n = sequence.num_images(); n > sequence.num_cached_images; --n) {
    if (!may_use_prefix(sequence, n)) continue;
    const PreparedImage& last = sequence.prompt.images[static_cast<std::size_t>(n - 1)];
    const auto hit = prefix_cache_.find(last.prefix_hash, prefix_end_of(sequence, n));
    if (hit) return PrefixHit{*hit, n};
  }
  return std::nullopt;
}

// The full pages are in its table already.
void Seating::use_prefix(Sequence& sequence, const PrefixHit& hit) {
  if (hit.pages.tail_page.valid()) page_pool_.add_ref(hit.pages.tail_page);
  if (sequence.tail_page.valid()) page_pool_.drop_ref(sequence.tail_page);
  sequence.num_cached = prefix_end_of(sequence, hit.num_images);
  sequence.num_cached_images = hit.num_images;
  sequence.tail_page = hit.pages.tail_page;
}

// Those that its prefill computes.
void Seating::insert_prefixes(const Sequence& sequence) {
  for (int n = sequence.num_cached_images + 1; n <= sequence.num_images(); ++n) {
    if (!may_use_prefix(sequence, n)) continue;
    const int end = prefix_end_of(sequence, n);
    const auto num_pages = static_cast<std::size_t>(pages_for_tokens(end));
    prefix_cache_.insert(sequence.prompt.images[static_cast<std::size_t>(n - 1)].prefix_hash, end,
                         pages(sequence.row).pages().first(num_pages));
  }
}

std::unique_ptr<Sequence> Seating::vacate(RowId row) {
  Seat& seat = seats_[index(row)];
  GAPLESS_CHECK_MSG(seat.sequence != nullptr, "the seat is vacant");
  drop_images(row);
  release_pages(*seat.sequence, seat.pages);
  order_.erase(std::find(order_.begin(), order_.end(), row));
  return std::move(seat.sequence);
}

void Seating::add_views(RowId row) {
  const Sequence& sequence = *at(row);
  SeatView view{.row = row,
                .host_masked = sequence.host_masked(),
                .decodes_regions = sequence.decodes_regions(),
                .holds_grammar = sequence.holds_grammar(),
                .asks_top_logprobs = sequence.asks_top_logprobs()};
  if (sequence.is_prefilled()) {
    // A row that has reached its length limit in flight is not launched again.
    const bool may_go_on =
        !foresees_limits_ || sequence.num_launched < sequence.prompt.row.max_generated;
    view.need = may_go_on ? SeatNeed::kDecode : SeatNeed::kNothing;
    views_.push_back(view);
    return;
  }
  view.need = SeatNeed::kEncode;
  bool all_encoded = true;
  for (int image = sequence.num_cached_images; image < sequence.num_images(); ++image) {
    if (!is_to_encode(sequence, image)) continue;
    const auto i = static_cast<std::size_t>(image);
    view.image = image;
    view.num_crops = static_cast<int>(sequence.prompt.images[i].crops_pinned.size());
    view.first_crop = image_slots_.num_encoded_crops(sequence.image_slots[i]);
    view.image_slot = sequence.image_slots[i].value;
    views_.push_back(view);
    all_encoded = false;
  }
  if (!all_encoded) return;
  view.need = SeatNeed::kPrefill;
  view.num_tokens = sequence.prompt_tokens() - sequence.num_cached;
  view.num_pages = pages(row).size();
  view.num_segments = sequence.num_segments();
  view.copies_tail = sequence.tail_page.valid();
  const int next = sequence.num_cached_images;
  if (next < sequence.num_images() && may_use_prefix(sequence, next + 1)) {
    view.prefix_group =
        short_hash(sequence.prompt.images[static_cast<std::size_t>(next)].prefix_hash);
  }
  views_.push_back(view);
}

bool Seating::is_to_encode(const Sequence& sequence, int image) const {
  const ImageSlotId slot = sequence.image_slots[static_cast<std::size_t>(image)];
  return slot.valid() && !image_slots_.is_encoded(slot);
}

void Seating::encode_launched(std::span<const PlannedImage> images) {
  for (const PlannedImage& planned : images) {
    const Sequence& sequence = *at(planned.row);
    const auto i = static_cast<std::size_t>(planned.image);
    const int end_crop = planned.first_crop + planned.num_crops;
    image_slots_.crops_launched(sequence.image_slots[i], end_crop,
                                end_crop == std::ssize(sequence.prompt.images[i].crops_pinned));
  }
}

void Seating::prefill_launched(std::span<const RowId> rows) {
  for (const RowId row : rows) {
    const Sequence& launched = *at(row);
    insert_prefixes(launched);
    for (const RowId other_row : order_) {
      Seat& seat = seats_[index(other_row)];
      Sequence& other = *seat.sequence;
      if (other.is_prefilled()) continue;
      if (num_common_images(launched, other) <= other.num_cached_images) continue;
      if (const auto hit = find_longer_prefix(other)) {
        seat.pages.replace_front(page_pool_, hit->pages.full_pages);
        use_prefix(other, *hit);
      }
    }
  }
}

void Seating::drop_images(RowId row) {
  Sequence& sequence = *at(row);
  release_image_slots(sequence);
  for (PreparedImage& image : sequence.prompt.images) {
    image.crops_pinned.clear();
    image.crops_owner.reset();
  }
}

void Seating::clear_caches() {
  prefix_cache_.clear();
  image_slots_.clear();
}

SeatingCounts Seating::counts() const {
  return {.rows_in_use = static_cast<int>(order_.size()),
          .image_slots_in_use = image_slots_.num_in_use(),
          .pages_in_use = page_pool_.num_in_use(),
          .pages_held = page_pool_.num_held()};
}

}  // namespace gapless
