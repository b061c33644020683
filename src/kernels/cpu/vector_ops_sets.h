// The VectorOps of each instruction set, from a file compiled for that set.
#pragma once

#include "kernels/cpu/vector_ops.h"

namespace gapless::cpu {

extern const VectorOps kPortableF32Ops, kPortableBf16Ops;
extern const VectorOps kAvx2F32Ops, kAvx2Bf16Ops;
extern const VectorOps kAvx512F32Ops, kAvx512Bf16Ops;
extern const VectorOps kAvx512VnniBf16Ops, kAvx512AmxBf16Ops;

}  // namespace gapless::cpu
