// The pages of memory that lie wholly within a range of bytes.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace gapless {

struct WholePages {
  std::uintptr_t begin = 0;  // addresses; equal where the range holds no whole page
  std::uintptr_t end = 0;
  std::size_t size() const { return end - begin; }
  void* data() const { return reinterpret_cast<void*>(begin); }
};

inline WholePages whole_pages(const void* data, std::size_t num_bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto from = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = (from + page - 1) / page * page,
                       end = (from + num_bytes) / page * page;
  return {begin, end < begin ? begin : end};
}

}  // namespace gapless
