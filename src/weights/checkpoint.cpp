// The files of a checkpoint: one, or the shards of an index.
#include <set>

#include "base/json.h"
#include "base/limits.h"
#include "weights/checkpoint_shards.h"
#include "weights/safetensors.h"

namespace gapless {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// A shard lies beside its index: no separators, so that an index cannot name other files.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace

StatusOr<ShardIndex> read_shard_index(const std::filesystem::path& index) {
  GAPLESS_ASSIGN_OR_RETURN(const std::string json, read_file(index, kMaxSafetensorsHeaderBytes));
  GAPLESS_ASSIGN_OR_RETURN(const boost::json::value document, parse_json(json, index.string()));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject root, JsonObject::of(document, index.string()));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject weight_map, root.object("weight_map"));
  ShardIndex shards;
  std::set<std::string> files;
  for (const auto& field : weight_map.fields()) {
    const std::string tensor(field.key());
    GAPLESS_ASSIGN_OR_RETURN(const std::string_view file, weight_map.string(tensor));
    if (!is_plain_file_name(file)) {
      return invalid_argument("{}: '{}' is not the name of a file beside it", index.string(), file);
    }
    shards.file_of_tensor.emplace(tensor, file);
    files.emplace(file);
  }
  if (files.size() > kMaxSafetensorsShards) {
    return invalid_argument("{}: {} shards, more than the {} allowed", index.string(), files.size(),
                            kMaxSafetensorsShards);
  }
  shards.files.assign(files.begin(), files.end());
  return shards;
}

StatusOr<Checkpoint> Checkpoint::open(const std::filesystem::path& path) {
  std::error_code ec;
  std::filesystem::path file = path;
  if (std::filesystem::is_directory(path, ec)) {
    file = path / kSingleFile;
    if (!std::filesystem::exists(file, ec)) file = path / kIndexFile;
    if (!std::filesystem::exists(file, ec)) {
      return make_error(StatusCode::kNotFound, "{}: has neither {} nor {}", path.string(),
                        kSingleFile, kIndexFile);
    }
  }
  Checkpoint checkpoint;
  GAPLESS_RETURN_IF_ERROR(file.extension() == ".json" ? checkpoint.add_shards(file)
                                                      : checkpoint.add_file(file, nullptr));
  return checkpoint;
}

Status Checkpoint::add_file(const std::filesystem::path& path, const ShardIndex* index) {
  GAPLESS_ASSIGN_OR_RETURN(MappedFile map, MappedFile::open(path));
  GAPLESS_ASSIGN_OR_RETURN(std::vector<TensorEntry> entries,
                           parse_safetensors(map.bytes(), path.string()));
  const std::string shard = path.filename().string();
  for (TensorEntry& entry : entries) {
    if (index != nullptr) {
      const auto named = index->file_of_tensor.find(entry.name);
      if (named == index->file_of_tensor.end() || named->second != shard) continue;
    }
    CheckpointTensor tensor{entry.dtype, std::move(entry.shape),
                            map.bytes().subspan(entry.begin, entry.end - entry.begin),
                            maps_.size()};
    tensors_.emplace(entry.name, std::move(tensor));
  }
  maps_.push_back(std::move(map));
  file_names_.push_back(path.string());
  return ok_status();
}

Status Checkpoint::add_shards(const std::filesystem::path& index) {
  GAPLESS_ASSIGN_OR_RETURN(const ShardIndex shards, read_shard_index(index));
  for (const std::string& shard : shards.files) {
    GAPLESS_RETURN_IF_ERROR(
        add_file(index.parent_path() / shard, &shards).with_context(index.string()));
  }
  for (const auto& [tensor, shard] : shards.file_of_tensor) {
    if (!tensors_.contains(tensor)) {
      return data_loss("{}: tensor '{}' is not in {}", index.string(), tensor, shard);
    }
  }
  return ok_status();
}

std::size_t Checkpoint::file_bytes() const {
  std::size_t bytes = 0;
  for (const MappedFile& map : maps_) bytes += map.bytes().size();
  return bytes;
}

}  // namespace gapless
