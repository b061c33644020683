// The page-locked ranges of one device, so that a copy from ordinary memory is refused rather than
// silently made synchronous by the driver. A lookup takes well under a microsecond. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "base/mutex.h"

namespace gapless {

class PinnedRanges {
 public:
  void add(const void* data, std::size_t bytes);
  void remove(const void* data);
  // True when all of [data, data + bytes) lies in one range.
  bool contains(const void* data, std::size_t bytes) const;

 private:
  mutable Mutex mutex_;
  std::map<std::uintptr_t, std::size_t> bytes_by_begin_ GAPLESS_GUARDED_BY(mutex_);
};

}  // namespace gapless
