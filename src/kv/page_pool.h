// The KV pages of the device, counted by reference on the host.
//
// A page holds kPageTokens tokens of one sequence, in every layer. Page 0 is trash: done rows and
// padding write there, and it is never given out. A page that several sequences share (a cached
// image prefix) has one reference for each of them and one for the cache; it is free again when the
// last reference goes.
//
// Threads: the engine thread only. No allocation after the constructor.
#pragma once

#include <span>
#include <vector>

#include "base/ids.h"

namespace gapless {

class PagePool {
 public:
  // num_pages includes the trash page.
  explicit PagePool(int num_pages);

  // Fills `pages` with free pages, one reference each. All or nothing: false when too few are free.
  [[nodiscard]] bool allocate(std::span<PageId> pages);

  void add_ref(PageId page);
  void drop_ref(PageId page);
  int num_refs(PageId page) const;

  int num_free() const { return static_cast<int>(free_.size()); }
  // Pages that can be given out at all.
  int num_usable() const { return static_cast<int>(num_refs_.size()) - 1; }
  int num_in_use() const { return num_usable() - num_free(); }

 private:
  std::vector<int> num_refs_;  // by page
  std::vector<PageId> free_;   // a stack: the page freed last is the warmest
};

// Pages that hold `num_tokens` tokens.
int pages_for_tokens(int num_tokens);

}  // namespace gapless
