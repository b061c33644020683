#include "kernels/cpu/vector_ops.h"

#include <cstdlib>
#include <string_view>

#include "base/log.h"

namespace gapless::cpu {
namespace {

const VectorOps& choose() {
  const std::span<const VectorOps* const> available = available_vector_ops();
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

const VectorOps& vector_ops() {
  static const VectorOps& chosen = choose();
  return chosen;
}

}  // namespace gapless::cpu
