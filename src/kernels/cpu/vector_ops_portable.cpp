#include "kernels/cpu/simd_portable.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/cpu/vector_ops_sets.h"

namespace gapless::cpu {

constinit const VectorOps kPortableF32Ops = make_vector_ops<PortableSimd, float>();
constinit const VectorOps kPortableBf16Ops = make_vector_ops<PortableSimd, Bf16>();

}  // namespace gapless::cpu
