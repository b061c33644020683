// Where a sequence lies: gives it its row, its pages and its image's place, and takes them back.
// Whether there is a seat for it says PipelineState.
//
// A sequence gets everything it can ever need when it is seated: a row, pages for its prompt and
// all the tokens it may generate, a place for its image. So a running sequence never runs out of
// anything, and nobody has to be thrown out. One that can never fit is refused when it is
// submitted (check_fits); one that does not fit now waits, first come, first served.
//
// Prefix hits. A prompt whose first images' blocks are in the cache shares their full pages, copies
// the tail page and does not need those images at all. The cache is asked for the longest such
// prefix when a sequence is seated, and again for those who are seated but not prefilled whenever
// one enters the cache.
//
// Threads: the engine thread only; check_fits from any.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/page_pool.h"
#include "kv/page_table.h"
#include "kv/prefix_cache.h"
#include "pipeline/image_slots.h"
#include "pipeline/plan.h"
#include "pipeline/sequence.h"
#include "step/step_model.h"

namespace gapless {

// Everything that must return to zero when nobody is seated (pages: but for the cached ones).
struct SeatingCounts {
  int rows_in_use = 0;
  int image_slots_in_use = 0;
  int pages_in_use = 0;
  int pages_held = 0;  // by those who are seated: without what only the prefix cache keeps
};

class Seating {
 public:
  // `foresees_limits`: see LoopOptions.
  Seating(const StepModelInfo& info, const StepLimits& limits, int max_cached_prefixes,
          bool foresees_limits = true);

  // InvalidArgument when the prompt makes no sense; ResourceExhausted when it can never fit.
  Status check_fits(const PreparedPrompt& prompt) const;

  // As far as can be told now: some image of the sequence, which has no seat yet, is in neither
  // cache.
  bool needs_encode(const Sequence& sequence);
  // Images of those who are seated that are to be encoded.
  int num_to_encode() const { return image_slots_.num_to_encode(); }

  // Seats the sequence and sets its row, or leaves it with the caller when there is no room now: no
  // vacant row, too few pages or image places.
  [[nodiscard]] bool seat(std::unique_ptr<Sequence>& sequence);
  // Takes everything back.
  std::unique_ptr<Sequence> vacate(RowId row);

  Sequence* at(RowId row) const { return seats_[index(row)].sequence.get(); }
  const PageTable& pages(RowId row) const { return seats_[index(row)].pages; }
  std::span<const RowId> order() const { return order_; }  // in order of seating
  bool is_empty() const { return order_.empty(); }

  // What every seat needs next, in order of seating (plan.h); `is_finalized(row)` seats need
  // nothing; `mask_is_ready(row)`: of host-masked ones. Valid until the next call.
  template <typename IsFinalized, typename MaskIsReady>
  std::span<const SeatView> views(IsFinalized&& is_finalized, MaskIsReady&& mask_is_ready) {
    views_.clear();
    for (const RowId row : order_) {
      if (!is_finalized(row)) add_views(row);
    }
    for (SeatView& view : views_) {
      if (view.host_masked) view.mask_is_ready = mask_is_ready(view.row);
    }
    return views_;
  }

  // The step that encodes these images was launched.
  void encode_launched(std::span<const PlannedImage> images);
  // Or could not be.
  void encode_failed() { image_slots_.forget_part(); }
  // The prefill of these rows was launched (is_prefilled() says so already): their prefixes enter
  // the cache, and seats that wait to compute the same prefix take it from there.
  void prefill_launched(std::span<const RowId> rows);
  // The images' embeddings and crops are not needed any more.
  void drop_images(RowId row);

  void clear_caches();
  SeatingCounts counts() const;
  // Pages that only the prefix cache holds.
  int num_cached_pages() const { return prefix_cache_.num_reclaimable(); }

 private:
  struct Seat {
    explicit Seat(int max_pages) : pages(max_pages) {}
    std::unique_ptr<Sequence> sequence;  // null: vacant
    PageTable pages;
  };
  std::size_t index(RowId row) const { return static_cast<std::size_t>(row.value); }
  void add_views(RowId row);
  bool is_to_encode(const Sequence& sequence, int image) const;
  // The longest prefix in the cache, if it is longer than what the sequence has.
  struct PrefixHit {
    PrefixCache::Hit pages;
    int num_images = 0;
  };
  std::optional<PrefixHit> find_longer_prefix(const Sequence& sequence);
  bool may_use_prefix(const Sequence& sequence, int num_images) const;
  void use_prefix(Sequence& sequence, const PrefixHit& hit);
  void insert_prefixes(const Sequence& sequence);
  bool acquire_pages(Sequence& sequence, PageTable& pages);
  bool acquire_image_slots(Sequence& sequence);
  void release_image_slots(Sequence& sequence);
  void release_pages(Sequence& sequence, PageTable& pages);
  int prefix_end_of(const Sequence& sequence, int num_images) const;

  const StepModelInfo info_;
  const StepLimits limits_;
  const bool foresees_limits_;
  PagePool page_pool_;
  PrefixCache prefix_cache_;
  ImageSlots image_slots_;
  std::vector<Seat> seats_;      // by row
  std::vector<RowId> order_;     // rows in use
  std::vector<SeatView> views_;  // filled by views()
};

}  // namespace gapless
