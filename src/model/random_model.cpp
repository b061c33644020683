#include "model/random_model.h"

#include <filesystem>
#include <span>
#include <string>

#include "base/check.h"
#include "base/file_bytes.h"
#include "weights/random_tensors.h"

namespace gapless {

Status write_random_model(const ModelSource& source, const std::filesystem::path& folder,
                          const std::function<void(std::int64_t, std::int64_t)>& progress) {
  GAPLESS_CHECK(source.random_seed.has_value());
  for (const char* const name : {"model.safetensors", "config.json"}) {
    if (std::filesystem::exists(folder / name)) {
      return invalid_argument(
          "{} is there already, and may be of a model that somebody needs: name another folder, or "
          "remove it",
          (folder / name).string());
    }
  }
  GAPLESS_RETURN_IF_ERROR(
      write_random_weights(weight_specs(source), *source.random_seed, folder, progress));
  const std::string json =
      source.llama ? llama_config_to_json(*source.llama) : model_config_to_json(source.config);
  return write_file(folder / "config.json", std::as_bytes(std::span(json)));
}

}  // namespace gapless
