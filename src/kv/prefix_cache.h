// The KV pages of image prefixes (BOS + the positions of one or several images), kept for the next
// prompt that begins with the same images.
//
// A prefix of P tokens fills P / kPageTokens pages and P % kPageTokens places of one more, the
// *tail* page. Positions of the prefix never see a later token, so their keys and values depend on
// its images alone. The sequence that computed them goes on writing behind the prefix in the
// tail page, never inside it; so the cache simply keeps a reference to all these pages, and a later
// sequence shares the full ones and *copies* the tail page into one of its own before it writes.
//
// The prefixes of one prompt with several images begin with each other, and so do their entries,
// which then share pages.
//
// The cache holds one reference for each entry that a page is in. Entries with pages that only the
// cache refers to are given up, least recently used first, when pages run short.
//
// Threads: the engine thread only. No allocation after the constructor.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/content_hash.h"
#include "base/ids.h"
#include "kv/page_pool.h"

namespace gapless {

class PrefixCache {
 public:
  struct Hit {
    std::span<const PageId> full_pages;  // valid until the next insert, reclaim or clear
    PageId tail_page;                    // invalid when the prefix ends with a page
  };

  // At most max_entries prefixes of at most max_pages_per_entry pages; 0 entries switches it off.
  PrefixCache(PagePool& pool, int max_entries, int max_pages_per_entry);
  ~PrefixCache() { clear(); }
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  bool enabled() const { return !entries_.empty(); }

  // The pages that hold the prefix, if they are here. Counts as a use.
  std::optional<Hit> find(const ContentHash& images, int prefix_len);

  // Keeps `pages`, the ceil(prefix_len / kPageTokens) first pages of a sequence whose forward was
  // launched. A prefix that is here already stays as it is.
  void insert(const ContentHash& images, int prefix_len, std::span<const PageId> pages);

  // Gives up unused entries until the pool has `num_free` free pages. False, and nothing given up,
  // when that cannot be reached.
  [[nodiscard]] bool reclaim(int num_free);

  void clear();

  int num_entries() const;
  // Pages that only the cache refers to.
  int num_reclaimable() const { return pool_.num_in_use() - pool_.num_held(); }

 private:
  struct Entry {
    ContentHash images{};
    int prefix_len = 0;  // 0: an empty place
    std::int64_t last_use = 0;
    std::vector<PageId> pages;
  };

  Entry* find_entry(const ContentHash& images, int prefix_len);
  bool has_reclaimable_pages(const Entry& entry) const;
  void drop(Entry& entry);
  Entry* least_recently_used();

  PagePool& pool_;
  std::vector<Entry> entries_;
  std::int64_t num_uses_ = 0;  // the clock of last_use
};

}  // namespace gapless
