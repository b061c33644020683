#include "model/weight_loading.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/check.h"
#include "weights/random_tensors.h"

namespace gapless {
namespace {

Status read_elements(const WeightSource& source, const std::string& name, DType dtype,
                     std::byte* to, std::int64_t count, std::int64_t first) {
  const auto size = static_cast<std::size_t>(count);
  if (dtype == DType::kF32) {
    return source.read_as_f32(name, std::span(reinterpret_cast<float*>(to), size), first);
  }
  return source.read_as_bf16(name, std::span(reinterpret_cast<std::uint16_t*>(to), size), first);
}

// A tensor without padding is one run of elements, cut anywhere.
Status load_dense(StagedUpload& upload, const WeightSource& source, const TensorPlacement& tensor,
                  DType dtype, std::byte* to_dev) {
  const std::size_t element_bytes = dtype_bytes(dtype);
  const std::int64_t count = tensor.num_parameters();
  const std::int64_t before = tensor.first_row * tensor.row_size;
  for (std::int64_t first = 0; first < count;) {
    GAPLESS_ASSIGN_OR_RETURN(const std::span<std::byte> piece, upload.begin_piece());
    const std::int64_t now =
        std::min(count - first, static_cast<std::int64_t>(piece.size() / element_bytes));
    GAPLESS_RETURN_IF_ERROR(
        read_elements(source, tensor.name, dtype, piece.data(), now, before + first));
    GAPLESS_RETURN_IF_ERROR(
        upload.end_piece(to_dev + static_cast<std::size_t>(first) * element_bytes,
                         static_cast<std::size_t>(now) * element_bytes));
    first += now;
  }
  return ok_status();
}

// A tensor whose rows are padded with zeros, cut between rows.
Status load_padded(StagedUpload& upload, const WeightSource& source, const TensorPlacement& tensor,
                   DType dtype, std::byte* to_dev) {
  const std::size_t stride_bytes = static_cast<std::size_t>(tensor.row_stride) * dtype_bytes(dtype);
  for (std::int64_t row = 0; row < tensor.num_rows;) {
    GAPLESS_ASSIGN_OR_RETURN(const std::span<std::byte> piece, upload.begin_piece());
    const std::int64_t rows =
        std::min(tensor.num_rows - row, static_cast<std::int64_t>(piece.size() / stride_bytes));
    GAPLESS_CHECK(rows > 0);
    const std::size_t bytes = static_cast<std::size_t>(rows) * stride_bytes;
    std::memset(piece.data(), 0, bytes);
    for (std::int64_t i = 0; i < rows; ++i) {
      std::byte* to = piece.data() + static_cast<std::size_t>(i) * stride_bytes;
      GAPLESS_RETURN_IF_ERROR(read_elements(source, tensor.name, dtype, to, tensor.row_size,
                                            (tensor.first_row + row + i) * tensor.row_size));
    }
    GAPLESS_RETURN_IF_ERROR(
        upload.end_piece(to_dev + static_cast<std::size_t>(row) * stride_bytes, bytes));
    row += rows;
  }
  return ok_status();
}

}  // namespace

Status load_weights(Device& device, Stream& stream, const WeightSource& source,
                    const TensorLayout& layout, DType dtype, void* weights_dev,
                    std::size_t piece_bytes) {
  GAPLESS_ASSIGN_OR_RETURN(
      StagedUpload upload,
      StagedUpload::create(device, stream, std::min(piece_bytes, layout.total_bytes)));
  return load_weights(upload, source, layout, dtype, weights_dev);
}

Status load_weights(StagedUpload& upload, const WeightSource& source, const TensorLayout& layout,
                    DType dtype, void* weights_dev) {
  for (const TensorPlacement& tensor : layout.tensors) {
    std::byte* to_dev = static_cast<std::byte*>(weights_dev) + tensor.offset_bytes;
    const bool dense = tensor.row_stride == tensor.row_size;
    GAPLESS_RETURN_IF_ERROR(dense ? load_dense(upload, source, tensor, dtype, to_dev)
                                  : load_padded(upload, source, tensor, dtype, to_dev));
  }
  return upload.finish();
}

Status fill_random_weights(Kernels& kernels, Stream& stream, std::span<const WeightSpec> specs,
                           std::uint64_t seed, const TensorLayout& layout, void* weights_dev) {
  std::unordered_map<std::string_view, const WeightSpec*> by_name;
  for (const WeightSpec& spec : specs) by_name.emplace(spec.name, &spec);
  for (const TensorPlacement& tensor : layout.tensors) {
    const auto found = by_name.find(tensor.name);
    GAPLESS_CHECK_MSG(found != by_name.end(), tensor.name);
    const RandomTensorSpec spec = random_tensor_spec(*found->second, seed);
    FillRandomParams params;
    params.out = static_cast<std::byte*>(weights_dev) + tensor.offset_bytes;
    params.first_row = tensor.first_row;
    params.num_rows = tensor.num_rows;
    params.row_size = tensor.row_size;
    params.row_stride = tensor.row_stride;
    params.seed = spec.seed;
    params.tensor_hash = spec.tensor_hash;
    params.mean = spec.mean;
    params.stddev = spec.stddev;
    GAPLESS_RETURN_IF_ERROR(kernels.fill_random(stream, params));
  }
  return ok_status();
}

}  // namespace gapless
