#include "tests/golden/golden_case.h"

#include <algorithm>
#include <cstring>

#include "base/file_bytes.h"
#include "base/json.h"
#include "weights/safetensors.h"

namespace gapless {
namespace {

constexpr std::size_t kMaxGoldenJsonBytes = 16u << 20;

template <typename Number>
StatusOr<std::vector<Number>> numbers(const JsonObject& object, std::string_view key) {
  std::vector<Number> result;
  if (object.find(key) == nullptr) return result;
  GAPLESS_ASSIGN_OR_RETURN(const boost::json::array* array, object.array(key));
  for (const boost::json::value& value : *array) {
    boost::system::error_code error;
    result.push_back(value.to_number<Number>(error));
    if (error) return object.error(key, "a list of numbers");
  }
  return result;
}

StatusOr<GoldenRequest> read_request(const JsonObject& object) {
  GoldenRequest request;
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view skill, object.string("skill"));
  request.skill = skill;
  request.reasons = object.find("reasoning") != nullptr;
  GAPLESS_ASSIGN_OR_RETURN(request.prompt_ids, numbers<std::int32_t>(object, "prompt_ids"));
  GAPLESS_ASSIGN_OR_RETURN(request.token_ids, numbers<std::int32_t>(object, "token_ids"));
  GAPLESS_ASSIGN_OR_RETURN(request.margins, numbers<double>(object, "margins"));
  GAPLESS_ASSIGN_OR_RETURN(request.bins, numbers<std::int32_t>(object, "bins"));
  GAPLESS_ASSIGN_OR_RETURN(request.bin_margins, numbers<double>(object, "bin_margins"));
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view reason, object.string("finish_reason"));
  request.ended_at_limit = reason == "length";
  return request;
}

StatusOr<GoldenTensor> read_tensor(const JsonObject& about, const CheckpointTensor& stored,
                                   const std::string& name) {
  GoldenTensor tensor;
  GAPLESS_ASSIGN_OR_RETURN(tensor.shape, numbers<std::int64_t>(about, "shape"));
  GAPLESS_ASSIGN_OR_RETURN(tensor.row_stride, about.integer("row_stride", 1, 1 << 30));
  if (tensor.shape.empty() || stored.shape.empty()) {
    return data_loss("{}: tensor '{}' has no shape", about.name(), name);
  }
  tensor.row_size = tensor.shape.back();
  if (stored.dtype == TensorDType::kF32) {
    tensor.rows.resize(stored.data.size() / sizeof(float));
    std::memcpy(tensor.rows.data(), stored.data.data(), stored.data.size());
  } else if (stored.dtype == TensorDType::kU8) {
    for (const std::byte value : stored.data) {
      tensor.rows.push_back(static_cast<float>(std::to_integer<int>(value)));
    }
  } else {
    return data_loss("{}: tensor '{}' is {}", about.name(), name, tensor_dtype_name(stored.dtype));
  }
  return tensor;
}

Status read_tensors(const JsonObject& root, const std::filesystem::path& file, GoldenCase& golden) {
  GAPLESS_ASSIGN_OR_RETURN(const Checkpoint stored, Checkpoint::open(file));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject about, root.object("tensors"));
  for (const auto& [name, tensor] : stored.tensors()) {
    GAPLESS_ASSIGN_OR_RETURN(const JsonObject entry, about.object(name));
    GAPLESS_ASSIGN_OR_RETURN(golden.tensors[name], read_tensor(entry, tensor, name));
  }
  return ok_status();
}

}  // namespace

std::vector<std::string> golden_case_names(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    std::filesystem::path path = entry.path();
    if (path.extension() != ".json") continue;
    const std::string name = path.stem().string();
    if (std::filesystem::exists(path.replace_extension(".safetensors"), error)) {
      names.push_back(name);
    }
  }
  std::ranges::sort(names);
  return names;
}

StatusOr<GoldenCase> load_golden_case(const std::filesystem::path& folder,
                                      const std::string& name) {
  const std::filesystem::path json_path = folder / (name + ".json");
  GAPLESS_ASSIGN_OR_RETURN(const std::string text, read_file(json_path, kMaxGoldenJsonBytes));
  GAPLESS_ASSIGN_OR_RETURN(const boost::json::value document, parse_json(text, json_path.string()));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject root, JsonObject::of(document, json_path.string()));

  GoldenCase golden;
  golden.name = name;
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view image, root.string_or("image", ""));
  if (!image.empty()) golden.images.push_back(folder / image);
  if (root.find("images") != nullptr) {
    GAPLESS_ASSIGN_OR_RETURN(const boost::json::array* images, root.array("images"));
    for (const boost::json::value& file : *images) {
      if (!file.is_string()) return root.error("images", "a list of names");
      golden.images.push_back(folder / std::string(file.get_string()));
    }
  }
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<int> tiling, numbers<int>(root, "tiling"));
  if (tiling.size() == 2) {
    golden.tile_rows = tiling[0];
    golden.tile_cols = tiling[1];
  }
  GAPLESS_ASSIGN_OR_RETURN(golden.crop_crc32, numbers<std::uint32_t>(root, "crop_crc32"));
  GAPLESS_ASSIGN_OR_RETURN(const boost::json::array* requests, root.array("requests"));
  for (const boost::json::value& value : *requests) {
    GAPLESS_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::of(value, json_path.string()));
    GAPLESS_ASSIGN_OR_RETURN(GoldenRequest request, read_request(object));
    golden.requests.push_back(std::move(request));
  }
  GAPLESS_RETURN_IF_ERROR(read_tensors(root, folder / (name + ".safetensors"), golden));
  return golden;
}

}  // namespace gapless
