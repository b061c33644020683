#include "weights/weight_map.h"

#include <fmt/format.h>

#include <array>

namespace gapless {
namespace {

// Collects the tensors of modules, each with its two names.
class SpecList {
 public:
  void tensor(const std::string& name, const std::string& legacy, std::vector<std::int64_t> shape,
              bool legacy_transposed = false) {
    specs_.push_back({"model." + name, legacy, std::move(shape), legacy_transposed});
  }
  void linear(const std::string& name, const std::string& legacy, std::int64_t out,
              std::int64_t in) {
    tensor(name + ".weight", legacy + ".weight", {out, in});
    tensor(name + ".bias", legacy + ".bias", {out});
  }
  void layer_norm(const std::string& name, const std::string& legacy, std::int64_t dim) {
    tensor(name + ".weight", legacy + ".weight", {dim});
    tensor(name + ".bias", legacy + ".bias", {dim});
  }
  // fc1: in -> inner; fc2: inner -> out.
  void mlp(const std::string& name, const std::string& legacy, std::int64_t in, std::int64_t inner,
           std::int64_t out) {
    linear(name + ".fc1", legacy + ".fc1", inner, in);
    linear(name + ".fc2", legacy + ".fc2", out, inner);
  }
  std::vector<WeightSpec> take() { return std::move(specs_); }

 private:
  std::vector<WeightSpec> specs_;
};

void add_vision(const VisionConfig& vision, SpecList& list) {
  const std::string legacy = "vision_encoder.encoder.model.visual";
  const std::int64_t dim = vision.enc_dim;
  list.linear("vision.patch_emb", legacy + ".patch_embed.linear", dim, vision.patch_values());
  list.tensor("vision.pos_emb", legacy + ".pos_embed", {1, vision.num_image_tokens(), dim});
  for (int i = 0; i < vision.enc_n_layers; ++i) {
    const std::string name = fmt::format("vision.blocks.{}", i);
    const std::string old = fmt::format("{}.blocks.{}", legacy, i);
    list.layer_norm(name + ".ln1", old + ".norm1", dim);
    list.layer_norm(name + ".ln2", old + ".norm2", dim);
    list.linear(name + ".attn.qkv", old + ".attn.qkv", 3 * dim, dim);
    list.linear(name + ".attn.proj", old + ".attn.proj", dim, dim);
    list.mlp(name + ".mlp", old + ".mlp", dim, vision.enc_ff_dim, dim);
  }
  list.layer_norm("vision.post_ln", legacy + ".norm", dim);
  list.mlp("vision.proj_mlp", "vision_encoder.projection.mlp", 2 * dim, vision.proj_inner_dim,
           vision.proj_out_dim);
}

void add_text(const TextConfig& text, SpecList& list) {
  const std::int64_t dim = text.dim;
  list.tensor("text.wte", "text_model.transformer.embd.wte.weight", {text.vocab_size, dim});
  for (int i = 0; i < text.n_layers; ++i) {
    const std::string name = fmt::format("text.blocks.{}", i);
    const std::string old = fmt::format("text_model.transformer.h.{}", i);
    list.layer_norm(name + ".ln", old + ".ln", dim);
    list.linear(name + ".attn.qkv", old + ".mixer.Wqkv", 3 * dim, dim);
    list.linear(name + ".attn.proj", old + ".mixer.out_proj", dim, dim);
    list.mlp(name + ".mlp", old + ".mlp", dim, text.ff_dim, dim);
  }
  list.layer_norm("text.post_ln", "text_model.lm_head.ln", dim);
  list.linear("text.lm_head", "text_model.lm_head.linear", text.vocab_size, dim);
}

void add_region(const RegionConfig& region, SpecList& list) {
  const std::string legacy = "region_model";
  list.linear("region.coord_encoder", legacy + ".coordinate_encoder", region.dim,
              region.coord_feat_dim);
  list.mlp("region.coord_decoder", legacy + ".coordinate_decoder", region.dim, region.inner_dim,
           region.coord_out_dim);
  list.linear("region.size_encoder", legacy + ".size_encoder", region.dim, region.size_feat_dim);
  list.mlp("region.size_decoder", legacy + ".size_decoder", region.dim, region.inner_dim,
           region.size_out_dim);
  list.tensor("region.coord_features", legacy + ".coordinate_features.weight",
              {1, region.coord_feat_dim / 2}, /*legacy_transposed=*/true);
  list.tensor("region.size_features", legacy + ".size_features.weight",
              {2, region.size_feat_dim / 2}, /*legacy_transposed=*/true);
}

}  // namespace

std::int64_t WeightSpec::num_elements() const {
  std::int64_t product = 1;
  for (const std::int64_t side : shape) product *= side;
  return product;
}

std::vector<WeightSpec> weight_specs(const ModelConfig& config) {
  SpecList list;
  add_vision(config.vision, list);
  add_text(config.text, list);
  add_region(config.region, list);
  return list.take();
}

}  // namespace gapless
