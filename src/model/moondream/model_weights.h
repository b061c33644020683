// All weights of a model, in one device allocation.
//
// Every pointer is device memory of type T (Kernels::activation_dtype()), row-major [out, in]. D =
// text dim, F = text ff_dim, V = vocab, E = enc_dim, G = enc_ff_dim, P = proj_inner_dim, R = region
// inner_dim; F', G' are padded to multiples of 16, large ones of 128, and the patch length 588 to
// 592 (model_shape.h), with zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "model/int8_weights.h"
#include "model/moondream/model_config.h"
#include "model/tensor_layout.h"
#include "model/text_weights.h"

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

struct RegionWeights {
  RegionEncoderWeights encoder;  // [D, 256], [D, 512]; features [1, 128], [2, 256]
  RegionDecoderWeights
      decoder;  // [R, D], [1024, R]; [R, D], [2048, R]; linear: [1024, D]; [2048, D]
};

struct ModelWeights : DecoderWeights {
  VisionWeights vision;
  ProjectorWeights projector;
  RegionWeights region;
};

// Where every tensor of the configuration lies in ModelWeights::buffer.
TensorLayout lay_out_weights(const ModelConfig& config, DType dtype);

// Which products and norms the decoder has; the addresses mean nothing.
TextWeights describe_text_weights(const ModelConfig& config);

// Whether matrices may share memory for their rows (LinearWeights::restore): in a model without experts.
bool may_share_rows(const ModelConfig& config);

// Groups of tensors that may share memory (GroupOfTensor).
// Those of prepare_decode_weights (SharedRows), with these others: in 8 bits the vision encoder's and the projector's matrices.
int shared_group_of(const ModelConfig& config, PreparedFormat format, const std::string& name);
std::vector<LinearWeights*> other_prepared_matrices(PreparedFormat format, ModelWeights& weights);
// Group i: those of int8_groups()[i].
int int8_group_of(const ModelConfig& config, const std::string& name);

// Allocates the weights and lays them out; with `group_of` those of all its groups in the same memory. All bytes are zero
// once `stream` gets there. The contents come from weight_loading.h.
StatusOr<ModelWeights> allocate_weights(Device& device, Stream& stream, const ModelConfig& config,
                                        DType dtype, const GroupOfTensor& group_of = nullptr);

// The vision encoder alone: of a model that runs elsewhere.
struct VisionEncoderWeights {
  TensorLayout layout;
  Buffer buffer;
  VisionWeights vision;
};
// As allocate_weights.
StatusOr<VisionEncoderWeights> allocate_vision_weights(Device& device, Stream& stream,
                                                       const ModelConfig& config, DType dtype);

// The region heads' matrices, of which only decode products read (prepare_in_place).
std::vector<LinearWeights*> region_matrices(ModelWeights& weights);

// Adds copies in 8 bits of the matrices whose products may be computed in them (WeightFormat::kW8A8),
// of weights that round_weights_to_fp8 has rounded. Before prepare_decode_weights.
Status make_fp8_products(Device& device, Kernels& kernels, Stream& stream,
                         const ModelConfig& config, ModelWeights& weights);

// All matrices whose products may be computed in 8-bit whole numbers: those of each text block, the head, those of each block of the
// vision encoder, the projector.
Int8Groups int8_groups(ModelWeights& weights);

}  // namespace gapless
