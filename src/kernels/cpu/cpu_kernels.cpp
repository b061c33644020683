#include "kernels/cpu/cpu_kernels.h"

namespace gapless {

std::unique_ptr<Kernels> make_cpu_kernels() {
  return std::make_unique<CpuKernels>();
}

}  // namespace gapless
