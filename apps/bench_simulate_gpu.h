// gapless bench simulate --gpu: how fast a GPU would be that nobody here has.
#pragma once

#include <string>

#include "base/status.h"

namespace gapless {

struct SimulateGpuOptions {
  std::string gpu;  // a name of gpu_specs.h, or "all"
  std::string results = "bench/results";
  std::string json;
  std::string commit;
};

// Moondream 2 in 16 bits (measure/gpu_prediction.h), beside what the Photon article measured on the same GPU.
Status run_simulate_gpu(const SimulateGpuOptions& options);

}  // namespace gapless
