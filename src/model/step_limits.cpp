#include "model/step_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/limits.h"
#include "model/device_state.h"
#include "model/workspace.h"

namespace gapless {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;

// The CPU's memory is shared with all else on the machine: a part of what is free, and of a large machine
// as much as two full contexts of Moondream 2 take. More is asked for with --kv-cache-gb.
constexpr std::size_t kCpuKvShare = 32;
constexpr std::size_t kMaxCpuKvBytes = 768 * kMiB;
constexpr std::size_t kSmallCpuKvBytes = 96 * kMiB;
// Left free on a GPU: the pipeline's slots and graphs, grammars (device_grammars.h), the driver, other processes.
constexpr std::size_t kGpuReserveBytes = 3 * kGiB;
// Room beyond every seat's full context, for prefixes that stay cached without a sequence.
constexpr int kCacheFactor = 2;

// Of StepSizing::kSmall, on any device.
constexpr int kSmallSeats = 8;
constexpr int kSmallCrops = 4;
constexpr int kSmallImageSlots = 8;

void make_small(const TextShape& shape, StepLimits& limits) {
  limits.max_seats = std::min(limits.max_seats, kSmallSeats);
  limits.max_prefill_tokens = shape.max_context;
  limits.max_crops_per_encode = std::min(limits.max_crops_per_encode, kSmallCrops);
  limits.max_images_per_encode = std::min(limits.max_images_per_encode, kSmallCrops);
  limits.num_image_slots = std::min(limits.num_image_slots, kSmallImageSlots);
  limits.max_graph_tokens = std::min(limits.max_graph_tokens, limits.max_prefill_tokens);
  limits.max_graph_crops = std::min(limits.max_graph_crops, limits.max_crops_per_encode);
}

StepLimits limits_without_pages(DeviceKind kind, const ModelShape& model,
                                const LimitWishes& wishes) {
  const TextShape& shape = model.text;
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
    limits.max_seats = kDefaultSeats;
    limits.max_prefill_tokens = std::max(8192, shape.max_context);
    limits.max_prefill_sequences = 32;
    // Two images with their questions; more keeps the device busy for 10 ms and longer.
    limits.max_graph_tokens = 2048;
    limits.max_graph_crops = limits.max_crops_per_encode;
  }
  if (model.vision.dim == 0) {
    // Nothing to encode; the least that the loop takes.
    limits.max_crops_per_encode = limits.max_images_per_encode = limits.num_image_slots = 1;
    limits.max_graph_crops = 0;
  }
  if (wishes.sizing == StepSizing::kSmall) make_small(shape, limits);
  if (wishes.max_rows) limits.max_seats = *wishes.max_rows;
  // A prompt of several images takes as many. None is without a token.
  limits.max_prefill_sequences =
      std::min({limits.max_prefill_sequences, limits.max_prefill_tokens,
                std::max(limits.max_seats, static_cast<int>(kMaxImagesPerPrompt))});
  limits.max_page_deltas =
      std::max(limits.max_seats, limits.max_prefill_sequences * limits.max_pages_per_row);
  return limits;
}

// What a model's state takes beside its weights.
struct StateBytes {
  std::size_t activations = 0;  // and all else that is not pages
  std::size_t page = 0;
  int one_context = 0;  // pages: of the longest sequence, and page 0, which is trash

  std::size_t least() const { return activations + static_cast<std::size_t>(one_context) * page; }
};

StateBytes state_bytes(const Kernels& kernels, const ModelShape& model, KvFormat kv_format,
                       const StepLimits& limits) {
  const DType dtype = kernels.activation_dtype();
  const std::size_t image_pool_bytes = static_cast<std::size_t>(limits.num_image_slots) *
                                       static_cast<std::size_t>(model.vision.patches_per_crop) *
                                       static_cast<std::size_t>(model.text.dim) *
                                       dtype_bytes(dtype);
  return {.activations = workspace_bytes(kernels, model, limits) + image_pool_bytes +
                         token_memory_bytes(model.text.vocab, limits),
          .page = kv_page_bytes(model.text, dtype, kv_format),
          .one_context = 1 + limits.max_pages_per_row};
}

std::size_t reserve_bytes(DeviceKind kind, const LimitWishes& wishes) {
  if (wishes.reserve_bytes) return *wishes.reserve_bytes;
  return kind == DeviceKind::kCpu ? 0 : kGpuReserveBytes;
}

// The longest context, in whole pages, of which one sequence fits; 0: none.
int longest_context(DeviceKind kind, std::size_t free_bytes, const Kernels& kernels,
                    ModelShape model, KvFormat kv_format, const LimitWishes& wishes) {
  int fits = 0, too_long = (model.text.max_context + kPageTokens - 1) / kPageTokens;
  while (too_long - fits > 1) {
    const int pages = fits + (too_long - fits) / 2;
    model.text.max_context = pages * kPageTokens;
    const StateBytes state =
        state_bytes(kernels, model, kv_format, limits_without_pages(kind, model, wishes));
    (state.least() + reserve_bytes(kind, wishes) <= free_bytes ? fits : too_long) = pages;
  }
  return fits * kPageTokens;
}

Status does_not_fit(const DeviceInfo& info, const Kernels& kernels, const ModelShape& model,
                    KvFormat kv_format, const StateBytes& state, const LimitWishes& wishes) {
  const int context =
      longest_context(info.kind, info.free_memory_bytes, kernels, model, kv_format, wishes);
  const std::string what_would = context > 0
                                     ? fmt::format("; --max-context {} fits", context)
                                     : std::string("; no context fits beside these weights");
  return make_error(StatusCode::kResourceExhausted,
                    "{}: {} MiB free after the weights; a KV cache for one context of {} tokens "
                    "takes {} MiB, activations {} MiB{}",
                    info.name, info.free_memory_bytes / kMiB, model.text.max_context,
                    static_cast<std::size_t>(state.one_context) * state.page / kMiB,
                    state.activations / kMiB, what_would);
}

Status check_cache_size(std::size_t wanted, std::size_t budget, const ModelShape& model,
                        const StateBytes& state) {
  if (wanted > budget) {
    return make_error(StatusCode::kResourceExhausted,
                      "a KV cache of {} MiB: {} MiB are free beside weights and activations",
                      wanted / kMiB, budget / kMiB);
  }
  const std::size_t least = static_cast<std::size_t>(state.one_context) * state.page;
  if (wanted < least) {
    return invalid_argument(
        "a KV cache of {} MiB: one context of {} tokens takes {} MiB; give it as much, or lower "
        "--max-context",
        wanted / kMiB, model.text.max_context, (least + kMiB - 1) / kMiB);
  }
  return ok_status();
}

}  // namespace

StatusOr<StepLimits> choose_step_limits(Device& device, const Kernels& kernels,
                                        const ModelShape& model, KvFormat kv_format,
                                        const LimitWishes& wishes) {
  if (wishes.max_rows && (*wishes.max_rows < 1 || *wishes.max_rows > kMaxSeats)) {
    return invalid_argument("{} rows: a step may have 1 to {}", *wishes.max_rows, kMaxSeats);
  }
  StepLimits limits = limits_without_pages(device.kind(), model, wishes);
  GAPLESS_ASSIGN_OR_RETURN(const DeviceInfo info, device.info());
  const StateBytes state = state_bytes(kernels, model, kv_format, limits);
  const std::size_t reserve = reserve_bytes(device.kind(), wishes);
  if (state.least() + reserve > info.free_memory_bytes) {
    return does_not_fit(info, kernels, model, kv_format, state, wishes);
  }
  std::size_t budget = info.free_memory_bytes - state.activations - reserve;
  if (wishes.kv_cache_bytes) {
    if (const Status fits = check_cache_size(*wishes.kv_cache_bytes, budget, model, state);
        !fits.ok()) {
      return fits;
    }
    budget = *wishes.kv_cache_bytes;
  } else if (device.kind() == DeviceKind::kCpu) {
    budget =
        std::min(budget / kCpuKvShare, wishes.sized_to_machine ? kMaxCpuKvBytes : kSmallCpuKvBytes);
  }
  const int useful = 1 + kCacheFactor * limits.max_seats * limits.max_pages_per_row;
  const auto affordable = static_cast<int>(
      std::min<std::size_t>(budget / state.page, static_cast<std::size_t>(useful)));
  // A large model on the CPU still gets one full context.
  limits.num_pages = std::max(affordable, state.one_context);
  return limits;
}

}  // namespace gapless
