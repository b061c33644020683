#include "refine/vision_tower.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "image/normalize.h"
#include "model/moondream/tensors.h"
#include "model/weight_loading.h"
#include "weights/float_conversion.h"

namespace gapless {
namespace {

// Of memory that the host can read, as on the CPU device.
Rows as_float(const void* data, DType dtype, int num_rows, int width) {
  Rows rows = Rows::zeros(num_rows, width);
  if (dtype == DType::kF32) {
    std::copy_n(static_cast<const float*>(data), rows.values.size(), rows.values.begin());
  } else {
    std::transform(static_cast<const std::uint16_t*>(data),
                   static_cast<const std::uint16_t*>(data) + rows.values.size(),
                   rows.values.begin(), f32_from_bf16);
  }
  return rows;
}

}  // namespace

// Keeps one block's output, and ends an encode that nobody waits for.
class VisionTower::Tap final : public StageRecorder {
 public:
  Tap(std::string stage, const StopCheck& stop) : stage_(std::move(stage)), stop_(stop) {}

  Status record(Stream& stream, std::string_view stage, const StageView& view) override {
    GAPLESS_RETURN_IF_ERROR(stream.synchronize());
    if (is_stopped(stop_)) return stopped_status();
    if (stage == stage_) {
      kept = as_float(view.data, view.dtype, static_cast<int>(view.num_rows),
                      static_cast<int>(view.num_columns));
    }
    return ok_status();
  }
  Rows kept;

 private:
  const std::string stage_;
  const StopCheck& stop_;
};

VisionTower::VisionTower(const ModelConfig& config, std::unique_ptr<Kernels> kernels,
                         std::unique_ptr<Stream> stream)
    : config_(config),
      shape_(vision_shape(config_)),
      kernels_(std::move(kernels)),
      stream_(std::move(stream)),
      context_{.kernels = kernels_.get(), .dtype = kernels_->activation_dtype()} {}

StatusOr<std::unique_ptr<VisionTower>> VisionTower::load(Device& device, const ModelSource& source,
                                                         Compute compute) {
  GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<Kernels> kernels, make_kernels(device, compute));
  GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device.create_stream("vision tower"));
  std::unique_ptr<VisionTower> tower(
      new VisionTower(source.config, std::move(kernels), std::move(stream)));
  GAPLESS_RETURN_IF_ERROR(tower->load_weights_of(device, source));
  GAPLESS_ASSIGN_OR_RETURN(tower->workspace_,
                           Workspace::create_for_crop(device, *tower->kernels_, tower->shape_));
  const bool is_f32 = tower->context_.dtype == DType::kF32;
  const VisionConfig& vision = tower->config_.vision;
  tower->encoder_.emplace(tower->context_, tower->shape_, vision.crop_size, vision.enc_patch_size,
                          tower->weights_.vision, tower->workspace_.vision(),
                          is_f32 ? static_cast<const void*>(kPixelTableF32.data())
                                 : static_cast<const void*>(kPixelTableBf16.data()));
  return tower;
}

Status VisionTower::load_weights_of(Device& device, const ModelSource& source) {
  GAPLESS_ASSIGN_OR_RETURN(weights_,
                           allocate_vision_weights(device, *stream_, config_, context_.dtype));
  void* const to = weights_.buffer.data();
  if (source.random_seed) {
    GAPLESS_RETURN_IF_ERROR(fill_random_weights(*kernels_, *stream_, weight_specs(config_),
                                                *source.random_seed, weights_.layout, to));
    return stream_->synchronize();
  }
  GAPLESS_ASSIGN_OR_RETURN(const WeightSource files, open_weights(source));
  return with_expected_weights(
      load_weights(device, *stream_, files, weights_.layout, context_.dtype, to), source);
}

StatusOr<CropFeatures> VisionTower::encode(const std::uint8_t* crop, const StopCheck& stop) {
  const int block = std::min(kEarlyBlock, shape_.num_layers - 1);
  Tap tap(fmt::format("vision.block.{}", block), stop);
  context_.recorder = &tap;
  const Status status = encoder_->encode(*stream_, crop, 1, workspace_.vision().features);
  context_.recorder = nullptr;
  GAPLESS_RETURN_IF_ERROR(status);
  GAPLESS_RETURN_IF_ERROR(stream_->synchronize());
  return CropFeatures{.early = std::move(tap.kept),
                      .final = as_float(workspace_.vision().features, context_.dtype,
                                        shape_.patches_per_crop, shape_.dim)};
}

}  // namespace gapless
