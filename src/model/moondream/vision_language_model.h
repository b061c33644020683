// Moondream's architecture, driven by its configuration: the vision encoder, the projector and the region
// heads around a text decoder (decoder_model.h). The shipped small model and Moondream 2 share every line.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "model/decoder_model.h"
#include "model/moondream/model_weights.h"
#include "model/moondream/projector.h"
#include "model/moondream/region_heads.h"
#include "model/moondream/vision_encoder.h"

namespace gapless {

class VisionLanguageModel final : public DecoderModel {
 public:
  // `device` and `kernels` must outlive the model. Waits for the device (start-up).
  // InvalidArgument when the configuration's shapes do not fit together.
  // token_classes: path_token_classes() of the vocabulary; none: the model is never asked to segment.
  static StatusOr<std::unique_ptr<VisionLanguageModel>> create(
      Device& device, Kernels& kernels, const ModelConfig& config, ModelWeights weights,
      const StepLimits& limits, KvFormat kv_format,
      std::span<const std::uint8_t> token_classes = {});

  Status project(Stream& compute, std::span<const EncodeImage> images,
                 const StepBuffers& buffers) override;

  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const override { return weights_; }

 private:
  VisionLanguageModel(Device& device, Kernels& kernels, const ModelConfig& config,
                      ModelWeights weights, const StepLimits& limits, KvFormat kv_format);

  Status start(std::span<const std::uint8_t> token_classes);
  Status upload_pixel_table(Stream& stream);
  // Of the coordinates that the region heads make. Waits for the device.
  Status make_coord_table(Stream& stream);
  int coord_divisor() const;
  void build_parts();
  Status tune(Stream& stream) override;
  Status encode(Stream& compute, const StepShape& shape, const std::uint8_t* crops) override;
  Status decode_regions(Stream& compute, const StepBuffers& buffers, int num_rows) override;
  std::byte* crop_features(int crop) const;

  const ModelConfig config_;
  ModelWeights weights_;
  Buffer pixel_table_;  // [256] T: the normalisation of a byte
  Buffer coord_table_;  // RegionEncoderWeights::coord_table
  std::optional<VisionEncoder> vision_encoder_;
  std::optional<Projector> projector_;
  std::optional<RegionHeads> region_heads_;
};

}  // namespace gapless
