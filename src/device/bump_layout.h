// Lays several arrays out in one device allocation. Run the same carving code twice: once from
// nothing to learn the size, once from the allocation's base to get the addresses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gapless {

class BumpLayout {
 public:
  // 256 bytes: what Device::allocate promises, and more than any kernel asks for.
  static constexpr std::size_t kAlignment = 256;

  BumpLayout() = default;
  explicit BumpLayout(void* base) : base_(reinterpret_cast<std::uintptr_t>(base)) {}

  // The next `bytes`; without a base only the offset in the result means something.
  void* take(std::size_t bytes) {
    const std::uintptr_t address = base_ + offset_;
    offset_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    peak_ = std::max(peak_, offset_);
    return reinterpret_cast<void*>(address);
  }
  template <typename T>
  T* take_array(std::size_t count) {
    return static_cast<T*>(take(count * sizeof(T)));
  }

  // Arrays taken after rewind(mark) share their bytes with those taken after that mark before.
  std::size_t mark() const { return offset_; }
  void rewind(std::size_t mark) { offset_ = mark; }

  // The allocation must hold this many bytes.
  std::size_t peak_bytes() const { return peak_; }

 private:
  std::uintptr_t base_ = 0;
  std::size_t offset_ = 0;
  std::size_t peak_ = 0;
};

}  // namespace gapless
