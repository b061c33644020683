// Element types of tensors in device memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gapless {

enum class DType : std::uint8_t { kF32, kBF16 };

constexpr std::size_t dtype_bytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

}  // namespace gapless
