// The files of a checkpoint in several parts.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace gapless {

// A model.safetensors.index.json: which file each tensor is in. Plain names, no separators, of files
// beside the index; at most kMaxSafetensorsShards of them.
struct ShardIndex {
  std::map<std::string, std::string> file_of_tensor;
  std::vector<std::string> files;  // each once
};
StatusOr<ShardIndex> read_shard_index(const std::filesystem::path& index);

}  // namespace gapless
