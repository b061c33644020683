// The device half of CudaDevice::clock_offset_ns. No CUDA headers beyond the runtime's, so that the
// .cu file stays small.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace gapless {

inline constexpr int kNumClockPings = 16;

// In pinned memory. The host writes ping = r (1, 2, ...), the device answers with its clock in
// pongs[r - 1].
struct ClockPings {
  std::uint32_t ping;
  std::uint64_t pongs[kNumClockPings];
};

// Starts a kernel that answers the pings. It ends by itself when the host is silent for long.
cudaError_t launch_answer_pings(ClockPings* pings_pinned, cudaStream_t stream);

// OK when this build holds code for the current device.
cudaError_t check_kernel_image();

}  // namespace gapless
