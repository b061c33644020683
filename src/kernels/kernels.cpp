#include "kernels/kernels.h"

#include "base/log.h"
#include "kernels/restored_linear.h"

namespace gapless {

StatusOr<std::unique_ptr<Kernels>> make_kernels(Device& device, Compute compute) {
  switch (device.kind()) {
    case DeviceKind::kCpu: {
      GAPLESS_ASSIGN_OR_RETURN(const ComputeChoice choice,
                               choose_cpu_compute(compute, this_processor()));
      log_info("the CPU computes in {}", choice.description);
      return make_cpu_kernels(choice.dtype);
    }
    case DeviceKind::kCuda:
      if (compute == Compute::kFloat32) {
        return invalid_argument("a GPU computes in bfloat16; float32 is the CPU's (--device cpu)");
      }
      return make_cuda_kernels(device);
    case DeviceKind::kSimulated:
      break;
  }
  return make_error(StatusCode::kUnavailable, "a simulated device has no kernels");
}

Status Kernels::linear_pair(Stream& stream, const LinearParams& first, const LinearParams& second) {
  GAPLESS_RETURN_IF_ERROR(restored_linear(*this, stream, first));
  return restored_linear(*this, stream, second);
}

Status Kernels::scale_rope_and_cache(Stream& stream, const ScaleHeadsParams& scale,
                                     const RopeAndCacheParams& rope) {
  GAPLESS_RETURN_IF_ERROR(scale_heads(stream, scale));
  return rope_and_cache(stream, rope);
}

}  // namespace gapless
