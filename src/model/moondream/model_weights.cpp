#include "model/moondream/model_weights.h"

#include <fmt/format.h>

#include "model/moondream/tensors.h"
#include "model/prepared_weights.h"
#include "model/weight_format.h"

namespace gapless {
namespace {

VisionWeights find_vision(const TensorFinder& find, const VisionConfig& config) {
  VisionWeights vision;
  vision.patch_emb = find.linear("model.vision.patch_emb");
  vision.pos_emb = find.tensor("model.vision.pos_emb");
  for (int i = 0; i < config.enc_n_layers; ++i) {
    const std::string name = fmt::format("model.vision.blocks.{}", i);
    vision.blocks.push_back({.ln1 = find.layer_norm(name + ".ln1"),
                             .qkv = find.linear(name + ".attn.qkv"),
                             .proj = find.linear(name + ".attn.proj"),
                             .ln2 = find.layer_norm(name + ".ln2"),
                             .fc1 = find.linear(name + ".mlp.fc1"),
                             .fc2 = find.linear(name + ".mlp.fc2")});
  }
  vision.post_ln = find.layer_norm("model.vision.post_ln");
  return vision;
}

HeadScales find_tau(const TensorFinder& find, const std::string& name, const ModelConfig& config) {
  const TextConfig& text = config.text;
  return {.products = {.weight = find.tensor(name + ".wq"),  // wv's rows follow
                       .in = 3 * text.dim,
                       .out = 2 * text.n_heads},
          .alpha = find.tensor(name + ".alpha"),
          .activation = config.numerics.tau_gelu == TauGelu::kErf ? Activation::kGeluErf
                                                                  : Activation::kGeluTanh,
          .bf16_positions = config.numerics.tau_position == TauPosition::kBf16};
}

FeedForward find_experts(const TensorFinder& find, const std::string& name,
                         const TextConfig& text) {
  const MoeConfig& moe = text.moe;
  // Those of all experts, as one.
  LinearWeights up = find.linear(name + ".fc1"), down = find.linear(name + ".fc2");
  up.out = 2 * moe.expert_inner_dim;
  down.out = text.dim;
  return {.kind = FeedForwardKind::kExperts,
          .activation = Activation::kGeluErf,
          .up_offset = 1,
          .up = up,
          .down = down,
          .num_experts = moe.num_experts,
          .experts_per_token = moe.experts_per_token,
          .router = find.linear(name + ".router")};
}

TextWeights find_text(const TensorFinder& find, const ModelConfig& config) {
  const TextConfig& text_config = config.text;
  TextWeights text;
  text.wte = find.tensor("model.text.wte");
  for (int i = 0; i < text_config.n_layers; ++i) {
    const std::string name = fmt::format("model.text.blocks.{}", i);
    DecoderBlock block{.norm = find.layer_norm(name + ".ln"),
                       .qkv = find.linear(name + ".attn.qkv"),
                       .proj = find.linear(name + ".attn.proj")};
    if (text_config.tau_attn) block.head_scales = find_tau(find, name + ".attn.tau", config);
    if (text_config.has_experts(i)) {
      block.ff = find_experts(find, name + ".mlp", text_config);
    } else {
      block.ff = {.up = find.linear(name + ".mlp.fc1"), .down = find.linear(name + ".mlp.fc2")};
    }
    text.blocks.push_back(block);
  }
  text.post_ln = find.layer_norm("model.text.post_ln");
  text.lm_head = find.linear("model.text.lm_head");
  return text;
}

RegionDecoderWeights find_region_decoder(const TensorFinder& find, const ModelConfig& config) {
  const std::string coord = "model.region.coord_decoder", size = "model.region.size_decoder";
  RegionDecoderWeights decoder;
  if (config.region.linear_decoders) {
    decoder.coord_fc2 = find.linear(coord);
    decoder.size_fc2 = find.linear(size);
  } else {
    decoder.coord_fc1 = find.linear(coord + ".fc1");
    decoder.coord_fc2 = find.linear(coord + ".fc2");
    decoder.size_fc1 = find.linear(size + ".fc1");
    decoder.size_fc2 = find.linear(size + ".fc2");
  }
  const RegionInput input = config.numerics.region_input;
  if (!config.region.use_ln || input == RegionInput::kHidden) return decoder;
  if (input == RegionInput::kPostNorm) decoder.norms[0] = find.layer_norm("model.text.post_ln");
  decoder.norms[1] = find.layer_norm("model.region.ln");
  return decoder;
}

RegionWeights find_region(const TensorFinder& find, const ModelConfig& config) {
  return {.encoder = {.coord_encoder = find.linear("model.region.coord_encoder"),
                      .size_encoder = find.linear("model.region.size_encoder"),
                      .coord_features = find.tensor("model.region.coord_features"),
                      .size_features = find.tensor("model.region.size_features")},
          .decoder = find_region_decoder(find, config)};
}

// Which of a block's matrices a tensor is, as prepared_parts() lists them; none: kResident.
struct BlockMatrix {
  int block = TensorPlacement::kResident;
  int part = 0;
};

// Of the blocks with this prefix.
BlockMatrix matrix_of_block(const std::string& name, std::string_view blocks) {
  if (!name.starts_with(blocks)) return {};
  int part = 0;
  for (const std::string_view matrix :
       {".attn.qkv.weight", ".mlp.fc1.weight", ".attn.proj.weight", ".mlp.fc2.weight"}) {
    if (name.ends_with(matrix)) return {std::stoi(name.substr(blocks.size())), part};
    ++part;
  }
  return {};
}

constexpr std::string_view kTextBlocks = "model.text.blocks.";
constexpr std::string_view kVisionBlocks = "model.vision.blocks.";
constexpr std::string_view kProjector = "model.vision.proj_mlp.";

void find_all(const TensorFinder& find, const ModelConfig& config, ModelWeights& weights) {
  weights.vision = find_vision(find, config.vision);
  weights.projector = {.fc1 = find.linear("model.vision.proj_mlp.fc1"),
                       .fc2 = find.linear("model.vision.proj_mlp.fc2")};
  weights.text = find_text(find, config);
  weights.region = find_region(find, config);
}

}  // namespace

TensorLayout lay_out_weights(const ModelConfig& config, DType dtype) {
  return lay_out_tensors(weight_specs(config), dtype);
}

TextWeights describe_text_weights(const ModelConfig& config) {
  const TensorLayout layout = lay_out_weights(config, DType::kBF16);
  return find_text(TensorFinder(layout, nullptr), config);
}

bool may_share_rows(const ModelConfig& config) {
  for (int i = 0; i < config.text.n_layers; ++i) {
    if (config.text.has_experts(i)) return false;
  }
  return true;
}

int shared_group_of(const ModelConfig& config, PreparedFormat format, const std::string& name) {
  if (name == "model.text.lm_head.weight") return TensorPlacement::kInParts;
  const BlockMatrix text = matrix_of_block(name, kTextBlocks);
  if (text.block >= 0) return group_of_matrix(text.block, text.part);
  // In T they are read as they are stored, and a prepared copy would be as large.
  if (format == PreparedFormat::kNative) return TensorPlacement::kResident;
  const int first_vision = config.text.n_layers;
  const BlockMatrix vision = matrix_of_block(name, kVisionBlocks);
  if (vision.block >= 0) return group_of_matrix(first_vision + vision.block, vision.part);
  if (!name.starts_with(kProjector) || !name.ends_with(".weight")) {
    return TensorPlacement::kResident;
  }
  return group_of_matrix(first_vision + config.vision.enc_n_layers,
                         name.ends_with("fc1.weight") ? 0 : 1);
}

std::vector<LinearWeights*> other_prepared_matrices(PreparedFormat format, ModelWeights& weights) {
  if (format == PreparedFormat::kNative) return {};
  std::vector<LinearWeights*> matrices;
  for (VisionBlockWeights& block : weights.vision.blocks) {
    matrices.insert(matrices.end(), {&block.qkv, &block.fc1, &block.proj, &block.fc2});
  }
  matrices.insert(matrices.end(), {&weights.projector.fc1, &weights.projector.fc2});
  return matrices;
}

std::vector<LinearWeights*> region_matrices(ModelWeights& weights) {
  RegionDecoderWeights& heads = weights.region.decoder;
  std::vector<LinearWeights*> matrices = {&heads.coord_fc2, &heads.size_fc2};
  if (heads.coord_fc1.out > 0) {
    matrices.insert(matrices.end(), {&heads.coord_fc1, &heads.size_fc1});
  }
  return matrices;
}

int int8_group_of(const ModelConfig& config, const std::string& name) {
  const int head = config.text.n_layers, first_vision = head + 1;
  if (name == "model.text.lm_head.weight") return head;
  if (name.starts_with(kProjector) && name.ends_with(".weight")) {
    return first_vision + config.vision.enc_n_layers;
  }
  const int vision_block = matrix_of_block(name, kVisionBlocks).block;
  return vision_block == TensorPlacement::kResident ? matrix_of_block(name, kTextBlocks).block
                                                    : first_vision + vision_block;
}

StatusOr<ModelWeights> allocate_weights(Device& device, Stream& stream, const ModelConfig& config,
                                        DType dtype, const GroupOfTensor& group_of) {
  GAPLESS_CHECK(!group_of || may_share_rows(config));
  ModelWeights weights;
  weights.layout = lay_out_weights(config, dtype);
  if (group_of) weights.layout = share_memory(weights.layout, dtype, group_of);
  const std::size_t bytes = weights.layout.total_bytes;
  GAPLESS_ASSIGN_OR_RETURN(weights.buffer, device.allocate(bytes));
  GAPLESS_RETURN_IF_ERROR(stream.fill_bytes(weights.buffer.data(), 0, bytes));
  find_all(TensorFinder(weights.layout, weights.buffer.data()), config, weights);
  return weights;
}

StatusOr<VisionEncoderWeights> allocate_vision_weights(Device& device, Stream& stream,
                                                       const ModelConfig& config, DType dtype) {
  std::vector<WeightSpec> specs = weight_specs(config);
  std::erase_if(specs, [](const WeightSpec& spec) {
    return !spec.name.starts_with("model.vision.") ||
           spec.name.starts_with("model.vision.proj_mlp.");
  });
  VisionEncoderWeights weights;
  weights.layout = lay_out_tensors(specs, dtype);
  const std::size_t bytes = weights.layout.total_bytes;
  GAPLESS_ASSIGN_OR_RETURN(weights.buffer, device.allocate(bytes));
  GAPLESS_RETURN_IF_ERROR(stream.fill_bytes(weights.buffer.data(), 0, bytes));
  weights.vision = find_vision(TensorFinder(weights.layout, weights.buffer.data()), config.vision);
  return weights;
}

Int8Groups int8_groups(ModelWeights& weights) {
  Int8Groups groups = int8_groups(weights.text);
  for (VisionBlockWeights& block : weights.vision.blocks) {
    groups.push_back({&block.qkv, &block.proj, &block.fc1, &block.fc2});
  }
  groups.push_back({&weights.projector.fc1, &weights.projector.fc2});
  return groups;
}

Status make_fp8_products(Device& device, Kernels& kernels, Stream& stream,
                         const ModelConfig& config, ModelWeights& weights) {
  const Fp8Layout fp8 =
      lay_out_fp8(weights.layout, kernels.fp8_element_bytes(), kernels.multiplies_fp8_experts());
  GAPLESS_ASSIGN_OR_RETURN(weights.fp8, device.allocate(fp8.total_bytes));
  GAPLESS_RETURN_IF_ERROR(fill_fp8_copies(kernels, stream, weights.layout, weights.buffer.data(),
                                          fp8, weights.fp8.data()));
  TensorFinder find(weights.layout, weights.buffer.data());
  find.add_fp8(fp8, weights.fp8.data());
  find_all(find, config, weights);
  return ok_status();
}

}  // namespace gapless
