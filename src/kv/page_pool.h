// The KV pages of the device, counted by reference on the host.
//
// A page holds kPageTokens tokens of one sequence, in every layer. Page 0 is trash: done rows and
// padding write there, and it is never given out. A page that several sequences share (a cached
// image prefix) has one reference for each of them and one for each of the cache's entries; it is free
// again when the last reference goes. Without the cache's references a page is *held* by somebody who
// needs it now; what only the cache refers to can be had for the asking (prefix_cache.h).
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

  // The same for a reference of the cache's.
  void add_cache_ref(PageId page);
  void drop_cache_ref(PageId page);
  bool is_held(PageId page) const;

  int num_free() const { return static_cast<int>(free_.size()); }
  // Pages that can be given out at all.
  int num_usable() const { return static_cast<int>(num_refs_.size()) - 1; }
  int num_in_use() const { return num_usable() - num_free(); }
  int num_held() const { return num_held_; }

 private:
  static std::size_t index(PageId page) { return static_cast<std::size_t>(page.value); }
  void free_if_unused(PageId page);

  std::vector<int> num_refs_;        // by page, the cache's among them
  std::vector<int> num_cache_refs_;  // by page
  std::vector<PageId> free_;         // a stack: the page freed last is the warmest
  int num_held_ = 0;
};

// Pages that hold `num_tokens` tokens.
int pages_for_tokens(int num_tokens);

}  // namespace gapless
