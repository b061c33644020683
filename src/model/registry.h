// The families of models. config.json beside the weights says which one a checkpoint belongs to, by its
// "architectures" or its "model_type".
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "base/status.h"

namespace gapless {

enum class ModelFamily { kMoondream, kLlama };

struct FamilyEntry {
  ModelFamily family;
  std::string_view architecture;  // of "architectures"
  std::string_view model_type;
};

std::span<const FamilyEntry> model_families();

// `path`: as for Checkpoint::open. A checkpoint without config.json, or whose config.json names neither, is
// Moondream's business: its checkpoints are told by their tensors (moondream/checkpoint_profile.h), and models
// made for gapless say so themselves. InvalidArgument, with what was found and what runs, for an unknown one.
StatusOr<ModelFamily> choose_family(const std::filesystem::path& path);

}  // namespace gapless
