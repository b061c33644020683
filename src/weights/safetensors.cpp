#include "weights/safetensors.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/json.h"
#include "base/limits.h"

namespace gapless {
namespace {

struct DTypeInfo {
  std::string_view name;
  std::size_t bytes;
};

// In the order of TensorDType.
constexpr std::array<DTypeInfo, 15> kDTypes = {{{"BOOL", 1},
                                                {"U8", 1},
                                                {"I8", 1},
                                                {"F8_E5M2", 1},
                                                {"F8_E4M3", 1},
                                                {"U16", 2},
                                                {"I16", 2},
                                                {"F16", 2},
                                                {"BF16", 2},
                                                {"U32", 4},
                                                {"I32", 4},
                                                {"F32", 4},
                                                {"U64", 8},
                                                {"I64", 8},
                                                {"F64", 8}}};
static_assert(kDTypes.size() == static_cast<std::size_t>(TensorDType::kF64) + 1);

std::optional<TensorDType> dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name) return static_cast<TensorDType>(i);
  }
  return std::nullopt;
}

std::uint64_t read_little_endian_u64(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return value;
}

// Nothing when the product does not fit.
std::optional<std::size_t> bytes_of_shape(std::span<const std::int64_t> shape,
                                          std::size_t element_bytes) {
  std::size_t bytes = element_bytes;
  for (const std::int64_t side : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(side), &bytes)) return std::nullopt;
  }
  return bytes;
}

StatusOr<std::vector<std::int64_t>> read_shape(const JsonObject& fields) {
  GAPLESS_ASSIGN_OR_RETURN(const auto* sides, fields.array("shape"));
  if (sides->size() > kMaxTensorRank) {
    return fields.error("shape", fmt::format("of at most {} sides", kMaxTensorRank));
  }
  std::vector<std::int64_t> shape;
  for (const boost::json::value& side : *sides) {
    if (!side.is_int64() || side.get_int64() < 0) {
      return fields.error("shape", "a list of non-negative integers");
    }
    shape.push_back(side.get_int64());
  }
  return shape;
}

// The entry with begin and end relative to the data, as in the file.
StatusOr<TensorEntry> read_entry(const boost::json::value& value, std::string_view file,
                                 std::string_view name, std::size_t data_bytes) {
  const std::string where = fmt::format("tensor '{}'", name);
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject fields, JsonObject::of(value, file, where));
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view dtype_name, fields.string("dtype"));
  TensorEntry entry;
  entry.name = name;
  const auto dtype = dtype_from_name(dtype_name);
  if (!dtype) return data_loss("{}: {} has the unknown dtype {}", file, where, dtype_name);
  entry.dtype = *dtype;
  GAPLESS_ASSIGN_OR_RETURN(entry.shape, read_shape(fields));

  GAPLESS_ASSIGN_OR_RETURN(const auto* offsets, fields.array("data_offsets"));
  if (offsets->size() != 2 || !(*offsets)[0].is_int64() || !(*offsets)[1].is_int64()) {
    return fields.error("data_offsets", "two integers");
  }
  const std::int64_t begin = (*offsets)[0].get_int64(), end = (*offsets)[1].get_int64();
  if (begin < 0 || end < begin || static_cast<std::uint64_t>(end) > data_bytes) {
    return data_loss("{}: {} lies at bytes {} to {} of the data, which has {} (a truncated file?)",
                     file, where, begin, end, data_bytes);
  }
  entry.begin = static_cast<std::size_t>(begin);
  entry.end = static_cast<std::size_t>(end);
  const auto bytes = bytes_of_shape(entry.shape, tensor_dtype_bytes(entry.dtype));
  if (bytes != entry.end - entry.begin) {
    return data_loss("{}: {} of {} {} has {} bytes of data", file, where, dtype_name,
                     shape_to_string(entry.shape), entry.end - entry.begin);
  }
  return entry;
}

// The entries must follow each other from byte 0 to the end of the data.
Status check_cover(std::span<const TensorEntry> sorted, std::string_view file,
                   std::size_t data_bytes) {
  std::size_t covered = 0;
  std::string_view previous;
  for (const TensorEntry& entry : sorted) {
    if (entry.begin < covered) {
      return data_loss("{}: tensors '{}' and '{}' overlap", file, previous, entry.name);
    }
    if (entry.begin > covered) {
      return data_loss("{}: bytes {} to {} of the data belong to no tensor", file, covered,
                       entry.begin);
    }
    covered = entry.end;
    previous = entry.name;
  }
  if (covered == data_bytes) return ok_status();
  return data_loss("{}: bytes {} to {} of the data belong to no tensor", file, covered, data_bytes);
}

}  // namespace

std::string_view tensor_dtype_name(TensorDType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)].name;
}

std::size_t tensor_dtype_bytes(TensorDType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)].bytes;
}

std::string shape_to_string(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

StatusOr<std::vector<TensorEntry>> parse_safetensors(std::span<const std::byte> file,
                                                     std::string_view name) {
  if (file.size() < 8) return data_loss("{}: {} bytes are too few", name, file.size());
  const std::uint64_t header_bytes = read_little_endian_u64(file);
  if (header_bytes > kMaxSafetensorsHeaderBytes || header_bytes > file.size() - 8) {
    return data_loss(
        "{}: says that its header has {} bytes; the file has {} (truncated, or not safetensors?)",
        name, header_bytes, file.size());
  }
  const auto header = file.subspan(8, header_bytes);
  const std::string_view json(reinterpret_cast<const char*>(header.data()), header.size());
  GAPLESS_ASSIGN_OR_RETURN(const boost::json::value document, parse_json(json, name));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject root, JsonObject::of(document, name));

  const std::size_t data_offset = 8 + header.size();
  const std::size_t data_bytes = file.size() - data_offset;
  std::vector<TensorEntry> entries;
  for (const auto& field : root.fields()) {
    if (field.key() == "__metadata__") continue;
    GAPLESS_ASSIGN_OR_RETURN(
        TensorEntry entry,
        read_entry(field.value(), name, std::string_view(field.key()), data_bytes));
    entries.push_back(std::move(entry));
  }
  // Empty tensors share their begin with the next one and come before it.
  std::ranges::sort(entries, {}, [](const TensorEntry& e) { return std::pair(e.begin, e.end); });
  GAPLESS_RETURN_IF_ERROR(check_cover(entries, name, data_bytes));
  for (TensorEntry& entry : entries) {
    entry.begin += data_offset;
    entry.end += data_offset;
  }
  return entries;
}

}  // namespace gapless
