// Which decode steps the CUDA backend runs as one launch (cuda/decoder_blocks.h). Every build knows it, so
// that `gapless info` can say it where there is no GPU.
#pragma once

#include "kernels/kernels.h"

namespace gapless {

// Bounds of the kernel that runs a whole decode step. It has a list of phases for parallel blocks, one for
// sequential blocks, and one for parallel blocks with experts (cuda/decoder_schedule.h).
struct OneLaunchDecoder {
  static constexpr int kMaxLayers = 64;
  static constexpr int kWidthMultiple = 128;  // of the model's width and the feed-forward's

  // LayerNorm, as many key heads as query heads, a dense feed-forward, biases everywhere.
  struct Parallel {
    static constexpr int kHeadDim = 64;
    static constexpr int kMaxDim = 2048;
    static constexpr int kMaxContext = 2048;
    static constexpr int kRotaryMultiple = 16;
  };
  // RMS norms, of query and key heads too or not, grouped queries, a gated feed-forward, no biases, heads that
  // are rotated whole.
  struct Sequential {
    static constexpr int kHeadDim = 128;
    static constexpr int kMaxDim = 4096;
    static constexpr int kMaxContext = 32768;
    static constexpr int kMaxGroup = 4;  // query heads of a key head
  };
  // As Parallel, but query and value heads are scaled, and from some layer behind the first on there are experts whose gate is GELU(a) * (b + 1).
  // An expert is no wider than a model may be, and what the experts of a token make is as wide together as a dense layer's feed-forward. The cache has 16 bits.
  struct Experts {
    static constexpr int kMaxLayers = 28;
    static constexpr int kHeadDim = 64;
    static constexpr int kMaxDim = 2048;
    static constexpr int kMaxContext = 32768;
    static constexpr int kRotaryMultiple = 16;
    static constexpr int kMaxExperts = 64;
    static constexpr int kExpertsMultiple = 16;
    static constexpr int kMaxChoices = 8;  // of a token
    static constexpr int kChoicesMultiple = 4;
    static constexpr int kMaxInner = 2048;  // of an expert
  };
};

// Ok where blocks of this description fit that kernel; otherwise unavailable, with the first reason why not.
// Looks at what the blocks, their cache and the head are, not at activations, the number of rows or prepared weights.
Status check_one_launch_decoder(const DecoderBlocksParams& params);

}  // namespace gapless
