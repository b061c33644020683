#include "kernels/cpu/simd_avx2.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/cpu/vector_ops_sets.h"

namespace gapless::cpu {

constinit const VectorOps kAvx2VectorOps = make_vector_ops<Avx2Simd>();

}  // namespace gapless::cpu
