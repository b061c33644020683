// From the --model option to a model that runs.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "device/device.h"
#include "image/crop_tiles.h"
#include "kernels/kernels.h"
#include "model/vision_language_model.h"
#include "model/weight_format.h"
#include "text/prompt_template.h"
#include "text/tokenizer.h"
#include "weights/model_config.h"

namespace gapless {

// A model with all it stands on. Members die in reverse order: the device last.
struct LoadedModel {
  LoadedModel(std::unique_ptr<Device> device_in, std::string name_in, ModelConfig config_in,
              Tokenizer tokenizer_in);
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  CropGeometry crop_geometry() const;

  std::unique_ptr<Device> device;
  std::string name;  // as the --model option gave it
  ModelConfig config;
  Tokenizer tokenizer;
  PromptBuilder prompts;  // refers to `tokenizer`
  std::unique_ptr<Kernels> kernels;
  std::unique_ptr<VisionLanguageModel> model;
};

struct ModelOptions {
  WeightFormat weights = WeightFormat::kNative;
  KvFormat kv_cache = KvFormat::kNative;
  // May change the limits that were chosen for the device (step_limits.h).
  std::function<void(StepLimits&)> adjust_limits;
};

// Opens, validates and uploads; takes seconds for a large model. `name`: see model_source.h. Errors
// name the file and what is wrong with it.
StatusOr<std::unique_ptr<LoadedModel>> load_model(std::unique_ptr<Device> device,
                                                  const std::string& name,
                                                  const ModelOptions& options = {});

}  // namespace gapless
