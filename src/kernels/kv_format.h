// What the elements of the KV cache are.
//
// kFp8 keeps each key and value as e4m3 without a scale: the number of type T that kNative would
// keep, rounded to nearest even, beyond +-448 to +-448. That loses 2^-4 of a number at most, down
// to 2^-6 in magnitude, and 2^-10 below. Rotated keys and values of a trained model lie well inside
// (DepthEqualityTest.KeysAndValuesLieWellInsideE4m3, of the model that ships), and since floating-point numbers are
// equally dense everywhere a scale would move nothing but these ends. Every reader, the step that
// wrote them included, sees the rounded numbers: what it reads is exact in T.
#pragma once

#include <cstddef>

#include "kernels/dtype.h"

namespace gapless {

enum class KvFormat {
  kNative,  // T
  kFp8,     // e4m3 (fp8.h), one byte
};

// Of one element; `dtype` is T.
constexpr std::size_t kv_element_bytes(KvFormat format, DType dtype) {
  return format == KvFormat::kFp8 ? 1 : dtype_bytes(dtype);
}

}  // namespace gapless
