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
  free_.reserve(static_cast<std::size_t>(num_pages));
  for (int page = num_pages - 1; page >= 1; --page) free_.emplace_back(page);
}

bool PagePool::allocate(std::span<PageId> pages) {
  if (pages.size() > free_.size()) return false;
  for (PageId& page : pages) {
    page = free_.back();
    free_.pop_back();
    num_refs_[static_cast<std::size_t>(page.value)] = 1;
  }
  return true;
}

void PagePool::add_ref(PageId page) {
  GAPLESS_CHECK_MSG(num_refs(page) > 0, "a reference to a free page");
  ++num_refs_[static_cast<std::size_t>(page.value)];
}

void PagePool::drop_ref(PageId page) {
  GAPLESS_CHECK_MSG(num_refs(page) > 0, "a page freed twice");
  if (--num_refs_[static_cast<std::size_t>(page.value)] == 0) free_.push_back(page);
}

int PagePool::num_refs(PageId page) const {
  GAPLESS_CHECK_MSG(page.value > 0 && page.value <= num_usable(), "no such page");
  return num_refs_[static_cast<std::size_t>(page.value)];
}

}  // namespace gapless
