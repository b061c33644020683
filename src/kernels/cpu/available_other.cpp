// Machines other than x86-64.
#include "kernels/cpu/vector_ops_sets.h"

namespace gapless::cpu {

std::span<const VectorOps* const> available_vector_ops() {
  static constexpr const VectorOps* kAvailable[] = {&kPortableF32Ops, &kPortableBf16Ops};
  return kAvailable;
}

}  // namespace gapless::cpu
