#include "kernels/cpu/simd_avx512.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/cpu/vector_ops_sets.h"

namespace gapless::cpu {

constinit const VectorOps kAvx512F32Ops = make_vector_ops<Avx512Simd, float>();
constinit const VectorOps kAvx512Bf16Ops = make_vector_ops<Avx512Simd, Bf16>();

}  // namespace gapless::cpu
