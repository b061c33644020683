#include "kernels/cpu/simd_portable.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/cpu/vector_ops_sets.h"

namespace gapless::cpu {

constinit const VectorOps kPortableVectorOps = make_vector_ops<PortableSimd>();

}  // namespace gapless::cpu
