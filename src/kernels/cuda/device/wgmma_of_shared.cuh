// Warpgroup matrix products (wgmma.cuh) whose A lies in shared memory as B does: 64 rows, each of them contiguous k's, as
// wgmma_swizzled_operand describes.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/wgmma.cuh"

namespace gapless {

#define GAPLESS_PLACES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define GAPLESS_PLACES_32 \
  GAPLESS_PLACES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GAPLESS_PLACES_48 \
  GAPLESS_PLACES_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define GAPLESS_PLACES_64 \
  GAPLESS_PLACES_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define GAPLESS_SUMS_8(I)                                                                     \
  "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3]), "+f"(d[I + 4]), "+f"(d[I + 5]), \
      "+f"(d[I + 6]), "+f"(d[I + 7])
#define GAPLESS_SUMS_16 GAPLESS_SUMS_8(0), GAPLESS_SUMS_8(8)
#define GAPLESS_SUMS_32 GAPLESS_SUMS_16, GAPLESS_SUMS_8(16), GAPLESS_SUMS_8(24)
#define GAPLESS_SUMS_48 GAPLESS_SUMS_32, GAPLESS_SUMS_8(32), GAPLESS_SUMS_8(40)
#define GAPLESS_SUMS_64 GAPLESS_SUMS_48, GAPLESS_SUMS_8(48), GAPLESS_SUMS_8(56)

// d = a b (+ d when accumulate), float accumulators, twice as many columns as d has values. 32 bytes of k's: 16 in bfloat16, or 32 in
// 8 bits (e4m3). A, B and C are the places of these arguments.
#define GAPLESS_WGMMA_OF_SHARED(NAME, TYPES, SIGNS, COUNT, COLUMNS, A, B, C)                   \
  __device__ __forceinline__ void NAME(float(&d)[COUNT], std::uint64_t a, std::uint64_t b,     \
                                       bool accumulate = true) {                               \
    asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %" C                      \
                 ", 0;\n"                                                                      \
                 "wgmma.mma_async.sync.aligned.m64n" COLUMNS TYPES " {" GAPLESS_PLACES_##COUNT \
                 "}, %" A ", %" B ", accumulate, " SIGNS ";\n}"                                \
                 : GAPLESS_SUMS_##COUNT                                                        \
                 : "l"(a), "l"(b), "r"(int{accumulate}));                                      \
  }
#define GAPLESS_WGMMAS_OF_SHARED(NAME, TYPES, SIGNS)                      \
  GAPLESS_WGMMA_OF_SHARED(NAME, TYPES, SIGNS, 16, "32", "16", "17", "18") \
  GAPLESS_WGMMA_OF_SHARED(NAME, TYPES, SIGNS, 32, "64", "32", "33", "34") \
  GAPLESS_WGMMA_OF_SHARED(NAME, TYPES, SIGNS, 48, "96", "48", "49", "50") \
  GAPLESS_WGMMA_OF_SHARED(NAME, TYPES, SIGNS, 64, "128", "64", "65", "66")
GAPLESS_WGMMAS_OF_SHARED(wgmma_of_shared, "k16.f32.bf16.bf16", "1, 1, 0, 0")
GAPLESS_WGMMAS_OF_SHARED(wgmma_of_shared_fp8, "k32.f32.e4m3.e4m3", "1, 1")
#undef GAPLESS_WGMMAS_OF_SHARED
#undef GAPLESS_WGMMA_OF_SHARED
#undef GAPLESS_SUMS_64
#undef GAPLESS_SUMS_48
#undef GAPLESS_SUMS_32
#undef GAPLESS_SUMS_16
#undef GAPLESS_SUMS_8
#undef GAPLESS_PLACES_64
#undef GAPLESS_PLACES_48
#undef GAPLESS_PLACES_32
#undef GAPLESS_PLACES_16

}  // namespace gapless
