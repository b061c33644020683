// The CPU backend: float32, fast. Inherits the bookkeeping ops from reference/.
#pragma once

#include "kernels/reference/reference_kernels.h"

namespace gapless {

class CpuKernels final : public ReferenceKernels {
 public:
  const char* name() const override { return "cpu"; }
};

}  // namespace gapless
