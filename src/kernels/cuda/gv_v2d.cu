#define GV_FLIGHT 32
#undef GAPLESS_PATH
#define GAPLESS_PATH path_80v2d
#include "decoder_kernel_bf16.cu"
namespace gapless::cuda {
namespace path_80 {
Status launch_status(cudaError_t error, const char* what);
Status check_registers(const char* what, const void* kernel, int registers);
}
inline namespace GAPLESS_PATH {
Status launch_status(cudaError_t error, const char* what) { return path_80::launch_status(error, what); }
Status check_registers(const char* what, const void* kernel, int registers) { return path_80::check_registers(what, kernel, registers); }
}
}
