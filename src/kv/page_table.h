// The pages of one sequence, in order: page i holds the tokens [i*kPageTokens, (i+1)*kPageTokens).
//
// The host's copy of one row of the device's page table. A sequence owns one reference to each of
// its pages. Capacity is fixed when the loop starts, so seating a sequence allocates nothing.
//
// Threads: the engine thread only.
#pragma once

#include <span>
#include <vector>

#include "base/ids.h"
#include "kv/page_pool.h"

namespace gapless {

class PageTable {
 public:
  explicit PageTable(int max_pages) { pages_.reserve(static_cast<std::size_t>(max_pages)); }

  std::span<const PageId> pages() const { return pages_; }
  int size() const { return static_cast<int>(pages_.size()); }
  int max_size() const { return static_cast<int>(pages_.capacity()); }

  // Where the device keeps token `position`: page * kPageTokens + offset.
  int cache_slot(int position) const;

  // Appends pages that others hold too (one more reference each).
  void share(PagePool& pool, std::span<const PageId> shared);

  // Appends `count` new pages. False, and nothing changed, when too few are free.
  [[nodiscard]] bool extend(PagePool& pool, int count);

  // Gives back the first pages for shared ones of the same content (one more reference each).
  void replace_front(PagePool& pool, std::span<const PageId> shared);

  // Drops every reference.
  void release(PagePool& pool);

 private:
  std::vector<PageId> pages_;
};

}  // namespace gapless
