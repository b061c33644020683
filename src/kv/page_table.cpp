#include "kv/page_table.h"

#include "base/check.h"
#include "base/limits.h"

namespace gapless {

int PageTable::cache_slot(int position) const {
  const int index = position / kPageTokens;
  GAPLESS_CHECK_MSG(position >= 0 && index < size(), "a position beyond the sequence's pages");
  return pages_[static_cast<std::size_t>(index)].value * kPageTokens + position % kPageTokens;
}

void PageTable::share(PagePool& pool, std::span<const PageId> shared) {
  GAPLESS_CHECK_MSG(pages_.size() + shared.size() <= pages_.capacity(), "page table row is full");
  for (const PageId page : shared) {
    pool.add_ref(page);
    pages_.push_back(page);
  }
}

bool PageTable::extend(PagePool& pool, int count) {
  GAPLESS_CHECK(count >= 0);
  const std::size_t old_size = pages_.size();
  const std::size_t new_size = old_size + static_cast<std::size_t>(count);
  GAPLESS_CHECK_MSG(new_size <= pages_.capacity(), "page table row is full");
  if (count > pool.num_free()) return false;
  pages_.resize(new_size);
  return pool.allocate(std::span(pages_).subspan(old_size));
}

void PageTable::replace_front(PagePool& pool, std::span<const PageId> shared) {
  GAPLESS_CHECK(shared.size() <= pages_.size());
  for (std::size_t i = 0; i < shared.size(); ++i) {
    pool.add_ref(shared[i]);
    pool.drop_ref(pages_[i]);
    pages_[i] = shared[i];
  }
}

void PageTable::release(PagePool& pool) {
  for (const PageId page : pages_) pool.drop_ref(page);
  pages_.clear();
}

}  // namespace gapless
