// Which model a checkpoint is. It is recognised by what its files hold, never by their names, and
// refused unless this build runs it: weights that are read with another release's prompts or
// tokenizer answer fluent nonsense, and nothing later would notice.
//
// The table is data (checkpoint_profiles.cpp): a row for each published model of the family. A row
// with `runs` is accepted; the others are there so that an error can say what was found.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/moondream/model_config.h"
#include "text/prompt_config.h"
#include "text/tokenizer.h"
#include "weights/safetensors.h"

namespace gapless {

// A tensor that a model has. The names as parameter_name() (weight_map.h) gives them; a model that
// is published in one naming only leaves the other one empty.
struct TensorMark {
  std::string_view name;
  std::string_view legacy_name;
  std::vector<std::int64_t> shape;
};

struct CheckpointProfile {
  std::string_view title;  // "Moondream 2 of June 2025"

  // All of these tensors are there, with these shapes.
  std::vector<TensorMark> marks;

  // What tells models of the same tensors apart: the repository from which the moondream.py that
  // is published beside the weights takes its tokenizer, and of models that share it a piece of that
  // code; without that file, the dtype. A model whose tensors say enough has no dtype here, and is
  // refused where the file names another tokenizer.
  std::string_view code_tokenizer;
  std::string_view code_has;
  std::optional<TensorDType> stored_as;

  // Tokens that only its tokenizer.json has at these ids.
  std::vector<TokenSpelling> spellings;

  std::string_view weights_from;    // where model.safetensors and config.json are published
  std::string_view tokenizer_from;  // where its tokenizer.json is

  bool runs = false;
  std::string_view why_not;  // without `runs`: how it differs from what does
  ModelConfig config;        // with `runs`: the sizes that its config.json must not contradict
};

std::span<const CheckpointProfile> checkpoint_profiles();

// A checkpoint that this build runs.
struct RecognisedModel {
  // Of the table; nullptr: config.json says "gapless": {"format": 1}, so sizes, prompts and
  // tokenizer are what that file says (models/tiny, and what random-model writes).
  const CheckpointProfile* profile = nullptr;
  ModelConfig config;

  // "Moondream 2 of June 2025", or "a model made for gapless".
  std::string_view title() const;
};

// `path`: as for Checkpoint::open; config.json lies beside the weights. Reads the files' headers,
// config.json and moondream.py, no tensor. The error says what was found, what was expected, and
// where to get it.
StatusOr<RecognisedModel> recognise_checkpoint(const std::filesystem::path& path);

// The tokenizer of `model` from `path` (tokenizer.json or its folder). Refused when it belongs to
// other weights: a token has another text or none, or there are too many tokens.
StatusOr<Tokenizer> load_tokenizer(const std::filesystem::path& path, const RecognisedModel& model);

}  // namespace gapless
