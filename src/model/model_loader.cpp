#include "model/model_loader.h"

#include <utility>

#include "model/load_source.h"
#include "model/prepared_weights.h"
#include "model/step_limits.h"
#include "model/weight_loading.h"

namespace gapless {
namespace {

StatusOr<ModelWeights> read_weights(Device& device, Kernels& kernels, Stream& stream,
                                    const ModelSource& source) {
  const DType dtype = kernels.activation_dtype();
  if (source.random_seed) {
    GAPLESS_ASSIGN_OR_RETURN(ModelWeights weights,
                             allocate_weights(device, stream, source.config, dtype));
    GAPLESS_RETURN_IF_ERROR(
        fill_random_weights(kernels, stream, source.config, *source.random_seed, weights));
    return weights;
  }
  GAPLESS_ASSIGN_OR_RETURN(const WeightSource files, open_weights(source));
  GAPLESS_ASSIGN_OR_RETURN(ModelWeights weights,
                           allocate_weights(device, stream, source.config, dtype));
  GAPLESS_RETURN_IF_ERROR(with_expected_weights(
      load_weights(device, stream, files, source.config, dtype, weights), source));
  return weights;
}

StatusOr<ModelWeights> make_weights(Device& device, Kernels& kernels, const ModelSource& source,
                                    WeightFormat format) {
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.create_stream("weights"));
  GAPLESS_ASSIGN_OR_RETURN(ModelWeights weights, read_weights(device, kernels, *stream, source));
  if (format != WeightFormat::kNative) {
    GAPLESS_RETURN_IF_ERROR(round_weights_to_fp8(kernels, *stream, weights));
  }
  if (format == WeightFormat::kW8A8) {
    GAPLESS_RETURN_IF_ERROR(make_fp8_products(device, kernels, *stream, weights));
  }
  GAPLESS_RETURN_IF_ERROR(prepare_decode_weights(device, kernels, *stream, source.config,
                                                 prepared_format(format), weights));
  GAPLESS_RETURN_IF_ERROR(stream->synchronize());
  return weights;
}

}  // namespace

LoadedModel::LoadedModel(std::unique_ptr<Device> device_in, std::string name_in,
                         ModelConfig config_in, Tokenizer tokenizer_in)
    : device(std::move(device_in)),
      name(std::move(name_in)),
      config(std::move(config_in)),
      tokenizer(std::move(tokenizer_in)),
      prompts(tokenizer, config.tokenizer) {}

CropGeometry LoadedModel::crop_geometry() const {
  return {.crop_size = config.vision.crop_size,
          .patch_size = config.vision.enc_patch_size,
          .overlap_margin = config.vision.overlap_margin,
          .max_crops = config.vision.max_crops};
}

StatusOr<std::unique_ptr<LoadedModel>> load_model(std::unique_ptr<Device> device,
                                                  const std::string& name,
                                                  const ModelOptions& options) {
  GAPLESS_ASSIGN_OR_RETURN(const ModelSource source, find_model(name));
  return load_model(std::move(device), source, options);
}

StatusOr<std::unique_ptr<LoadedModel>> load_model(std::unique_ptr<Device> device,
                                                  const ModelSource& source,
                                                  const ModelOptions& options) {
  GAPLESS_RETURN_IF_ERROR(check_model_shape(source.config).with_context(source.name));
  GAPLESS_ASSIGN_OR_RETURN(Tokenizer tokenizer, load_tokenizer(source));
  // User text must never become one of them, whether or not tokenizer.json marks them.
  tokenizer.mark_special(source.config.tokenizer.all_ids());

  auto loaded = std::make_unique<LoadedModel>(std::move(device), source.name, source.config,
                                              std::move(tokenizer));
  GAPLESS_RETURN_IF_ERROR(loaded->crop_geometry().validate().with_context(source.name));
  GAPLESS_ASSIGN_OR_RETURN(loaded->kernels, make_kernels(*loaded->device));
  GAPLESS_ASSIGN_OR_RETURN(ModelWeights weights, make_weights(*loaded->device, *loaded->kernels,
                                                              source, options.weights));
  GAPLESS_ASSIGN_OR_RETURN(StepLimits limits, choose_step_limits(*loaded->device, *loaded->kernels,
                                                                 source.config, options.kv_cache));
  if (options.adjust_limits) options.adjust_limits(limits);
  GAPLESS_ASSIGN_OR_RETURN(
      loaded->model, VisionLanguageModel::create(*loaded->device, *loaded->kernels, source.config,
                                                 std::move(weights), limits, options.kv_cache));
  return loaded;
}

}  // namespace gapless
