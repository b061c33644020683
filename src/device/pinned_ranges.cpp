#include "device/pinned_ranges.h"

#include <iterator>

#include "base/check.h"

namespace gapless {
namespace {

std::uintptr_t address(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data);
}

}  // namespace

void PinnedRanges::add(const void* data, std::size_t bytes) {
  MutexLock lock(mutex_);
  bytes_by_begin_[address(data)] = bytes;
}

void PinnedRanges::remove(const void* data) {
  MutexLock lock(mutex_);
  GAPLESS_CHECK(bytes_by_begin_.erase(address(data)) == 1);
}

bool PinnedRanges::contains(const void* data, std::size_t bytes) const {
  MutexLock lock(mutex_);
  auto after = bytes_by_begin_.upper_bound(address(data));
  if (after == bytes_by_begin_.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  const std::size_t offset = address(data) - begin;
  return offset <= size && bytes <= size - offset;
}

}  // namespace gapless
