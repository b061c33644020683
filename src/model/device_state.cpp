#include "model/device_state.h"

#include <vector>

#include "base/check.h"
#include "base/limits.h"
#include "device/bump_layout.h"
#include "model/staged_upload.h"

namespace gapless {

std::size_t kv_page_bytes(const TextShape& shape, DType dtype, KvFormat format) {
  return static_cast<std::size_t>(shape.num_layers * shape.heads.kv_layout().page_size()) *
         kv_element_bytes(format, dtype);
}

std::size_t token_memory_bytes(int vocab, const StepLimits& limits) {
  return static_cast<std::size_t>(limits.num_rows() * token_memory_stride(vocab)) *
         (sizeof(*TokenMemory::uses) + sizeof(*TokenMemory::biases));
}

void DeviceState::carve(void* base, const TextShape& shape, int image_tokens, DType dtype,
                        const StepLimits& limits, std::size_t* total_bytes) {
  BumpLayout layout(base);
  const auto num_rows = static_cast<std::size_t>(limits.num_rows());
  row_states_ = layout.take_array<RowState>(num_rows);
  page_table_ = layout.take_array<std::int32_t>(num_rows *
                                                static_cast<std::size_t>(limits.max_pages_per_row));
  token_memory_.stride = token_memory_stride(shape.vocab);
  const std::size_t entries = num_rows * static_cast<std::size_t>(token_memory_.stride);
  token_memory_.uses = layout.take_array<std::uint16_t>(entries);
  token_memory_.biases = layout.take_array<float>(entries);
  automata_ = layout.take_array<AutomatonState>(kMaxAutomatonStates);
  token_classes_ = layout.take_array<std::uint8_t>(static_cast<std::size_t>(shape.vocab));
  image_slot_bytes_ = static_cast<std::size_t>(image_tokens) * static_cast<std::size_t>(shape.dim) *
                      dtype_bytes(dtype);
  image_embeddings_ =
      layout.take(static_cast<std::size_t>(limits.num_image_slots) * image_slot_bytes_);
  *total_bytes = layout.peak_bytes();
}

StatusOr<DeviceState> DeviceState::create(Device& device, Stream& stream, const TextShape& shape,
                                          int image_tokens, DType dtype, KvFormat kv_format,
                                          const StepLimits& limits,
                                          std::span<const AutomatonState> automata,
                                          std::span<const std::uint8_t> token_classes) {
  GAPLESS_CHECK(automata.size() <= kMaxAutomatonStates);
  GAPLESS_CHECK(token_classes.size() <= static_cast<std::size_t>(shape.vocab));
  DeviceState state;
  std::size_t bytes = 0;
  state.carve(nullptr, shape, image_tokens, dtype, limits, &bytes);
  GAPLESS_ASSIGN_OR_RETURN(state.buffer_, device.allocate(bytes));
  state.carve(state.buffer_.data(), shape, image_tokens, dtype, limits, &bytes);
  state.page_table_stride_ = limits.max_pages_per_row;
  state.num_pages_ = limits.num_pages;
  state.kv_format_ = kv_format;
  const std::size_t page_bytes = kv_page_bytes(shape, dtype, kv_format);
  state.layer_page_bytes_ = static_cast<std::int64_t>(page_bytes) / shape.num_layers;
  const std::size_t kv_bytes = static_cast<std::size_t>(limits.num_pages) * page_bytes;
  GAPLESS_ASSIGN_OR_RETURN(state.kv_, device.allocate(kv_bytes));

  // Zero, so that a masked key or value that a kernel loads with its page is never a NaN.
  GAPLESS_RETURN_IF_ERROR(stream.fill_bytes(state.kv_.data(), 0, kv_bytes));
  GAPLESS_RETURN_IF_ERROR(stream.fill_bytes(state.buffer_.data(), 0, bytes));
  const std::vector<RowState> rows(static_cast<std::size_t>(limits.num_rows()),
                                   RowState{.done = 1});
  GAPLESS_ASSIGN_OR_RETURN(StagedUpload upload,
                           StagedUpload::create(device, stream, kUploadPieceBytes));
  GAPLESS_RETURN_IF_ERROR(upload.copy(state.row_states_, bytes_of(rows)));
  GAPLESS_RETURN_IF_ERROR(upload.copy(state.automata_, std::as_bytes(automata)));
  GAPLESS_RETURN_IF_ERROR(upload.copy(state.token_classes_, std::as_bytes(token_classes)));
  GAPLESS_RETURN_IF_ERROR(upload.finish());
  return state;
}

void* DeviceState::image_slot(int slot) const {
  return static_cast<std::byte*>(image_embeddings_) +
         static_cast<std::size_t>(slot) * image_slot_bytes_;
}

KvLayer DeviceState::kv_layer(int layer) const {
  return {.pages = static_cast<std::byte*>(kv_.data()) + layer * num_pages_ * layer_page_bytes_,
          .format = kv_format_};
}

}  // namespace gapless
