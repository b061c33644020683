// The network that makes a coarse mask of a segment exact, by what the vision encoder sees of the picture.
//
// Two-way attention between the picture's 27 x 27 patches and five tokens, then three steps of upsampling: the published
// SegHeadRefiner in float32, on the CPU.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "refine/float_ops.h"
#include "refine/refiner_tensors.h"

namespace gapless {

class RefinerHead {
 public:
  // `file`: a safetensors file of refiner_tensors(). `ops` outlives this. The error names the file, what was found, and
  // what is expected.
  static StatusOr<std::unique_ptr<RefinerHead>> load(FloatOps& ops,
                                                     const std::filesystem::path& file,
                                                     int encoder_dim, int grid);

  const RefinerShape& shape() const { return shape_; }
  std::size_t weight_bytes() const { return weight_bytes_; }
  // Of activations, at most.
  std::size_t activation_bytes() const;

  // The picture's features, which are the same for every mask. early, final: [patches, encoder_dim], the vision
  // encoder's residual stream after block 8, and its output. Returns [patches, dim].
  StatusOr<Rows> picture_features(const Rows& early, const Rows& final) const;

  // mask: [side * side, 1], shares from 0 to 1. Returns the logits of the candidate that the network thinks best, as large.
  StatusOr<Rows> refine(const Rows& features, const Rows& mask, int side) const;

  // Sees what comes out of each part: "features", "mask", "block.I.tokens", "block.I.image", "tokens", "fine", "candidates", "quality". For
  // parity tests.
  using Recorder = std::function<void(std::string_view stage, const Rows& values)>;
  void set_recorder(Recorder recorder) { recorder_ = std::move(recorder); }

 private:
  struct Convolution {
    FloatProduct product;
    FloatNorm norm;
  };
  struct Block {
    FloatAttention self, token_to_image, image_to_token;
    FloatProduct mlp_in, mlp_out;
    std::array<FloatNorm, 4> norms;
  };
  struct Upsampling {
    FloatProduct transposed;
    std::vector<float> transposed_bias;
    FloatNorm transposed_norm;
    Convolution convolution;
  };
  class Loader;

  RefinerHead(FloatOps& ops, const RefinerShape& shape) : ops_(ops), shape_(shape) {}

  StatusOr<Rows> encode_mask(const Rows& mask, int side) const;
  Status run_block(const Block& block, Rows& tokens, Rows& image) const;
  StatusOr<Rows> upsample(const Rows& image) const;
  // Products with the fine picture, one for each candidate: [fine pixels, kMasks].
  StatusOr<Rows> candidates(const Rows& tokens, const Rows& fine) const;
  StatusOr<Rows> through(const Rows& x, std::span<const FloatProduct> layers) const;
  void record(std::string_view stage, const Rows& values) const {
    if (recorder_) recorder_(stage, values);
  }

  FloatOps& ops_;
  const RefinerShape shape_;
  std::size_t weight_bytes_ = 0;
  Recorder recorder_;

  FloatProduct image_in_, early_in_, fuse_;
  FloatNorm early_norm_, fuse_norm_;
  Convolution fusion_;
  std::array<Convolution, 4> mask_encoder_;
  Rows image_positions_, tokens_, token_positions_;
  std::array<Block, RefinerShape::kBlocks> blocks_;
  FloatAttention final_attention_;
  FloatNorm final_norm_;
  std::array<Upsampling, 3> upsampling_;
  FloatProduct fine_in_;
  FloatAttention fine_attention_;
  FloatNorm fine_norm_;
  std::array<std::array<FloatProduct, 3>, RefinerShape::kMasks> mask_mlps_;
  std::array<FloatProduct, 3> quality_;
};

}  // namespace gapless
