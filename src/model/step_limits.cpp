#include "model/step_limits.h"

#include <algorithm>

#include "base/limits.h"
#include "model/device_state.h"
#include "model/model_shape.h"
#include "model/workspace.h"

namespace gapless {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;

// On the CPU the cache is filled with zeros at start-up, and small models must start fast: 8192
// tokens of the model that ships, in float32.
constexpr std::size_t kCpuKvBytes = 96 * kMiB;
// Left free on a GPU: the pipeline's slots and graphs, the driver, other processes.
constexpr std::size_t kGpuReserveBytes = 3 * kGiB;
// Room beyond every seat's full context, for prefixes that stay cached without a sequence.
constexpr int kCacheFactor = 2;

StepLimits limits_without_pages(DeviceKind kind, const TextShape& shape) {
  StepLimits limits;
  limits.max_pages_per_row = (shape.max_context + kPageTokens - 1) / kPageTokens;
  if (kind == DeviceKind::kCpu) {
    limits.max_seats = 16;
    limits.max_prefill_tokens = shape.max_context;
    limits.max_prefill_sequences = 8;
    // Two cores are busy with one, and who does not wait for it waits for no more than that.
    limits.max_crops_per_encode = 1;
    limits.max_images_per_encode = 1;
    limits.long_fill_ns = kCpuLongFillNs;
    limits.num_image_slots = 16;
  } else {
    limits.max_seats = kMaxSeats;
    limits.max_prefill_tokens = std::max(8192, shape.max_context);
    limits.max_prefill_sequences = 32;
    // Two images with their questions; more keeps the device busy for 10 ms and longer.
    limits.max_graph_tokens = 2048;
    limits.max_graph_crops = limits.max_crops_per_encode;
  }
  limits.max_page_deltas =
      std::max(limits.max_seats, limits.max_prefill_sequences * limits.max_pages_per_row);
  return limits;
}

}  // namespace

StatusOr<StepLimits> choose_step_limits(Device& device, const Kernels& kernels,
                                        const ModelConfig& config, KvFormat kv_format) {
  const TextShape shape = text_shape(config);
  StepLimits limits = limits_without_pages(device.kind(), shape);
  GAPLESS_ASSIGN_OR_RETURN(const DeviceInfo info, device.info());

  const DType dtype = kernels.activation_dtype();
  const std::size_t image_pool_bytes = static_cast<std::size_t>(limits.num_image_slots) *
                                       vision_shape(config).patches_per_crop *
                                       static_cast<std::size_t>(shape.dim) * dtype_bytes(dtype);
  const std::size_t needed = workspace_bytes(kernels, config, limits) + image_pool_bytes +
                             token_memory_bytes(shape.vocab, limits);
  std::size_t budget = kCpuKvBytes;
  if (device.kind() != DeviceKind::kCpu) {
    const std::size_t taken = needed + kGpuReserveBytes;
    budget = info.free_memory_bytes > taken ? info.free_memory_bytes - taken : 0;
  }
  // A large model on the CPU still gets one full context.
  const std::size_t page_bytes = kv_page_bytes(shape, dtype, kv_format);
  const int one_context = 1 + limits.max_pages_per_row;  // page 0 is trash
  const int useful = 1 + kCacheFactor * limits.max_seats * limits.max_pages_per_row;
  const auto affordable = static_cast<int>(
      std::min<std::size_t>(budget / page_bytes, static_cast<std::size_t>(useful)));
  limits.num_pages =
      device.kind() == DeviceKind::kCpu ? std::max(affordable, one_context) : affordable;
  if (limits.num_pages < one_context) {
    return make_error(StatusCode::kResourceExhausted,
                      "{}: {} MiB free after the weights; a KV cache for one context of {} tokens "
                      "takes {} MiB, activations {} MiB",
                      info.name, info.free_memory_bytes / kMiB, shape.max_context,
                      static_cast<std::size_t>(one_context) * page_bytes / kMiB, needed / kMiB);
  }
  return limits;
}

}  // namespace gapless
