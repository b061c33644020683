#include <vector>

#include "kernels/cpu/vector_ops_sets.h"

namespace gapless::cpu {

std::span<const VectorOps* const> available_vector_ops() {
  static const std::vector<const VectorOps*> available = [] {
    std::vector<const VectorOps*> sets;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")) {
      sets.push_back(&kAvx512VectorOps);
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      sets.push_back(&kAvx2VectorOps);
    }
    sets.push_back(&kPortableVectorOps);
    return sets;
  }();
  return available;
}

}  // namespace gapless::cpu
