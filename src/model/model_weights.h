// All weights of a model, in one device allocation.
//
// Every pointer is device memory of type T (Kernels::activation_dtype()), row-major [out, in]. D =
// text dim, F = text ff_dim, V = vocab, E = enc_dim, G = enc_ff_dim, P = proj_inner_dim, R = region
// inner_dim; F', G' are padded to multiples of 16, large ones of 128, and the patch length 588 to
// 592 (model_shape.h), with zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "weights/model_config.h"

namespace gapless {

struct VisionBlockWeights {
  NormWeights ln1;     // [E]
  LinearWeights qkv;   // [3E, E]: Q, K, V thirds, each head-major
  LinearWeights proj;  // [E, E]
  NormWeights ln2;     // [E]
  LinearWeights fc1;   // [G', E]
  LinearWeights fc2;   // [E, G']
};

struct VisionWeights {
  LinearWeights patch_emb;        // [E, 592]
  const void* pos_emb = nullptr;  // [729, E]
  std::vector<VisionBlockWeights> blocks;
  NormWeights post_ln;  // [E]
};

struct ProjectorWeights {
  LinearWeights fc1;  // [P, 2E]: global features, then pooled tile features
  LinearWeights fc2;  // [D, P]
};

struct TextWeights {
  const void* wte = nullptr;  // [V, D]
  // Without their KV cache (DecoderBlock::kv), which is not a weight. What a block prepares for decode
  // steps is in prepared_weights.h.
  std::vector<DecoderBlock> blocks;
  NormWeights post_ln;    // [D]
  LinearWeights lm_head;  // [V, D], not tied to wte
};

struct RegionWeights {
  RegionEncoderWeights encoder;  // [D, 256], [D, 512]; features [1, 128], [2, 256]
  RegionDecoderWeights decoder;  // [R, D], [1024, R]; [R, D], [2048, R]
};

// One tensor of a checkpoint and where it lies in the allocation.
struct TensorPlacement {
  std::string name;           // published name, "model.text.blocks.0.ln.weight"
  std::int64_t num_rows = 0;  // the published shape as a matrix; 1 row for a vector
  std::int64_t row_size = 0;
  std::int64_t row_stride = 0;   // elements between rows, >= row_size
  std::size_t offset_bytes = 0;  // into the allocation

  std::int64_t num_parameters() const { return num_rows * row_size; }
};

struct ModelWeights {
  Buffer buffer;
  Buffer prepared;  // empty until prepare_decode_weights
  Buffer fp8;       // empty until make_fp8_products
  VisionWeights vision;
  ProjectorWeights projector;
  TextWeights text;
  RegionWeights region;
};

// Every tensor of the configuration, in order of placement, and the allocation's size.
struct WeightLayout {
  std::vector<TensorPlacement> tensors;
  std::size_t total_bytes = 0;
  TextWeights text;  // which products and norms there are; the addresses mean nothing
};
WeightLayout lay_out_weights(const ModelConfig& config, DType dtype);

// Allocates the weights and lays them out; all bytes are zero once `stream` gets there. The
// contents come from weight_loading.h.
StatusOr<ModelWeights> allocate_weights(Device& device, Stream& stream, const ModelConfig& config,
                                        DType dtype);

}  // namespace gapless
