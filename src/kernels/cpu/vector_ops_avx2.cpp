#include "kernels/cpu/simd_avx2.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/cpu/vector_ops_sets.h"

namespace gapless::cpu {

constinit const VectorOps kAvx2F32Ops = make_vector_ops<Avx2Simd, float>();
constinit const VectorOps kAvx2Bf16Ops = make_vector_ops<Avx2Simd, Bf16>();

}  // namespace gapless::cpu
