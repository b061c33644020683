#include "kv/page_pool.h"

#include "base/check.h"
#include "base/limits.h"

namespace gapless {

int pages_for_tokens(int num_tokens) {
  return (num_tokens + kPageTokens - 1) / kPageTokens;
}

PagePool::PagePool(int num_pages) {
  GAPLESS_CHECK_MSG(num_pages >= 2, "a page pool needs the trash page and one more");
  num_refs_.resize(static_cast<std::size_t>(num_pages), 0);
  num_cache_refs_.resize(static_cast<std::size_t>(num_pages), 0);
  free_.reserve(static_cast<std::size_t>(num_pages));
  for (int page = num_pages - 1; page >= 1; --page) free_.emplace_back(page);
}

bool PagePool::allocate(std::span<PageId> pages) {
  if (pages.size() > free_.size()) return false;
  for (PageId& page : pages) {
    page = free_.back();
    free_.pop_back();
    num_refs_[index(page)] = 1;
  }
  num_held_ += static_cast<int>(pages.size());
  return true;
}

void PagePool::add_ref(PageId page) {
  GAPLESS_CHECK_MSG(num_refs(page) > 0, "a reference to a free page");
  if (!is_held(page)) ++num_held_;
  ++num_refs_[index(page)];
}

void PagePool::drop_ref(PageId page) {
  GAPLESS_CHECK_MSG(is_held(page), "a page freed twice");
  --num_refs_[index(page)];
  if (!is_held(page)) --num_held_;
  free_if_unused(page);
}

void PagePool::add_cache_ref(PageId page) {
  GAPLESS_CHECK_MSG(num_refs(page) > 0, "a reference to a free page");
  ++num_refs_[index(page)];
  ++num_cache_refs_[index(page)];
}

void PagePool::drop_cache_ref(PageId page) {
  GAPLESS_CHECK_MSG(num_cache_refs_[index(page)] > 0, "a page dropped twice");
  --num_refs_[index(page)];
  --num_cache_refs_[index(page)];
  free_if_unused(page);
}

bool PagePool::is_held(PageId page) const {
  return num_refs(page) > num_cache_refs_[index(page)];
}

void PagePool::free_if_unused(PageId page) {
  if (num_refs_[index(page)] == 0) free_.push_back(page);
}

int PagePool::num_refs(PageId page) const {
  GAPLESS_CHECK_MSG(page.value > 0 && page.value <= num_usable(), "no such page");
  return num_refs_[index(page)];
}

}  // namespace gapless
