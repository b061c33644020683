// The last so many of things that go on for ever, in memory taken once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/check.h"

namespace gapless {

template <typename T>
class Ring {
 public:
  explicit Ring(std::size_t capacity) : items_(capacity) { GAPLESS_CHECK(capacity > 0); }

  void add(const T& item) { items_[num_added_++ % items_.size()] = item; }

  std::size_t size() const { return std::min(num_added_, items_.size()); }
  // i = 0: the last one that was added; i < size().
  const T& newest(std::size_t i) const { return items_[(num_added_ - 1 - i) % items_.size()]; }

  // The last `most`, oldest first.
  std::vector<T> last(std::size_t most) const {
    const std::size_t count = std::min(size(), most);
    std::vector<T> items;
    items.reserve(count);
    for (std::size_t i = count; i > 0; --i) items.push_back(newest(i - 1));
    return items;
  }

 private:
  std::vector<T> items_;
  std::size_t num_added_ = 0;
};

}  // namespace gapless
