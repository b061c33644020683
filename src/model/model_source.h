// Where a model comes from: what the --model option names.
//
//   FOLDER or FILE                    published weights (safetensors), config.json beside them
//   random:moondream2[:SEED]          the full shape with seeded random weights, made on the device
//   random:moondream-0.5b[:SEED]
//   nothing                           the small model that ships: models/tiny
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "weights/model_config.h"

namespace gapless {

struct ModelSource {
  std::string name;  // as a person would call it
  ModelConfig config;
  // Exactly one of the two is set.
  std::optional<std::filesystem::path> checkpoint;  // for WeightSource::open
  std::optional<std::uint64_t> random_seed;
  std::filesystem::path tokenizer;  // for Tokenizer::load
};

// Reads the configuration, not the weights. The error names the file or lists the known names.
StatusOr<ModelSource> find_model(std::string_view name);

// "moondream2" or "moondream-0.5b": shapes of published models, with the special ids and templates
// of Moondream 2 (2025-06-21).
StatusOr<ModelConfig> published_architecture(std::string_view name);

// models/tiny: beside the installed binary (../share/gapless/models/tiny), or in the source tree
// that this program was built from.
StatusOr<std::filesystem::path> shipped_model_folder();

// Where the model comes from and what its files hold, as text for a person.
StatusOr<std::string> describe_source(const ModelSource& source);

}  // namespace gapless
