#include "refine/refiner_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "weights/safetensors.h"

namespace gapless {
namespace {

class TensorList {
 public:
  void tensor(const std::string& name, std::vector<std::int64_t> shape,
              TensorRole role = TensorRole::kProduct) {
    list_.push_back({.name = name, .shape = std::move(shape), .role = role});
  }
  void with_bias(const std::string& name, std::vector<std::int64_t> shape, std::int64_t out) {
    tensor(name + ".weight", std::move(shape));
    tensor(name + ".bias", {out}, TensorRole::kBias);
  }
  void linear(const std::string& name, std::int64_t out, std::int64_t in) {
    with_bias(name, {out, in}, out);
  }
  void convolution(const std::string& name, std::int64_t out, std::int64_t in, std::int64_t side) {
    with_bias(name, {out, in, side, side}, out);
  }
  void norm(const std::string& name, std::int64_t dim) {
    tensor(name + ".weight", {dim}, TensorRole::kNormGain);
    tensor(name + ".bias", {dim}, TensorRole::kBias);
  }
  void attention(const std::string& name, std::int64_t dim) {
    tensor(name + ".in_proj_weight", {3 * dim, dim});
    tensor(name + ".in_proj_bias", {3 * dim}, TensorRole::kBias);
    linear(name + ".out_proj", dim, dim);
  }
  std::vector<WeightSpec> take() { return std::move(list_); }

 private:
  std::vector<WeightSpec> list_;
};

void add_inputs(const RefinerShape& shape, TensorList& list) {
  const std::int64_t dim = shape.dim;
  list.convolution("image_proj", dim, shape.encoder_dim, 1);
  list.tensor("image_pe", {1, dim, shape.grid, shape.grid}, TensorRole::kPositionEmbedding);
  list.linear("hq_fusion.early_proj.0", dim, shape.encoder_dim);
  list.norm("hq_fusion.early_proj.1", dim);
  list.convolution("hq_fusion.fusion.0", dim, 2 * dim, 1);
  list.norm("hq_fusion.fusion.1", dim);
  list.convolution("hq_fusion.fusion.3", dim, dim, 3);
  list.norm("hq_fusion.fusion.4", dim);
  int in = 1;
  for (int i = 0; i < 4; ++i) {
    const std::string name = fmt::format("mask_encoder.conv{}", i + 1);
    const int out = mask_encoder_channels(shape, i);
    list.convolution(name + ".0", out, in, 3);
    list.norm(name + ".1", out);
    in = out;
  }
  list.tensor("mask_tokens", {RefinerShape::kMasks, dim}, TensorRole::kPositionEmbedding);
  list.tensor("iou_token", {1, dim}, TensorRole::kPositionEmbedding);
  list.tensor("output_pe", {RefinerShape::kTokens, dim}, TensorRole::kPositionEmbedding);
}

void add_blocks(const RefinerShape& shape, TensorList& list) {
  const std::int64_t dim = shape.dim;
  for (int i = 0; i < RefinerShape::kBlocks; ++i) {
    const std::string name = fmt::format("transformer_blocks.{}", i);
    list.attention(name + ".output_self_attn", dim);
    list.norm(name + ".norm1", dim);
    list.attention(name + ".cross_attn_token_to_image", dim);
    list.norm(name + ".norm2", dim);
    list.linear(name + ".mlp.0", RefinerShape::kMlpRatio * dim, dim);
    list.linear(name + ".mlp.2", dim, RefinerShape::kMlpRatio * dim);
    list.norm(name + ".norm3", dim);
    list.attention(name + ".cross_attn_image_to_token", dim);
    list.norm(name + ".norm4", dim);
  }
  list.attention("final_token_to_image", dim);
  list.norm("final_norm", dim);
}

void add_outputs(const RefinerShape& shape, TensorList& list) {
  std::int64_t in = shape.dim;
  for (int i = 0; i < 3; ++i) {
    const std::int64_t out = in / 2;
    list.with_bias(fmt::format("upsample.{}", 6 * i), {in, out, 2, 2}, out);
    list.norm(fmt::format("upsample.{}.norm", 6 * i + 1), out);
    list.convolution(fmt::format("upsample.{}", 6 * i + 3), out, out, 3);
    list.norm(fmt::format("upsample.{}.norm", 6 * i + 4), out);
    in = out;
  }
  const std::int64_t dim = shape.dim, fine = shape.fine_dim();
  list.linear("final_q_proj", fine, dim);
  list.attention("final_attn_up", fine);
  list.norm("final_norm_up", fine);
  for (int i = 0; i < RefinerShape::kMasks; ++i) {
    for (const int layer : {0, 2, 4}) {
      list.linear(fmt::format("mask_mlps.{}.{}", i, layer), fine, fine);
    }
  }
  list.linear("iou_head.0", dim, dim);
  list.linear("iou_head.2", dim, dim);
  list.linear("iou_head.4", RefinerShape::kMasks, dim);
}

}  // namespace

int mask_encoder_channels(const RefinerShape& shape, int i) {
  constexpr int kShares[4] = {16, 8, 4, 1};
  return shape.dim / kShares[i];
}

int mask_encoder_groups(const RefinerShape& shape, int i) {
  constexpr int kGroups[4] = {1, 8, 16, 32};
  return std::min(kGroups[i], mask_encoder_channels(shape, i));
}

std::vector<WeightSpec> refiner_tensors(const RefinerShape& shape) {
  TensorList list;
  add_inputs(shape, list);
  add_blocks(shape, list);
  add_outputs(shape, list);
  return list.take();
}

StatusOr<RefinerShape> refiner_shape_of(const std::filesystem::path& file, int encoder_dim,
                                        int grid) {
  GAPLESS_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(file));
  const auto tokens = checkpoint.tensors().find("mask_tokens");
  if (tokens == checkpoint.tensors().end()) {
    return invalid_argument("{}: has no tensor 'mask_tokens', so it is no refiner of segments",
                            file.string());
  }
  const std::vector<std::int64_t>& shape = tokens->second.shape;
  constexpr std::int64_t kMaxDim = 4096;
  if (shape.size() != 2 || shape[0] != RefinerShape::kMasks || shape[1] < 32 ||
      shape[1] > kMaxDim || shape[1] % 32 != 0) {
    return invalid_argument(
        "{}: tensor 'mask_tokens' has shape {}; [{}, N] is expected, N a multiple of 32 up to {}",
        file.string(), shape_to_string(shape), RefinerShape::kMasks, kMaxDim);
  }
  return RefinerShape{.encoder_dim = encoder_dim, .dim = static_cast<int>(shape[1]), .grid = grid};
}

}  // namespace gapless
