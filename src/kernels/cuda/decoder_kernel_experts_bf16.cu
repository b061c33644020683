// The decode kernel of blocks with experts for bfloat16 weights, a cache of bfloat16.
#include "kernels/cuda/device/decoder_kernel.cuh"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

template Status launch_decoder_kernel<ExpertsDecoder, PreparedFormat::kNative, Bf16>(
    Stream& stream, const DecoderLaunch& params, int num_blocks, int shared_bytes);

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
