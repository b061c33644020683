#include "kv/prefix_cache.h"

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"

namespace gapless {

PrefixCache::PrefixCache(PagePool& pool, int max_entries, int max_pages_per_entry) : pool_(pool) {
  entries_.resize(static_cast<std::size_t>(max_entries));
  for (Entry& entry : entries_) entry.pages.reserve(static_cast<std::size_t>(max_pages_per_entry));
}

std::optional<PrefixCache::Hit> PrefixCache::find(const ContentHash& images, int prefix_len) {
  Entry* entry = find_entry(images, prefix_len);
  if (entry == nullptr) return std::nullopt;
  entry->last_use = ++num_uses_;
  Hit hit;
  const auto num_full = static_cast<std::size_t>(prefix_len / kPageTokens);
  hit.full_pages = std::span(entry->pages).first(num_full);
  if (num_full < entry->pages.size()) hit.tail_page = entry->pages.back();
  return hit;
}

void PrefixCache::insert(const ContentHash& images, int prefix_len, std::span<const PageId> pages) {
  GAPLESS_CHECK(static_cast<int>(pages.size()) == pages_for_tokens(prefix_len));
  if (!enabled() || prefix_len <= 0 || find_entry(images, prefix_len) != nullptr) return;
  Entry* entry = least_recently_used();
  if (pages.size() > entry->pages.capacity()) return;
  drop(*entry);
  entry->images = images;
  entry->prefix_len = prefix_len;
  entry->last_use = ++num_uses_;
  for (const PageId page : pages) {
    pool_.add_cache_ref(page);
    entry->pages.push_back(page);
  }
}

bool PrefixCache::reclaim(int num_free) {
  if (pool_.num_free() >= num_free) return true;
  if (pool_.num_free() + num_reclaimable() < num_free) return false;
  while (pool_.num_free() < num_free) {
    Entry* oldest = nullptr;
    for (Entry& entry : entries_) {
      if (!has_reclaimable_pages(entry)) continue;
      if (oldest == nullptr || entry.last_use < oldest->last_use) oldest = &entry;
    }
    GAPLESS_CHECK(oldest != nullptr);
    drop(*oldest);
  }
  return true;
}

void PrefixCache::clear() {
  for (Entry& entry : entries_) drop(entry);
}

int PrefixCache::num_entries() const {
  int count = 0;
  for (const Entry& entry : entries_) count += entry.prefix_len > 0 ? 1 : 0;
  return count;
}

PrefixCache::Entry* PrefixCache::find_entry(const ContentHash& images, int prefix_len) {
  for (Entry& entry : entries_) {
    if (entry.prefix_len == prefix_len && prefix_len > 0 && entry.images == images) return &entry;
  }
  return nullptr;
}

bool PrefixCache::has_reclaimable_pages(const Entry& entry) const {
  return std::any_of(entry.pages.begin(), entry.pages.end(),
                     [this](PageId page) { return !pool_.is_held(page); });
}

void PrefixCache::drop(Entry& entry) {
  for (const PageId page : entry.pages) pool_.drop_cache_ref(page);
  entry.pages.clear();
  entry.prefix_len = 0;
  entry.last_use = 0;
}

PrefixCache::Entry* PrefixCache::least_recently_used() {
  Entry* oldest = &entries_.front();
  for (Entry& entry : entries_) {
    if (entry.last_use < oldest->last_use) oldest = &entry;
  }
  return oldest;
}

}  // namespace gapless
