// One VectorOps per instruction set, each from a file compiled for that set.
#pragma once

#include "kernels/cpu/vector_ops.h"

namespace gapless::cpu {

extern const VectorOps kPortableVectorOps;
extern const VectorOps kAvx2VectorOps;
extern const VectorOps kAvx512VectorOps;

}  // namespace gapless::cpu
