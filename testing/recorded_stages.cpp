#include "testing/recorded_stages.h"

#include <bit>
#include <cstring>

namespace gapless {

Status RecordedStages::record(Stream& stream, std::string_view stage, const StageView& view) {
  const auto count = static_cast<std::size_t>(view.num_rows * view.num_columns);
  const std::size_t bytes = count * dtype_bytes(view.dtype);
  GAPLESS_ASSIGN_OR_RETURN(const PinnedBuffer pinned, device_.allocate_pinned(bytes));
  GAPLESS_RETURN_IF_ERROR(stream.copy_to_host(pinned.data(), view.data, bytes));
  GAPLESS_RETURN_IF_ERROR(stream.synchronize());
  RecordedStage recorded{.num_rows = view.num_rows, .num_columns = view.num_columns};
  recorded.values.resize(count);
  if (view.dtype == DType::kF32) {
    std::memcpy(recorded.values.data(), pinned.data(), bytes);
  } else {
    const auto* bf16 = pinned.as<std::uint16_t>();
    for (std::size_t i = 0; i < count; ++i) {
      recorded.values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bf16[i]) << 16);
    }
  }
  stages_[std::string(stage)].push_back(std::move(recorded));
  return ok_status();
}

}  // namespace gapless
