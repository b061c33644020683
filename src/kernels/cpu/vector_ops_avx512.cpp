#include "kernels/cpu/simd_avx512.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/cpu/vector_ops_sets.h"

namespace gapless::cpu {

constinit const VectorOps kAvx512VectorOps = make_vector_ops<Avx512Simd>();

}  // namespace gapless::cpu
