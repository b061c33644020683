// A model of random weights on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "base/status.h"
#include "model/model_source.h"

namespace gapless {

// Writes what a source with a random_seed stands for, of any family: `folder`/model.safetensors (bf16, published
// naming) and `folder`/config.json. The folder is made when it is not there. InvalidArgument: one of the two files is there
// already. `progress` gets the bytes written so far and the bytes in all.
Status write_random_model(const ModelSource& source, const std::filesystem::path& folder,
                          const std::function<void(std::int64_t, std::int64_t)>& progress = {});

}  // namespace gapless
