// What a backend computes in: the choice of T (kernels.h).
#pragma once

#include <string>

#include "base/status.h"
#include "kernels/cpu/processor.h"
#include "kernels/dtype.h"

namespace gapless {

// Sums are float32 in all of them. A GPU always computes in bfloat16.
enum class Compute {
  kPortable,  // the same on every processor: float32 on the CPU
  kAuto,      // what the processor is fastest in
  kFloat32,   // an error on a GPU
  kBFloat16,
};

struct ComputeChoice {
  DType dtype = DType::kF32;
  // "bfloat16 by avx512, because ..."; for a log.
  std::string description;
};

// What the CPU device computes in. Unavailable, with a sentence that says what to do, on an x86-64
// processor without AVX2.
StatusOr<ComputeChoice> choose_cpu_compute(Compute compute, const Processor& processor);

}  // namespace gapless
