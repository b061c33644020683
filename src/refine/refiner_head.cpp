#include "refine/refiner_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>

namespace gapless {

// Reads the tensors into the forms that FloatOps wants. The first error stays, and what is read after it is empty.
class RefinerHead::Loader {
 public:
  explicit Loader(const WeightSource& source) : source_(source) {}

  const Status& status() const { return status_; }
  std::size_t num_values() const { return num_values_; }

  std::vector<float> values(const std::string& name) {
    std::vector<float> values(static_cast<std::size_t>(source_.num_elements(name)));
    num_values_ += values.size();
    if (status_.ok()) status_ = source_.read_as_f32(name, values);
    return values;
  }
  FloatProduct linear(const std::string& name) {
    return as_product(values(name + ".weight"), values(name + ".bias"));
  }
  FloatNorm norm(const std::string& name) {
    return {.gamma = values(name + ".weight"), .beta = values(name + ".bias")};
  }
  // [out, in, 3, 3] becomes [out, (tap, in)].
  FloatProduct convolution(const std::string& name) {
    FloatProduct product = linear(name);
    const int in = product.in / 9;
    const std::vector<float> stored = std::exchange(product.weight, {});
    product.weight.resize(stored.size());
    for (int out = 0; out < product.out; ++out) {
      for (int c = 0; c < in; ++c) {
        for (int tap = 0; tap < 9; ++tap) {
          product.weight[at(out, product.in, tap * in + c)] =
              stored[at(out, product.in, c * 9 + tap)];
        }
      }
    }
    return product;
  }
  // [in, out, 2, 2] becomes [(part, out), in]; the bias stays apart.
  FloatProduct transposed(const std::string& name, int out) {
    const std::vector<float> stored = values(name + ".weight");
    const int in = static_cast<int>(stored.size()) / (4 * out);
    FloatProduct product{.in = in, .out = 4 * out, .weight = std::vector<float>(stored.size())};
    for (int c = 0; c < in; ++c) {
      for (int o = 0; o < out; ++o) {
        for (int part = 0; part < 4; ++part) {
          product.weight[at(part * out + o, in, c)] = stored[at(c, 4 * out, o * 4 + part)];
        }
      }
    }
    return product;
  }
  FloatAttention attention(const std::string& name, int dim) {
    const std::vector<float> weight = values(name + ".in_proj_weight");
    const std::vector<float> bias = values(name + ".in_proj_bias");
    const auto third = [&](int i) {
      const auto part = [i](const std::vector<float>& all) {
        const std::ptrdiff_t size = std::ssize(all) / 3;
        return std::vector<float>(all.begin() + i * size, all.begin() + (i + 1) * size);
      };
      return FloatProduct{.in = dim, .out = dim, .weight = part(weight), .bias = part(bias)};
    };
    return {.q = third(0), .k = third(1), .v = third(2), .out = linear(name + ".out_proj")};
  }
  Rows rows(const std::string& name, int num_rows) {
    std::vector<float> all = values(name);
    return {num_rows, static_cast<int>(all.size()) / num_rows, std::move(all)};
  }

 private:
  static FloatProduct as_product(std::vector<float> weight, std::vector<float> bias) {
    const int out = static_cast<int>(bias.size());
    return {.in = static_cast<int>(weight.size()) / out,
            .out = out,
            .weight = std::move(weight),
            .bias = std::move(bias)};
  }
  static std::size_t at(int row, int width, int column) {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(width) +
           static_cast<std::size_t>(column);
  }

  const WeightSource& source_;
  Status status_;
  std::size_t num_values_ = 0;
};

StatusOr<std::unique_ptr<RefinerHead>> RefinerHead::load(FloatOps& ops,
                                                         const std::filesystem::path& file,
                                                         int encoder_dim, int grid) {
  GAPLESS_ASSIGN_OR_RETURN(const RefinerShape shape, refiner_shape_of(file, encoder_dim, grid));
  GAPLESS_ASSIGN_OR_RETURN(const WeightSource source,
                           WeightSource::open(file, refiner_tensors(shape)));
  std::unique_ptr<RefinerHead> head(new RefinerHead(ops, shape));
  Loader loader(source);
  const int dim = shape.dim;
  head->image_in_ = loader.linear("image_proj");
  head->early_in_ = loader.linear("hq_fusion.early_proj.0");
  head->early_norm_ = loader.norm("hq_fusion.early_proj.1");
  head->fuse_ = loader.linear("hq_fusion.fusion.0");
  head->fuse_norm_ = loader.norm("hq_fusion.fusion.1");
  head->fusion_ = {loader.convolution("hq_fusion.fusion.3"), loader.norm("hq_fusion.fusion.4")};
  for (std::size_t i = 0; i < 4; ++i) {
    const std::string name = fmt::format("mask_encoder.conv{}", i + 1);
    head->mask_encoder_[i] = {loader.convolution(name + ".0"), loader.norm(name + ".1")};
  }
  // [dim, patches] becomes [patches, dim].
  const Rows positions = loader.rows("image_pe", dim);
  head->image_positions_ = Rows::zeros(shape.num_patches(), dim);
  for (int patch = 0; patch < shape.num_patches(); ++patch) {
    for (int c = 0; c < dim; ++c) head->image_positions_.row(patch)[c] = positions.row(c)[patch];
  }
  head->tokens_ = loader.rows("mask_tokens", RefinerShape::kMasks);
  std::ranges::copy(loader.values("iou_token"), std::back_inserter(head->tokens_.values));
  head->tokens_.num_rows = RefinerShape::kTokens;
  head->token_positions_ = loader.rows("output_pe", RefinerShape::kTokens);
  for (std::size_t i = 0; i < head->blocks_.size(); ++i) {
    const std::string name = fmt::format("transformer_blocks.{}", i);
    Block& block = head->blocks_[i];
    block.self = loader.attention(name + ".output_self_attn", dim);
    block.token_to_image = loader.attention(name + ".cross_attn_token_to_image", dim);
    block.image_to_token = loader.attention(name + ".cross_attn_image_to_token", dim);
    block.mlp_in = loader.linear(name + ".mlp.0");
    block.mlp_out = loader.linear(name + ".mlp.2");
    for (std::size_t j = 0; j < 4; ++j) {
      block.norms[j] = loader.norm(fmt::format("{}.norm{}", name, j + 1));
    }
  }
  head->final_attention_ = loader.attention("final_token_to_image", dim);
  head->final_norm_ = loader.norm("final_norm");
  for (int i = 0; i < 3; ++i) {
    const auto name = [i](int part) { return fmt::format("upsample.{}", 6 * i + part); };
    Upsampling& step = head->upsampling_[static_cast<std::size_t>(i)];
    step.transposed_bias = loader.values(name(0) + ".bias");
    step.transposed = loader.transposed(name(0), static_cast<int>(step.transposed_bias.size()));
    step.transposed_norm = loader.norm(name(1) + ".norm");
    step.convolution = {loader.convolution(name(3)), loader.norm(name(4) + ".norm")};
  }
  head->fine_in_ = loader.linear("final_q_proj");
  head->fine_attention_ = loader.attention("final_attn_up", shape.fine_dim());
  head->fine_norm_ = loader.norm("final_norm_up");
  for (std::size_t mask = 0; mask < head->mask_mlps_.size(); ++mask) {
    for (std::size_t i = 0; i < 3; ++i) {
      head->mask_mlps_[mask][i] = loader.linear(fmt::format("mask_mlps.{}.{}", mask, 2 * i));
    }
  }
  for (std::size_t i = 0; i < 3; ++i) {
    head->quality_[i] = loader.linear(fmt::format("iou_head.{}", 2 * i));
  }
  GAPLESS_RETURN_IF_ERROR(loader.status());
  head->weight_bytes_ = loader.num_values() * sizeof(float);
  return head;
}

std::size_t RefinerHead::activation_bytes() const {
  // Of the fine picture: keys, values, the fours of a transposed convolution and what becomes of them.
  constexpr std::size_t kFinePictures = 8;
  const auto side = static_cast<std::size_t>(shape_.fine_grid());
  return kFinePictures * side * side * static_cast<std::size_t>(shape_.fine_dim()) * sizeof(float);
}

StatusOr<Rows> RefinerHead::picture_features(const Rows& early, const Rows& final) const {
  GAPLESS_ASSIGN_OR_RETURN(Rows of_early, ops_.linear(early, early_in_));
  GAPLESS_RETURN_IF_ERROR(ops_.layer_norm(of_early, early_norm_));
  gelu(of_early);
  GAPLESS_ASSIGN_OR_RETURN(const Rows of_final, ops_.linear(final, image_in_));
  Rows both = Rows::zeros(of_early.num_rows, 2 * shape_.dim);
  for (int i = 0; i < both.num_rows; ++i) {
    std::copy_n(of_early.row(i), shape_.dim, both.row(i));
    std::copy_n(of_final.row(i), shape_.dim, both.row(i) + shape_.dim);
  }
  GAPLESS_ASSIGN_OR_RETURN(Rows fused, ops_.linear(both, fuse_));
  group_norm(fused, kFusionGroups, fuse_norm_);
  gelu(fused);
  GAPLESS_ASSIGN_OR_RETURN(fused, ops_.convolution(fused, shape_.grid, 1, fusion_.product));
  group_norm(fused, kFusionGroups, fusion_.norm);
  gelu(fused);
  record("features", fused);
  return fused;
}

StatusOr<Rows> RefinerHead::encode_mask(const Rows& mask, int side) const {
  Rows x = mask;
  for (int i = 0; i < 4; ++i) {
    const Convolution& layer = mask_encoder_[static_cast<std::size_t>(i)];
    GAPLESS_ASSIGN_OR_RETURN(x, ops_.convolution(x, side, 2, layer.product));
    side = convolved_side(side, 2);
    group_norm(x, mask_encoder_groups(shape_, i), layer.norm);
    gelu(x);
  }
  return resize_bilinear(x, side, shape_.grid);
}

// Norms come after the sums. Positions are part of queries and keys, not of values.
Status RefinerHead::run_block(const Block& block, Rows& tokens, Rows& image) const {
  const auto add = [&](Rows& to, const Rows& branch, const FloatNorm& norm) -> Status {
    to = sum_of(to, branch);
    return ops_.layer_norm(to, norm);
  };
  Rows placed = sum_of(tokens, token_positions_);
  GAPLESS_ASSIGN_OR_RETURN(
      Rows branch, ops_.attention(block.self, RefinerShape::kHeads, placed, placed, tokens));
  GAPLESS_RETURN_IF_ERROR(add(tokens, branch, block.norms[0]));

  const Rows placed_image = sum_of(image, image_positions_);
  placed = sum_of(tokens, token_positions_);
  GAPLESS_ASSIGN_OR_RETURN(branch, ops_.attention(block.token_to_image, RefinerShape::kHeads,
                                                  placed, placed_image, image));
  GAPLESS_RETURN_IF_ERROR(add(tokens, branch, block.norms[1]));

  GAPLESS_ASSIGN_OR_RETURN(branch, ops_.linear(tokens, block.mlp_in));
  gelu(branch);
  GAPLESS_ASSIGN_OR_RETURN(branch, ops_.linear(branch, block.mlp_out));
  GAPLESS_RETURN_IF_ERROR(add(tokens, branch, block.norms[2]));

  placed = sum_of(tokens, token_positions_);
  GAPLESS_ASSIGN_OR_RETURN(branch, ops_.attention(block.image_to_token, RefinerShape::kHeads,
                                                  placed_image, placed, tokens));
  return add(image, branch, block.norms[3]);
}

StatusOr<Rows> RefinerHead::upsample(const Rows& image) const {
  Rows x = image;
  int side = shape_.grid;
  for (const Upsampling& step : upsampling_) {
    GAPLESS_ASSIGN_OR_RETURN(
        x, ops_.transposed_convolution(x, side, step.transposed, step.transposed_bias));
    side *= 2;
    GAPLESS_RETURN_IF_ERROR(ops_.layer_norm(x, step.transposed_norm));
    gelu(x);
    GAPLESS_ASSIGN_OR_RETURN(x, ops_.convolution(x, side, 1, step.convolution.product));
    GAPLESS_RETURN_IF_ERROR(ops_.layer_norm(x, step.convolution.norm));
    gelu(x);
  }
  return x;
}

StatusOr<Rows> RefinerHead::through(const Rows& x, std::span<const FloatProduct> layers) const {
  GAPLESS_ASSIGN_OR_RETURN(Rows y, ops_.linear(x, layers.front()));
  for (const FloatProduct& layer : layers.subspan(1)) {
    gelu(y);
    GAPLESS_ASSIGN_OR_RETURN(y, ops_.linear(y, layer));
  }
  return y;
}

StatusOr<Rows> RefinerHead::candidates(const Rows& tokens, const Rows& fine) const {
  Rows masks = tokens;  // without the last token
  masks.num_rows = RefinerShape::kMasks;
  masks.values.resize(static_cast<std::size_t>(masks.num_rows) *
                      static_cast<std::size_t>(masks.width));
  GAPLESS_ASSIGN_OR_RETURN(masks, ops_.linear(masks, fine_in_));
  Rows normed = masks;
  GAPLESS_RETURN_IF_ERROR(ops_.layer_norm(normed, fine_norm_));
  GAPLESS_ASSIGN_OR_RETURN(
      const Rows attended,
      ops_.attention(fine_attention_, RefinerShape::kFineHeads, normed, fine, fine));
  masks = sum_of(masks, attended);
  FloatProduct product{.in = shape_.fine_dim(), .out = RefinerShape::kMasks};
  for (int i = 0; i < RefinerShape::kMasks; ++i) {
    Rows one{1, masks.width, {masks.row(i), masks.row(i) + masks.width}};
    GAPLESS_ASSIGN_OR_RETURN(one, through(one, mask_mlps_[static_cast<std::size_t>(i)]));
    product.weight.insert(product.weight.end(), one.values.begin(), one.values.end());
  }
  return ops_.linear(fine, product);
}

StatusOr<Rows> RefinerHead::refine(const Rows& features, const Rows& mask, int side) const {
  GAPLESS_ASSIGN_OR_RETURN(const Rows mask_features, encode_mask(mask, side));
  record("mask", mask_features);
  Rows image = sum_of(features, mask_features), tokens = tokens_;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    GAPLESS_RETURN_IF_ERROR(run_block(blocks_[i], tokens, image));
    record(fmt::format("block.{}.tokens", i), tokens);
    record(fmt::format("block.{}.image", i), image);
  }
  GAPLESS_ASSIGN_OR_RETURN(
      const Rows branch,
      ops_.attention(final_attention_, RefinerShape::kHeads, sum_of(tokens, token_positions_),
                     sum_of(image, image_positions_), image));
  tokens = sum_of(tokens, branch);
  GAPLESS_RETURN_IF_ERROR(ops_.layer_norm(tokens, final_norm_));
  record("tokens", tokens);
  GAPLESS_ASSIGN_OR_RETURN(const Rows fine, upsample(image));
  record("fine", fine);
  GAPLESS_ASSIGN_OR_RETURN(const Rows all, candidates(tokens, fine));
  record("candidates", all);
  const float* const last = tokens.row(RefinerShape::kMasks);
  GAPLESS_ASSIGN_OR_RETURN(const Rows quality,
                           through({1, tokens.width, {last, last + tokens.width}}, quality_));
  record("quality", quality);
  const auto best = std::ranges::max_element(quality.values) - quality.values.begin();
  Rows chosen = Rows::zeros(all.num_rows, 1);
  for (int i = 0; i < all.num_rows; ++i) chosen.row(i)[0] = all.row(i)[best];
  return resize_bilinear(chosen, shape_.fine_grid(), side);
}

}  // namespace gapless
