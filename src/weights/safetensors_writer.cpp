#include "weights/safetensors_writer.h"

#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cerrno>
#include <cstring>
#include <set>

#include "base/json.h"

namespace gapless {
namespace {

// The header's JSON, padded with spaces so that the data begin at a multiple of 8.
std::string header_json(std::span<const SafetensorsWriter::Tensor> tensors,
                        const std::map<std::string, std::string>& metadata,
                        std::size_t& data_bytes) {
  boost::json::object header;
  if (!metadata.empty()) {
    boost::json::object& fields = header["__metadata__"].emplace_object();
    for (const auto& [key, value] : metadata) fields[key] = value;
  }
  data_bytes = 0;
  for (const auto& tensor : tensors) {
    std::size_t bytes = tensor_dtype_bytes(tensor.dtype);
    for (const std::int64_t side : tensor.shape) bytes *= static_cast<std::size_t>(side);
    header[tensor.name] = {{"dtype", tensor_dtype_name(tensor.dtype)},
                           {"shape", boost::json::array(tensor.shape.begin(), tensor.shape.end())},
                           {"data_offsets", boost::json::array{data_bytes, data_bytes + bytes}}};
    data_bytes += bytes;
  }
  std::string json = json_text(header);
  json.resize((json.size() + 7) / 8 * 8, ' ');
  return json;
}

}  // namespace

StatusOr<SafetensorsWriter> SafetensorsWriter::create(
    const std::filesystem::path& path, std::span<const Tensor> tensors,
    const std::map<std::string, std::string>& metadata) {
  std::set<std::string_view> names;
  for (const Tensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return invalid_argument("{}: tensor '{}' is declared twice", path.string(), tensor.name);
    }
  }
  SafetensorsWriter writer;
  writer.path_ = path;
  writer.partial_path_ = path;
  writer.partial_path_ += ".partial";
  writer.file_.open(writer.partial_path_, std::ios::binary | std::ios::trunc);
  if (!writer.file_) {
    return invalid_argument("{}: {}", writer.partial_path_.string(), std::strerror(errno));
  }
  const std::string json = header_json(tensors, metadata, writer.missing_bytes_);
  std::array<char, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<char>(json.size() >> (8 * i));
  }
  writer.file_.write(length.data(), length.size());
  writer.file_.write(json.data(), static_cast<std::streamsize>(json.size()));
  if (!writer.file_) return data_loss("{}: could not be written", writer.partial_path_.string());
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (!file_.is_open()) return;
  file_.close();
  std::error_code ec;
  std::filesystem::remove(partial_path_, ec);
}

Status SafetensorsWriter::append(std::span<const std::byte> bytes) {
  if (bytes.size() > missing_bytes_) {
    return invalid_argument("{}: more data than was declared", path_.string());
  }
  file_.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
  if (!file_) return data_loss("{}: could not be written", partial_path_.string());
  missing_bytes_ -= bytes.size();
  return ok_status();
}

Status SafetensorsWriter::finish() {
  if (missing_bytes_ > 0) {
    return invalid_argument("{}: {} bytes of data are missing", path_.string(), missing_bytes_);
  }
  file_.close();
  if (!file_) return data_loss("{}: could not be written", partial_path_.string());
  std::error_code ec;
  std::filesystem::rename(partial_path_, path_, ec);
  if (ec) return data_loss("{}: {}", path_.string(), ec.message());
  return ok_status();
}

}  // namespace gapless
