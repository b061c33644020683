#include "model/model_weights.h"

#include <fmt/format.h>

#include "model/bump_layout.h"
#include "model/model_shape.h"

namespace gapless {
namespace {

// Places tensors one after the other and remembers each one's published name.
class Placer {
 public:
  Placer(void* base, DType dtype) : layout_(base), element_bytes_(dtype_bytes(dtype)) {}

  // Room for padded_rows x row_stride elements, of which num_rows x row_size are published.
  const void* matrix(std::string name, std::int64_t num_rows, std::int64_t row_size,
                     std::int64_t padded_rows, std::int64_t row_stride) {
    TensorPlacement tensor{.name = std::move(name),
                           .num_rows = num_rows,
                           .row_size = row_size,
                           .row_stride = row_stride,
                           .offset_bytes = layout_.mark()};
    tensors_.push_back(std::move(tensor));
    return layout_.take(static_cast<std::size_t>(padded_rows * row_stride) * element_bytes_);
  }
  const void* matrix(std::string name, std::int64_t num_rows, std::int64_t row_size) {
    return matrix(std::move(name), num_rows, row_size, num_rows, row_size);
  }
  const void* vector(std::string name, std::int64_t size, std::int64_t padded_size) {
    return matrix(std::move(name), 1, size, 1, padded_size);
  }

  LinearWeights linear(const std::string& name, int out, int in) {
    return linear_padded(name, out, in, pad_row(out), pad_row(in));
  }
  // The two matrices around an MLP's inner width.
  LinearWeights linear_into_mlp(const std::string& name, int inner, int in) {
    return linear_padded(name, inner, in, pad_inner(inner), pad_row(in));
  }
  LinearWeights linear_out_of_mlp(const std::string& name, int out, int inner) {
    return linear_padded(name, out, inner, pad_row(out), pad_inner(inner));
  }
  LinearWeights linear_padded(const std::string& name, int out, int in, int padded_out,
                              int padded_in) {
    LinearWeights weights{.in = padded_in, .out = padded_out};
    weights.weight = matrix(name + ".weight", out, in, weights.out, weights.in);
    weights.bias = vector(name + ".bias", out, weights.out);
    return weights;
  }
  // For outputs whose width is given from outside (logits): only the inner dimension is padded.
  LinearWeights linear_exact_out(const std::string& name, int out, int in) {
    LinearWeights weights{.in = pad_row(in), .out = out};
    weights.weight = matrix(name + ".weight", out, in, out, weights.in);
    weights.bias = vector(name + ".bias", out, out);
    return weights;
  }
  NormWeights layer_norm(const std::string& name, int dim) {
    return {.gamma = vector(name + ".weight", dim, dim), .beta = vector(name + ".bias", dim, dim)};
  }

  std::vector<TensorPlacement> take_tensors() { return std::move(tensors_); }
  std::size_t total_bytes() const { return layout_.peak_bytes(); }

 private:
  BumpLayout layout_;
  std::size_t element_bytes_;
  std::vector<TensorPlacement> tensors_;
};

VisionWeights place_vision(Placer& placer, const ModelConfig& config) {
  const VisionShape shape = vision_shape(config);
  const int e = shape.dim;
  const int ff = config.vision.enc_ff_dim;
  VisionWeights vision;
  vision.patch_emb = placer.linear("model.vision.patch_emb", e, config.vision.patch_values());
  vision.pos_emb = placer.matrix("model.vision.pos_emb", shape.patches_per_crop, e);
  for (int i = 0; i < shape.num_layers; ++i) {
    const std::string name = fmt::format("model.vision.blocks.{}", i);
    VisionBlockWeights block;
    block.ln1 = placer.layer_norm(name + ".ln1", e);
    block.qkv = placer.linear(name + ".attn.qkv", 3 * e, e);
    block.proj = placer.linear(name + ".attn.proj", e, e);
    block.ln2 = placer.layer_norm(name + ".ln2", e);
    block.fc1 = placer.linear_into_mlp(name + ".mlp.fc1", ff, e);
    block.fc2 = placer.linear_out_of_mlp(name + ".mlp.fc2", e, ff);
    vision.blocks.push_back(block);
  }
  vision.post_ln = placer.layer_norm("model.vision.post_ln", e);
  return vision;
}

TextWeights place_text(Placer& placer, const ModelConfig& config) {
  const auto& shape = config.text;
  const int d = shape.dim;
  TextWeights text;
  text.wte = placer.matrix("model.text.wte", shape.vocab_size, d);
  for (int i = 0; i < shape.n_layers; ++i) {
    const std::string name = fmt::format("model.text.blocks.{}", i);
    DecoderBlock block;
    block.norm = placer.layer_norm(name + ".ln", d);
    block.qkv = placer.linear(name + ".attn.qkv", 3 * d, d);
    block.proj = placer.linear(name + ".attn.proj", d, d);
    block.ff.up = placer.linear_into_mlp(name + ".mlp.fc1", shape.ff_dim, d);
    block.ff.down = placer.linear_out_of_mlp(name + ".mlp.fc2", d, shape.ff_dim);
    text.blocks.push_back(block);
  }
  text.post_ln = placer.layer_norm("model.text.post_ln", d);
  text.lm_head = placer.linear_exact_out("model.text.lm_head", shape.vocab_size, d);
  return text;
}

RegionWeights place_region(Placer& placer, const ModelConfig& config) {
  const auto& shape = config.region;
  RegionWeights region;
  RegionEncoderWeights& encoder = region.encoder;
  RegionDecoderWeights& decoder = region.decoder;
  encoder.coord_encoder =
      placer.linear("model.region.coord_encoder", shape.dim, shape.coord_feat_dim);
  decoder.coord_fc1 = placer.linear("model.region.coord_decoder.fc1", shape.inner_dim, shape.dim);
  decoder.coord_fc2 = placer.linear_exact_out("model.region.coord_decoder.fc2", shape.coord_out_dim,
                                              shape.inner_dim);
  encoder.size_encoder = placer.linear("model.region.size_encoder", shape.dim, shape.size_feat_dim);
  decoder.size_fc1 = placer.linear("model.region.size_decoder.fc1", shape.inner_dim, shape.dim);
  decoder.size_fc2 =
      placer.linear_exact_out("model.region.size_decoder.fc2", shape.size_out_dim, shape.inner_dim);
  encoder.coord_features =
      placer.matrix("model.region.coord_features", 1, shape.coord_feat_dim / 2);
  encoder.size_features = placer.matrix("model.region.size_features", 2, shape.size_feat_dim / 2);
  return region;
}

void place_all(Placer& placer, const ModelConfig& config, ModelWeights& weights) {
  weights.vision = place_vision(placer, config);
  const int e = config.vision.enc_dim;
  const int inner = config.vision.proj_inner_dim;
  weights.projector.fc1 = placer.linear("model.vision.proj_mlp.fc1", inner, 2 * e);
  weights.projector.fc2 =
      placer.linear("model.vision.proj_mlp.fc2", config.vision.proj_out_dim, inner);
  weights.text = place_text(placer, config);
  weights.region = place_region(placer, config);
}

}  // namespace

WeightLayout lay_out_weights(const ModelConfig& config, DType dtype) {
  Placer placer(nullptr, dtype);
  ModelWeights weights;
  place_all(placer, config, weights);
  return {.tensors = placer.take_tensors(),
          .total_bytes = placer.total_bytes(),
          .text = std::move(weights.text)};
}

StatusOr<ModelWeights> allocate_weights(Device& device, Stream& stream, const ModelConfig& config,
                                        DType dtype) {
  const WeightLayout layout = lay_out_weights(config, dtype);
  ModelWeights weights;
  GAPLESS_ASSIGN_OR_RETURN(weights.buffer, device.allocate(layout.total_bytes));
  GAPLESS_RETURN_IF_ERROR(stream.fill_bytes(weights.buffer.data(), 0, layout.total_bytes));
  Placer placer(weights.buffer.data(), dtype);
  place_all(placer, config, weights);
  return weights;
}

}  // namespace gapless
