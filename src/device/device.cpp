#include "device/device.h"

#include <charconv>

#include "device/device_list.h"

namespace gapless {
namespace {

constexpr std::string_view kCudaPrefix = "cuda:";

// -1 when `digits` is not a plain decimal number.
int parse_ordinal(std::string_view digits) {
  int ordinal = -1;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, ordinal);
  return error == std::errc() && stop == end && ordinal >= 0 ? ordinal : -1;
}

}  // namespace

Buffer::~Buffer() {
  if (data_ != nullptr) device_->free_device(data_);
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) device_->free_pinned(data_);
}

int cuda_ordinal(std::string_view name) {
  if (name == "cuda") return 0;
  return name.starts_with(kCudaPrefix) ? parse_ordinal(name.substr(kCudaPrefix.size())) : -1;
}

StatusOr<std::unique_ptr<Device>> open_device(std::string_view name) {
  if (name == "cpu") return open_cpu_device();
  if (const int ordinal = cuda_ordinal(name); ordinal >= 0) return open_cuda_device(ordinal);
  return invalid_argument("device '{}': expected cpu, cuda or cuda:N", name);
}

}  // namespace gapless
