#include "model/llama/tensors.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "model/model_shape.h"
#include "model/prepared_weights.h"

namespace gapless {
namespace {

class LlamaSpecList {
 public:
  explicit LlamaSpecList(const LlamaConfig& config) : config_(config) {}

  void tensor(const std::string& name, std::vector<std::int64_t> shape, TensorRole role) {
    specs_.push_back({.name = "model." + name, .shape = std::move(shape), .role = role});
  }

  struct Part {
    std::string name;
    int out = 0;
    int padded_out = 0;
  };
  // Products of the same input, one matrix on the device; then their biases.
  void products(const std::vector<Part>& parts, int in, int padded_in, TensorRole role, bool bias) {
    for (const Part& part : parts) {
      tensor(part.name + ".weight", {part.out, in}, role);
      WeightSpec& spec = specs_.back();
      spec.fp8 = Fp8Use::kRounded;
      spec.num_layers = config_.num_layers;
      spec.padded_rows = part.padded_out;
      spec.padded_row_size = padded_in;
      spec.joins_previous = &part != parts.data();
    }
    if (!bias) return;
    for (const Part& part : parts) {
      tensor(part.name + ".bias", {part.out}, TensorRole::kBias);
      specs_.back().padded_row_size = part.padded_out;
      specs_.back().joins_previous = &part != parts.data();
    }
  }

  void layer(const std::string& name) {
    const LlamaConfig& c = config_;
    const int dim = c.hidden_size, q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim;
    const int inner = c.intermediate_size, padded = pad_inner(inner);
    tensor(name + ".input_layernorm.weight", {dim}, TensorRole::kNormGain);
    products({{name + ".self_attn.q_proj", q, q},
              {name + ".self_attn.k_proj", kv, kv},
              {name + ".self_attn.v_proj", kv, kv}},
             dim, dim, TensorRole::kProduct, c.attention_bias);
    if (c.qk_norm) {
      tensor(name + ".self_attn.q_norm.weight", {c.head_dim}, TensorRole::kNormGain);
      tensor(name + ".self_attn.k_norm.weight", {c.head_dim}, TensorRole::kNormGain);
    }
    products({{name + ".self_attn.o_proj", dim, dim}}, q, q, TensorRole::kResidualProduct,
             c.attention_bias);
    tensor(name + ".post_attention_layernorm.weight", {dim}, TensorRole::kNormGain);
    products({{name + ".mlp.gate_proj", inner, padded}, {name + ".mlp.up_proj", inner, padded}},
             dim, dim, TensorRole::kProduct, c.mlp_bias);
    products({{name + ".mlp.down_proj", dim, dim}}, inner, padded, TensorRole::kResidualProduct,
             c.mlp_bias);
  }

  std::vector<WeightSpec> all() {
    const LlamaConfig& c = config_;
    // Tied: random logits must compete, and the norm of the first block takes embeddings of any size.
    tensor("embed_tokens.weight", {c.vocab_size, c.hidden_size},
           c.tied_embeddings ? TensorRole::kLogits : TensorRole::kTokenEmbedding);
    if (c.tied_embeddings) {
      specs_.back().fp8 = Fp8Use::kRounded;
      specs_.back().stored_again_as = "lm_head.weight";
    }
    for (int i = 0; i < c.num_layers; ++i) layer(fmt::format("layers.{}", i));
    tensor("norm.weight", {c.hidden_size}, TensorRole::kNormGain);
    if (!c.tied_embeddings) {
      specs_.push_back({.name = "lm_head.weight",
                        .shape = {c.vocab_size, c.hidden_size},
                        .role = TensorRole::kLogits,
                        .fp8 = Fp8Use::kRounded});
    }
    return std::move(specs_);
  }

 private:
  const LlamaConfig& config_;
  std::vector<WeightSpec> specs_;
};

}  // namespace

std::vector<WeightSpec> weight_specs(const LlamaConfig& config) {
  return LlamaSpecList(config).all();
}

TextWeights find_text_weights(const TensorFinder& find, const LlamaConfig& config) {
  TextWeights text;
  text.wte = find.tensor("model.embed_tokens.weight");
  for (int i = 0; i < config.num_layers; ++i) {
    const std::string name = fmt::format("model.layers.{}", i);
    const std::string attn = name + ".self_attn", mlp = name + ".mlp";
    DecoderBlock block{
        .residual = Residual::kSequential,
        .norm = find.rms_norm(name + ".input_layernorm", config.norm_eps),
        .ff_norm = find.rms_norm(name + ".post_attention_layernorm", config.norm_eps),
        .qkv = find.joined({attn + ".q_proj", attn + ".k_proj", attn + ".v_proj"}),
        .proj = find.linear(attn + ".o_proj"),
        .ff = {.kind = FeedForwardKind::kGated,
               .activation = Activation::kSilu,
               .up = find.joined({mlp + ".gate_proj", mlp + ".up_proj"}),
               .down = find.linear(mlp + ".down_proj")}};
    if (config.qk_norm) {
      block.q_norm = find.rms_norm(attn + ".q_norm", config.norm_eps);
      block.k_norm = find.rms_norm(attn + ".k_norm", config.norm_eps);
    }
    text.blocks.push_back(block);
  }
  text.post_ln = find.rms_norm("model.norm", config.norm_eps);
  text.lm_head = find.linear(config.tied_embeddings ? "model.embed_tokens" : "lm_head");
  return text;
}

int llama_group_of(const std::string& name) {
  // Of a model with tied embeddings there is no such tensor: embeddings are read by row.
  if (name == "lm_head.weight") return TensorPlacement::kInParts;
  constexpr std::string_view kBlocks = "model.layers.";
  if (!name.starts_with(kBlocks)) return TensorPlacement::kResident;
  // As prepared_parts() lists the products that they make.
  constexpr std::pair<std::string_view, int> kParts[] = {
      {".q_proj.weight", 0},    {".k_proj.weight", 0},  {".v_proj.weight", 0},
      {".gate_proj.weight", 1}, {".up_proj.weight", 1}, {".o_proj.weight", 2},
      {".down_proj.weight", 3}};
  for (const auto& [matrix, part] : kParts) {
    if (name.ends_with(matrix)) {
      return group_of_matrix(std::stoi(name.substr(kBlocks.size())), part);
    }
  }
  return TensorPlacement::kResident;
}

StatusOr<DecoderWeights> allocate_weights(Device& device, Stream& stream, const LlamaConfig& config,
                                          DType dtype, const GroupOfTensor& group_of) {
  DecoderWeights weights;
  weights.layout = lay_out_tensors(weight_specs(config), dtype);
  if (group_of) weights.layout = share_memory(weights.layout, dtype, group_of);
  const std::size_t bytes = weights.layout.total_bytes;
  GAPLESS_ASSIGN_OR_RETURN(weights.buffer, device.allocate(bytes));
  GAPLESS_RETURN_IF_ERROR(stream.fill_bytes(weights.buffer.data(), 0, bytes));
  weights.text = find_text_weights(TensorFinder(weights.layout, weights.buffer.data()), config);
  return weights;
}

TextWeights describe_text_weights(const LlamaConfig& config) {
  const TensorLayout layout = lay_out_tensors(weight_specs(config), DType::kBF16);
  return find_text_weights(TensorFinder(layout, nullptr), config);
}

}  // namespace gapless
