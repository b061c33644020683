#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "weights/float_conversion.h"
#include "weights/weight_map.h"

namespace gapless {
namespace {

std::string without_orig_mod(std::string name) {
  constexpr std::string_view kPart = "._orig_mod";
  for (std::size_t at; (at = name.find(kPart)) != std::string::npos;) name.erase(at, kPart.size());
  return name;
}

bool is_readable(TensorDType dtype) {
  return dtype == TensorDType::kF16 || dtype == TensorDType::kBF16 || dtype == TensorDType::kF32;
}

// out[i] = convert(element first + i), where the stored elements have type Stored. The file's data
// need not be aligned, so pieces go through an aligned buffer.
template <typename Stored, typename Out, typename Convert>
void convert_range(std::span<const std::byte> data, std::int64_t first, std::span<Out> out,
                   Convert convert) {
  constexpr std::size_t kPiece = 4096;
  std::array<Stored, kPiece> piece;
  for (std::size_t done = 0; done < out.size(); done += kPiece) {
    const std::size_t count = std::min(kPiece, out.size() - done);
    const std::size_t from = (static_cast<std::size_t>(first) + done) * sizeof(Stored);
    std::memcpy(piece.data(), data.data() + from, count * sizeof(Stored));
    Out* const to = out.data() + done;
    for (std::size_t i = 0; i < count; ++i) to[i] = convert(piece[i]);
  }
}

// Calls convert_range with the function that turns the stored dtype into float32, then `finish`.
template <typename Out, typename Finish>
void convert_tensor(TensorDType dtype, std::span<const std::byte> data, std::int64_t first,
                    std::span<Out> out, Finish finish) {
  switch (dtype) {
    case TensorDType::kF16:
      return convert_range<std::uint16_t>(
          data, first, out, [&](std::uint16_t bits) { return finish(f32_from_f16(bits)); });
    case TensorDType::kBF16:
      return convert_range<std::uint16_t>(
          data, first, out, [&](std::uint16_t bits) { return finish(f32_from_bf16(bits)); });
    case TensorDType::kF32:
      return convert_range<float>(data, first, out, finish);
    default:
      GAPLESS_CHECK(false);  // locate() let only these pass
  }
}

}  // namespace

StatusOr<WeightSource> WeightSource::open(const std::filesystem::path& path,
                                          const ModelConfig& config) {
  WeightSource source;
  GAPLESS_ASSIGN_OR_RETURN(source.checkpoint_, Checkpoint::open(path));
  std::map<std::string, std::string> stored_names;  // by the name without "._orig_mod"
  for (const auto& [name, tensor] : source.checkpoint_.tensors()) {
    const auto [other, is_new] = stored_names.emplace(without_orig_mod(name), name);
    if (!is_new) {
      return data_loss("{}: tensors '{}' and '{}' are the same parameter",
                       source.checkpoint_.files()[tensor.file], other->second, name);
    }
  }
  for (const WeightSpec& spec : weight_specs(config)) {
    GAPLESS_RETURN_IF_ERROR(source.locate(spec, stored_names));
  }
  return source;
}

Status WeightSource::locate(const WeightSpec& spec,
                            const std::map<std::string, std::string>& stored_names) {
  const std::string without_model = spec.name.substr(std::string_view("model.").size());
  auto found = stored_names.end();
  for (const std::string& name : {spec.name, without_model, spec.legacy_name}) {
    if (found == stored_names.end()) found = stored_names.find(name);
  }
  if (found == stored_names.end()) {
    return make_error(StatusCode::kNotFound, "{}: tensor '{}' (or '{}') is missing",
                      fmt::join(checkpoint_.files(), ", "), spec.name, spec.legacy_name);
  }
  const CheckpointTensor& tensor = checkpoint_.tensors().at(found->second);
  const std::string& file = checkpoint_.files()[tensor.file];
  if (!is_readable(tensor.dtype)) {
    return invalid_argument("{}: tensor '{}' has dtype {}; F16, BF16 or F32 is expected", file,
                            found->second, tensor_dtype_name(tensor.dtype));
  }
  Location location{tensor.dtype, tensor.data, spec.num_elements()};
  std::vector<std::int64_t> expected = spec.shape;
  if (spec.legacy_transposed && found->first == spec.legacy_name) {
    std::ranges::reverse(expected);
    location.transposed_rows = expected[0];
    location.transposed_columns = expected[1];
  }
  if (tensor.shape != expected) {
    return invalid_argument("{}: tensor '{}' has shape {}; the configuration says {}", file,
                            found->second, shape_to_string(tensor.shape),
                            shape_to_string(expected));
  }
  stored_bytes_[tensor.dtype] += static_cast<std::int64_t>(tensor.data.size());
  locations_.emplace(spec.name, location);
  return ok_status();
}

const WeightSource::Location& WeightSource::location(std::string_view name) const {
  const auto found = locations_.find(name);
  GAPLESS_CHECK_MSG(found != locations_.end(), name);
  return found->second;
}

std::int64_t WeightSource::num_elements(std::string_view name) const {
  return location(name).num_elements;
}

template <typename Out, typename Convert>
void WeightSource::read(std::string_view name, std::span<Out> out, std::int64_t first,
                        Convert convert) const {
  const Location& tensor = location(name);
  GAPLESS_CHECK_MSG(first >= 0 && first <= tensor.num_elements &&
                        static_cast<std::int64_t>(out.size()) <= tensor.num_elements - first,
                    name);
  if (tensor.transposed_rows == 0) {
    return convert_tensor(tensor.dtype, tensor.data, first, out, convert);
  }
  // Published element (r, c) is stored as (c, r). These matrices are tiny.
  const std::int64_t published_columns = tensor.transposed_rows;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t element = first + static_cast<std::int64_t>(i);
    const std::int64_t row = element / published_columns, column = element % published_columns;
    convert_tensor(tensor.dtype, tensor.data, column * tensor.transposed_columns + row,
                   out.subspan(i, 1), convert);
  }
}

void WeightSource::read_as_f32(std::string_view name, std::span<float> out,
                               std::int64_t first) const {
  read(name, out, first, [](float value) { return value; });
}

void WeightSource::read_as_bf16(std::string_view name, std::span<std::uint16_t> out,
                                std::int64_t first) const {
  const Location& tensor = location(name);
  if (tensor.dtype == TensorDType::kBF16 && tensor.transposed_rows == 0) {  // nothing to convert
    GAPLESS_CHECK_MSG(first >= 0 && first <= tensor.num_elements &&
                          static_cast<std::int64_t>(out.size()) <= tensor.num_elements - first,
                      name);
    std::memcpy(out.data(), tensor.data.data() + 2 * first, out.size_bytes());
    return;
  }
  read(name, out, first, [](float value) { return bf16_from_f32(value); });
}

}  // namespace gapless
