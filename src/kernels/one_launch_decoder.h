// Which decode steps the CUDA backend runs as one launch (cuda/decoder_blocks.h). Every build knows it, so
// that `gapless info` can say it where there is no GPU.
#pragma once

#include "kernels/kernels.h"

namespace gapless {

// Bounds of the kernel that runs a whole decode step.
struct OneLaunchDecoder {
  static constexpr int kMaxLayers = 64;
  static constexpr int kHeadDim = 64;
  static constexpr int kMaxDim = 2048;
  static constexpr int kMaxContext = 2048;
  static constexpr int kWidthMultiple = 128;  // of the model's width and the feed-forward's
  static constexpr int kRotaryMultiple = 16;
};

// Ok where blocks of this description fit that kernel; otherwise unavailable, with the first reason why not.
// Looks at what the blocks and the head are, not at activations, the number of rows or prepared weights.
Status check_one_launch_decoder(const DecoderBlocksParams& params);

}  // namespace gapless
