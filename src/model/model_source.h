// Where a model comes from: what the --model option names.
//
//   FOLDER or FILE                    published weights (safetensors), config.json beside them
//   random:moondream2[:SEED]          the full shape with seeded random weights, made on the device
//   random:moondream2-march, -january, random:moondream-0.5b, random:moondream3, random:llama3-8b, random:llama3-1b,
//   random:qwen3-8b, random:qwen3-1.7b, and small ones for tests: moondream2-march-, moondream-0.5b- and moondream3-small
//   nothing                           the small model that ships: models/tiny
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/llama/llama_config.h"
#include "model/moondream/checkpoint_profile.h"
#include "model/moondream/model_config.h"
#include "text/tokenizer.h"
#include "weights/weight_map.h"

namespace gapless {

struct ModelSource {
  std::string name;  // as a person would call it
  // Of the Moondream family; means nothing where `llama` is set.
  ModelConfig config;
  std::optional<LlamaConfig> llama;
  // Of the table of published models; nullptr: random weights, or a model made for gapless.
  const CheckpointProfile* profile = nullptr;
  // Exactly one of the two is set.
  std::optional<std::filesystem::path> checkpoint;  // for WeightSource::open
  std::optional<std::uint64_t> random_seed;
  std::filesystem::path tokenizer;  // tokenizer.json
  // A folder with low-rank terms for its weights (weights/low_rank_adapter.h); empty: none.
  std::filesystem::path adapter = {};
};

// Reads the configuration and recognises the model (model/moondream/checkpoint_profile.h); of the weights
// only the headers. The error names the file and what was expected, or lists the known names.
StatusOr<ModelSource> find_model(std::string_view name);

// Its tokenizer; an error if it belongs to other weights.
StatusOr<Tokenizer> load_tokenizer(const ModelSource& source);

// Adds an adapter to a stored model. What it holds is judged where weights are opened.
Status set_adapter(ModelSource& source, const std::filesystem::path& folder);

// The list of its tensors.
std::vector<WeightSpec> weight_specs(const ModelSource& source);

// The tensors of a stored model, all found, with its adapter's terms. The error names the tensor and says what was expected.
StatusOr<WeightSource> open_weights(const ModelSource& source);

// An error of reading its weights, with where a published model's are to be had.
Status with_expected_weights(const Status& status, const ModelSource& source);

// "moondream2" (June 2025), "moondream2-march", "moondream2-january", "moondream-0.5b" or "moondream3": published
// models, with their special ids and templates. "moondream3-small", "moondream2-march-small", "moondream-0.5b-small": all
// that tells them apart, in the size of a test, with the vocabulary of the shipped model.
StatusOr<ModelConfig> published_architecture(std::string_view name);

// models/tiny: beside the installed binary (../share/gapless/models/tiny), or in the source tree
// that this program was built from.
StatusOr<std::filesystem::path> shipped_model_folder();

// Where the model comes from and what its files hold, as text for a person. Fails as loading would,
// but for a missing tokenizer.json and for what only reading the weights can tell.
StatusOr<std::string> describe_source(const ModelSource& source);

}  // namespace gapless
