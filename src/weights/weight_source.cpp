#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "weights/float_conversion.h"
#include "weights/weight_map.h"

namespace gapless {
namespace {

constexpr std::string_view kModelPrefix = "model.";
constexpr std::size_t kPieceElements = 4096;  // that are converted at a time

// What the reference model's code registers as buffers and may have saved with its weights.
bool is_buffer_of_the_reference(std::string_view name) {
  return name.ends_with(".kv_cache.k_cache") || name.ends_with(".kv_cache.v_cache") ||
         name.ends_with("freqs_cis") || name.ends_with("attn_mask") ||
         name.ends_with(".rotary_emb.inv_freq") ||
         // Of an 8-bit KV cache with scales; ours has none (kernels/kv_format.h).
         name.ends_with(".kv_quantizer.k_scale") || name.ends_with(".kv_quantizer.v_scale");
}

bool is_readable(TensorDType dtype) {
  return dtype == TensorDType::kF16 || dtype == TensorDType::kBF16 || dtype == TensorDType::kF32;
}

// out[i] = convert(element first + i), where the stored elements have type Stored. The file's data
// need not be aligned, so pieces go through an aligned buffer.
template <typename Stored, typename Out, typename Convert>
void convert_range(std::span<const std::byte> data, std::int64_t first, std::span<Out> out,
                   Convert convert) {
  std::array<Stored, kPieceElements> piece;
  for (std::size_t done = 0; done < out.size(); done += kPieceElements) {
    const std::size_t count = std::min(kPieceElements, out.size() - done);
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
    case TensorDType::kF8E4M3:
      return convert_range<std::uint8_t>(
          data, first, out, [&](std::uint8_t bits) { return finish(f32_from_e4m3(bits)); });
    default:
      GAPLESS_CHECK(false);  // locate() let only these pass
  }
}

// The first element whose exponent is all ones: an infinity or NaN. A loop without branches looks
// at all of them first, and vectorises: `mask` clears the sign, and adding `step` to an exponent of
// ones reaches the sign's bit.
template <typename Bits, typename Value>
std::optional<std::size_t> find_not_finite(std::span<const Value> values, Bits mask, Bits step) {
  const auto is_bad = [&](Value value) {
    return static_cast<Bits>((std::bit_cast<Bits>(value) & mask) + step);
  };
  Bits any = 0;
  for (const Value value : values) any |= is_bad(value);
  if (any <= mask) return std::nullopt;
  const auto first = std::ranges::find_if(values, [&](Value v) { return is_bad(v) > mask; });
  return static_cast<std::size_t>(first - values.begin());
}

std::optional<std::size_t> find_not_finite(std::span<const float> values) {
  return find_not_finite<std::uint32_t>(values, 0x7FFFFFFFu, 0x00800000u);
}
std::optional<std::size_t> find_not_finite(std::span<const std::uint16_t> bf16) {
  return find_not_finite<std::uint16_t>(bf16, 0x7FFFu, 0x0080u);
}

// Calls work(piece, first) for pieces of `out` that stay in the first-level cache between the
// conversion and the look at its results.
template <typename Out, typename Work>
std::optional<std::size_t> in_pieces(std::span<Out> out, Work work) {
  for (std::size_t done = 0; done < out.size(); done += kPieceElements) {
    const std::span<Out> piece = out.subspan(done, std::min(kPieceElements, out.size() - done));
    work(piece, static_cast<std::int64_t>(done));
    const auto bad = find_not_finite(std::span<const Out>(piece));
    if (bad) return done + *bad;
  }
  return std::nullopt;
}

}  // namespace

std::string parameter_name(std::string_view stored) {
  constexpr std::string_view kPart = "._orig_mod";
  std::string name(stored);
  for (std::size_t at; (at = name.find(kPart)) != std::string::npos;) name.erase(at, kPart.size());
  if (name.starts_with(kModelPrefix)) name.erase(0, kModelPrefix.size());
  return name;
}

std::int64_t WeightSpec::num_elements() const {
  std::int64_t product = 1;
  for (const std::int64_t side : shape) product *= side;
  return product;
}

StatusOr<WeightSource> WeightSource::open(const std::filesystem::path& path,
                                          std::span<const WeightSpec> tensors) {
  WeightSource source;
  GAPLESS_ASSIGN_OR_RETURN(source.checkpoint_, Checkpoint::open(path));
  StoredNames stored_names;
  for (const auto& [name, tensor] : source.checkpoint_.tensors()) {
    const auto [other, is_new] = stored_names.emplace(parameter_name(name), name);
    if (!is_new) {
      return data_loss("{}: tensors '{}' and '{}' are the same parameter",
                       source.checkpoint_.files()[tensor.file], other->second, name);
    }
  }
  for (const WeightSpec& spec : tensors) {
    GAPLESS_RETURN_IF_ERROR(source.locate(spec, stored_names));
  }
  for (const WeightSpec& spec : tensors) {
    if (!spec.legacy_whole.empty()) stored_names.erase(spec.legacy_whole);
  }
  GAPLESS_RETURN_IF_ERROR(source.refuse_surplus(stored_names));
  return source;
}

Status WeightSource::refuse_surplus(const StoredNames& stored_names) const {
  const std::string* surplus = nullptr;
  int num_surplus = 0;
  for (const auto& [name, stored] : stored_names) {
    if (is_buffer_of_the_reference(name)) continue;
    if (num_surplus++ == 0) surplus = &stored;
  }
  if (surplus == nullptr) return ok_status();
  const std::string& file = checkpoint_.files()[checkpoint_.tensors().at(*surplus).file];
  return invalid_argument("{}: tensor '{}' is not one of this model's{}", file, *surplus,
                          num_surplus == 1 ? "" : fmt::format(" ({} such)", num_surplus));
}

StatusOr<bool> WeightSource::locate_part(const WeightSpec& spec, const StoredNames& stored_names) {
  const auto found = stored_names.find(spec.legacy_whole);
  if (found == stored_names.end()) return false;
  const CheckpointTensor& tensor = checkpoint_.tensors().at(found->second);
  const std::string& file = checkpoint_.files()[tensor.file];
  const std::vector<std::int64_t> expected = {spec.legacy_whole_rows, spec.row_size()};
  if (!is_readable(tensor.dtype) || tensor.shape != expected) {
    return invalid_argument(
        "{}: tensor '{}' is {} {}; F16, BF16 or F32 {} is expected, rows {} to {} of it are '{}'",
        file, found->second, tensor_dtype_name(tensor.dtype), shape_to_string(tensor.shape),
        shape_to_string(expected), spec.legacy_first_row,
        spec.legacy_first_row + spec.num_rows() - 1, spec.name);
  }
  const std::size_t row_bytes =
      static_cast<std::size_t>(spec.row_size()) * tensor_dtype_bytes(tensor.dtype);
  const auto part = tensor.data.subspan(static_cast<std::size_t>(spec.legacy_first_row) * row_bytes,
                                        static_cast<std::size_t>(spec.num_rows()) * row_bytes);
  stored_bytes_[tensor.dtype] += static_cast<std::int64_t>(part.size());
  locations_.emplace(spec.name,
                     Location{tensor.dtype, part, spec.shape, spec.num_elements(), tensor.file});
  return true;
}

Status WeightSource::locate_scales(const WeightSpec& spec, StoredNames& stored_names,
                                   Location& location) {
  const auto found = stored_names.find(spec.legacy_row_scales);
  if (found == stored_names.end()) {
    return make_error(StatusCode::kNotFound,
                      "{}: tensor '{}' is F8_E4M3, and '{}', the factors of its rows, is missing",
                      fmt::join(checkpoint_.files(), ", "), spec.name, spec.legacy_row_scales);
  }
  const CheckpointTensor& scales = checkpoint_.tensors().at(found->second);
  const std::vector<std::int64_t> expected(spec.shape.begin(), spec.shape.end() - 1);
  if (scales.dtype != TensorDType::kF32 || scales.shape != expected) {
    return invalid_argument("{}: tensor '{}' is {} {}; F32 {} is expected",
                            checkpoint_.files()[scales.file], found->second,
                            tensor_dtype_name(scales.dtype), shape_to_string(scales.shape),
                            shape_to_string(expected));
  }
  location.row_scales = scales.data;
  stored_bytes_[location.dtype] += static_cast<std::int64_t>(scales.data.size());
  stored_names.erase(found);
  return ok_status();
}

Status WeightSource::locate(const WeightSpec& spec, StoredNames& stored_names) {
  auto found = stored_names.find(parameter_name(spec.name));
  if (found == stored_names.end()) found = stored_names.find(spec.legacy_name);
  if (found == stored_names.end() && !spec.legacy_whole.empty()) {
    GAPLESS_ASSIGN_OR_RETURN(const bool is_part, locate_part(spec, stored_names));
    if (is_part) return ok_status();
  }
  if (found == stored_names.end()) {
    const std::string other =
        spec.legacy_name.empty() ? "" : fmt::format(" (or '{}')", spec.legacy_name);
    return make_error(StatusCode::kNotFound, "{}: tensor '{}'{} is missing",
                      fmt::join(checkpoint_.files(), ", "), spec.name, other);
  }
  const CheckpointTensor& tensor = checkpoint_.tensors().at(found->second);
  const std::string& file = checkpoint_.files()[tensor.file];
  const bool has_scales = tensor.dtype == TensorDType::kF8E4M3 && !spec.legacy_row_scales.empty();
  if (!is_readable(tensor.dtype) && !has_scales) {
    return invalid_argument("{}: tensor '{}' has dtype {}; F16, BF16 or F32 is expected", file,
                            found->second, tensor_dtype_name(tensor.dtype));
  }
  Location location{tensor.dtype, tensor.data, spec.shape, spec.num_elements(), tensor.file};
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
  stored_names.erase(found);
  if (has_scales) GAPLESS_RETURN_IF_ERROR(locate_scales(spec, stored_names, location));
  locations_.emplace(spec.name, location);
  if (!spec.stored_again_as.empty()) stored_names.erase(parameter_name(spec.stored_again_as));
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

Status WeightSource::not_finite(std::string_view name, std::int64_t element) const {
  const Location& tensor = location(name);
  float value = 0;
  read_sum(name, tensor, std::span(&value, 1), element);
  std::vector<std::int64_t> index(tensor.shape.size());
  for (std::size_t side = index.size(); side-- > 0; element /= tensor.shape[side]) {
    index[side] = element % tensor.shape[side];
  }
  return data_loss("{}: tensor '{}' is {} at {}, where weights are finite numbers{}",
                   checkpoint_.files()[tensor.file], name, value, shape_to_string(index),
                   std::isfinite(value) ? " that bfloat16 can hold" : "");
}

void WeightSource::read_sum(std::string_view name, const Location& tensor, std::span<float> out,
                            std::int64_t first) const {
  read(tensor, out, first, [](float value) { return value; });
  if (adapter_) adapter_->add(name, out, first);
}

template <typename Out, typename Convert>
void WeightSource::read(const Location& tensor, std::span<Out> out, std::int64_t first,
                        Convert convert) const {
  if (!tensor.row_scales.empty()) {
    // Row after row, as far as `out` reaches.
    const std::int64_t row_size = tensor.shape.back();
    for (std::size_t done = 0; done < out.size();) {
      const std::int64_t element = first + static_cast<std::int64_t>(done);
      const std::int64_t row = element / row_size;
      const auto count =
          std::min(out.size() - done, static_cast<std::size_t>((row + 1) * row_size - element));
      float scale;
      std::memcpy(&scale, tensor.row_scales.data() + row * sizeof(float), sizeof(scale));
      convert_tensor(tensor.dtype, tensor.data, element, out.subspan(done, count),
                     [&](float value) { return convert(value * scale); });
      done += count;
    }
    return;
  }
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

const WeightSource::Location& WeightSource::range(std::string_view name, std::int64_t first,
                                                  std::size_t count) const {
  const Location& tensor = location(name);
  GAPLESS_CHECK_MSG(first >= 0 && first <= tensor.num_elements &&
                        static_cast<std::int64_t>(count) <= tensor.num_elements - first,
                    name);
  return tensor;
}

Status WeightSource::read_as_f32(std::string_view name, std::span<float> out,
                                 std::int64_t first) const {
  const Location& tensor = range(name, first, out.size());
  const auto bad = in_pieces(out, [&](std::span<float> piece, std::int64_t done) {
    read_sum(name, tensor, piece, first + done);
  });
  return bad ? not_finite(name, first + static_cast<std::int64_t>(*bad)) : ok_status();
}

Status WeightSource::read_as_bf16(std::string_view name, std::span<std::uint16_t> out,
                                  std::int64_t first) const {
  const Location& tensor = range(name, first, out.size());
  const bool is_bf16 = tensor.dtype == TensorDType::kBF16 && tensor.transposed_rows == 0;
  const bool is_sum = adapter_ && adapter_->has_term(name);
  std::array<float, kPieceElements> sums;
  const auto bad = in_pieces(out, [&](std::span<std::uint16_t> piece, std::int64_t done) {
    if (is_sum) {
      read_sum(name, tensor, std::span(sums).first(piece.size()), first + done);
      std::ranges::transform(std::span(sums).first(piece.size()), piece.begin(), bf16_from_f32);
    } else if (is_bf16) {  // nothing to convert
      std::memcpy(piece.data(), tensor.data.data() + 2 * (first + done), piece.size_bytes());
    } else {
      read(tensor, piece, first + done, [](float value) { return bf16_from_f32(value); });
    }
  });
  return bad ? not_finite(name, first + static_cast<std::int64_t>(*bad)) : ok_status();
}

}  // namespace gapless
