#include "model/moondream/vision_language_model.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "constraint/reasoning_automaton.h"
#include "constraint/segment_automaton.h"
#include "constraint/spatial_automaton.h"
#include "image/normalize.h"
#include "kernels/coordinate_bin.h"
#include "model/rope_table.h"
#include "model/staged_upload.h"

namespace gapless {
namespace {

std::span<const std::byte> pixel_table(DType dtype) {
  if (dtype == DType::kF32) return bytes_of(kPixelTableF32);
  return bytes_of(kPixelTableBf16);
}

// Those of every skill, as they lie in the pool.
std::vector<AutomatonState> skill_automata(const TokenizerConfig& tokens) {
  const SpatialTokens spatial_tokens{.coord_id = tokens.coord_id.value,
                                     .size_id = tokens.size_id.value,
                                     .eos_id = tokens.eos_id.value,
                                     .any_token_is_coord = tokens.any_token_is_coord};
  const auto spatial = build_spatial_automata(spatial_tokens);
  std::vector<AutomatonState> states(spatial.begin(), spatial.end());
  for (const AutomatonState& state : build_segment_automaton(spatial_tokens)) {
    states.push_back(state);
  }
  if (tokens.query_reasoning.empty()) return states;
  ReasoningTokens reasoning{.answer_id = tokens.answer_id.value,
                            .denied = {},
                            .num_fed_again = tokens.num_answer_ids_fed_again};
  for (const TokenId id : tokens.reasoning_denied) reasoning.denied.push_back(id.value);
  for (const AutomatonState& state : build_reasoning_automaton(reasoning)) states.push_back(state);
  return states;
}

}  // namespace

VisionLanguageModel::VisionLanguageModel(Device& device, Kernels& kernels,
                                         const ModelConfig& config, ModelWeights weights,
                                         const StepLimits& limits, KvFormat kv_format)
    : DecoderModel(device, kernels, model_shape(config), limits, kv_format),
      config_(config),
      weights_(std::move(weights)) {
  const auto crop_size = static_cast<std::size_t>(config.vision.crop_size);
  info_.crop_bytes = crop_size * crop_size * 3;
  region_encoder_ = weights_.region.encoder;
  coord_id_ = config.tokenizer.coord_id.value;
  size_id_ = config.tokenizer.size_id.value;
}

StatusOr<std::unique_ptr<VisionLanguageModel>> VisionLanguageModel::create(
    Device& device, Kernels& kernels, const ModelConfig& config, ModelWeights weights,
    const StepLimits& limits, KvFormat kv_format, std::span<const std::uint8_t> token_classes) {
  GAPLESS_RETURN_IF_ERROR(check_model_shape(config));
  std::unique_ptr<VisionLanguageModel> model(
      new VisionLanguageModel(device, kernels, config, std::move(weights), limits, kv_format));
  GAPLESS_RETURN_IF_ERROR(model->start(token_classes));
  return model;
}

Status VisionLanguageModel::start(std::span<const std::uint8_t> token_classes) {
  GAPLESS_RETURN_IF_ERROR(prepare(
      make_rope_table(shape_.text.max_context, shape_.text.rotary_dim, config_.text.rope_theta),
      skill_automata(config_.tokenizer), token_classes));
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device_.create_stream("start-up"));
  GAPLESS_RETURN_IF_ERROR(upload_pixel_table(*stream));
  GAPLESS_RETURN_IF_ERROR(make_coord_table(*stream));
  build_parts();
  log_decode_path();
  GAPLESS_RETURN_IF_ERROR(tune(*stream));
  return stream->synchronize();
}

Status VisionLanguageModel::tune(Stream& stream) {
  GAPLESS_RETURN_IF_ERROR(vision_encoder_->tune(stream, limits_.max_crops_per_encode));
  GAPLESS_RETURN_IF_ERROR(projector_->tune(stream));
  return DecoderModel::tune(stream);
}

Status VisionLanguageModel::upload_pixel_table(Stream& stream) {
  const std::span<const std::byte> pixels = pixel_table(context_.dtype);
  GAPLESS_ASSIGN_OR_RETURN(pixel_table_, device_.allocate(pixels.size()));
  GAPLESS_ASSIGN_OR_RETURN(StagedUpload upload,
                           StagedUpload::create(device_, stream, pixels.size()));
  GAPLESS_RETURN_IF_ERROR(upload.copy(pixel_table_.data(), pixels));
  return upload.finish();
}

// By the op that will read it, so its rows are the bits that the encoder would give.
Status VisionLanguageModel::make_coord_table(Stream& stream) {
  const int num_bins = config_.region.coord_out_dim, dim = shape_.text.dim;
  std::vector<TokenInput> bins;
  for (int bin = 0; bin < num_bins; ++bin) {
    bins.push_back({.kind = InputKind::kCoord,
                    .id = coord_id_,
                    .x = coordinate_of_bin(bin, num_bins, coord_divisor())});
  }
  GAPLESS_ASSIGN_OR_RETURN(const Buffer inputs, device_.allocate(bytes_of(bins).size()));
  GAPLESS_ASSIGN_OR_RETURN(StagedUpload upload,
                           StagedUpload::create(device_, stream, bytes_of(bins).size()));
  GAPLESS_RETURN_IF_ERROR(upload.copy(inputs.data(), bytes_of(bins)));
  GAPLESS_ASSIGN_OR_RETURN(
      coord_table_, device_.allocate(static_cast<std::size_t>(num_bins) *
                                     static_cast<std::size_t>(dim) * dtype_bytes(context_.dtype)));
  GAPLESS_RETURN_IF_ERROR(context_.kernels->embed(stream, {.inputs = inputs.as<TokenInput>(),
                                                           .region = region_encoder_,
                                                           .out = coord_table_.data(),
                                                           .num_tokens = num_bins,
                                                           .dim = dim}));
  region_encoder_.coord_table = coord_table_.data();
  region_encoder_.num_bins = num_bins;
  region_encoder_.coord_divisor = coord_divisor();
  return upload.finish();
}

int VisionLanguageModel::coord_divisor() const {
  const bool by_bins = config_.numerics.coord_divisor == CoordDivisor::kNumBins;
  return by_bins ? config_.region.coord_out_dim : config_.region.coord_out_dim - 1;
}

void VisionLanguageModel::build_parts() {
  const VisionWorkspace& vision = workspace_->vision();
  vision_encoder_.emplace(context_, shape_.vision, config_.vision.crop_size,
                          config_.vision.enc_patch_size, weights_.vision, vision,
                          pixel_table_.data());
  projector_.emplace(context_, shape_.vision, config_.vision.overlap_margin, weights_.projector,
                     vision);
  region_heads_.emplace(context_, weights_.region.decoder, workspace_->text(), state_->row_states(),
                        RegionTokens{.coord_id = coord_id_, .size_id = size_id_}, coord_divisor(),
                        config_.region.linear_sizes);
}

std::byte* VisionLanguageModel::crop_features(int crop) const {
  const auto crop_elements = static_cast<std::size_t>(shape_.vision.patches_per_crop) *
                             static_cast<std::size_t>(shape_.vision.dim);
  return static_cast<std::byte*>(workspace_->vision().features) +
         static_cast<std::size_t>(crop) * crop_elements * dtype_bytes(context_.dtype);
}

Status VisionLanguageModel::encode(Stream& compute, const StepShape& shape,
                                   const std::uint8_t* crops) {
  GAPLESS_CHECK(shape.num_crops <= limits_.max_crops_per_encode);
  GAPLESS_CHECK(shape.first_crop + shape.num_crops <= max_feature_crops(limits_));
  return vision_encoder_->encode(compute, crops, shape.num_crops, crop_features(shape.first_crop));
}

Status VisionLanguageModel::project(Stream& compute, std::span<const EncodeImage> images,
                                    const StepBuffers&) {
  for (const EncodeImage& image : images) {
    GAPLESS_CHECK(image.image_slot >= 0 && image.image_slot < limits_.num_image_slots);
    const TileGrid tiles{.rows = image.tile_rows, .cols = image.tile_cols};
    GAPLESS_RETURN_IF_ERROR(projector_->project(compute, crop_features(image.first_crop), tiles,
                                                state_->image_slot(image.image_slot)));
  }
  return ok_status();
}

Status VisionLanguageModel::decode_regions(Stream& compute, const StepBuffers& buffers,
                                           int num_rows) {
  return region_heads_->decode(compute, buffers, num_rows);
}

}  // namespace gapless
