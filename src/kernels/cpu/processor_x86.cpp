#include <cstdlib>

#include "kernels/cpu/processor.h"

namespace gapless {

Processor this_processor() {
  Processor processor;
  processor.is_x86 = true;
  processor.has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  processor.has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
  processor.has_avx512_vnni = processor.has_avx512 && __builtin_cpu_supports("avx512vnni");
  processor.has_avx512_bf16 = processor.has_avx512 && __builtin_cpu_supports("avx512bf16");
  const char* const wanted = std::getenv("GAPLESS_CPU_SIMD");
  processor.is_overridden = wanted != nullptr && wanted[0] != '\0';
  return processor;
}

}  // namespace gapless
