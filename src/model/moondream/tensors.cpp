#include "model/moondream/tensors.h"

#include <fmt/format.h>

#include "model/model_shape.h"

namespace gapless {
namespace {

// A product's shape, with its names, and what it is to the model.
struct Product {
  std::string name;
  std::string legacy;
  int out = 0;
  int in = 0;
  TensorRole role = TensorRole::kProduct;
  Fp8Use fp8 = Fp8Use::kNone;
  int num_layers = 0;  // kResidualProduct
};

// Collects the tensors of modules, each with its two names.
class SpecList {
 public:
  WeightSpec& tensor(const std::string& name, const std::string& legacy,
                     std::vector<std::int64_t> shape, TensorRole role) {
    specs_.push_back(
        {.name = "model." + name, .legacy_name = legacy, .shape = std::move(shape), .role = role});
    return specs_.back();
  }
  // On the device [padded_out, padded_in].
  void linear(const Product& product, int padded_out, int padded_in) {
    WeightSpec& weight = tensor(product.name + ".weight", product.legacy + ".weight",
                                {product.out, product.in}, product.role);
    weight.fp8 = product.fp8;
    weight.num_layers = product.num_layers;
    weight.padded_rows = padded_out;
    weight.padded_row_size = padded_in;
    tensor(product.name + ".bias", product.legacy + ".bias", {product.out}, TensorRole::kBias)
        .padded_row_size = padded_out;
  }
  void linear(const Product& product) {
    linear(product, pad_row(product.out), pad_row(product.in));
  }
  // For outputs whose width is given from outside: only the inputs are padded.
  void linear_exact_out(const Product& product) {
    linear(product, product.out, pad_row(product.in));
  }
  void layer_norm(const std::string& name, const std::string& legacy, std::int64_t dim) {
    tensor(name + ".weight", legacy + ".weight", {dim}, TensorRole::kNormGain);
    tensor(name + ".bias", legacy + ".bias", {dim}, TensorRole::kBias);
  }
  // The products of a transformer's block, of a stack of num_layers: two here, two in mlp().
  void attention(const std::string& name, const std::string& old_qkv, const std::string& old_proj,
                 int dim, int num_layers) {
    linear({name + ".attn.qkv", old_qkv, 3 * dim, dim, TensorRole::kProduct, Fp8Use::kMultiplied});
    linear({name + ".attn.proj", old_proj, dim, dim, TensorRole::kResidualProduct, Fp8Use::kRounded,
            num_layers});
  }
  void mlp(const std::string& name, const std::string& old, int dim, int inner, int num_layers) {
    linear({name + ".mlp.fc1", old + ".mlp.fc1", inner, dim, TensorRole::kProduct,
            Fp8Use::kMultiplied},
           pad_inner(inner), pad_row(dim));
    linear({name + ".mlp.fc2", old + ".mlp.fc2", dim, inner, TensorRole::kResidualProduct,
            Fp8Use::kMultiplied, num_layers},
           pad_row(dim), pad_inner(inner));
  }
  // The router, and for each expert two products without biases: 2 * inner rows, the gate's first, and back.
  void experts(const std::string& name, const std::string& old, const TextConfig& text) {
    const MoeConfig& moe = text.moe;
    linear_exact_out(
        {name + ".mlp.router", old + ".gate", moe.num_experts, text.dim, TensorRole::kLogits});
    WeightSpec& up =
        tensor(name + ".mlp.fc1.weight", old + ".mlp.experts.weight",
               {moe.num_experts, 2 * moe.expert_inner_dim, text.dim}, TensorRole::kProduct);
    up.fp8 = Fp8Use::kMultipliedAsExperts;
    up.legacy_row_scales = old + ".moe_quant.up_scale";
    WeightSpec& down =
        tensor(name + ".mlp.fc2.weight", old + ".mlp.output_experts.weight",
               {moe.num_experts, text.dim, moe.expert_inner_dim}, TensorRole::kResidualProduct);
    down.fp8 = Fp8Use::kMultipliedAsExperts;
    down.num_layers = text.n_layers;
    down.legacy_row_scales = old + ".moe_quant.down_scale";
  }
  // wq's rows, then wv's; the older naming may have them as one tensor.
  void tau(const std::string& name, const std::string& old, const TextConfig& text) {
    const int heads = text.n_heads, qkv = 3 * text.dim;
    for (const bool is_v : {false, true}) {
      WeightSpec& part =
          tensor(name + (is_v ? ".attn.tau.wv" : ".attn.tau.wq"),
                 old + (is_v ? ".tau_wv" : ".tau_wq"), {heads, qkv}, TensorRole::kProduct);
      part.joins_previous = is_v;
      part.legacy_whole = old + ".tau_wqwv";
      part.legacy_whole_rows = 2 * heads;
      part.legacy_first_row = is_v ? heads : 0;
    }
    tensor(name + ".attn.tau.alpha", old + ".tau_alpha", {heads}, TensorRole::kPositionSlope);
  }
  std::vector<WeightSpec> take() { return std::move(specs_); }

 private:
  std::vector<WeightSpec> specs_;
};

void add_vision(const VisionConfig& vision, SpecList& list) {
  const std::string legacy = "vision_encoder.encoder.model.visual";
  const int dim = vision.enc_dim;
  list.linear({"vision.patch_emb", legacy + ".patch_embed.linear", dim, vision.patch_values()});
  list.tensor("vision.pos_emb", legacy + ".pos_embed", {1, vision.num_image_tokens(), dim},
              TensorRole::kPositionEmbedding);
  for (int i = 0; i < vision.enc_n_layers; ++i) {
    const std::string name = fmt::format("vision.blocks.{}", i);
    const std::string old = fmt::format("{}.blocks.{}", legacy, i);
    list.layer_norm(name + ".ln1", old + ".norm1", dim);
    list.layer_norm(name + ".ln2", old + ".norm2", dim);
    list.attention(name, old + ".attn.qkv", old + ".attn.proj", dim, vision.enc_n_layers);
    list.mlp(name, old, dim, vision.enc_ff_dim, vision.enc_n_layers);
  }
  list.layer_norm("vision.post_ln", legacy + ".norm", dim);
  const std::string projection = "vision_encoder.projection.mlp";
  list.linear({"vision.proj_mlp.fc1", projection + ".fc1", vision.proj_inner_dim, 2 * dim,
               TensorRole::kProduct, Fp8Use::kRounded});
  list.linear({"vision.proj_mlp.fc2", projection + ".fc2", vision.proj_out_dim,
               vision.proj_inner_dim, TensorRole::kProduct, Fp8Use::kRounded});
}

void add_text(const TextConfig& text, SpecList& list) {
  const int dim = text.dim;
  list.tensor("text.wte", "text_model.transformer.embd.wte.weight", {text.vocab_size, dim},
              TensorRole::kTokenEmbedding);
  for (int i = 0; i < text.n_layers; ++i) {
    const std::string name = fmt::format("text.blocks.{}", i);
    const std::string old = fmt::format("text_model.transformer.h.{}", i);
    list.layer_norm(name + ".ln", old + ".ln", dim);
    list.attention(name, old + ".mixer.Wqkv", old + ".mixer.out_proj", dim, text.n_layers);
    if (text.tau_attn) list.tau(name, old, text);
    if (text.has_experts(i)) {
      list.experts(name, old, text);
    } else {
      list.mlp(name, old, dim, text.ff_dim, text.n_layers);
    }
  }
  list.layer_norm("text.post_ln", "text_model.lm_head.ln", dim);
  list.linear_exact_out({"text.lm_head", "text_model.lm_head.linear", text.vocab_size, dim,
                         TensorRole::kLogits, Fp8Use::kRounded});
}

void add_region(const RegionConfig& region, SpecList& list) {
  const auto encoder = [&](const std::string& name, const std::string& old, int features) {
    list.linear({"region." + name, "region_model." + old, region.dim, features});
  };
  const auto decoder = [&](const std::string& what, const std::string& old_what, int num_bins) {
    const std::string name = "region." + what + "_decoder", old = "region_model." + old_what;
    if (region.linear_decoders) {
      list.linear_exact_out({name, old + "_head", num_bins, region.dim, TensorRole::kLogits});
      return;
    }
    list.linear({name + ".fc1", old + "_decoder.fc1", region.inner_dim, region.dim});
    list.linear_exact_out(
        {name + ".fc2", old + "_decoder.fc2", num_bins, region.inner_dim, TensorRole::kLogits});
  };
  const auto features = [&](const std::string& name, const std::string& old, int rows,
                            int columns) {
    list.tensor("region." + name, "region_model." + old + ".weight", {rows, columns},
                TensorRole::kFrequencies)
        .legacy_transposed = true;
  };
  encoder("coord_encoder", "coordinate_encoder", region.coord_feat_dim);
  decoder("coord", "coordinate", region.coord_out_dim);
  encoder("size_encoder", "size_encoder", region.size_feat_dim);
  decoder("size", "size", region.size_out_dim);
  if (region.use_ln) list.layer_norm("region.ln", "region_model.ln", region.dim);
  features("coord_features", "coordinate_features", 1, region.coord_feat_dim / 2);
  features("size_features", "size_features", 2, region.size_feat_dim / 2);
}

}  // namespace

std::vector<WeightSpec> weight_specs(const ModelConfig& config) {
  SpecList list;
  add_vision(config.vision, list);
  add_text(config.text, list);
  add_region(config.region, list);
  return list.take();
}

}  // namespace gapless
