// Sizes that follow from a configuration, as the device sees them: with the padding that keeps
// every matrix row a multiple of 16 elements (32 bytes in bf16).
//
// Padding is exact: padded columns are zero in the weights and zero in the activations, and a
// padded row of fc1 gives gelu(0) = 0.
#pragma once

#include "base/status.h"
#include "kernels/kernels.h"
#include "model/moondream/model_config.h"

namespace gapless {

// Every matrix's inner dimension is a multiple of this many elements.
inline constexpr int kRowPadding = 16;

constexpr int pad_row(int n) {
  return (n + kRowPadding - 1) / kRowPadding * kRowPadding;
}

// The MLP's inner width, when it is large, to whole tiles of the matrix units: on an H200 the two
// products of 4304 (Moondream 2's vision encoder) are slower than those of 4352.
inline constexpr int kInnerTile = 128;
inline constexpr int kLargeInner = 2048;

constexpr int pad_inner(int n) {
  return n < kLargeInner ? pad_row(n) : (n + kInnerTile - 1) / kInnerTile * kInnerTile;
}

struct VisionShape {
  int dim = 0;  // E
  int num_layers = 0;
  int num_heads = 0;
  int head_dim = 0;
  int ff_dim = 0;            // padded
  int grid = 0;              // patches per crop side (27)
  int patches_per_crop = 0;  // 729
  int patch_stride = 0;      // 3*14*14 = 588, padded to 592
  int projector_dim = 0;     // inner width of the projector
};

struct TextShape {
  int dim = 0;  // D
  int num_layers = 0;
  AttentionHeads heads;
  int rotary_dim = 0;  // the first dims of each head
  int ff_dim = 0;      // padded
  int up_dim =
      0;  // what the feed-forward's first product makes: ff_dim, and as much again for a gate
  int vocab = 0;
  int max_context = 0;
  ExpertSizes experts;        // of the layers that have them
  bool scales_heads = false;  // HeadScales
};

struct RegionShape {
  int inner_dim = 0;  // 0: heads of one product
  int max_bins = 0;   // of coordinates or sizes
};

// All of a model. Parts that it lacks are zero.
struct ModelShape {
  TextShape text;
  VisionShape vision;
  RegionShape region;
};

// InvalidArgument, naming the field, for a configuration that is valid (validate_model_config) but
// not one that the kernels can run.
Status check_model_shape(const ModelConfig& config);

VisionShape vision_shape(const ModelConfig& config);
TextShape text_shape(const ModelConfig& config);
ModelShape model_shape(const ModelConfig& config);

}  // namespace gapless
