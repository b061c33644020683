// Reads safetensors files through a memory map, strictly.
//
// The format: 8 bytes little-endian header length, that many bytes of JSON
// {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__":
// {...}}, then the data, to which the offsets are relative. Every tensor's bytes must lie inside
// the file and have the size that dtype and shape say, and the tensors must cover the data without
// overlaps or holes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_bytes.h"
#include "base/status.h"

namespace gapless {

enum class TensorDType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64
};

std::string_view tensor_dtype_name(TensorDType dtype);  // as in the file: "BF16"
std::size_t tensor_dtype_bytes(TensorDType dtype);

struct TensorEntry {
  std::string name;
  TensorDType dtype = TensorDType::kF32;
  std::vector<std::int64_t> shape;
  std::size_t begin = 0, end = 0;  // of its bytes in the file
};

// The tensors of a whole file, in the order of their data. `name` begins every error.
StatusOr<std::vector<TensorEntry>> parse_safetensors(std::span<const std::byte> file,
                                                     std::string_view name);

// A tensor of a checkpoint. `data` lives as long as the checkpoint; it need not be aligned.
struct CheckpointTensor {
  TensorDType dtype = TensorDType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
  std::size_t file = 0;  // index into Checkpoint::files()
};

struct ShardIndex;

// One safetensors file, or the shards that an index names: of each what the index says that it holds, and no more, so that models
// may share a file.
class Checkpoint {
 public:
  // `path`: a .safetensors file, a model.safetensors.index.json, or a folder with model.safetensors
  // or else model.safetensors.index.json.
  static StatusOr<Checkpoint> open(const std::filesystem::path& path);

  const std::map<std::string, CheckpointTensor>& tensors() const { return tensors_; }
  const std::vector<std::string>& files() const { return file_names_; }
  std::size_t file_bytes() const;

 private:
  // `index`: whose shard it is; nullptr: the only file.
  Status add_file(const std::filesystem::path& path, const ShardIndex* index);
  Status add_shards(const std::filesystem::path& index);

  std::vector<MappedFile> maps_;
  std::vector<std::string> file_names_;
  std::map<std::string, CheckpointTensor> tensors_;
};

// "[2, 3]"
std::string shape_to_string(std::span<const std::int64_t> shape);

}  // namespace gapless
