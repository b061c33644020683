#include "kernels/cpu/vector_ops.h"

#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace gapless::cpu {
namespace {

const VectorOps& choose(DType dtype) {
  std::vector<const VectorOps*> available;
  for (const VectorOps* ops : available_vector_ops()) {
    if (ops->dtype == dtype) available.push_back(ops);
  }
  const char* const wanted = std::getenv("GAPLESS_CPU_SIMD");
  if (wanted == nullptr || wanted[0] == '\0') return *available.front();
  for (const VectorOps* ops : available) {
    if (std::string_view(ops->name) == wanted) return *ops;
  }
  log_warning("GAPLESS_CPU_SIMD={}: this machine or build has no such set; using {}", wanted,
              available.front()->name);
  return *available.front();
}

}  // namespace

const VectorOps& vector_ops(DType dtype) {
  static const VectorOps& f32 = choose(DType::kF32);
  static const VectorOps& bf16 = choose(DType::kBF16);
  return dtype == DType::kBF16 ? bf16 : f32;
}

}  // namespace gapless::cpu
