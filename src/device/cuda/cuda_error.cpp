#include "device/cuda/cuda_error.h"

namespace gapless {

bool is_sticky(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorContextIsDestroyed:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

Status cuda_status(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return ok_status();
  (void)cudaGetLastError();
  const StatusCode code = error == cudaErrorMemoryAllocation ? StatusCode::kResourceExhausted
                                                             : StatusCode::kDeviceError;
  return make_error(code, "{}: {}{}", call, cudaGetErrorString(error),
                    is_sticky(error) ? " (the device is lost to this process)" : "");
}

}  // namespace gapless
