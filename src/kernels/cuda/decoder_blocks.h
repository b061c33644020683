// The blocks of the text decoder in a decode step as one launch (decoder_blocks.cu).
#pragma once

#include <cstddef>

#include "base/status.h"
#include "device/device.h"
#include "kernels/cuda/path_choice.h"
#include "kernels/kernels.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// Ok where decoder_blocks can run it; otherwise unavailable, with the first reason why not. What it cannot run
// is composed of single ops.
Status check_decoder_kernel(const DecoderBlocksParams& params, int num_multiprocessors);

// `counters`: decoder_blocks_counter_bytes() of zeros, left as zeros. One launch at a time may use
// them. Starts one block per multiprocessor, which wait for each other: whatever else runs on the
// device must end without waiting for this launch.
Status decoder_blocks(Stream& stream, const DecoderBlocksParams& params, void* counters,
                      const CudaAttributes& device);

// Of models that no launch takes, 0.
std::size_t decoder_blocks_scratch_bytes(int max_rows, int dim, int ff_dim,
                                         const AttentionHeads& heads, int max_context,
                                         const ExpertSizes& experts, int num_multiprocessors);
std::size_t decoder_blocks_counter_bytes();

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
