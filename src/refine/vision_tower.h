// A vision encoder of its own for the refiner, on the CPU: the engine's is left alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/status.h"
#include "device/device.h"
#include "image/stop_check.h"
#include "kernels/kernels.h"
#include "model/model_source.h"
#include "model/moondream/model_weights.h"
#include "model/moondream/vision_encoder.h"
#include "model/workspace.h"
#include "refine/float_ops.h"

namespace gapless {

// What the refiner takes of a crop: [patches, encoder_dim] each.
struct CropFeatures {
  Rows early;  // the residual stream after block kEarlyBlock
  Rows final;  // the encoder's output
};

class VisionTower {
 public:
  // Counted from 0; of an encoder that has fewer blocks its last one.
  static constexpr int kEarlyBlock = 8;

  // Loads the encoder's weights once more. `device`: the CPU; it outlives this.
  static StatusOr<std::unique_ptr<VisionTower>> load(Device& device, const ModelSource& source,
                                                     Compute compute);

  // crop: [crop size, crop size, 3] bytes. Cancelled soon after `stop` says so: it is asked after every block. One thread at a
  // time.
  StatusOr<CropFeatures> encode(const std::uint8_t* crop, const StopCheck& stop);

  std::size_t bytes() const { return weights_.buffer.size_bytes() + workspace_.bytes(); }

 private:
  class Tap;

  VisionTower(const ModelConfig& config, std::unique_ptr<Kernels> kernels,
              std::unique_ptr<Stream> stream);
  Status load_weights_of(Device& device, const ModelSource& source);

  const ModelConfig config_;
  const VisionShape shape_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Stream> stream_;
  VisionEncoderWeights weights_;
  Workspace workspace_;
  ModelContext context_;
  std::optional<VisionEncoder> encoder_;
};

}  // namespace gapless
