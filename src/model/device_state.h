// The state that lives on the device across steps: the rows, what they remember of tokens, the page table, the KV cache, the pool
// of image embeddings, the pool of automata and the tokens' classes. Allocated once from StepLimits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "model/model_shape.h"
#include "step/step_model.h"

namespace gapless {

// Automata that may lie in the pool: the spatial ones and, compiled while serving, those of
// requests.
inline constexpr int kMaxAutomatonStates = 4096;

// Bytes of the rows' token memories.
std::size_t token_memory_bytes(int vocab, const StepLimits& limits);

// Bytes of one KV page: keys and values, all layers. `dtype` is T.
std::size_t kv_page_bytes(const TextShape& shape, DType dtype, KvFormat format);

class DeviceState {
 public:
  // The rows come up done and empty, every page-table entry is the trash page, the cache is zero.
  // The automata pool begins with `automata`. token_classes: of the tokens from the first on, the others have none.
  static StatusOr<DeviceState> create(Device& device, Stream& stream, const TextShape& shape,
                                      int image_tokens, DType dtype, KvFormat kv_format,
                                      const StepLimits& limits,
                                      std::span<const AutomatonState> automata,
                                      std::span<const std::uint8_t> token_classes = {});

  RowState* row_states() const { return row_states_; }
  std::int32_t* page_table() const { return page_table_; }  // [num_rows, page_table_stride]
  int page_table_stride() const { return page_table_stride_; }
  TokenMemory token_memory() const { return token_memory_; }
  AutomatonState* automata() const { return automata_; }          // [kMaxAutomatonStates]
  std::uint8_t* token_classes() const { return token_classes_; }  // [vocab]

  void* image_embeddings() const { return image_embeddings_; }  // [num_image_slots * 729, D] T
  // The 729 rows of one slot.
  void* image_slot(int slot) const;

  void* kv_base() const { return kv_.data(); }  // [num_layers, num_pages, layer_page_bytes()]
  std::int64_t num_pages() const { return num_pages_; }
  std::size_t cache_bytes() const { return kv_.size_bytes(); }
  std::size_t bytes_without_cache() const { return buffer_.size_bytes(); }
  KvFormat kv_format() const { return kv_format_; }
  // Bytes of one page of one layer.
  std::int64_t layer_page_bytes() const { return layer_page_bytes_; }
  KvLayer kv_layer(int layer) const;

 private:
  void carve(void* base, const TextShape& shape, int image_tokens, DType dtype,
             const StepLimits& limits, std::size_t* total_bytes);

  Buffer buffer_;
  Buffer kv_;
  RowState* row_states_ = nullptr;
  std::int32_t* page_table_ = nullptr;
  TokenMemory token_memory_;
  AutomatonState* automata_ = nullptr;
  std::uint8_t* token_classes_ = nullptr;
  void* image_embeddings_ = nullptr;
  int page_table_stride_ = 0;
  std::int64_t num_pages_ = 0;
  std::int64_t layer_page_bytes_ = 0;
  KvFormat kv_format_ = KvFormat::kNative;
  std::size_t image_slot_bytes_ = 0;
};

}  // namespace gapless
