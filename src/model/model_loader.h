// From the --model option to a model that runs.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "image/crop_tiles.h"
#include "kernels/kernels.h"
#include "model/decoder_model.h"
#include "model/moondream/model_config.h"
#include "model/moondream/vision_language_model.h"
#include "model/step_limits.h"
#include "model/weight_format.h"
#include "text/prompt_template.h"
#include "text/tokenizer.h"

namespace gapless {

// A model with all it stands on. Members die in reverse order: the device last.
struct LoadedModel {
  LoadedModel(std::unique_ptr<Device> device_in, std::string name_in, Tokenizer tokenizer_in,
              TokenizerConfig prompts_in);
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  // Of a model that takes pictures.
  CropGeometry crop_geometry() const;

  // nullptr: a text model, for which `config` means nothing.
  VisionLanguageModel* vision_language_model() const;

  std::unique_ptr<Device> device;
  std::string name;    // as the --model option gave it
  std::string family;  // "moondream", "llama", "qwen3"
  ModelConfig config;  // of the Moondream family
  Tokenizer tokenizer;
  PromptBuilder prompts;  // refers to `tokenizer`
  std::unique_ptr<Kernels> kernels;
  std::unique_ptr<DecoderModel> model;
};

struct ModelOptions {
  WeightFormat weights = WeightFormat::kNative;
  KvFormat kv_cache = KvFormat::kNative;
  Compute compute = Compute::kPortable;
  // Of keys and values; unset: what suits the device (step_limits.h).
  std::optional<std::size_t> kv_cache_bytes = std::nullopt;
  // Where it is unset, on a CPU: as large as suits the machine. False: small, as for tests with several models.
  bool kv_cache_sized_to_machine = false;
  // Sequences that run at once, how much room their steps get, and what stays free (LimitWishes).
  std::optional<int> max_rows = std::nullopt;
  StepSizing sizing = StepSizing::kUsual;
  std::optional<std::size_t> reserve_bytes = std::nullopt;
  // The rows of the text blocks' matrices share memory (prepared_weights.h), where the backend has a layout of its own for
  // decode steps and they are one launch: a prefill takes longer, the model less memory. Elsewhere nothing changes.
  bool shares_rows = false;
  // Unset: the kernels that fit the device. For tests.
  std::function<StatusOr<std::unique_ptr<Kernels>>(Device&)> make_kernels = nullptr;
  // On a device of dry_device.h: everything is allocated, nothing is read or computed.
  bool dry_run = false;
  // Positions of a sequence, at most as many as the model was trained for; unset: those of its config.json, at
  // most kDefaultTextContext.
  std::optional<int> max_context = std::nullopt;
  // Options of numerics and their choices (moondream/numerics.h), of models that have such options.
  std::vector<std::pair<std::string, std::string>> numerics = {};
  // May change the limits that were chosen for the device (step_limits.h).
  std::function<void(StepLimits&)> adjust_limits;
};

// Opens, validates and uploads; takes seconds for a large model. `name`: see model_source.h. Errors
// name the file and what is wrong with it.
StatusOr<std::unique_ptr<LoadedModel>> load_model(std::unique_ptr<Device> device,
                                                  const std::string& name,
                                                  const ModelOptions& options = {});

}  // namespace gapless
