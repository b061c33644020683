// Activations by their number, for kernels that are not bound by them.
#pragma once

#include "kernels/cuda/device/math.cuh"
#include "kernels/kernels.h"

namespace gapless {

__device__ __forceinline__ float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kGeluTanh:
      return gelu_tanh(x);
    case Activation::kSilu:
      return x / (1.0f + expf(-x));
    case Activation::kGeluErf:
      return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
  }
  return x;
}

}  // namespace gapless
