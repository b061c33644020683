#include "model/registry.h"

#include <array>
#include <string>
#include <vector>

#include "base/file_bytes.h"
#include "base/json.h"
#include "base/limits.h"

namespace gapless {
namespace {

namespace fs = std::filesystem;

constexpr std::array<FamilyEntry, 4> kFamilies = {{
    {ModelFamily::kMoondream, "HfMoondream", "moondream1"},
    {ModelFamily::kMoondream, "HfMoondream", "moondream3"},
    {ModelFamily::kLlama, "LlamaForCausalLM", "llama"},
    {ModelFamily::kLlama, "Qwen3ForCausalLM", "qwen3"},
}};

struct Named {
  std::vector<std::string> architectures;
  std::string model_type;  // empty: not said
};

StatusOr<Named> read_names(const fs::path& file) {
  GAPLESS_ASSIGN_OR_RETURN(const std::string json, read_file(file, kMaxModelConfigBytes));
  GAPLESS_ASSIGN_OR_RETURN(const boost::json::value document, parse_json(json, file.string()));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject root, JsonObject::of(document, file.string()));
  Named named;
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view model_type, root.string_or("model_type", ""));
  named.model_type = model_type;
  if (root.find("architectures") == nullptr) return named;
  GAPLESS_ASSIGN_OR_RETURN(const boost::json::array* list, root.array("architectures"));
  for (const boost::json::value& name : *list) {
    if (!name.is_string()) return root.error("architectures", "a list of names");
    named.architectures.emplace_back(name.get_string());
  }
  return named;
}

std::string families_that_run() {
  std::string list;
  for (const FamilyEntry& entry : kFamilies) {
    list +=
        fmt::format("{}{} ({})", list.empty() ? "" : ", ", entry.architecture, entry.model_type);
  }
  return list;
}

}  // namespace

std::span<const FamilyEntry> model_families() {
  return kFamilies;
}

StatusOr<ModelFamily> choose_family(const fs::path& path) {
  std::error_code error;
  const fs::path folder = fs::is_directory(path, error) ? path : path.parent_path();
  const fs::path file = folder / "config.json";
  if (!fs::exists(file, error)) return ModelFamily::kMoondream;
  GAPLESS_ASSIGN_OR_RETURN(const Named named, read_names(file));
  if (named.architectures.empty() && named.model_type.empty()) return ModelFamily::kMoondream;
  for (const FamilyEntry& entry : kFamilies) {
    for (const std::string& architecture : named.architectures) {
      if (architecture == entry.architecture) return entry.family;
    }
  }
  if (named.architectures.empty()) {
    for (const FamilyEntry& entry : kFamilies) {
      if (named.model_type == entry.model_type) return entry.family;
    }
  }
  return invalid_argument(
      "{}: architecture {}, model type '{}': not one that gapless runs. It runs {}", file.string(),
      named.architectures.empty() ? "not said"
                                  : fmt::format("'{}'", fmt::join(named.architectures, "', '")),
      named.model_type, families_that_run());
}

}  // namespace gapless
