#include "device/device_list.h"

#include <algorithm>

#include "base/limits.h"

namespace gapless {
namespace {

std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> names;
  while (true) {
    const std::size_t comma = text.find(',');
    names.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return names;
    text.remove_prefix(comma + 1);
  }
}

// The names as open_device() takes them.
StatusOr<std::vector<std::string>> listed_specs(std::string_view text,
                                                const std::function<int()>& num_gpus) {
  std::vector<std::string> specs;
  if (text == "all") {
    const int count = num_gpus();
    for (int i = 0; i < count; ++i) specs.push_back(fmt::format("cuda:{}", i));
    if (!specs.empty()) return specs;
    return make_error(StatusCode::kUnavailable, "device 'all': there is no GPU");
  }
  for (const std::string& name : split_at_commas(text)) {
    if (name == "cpu") {
      specs.push_back(name);
      continue;
    }
    const int ordinal = cuda_ordinal(name);
    if (ordinal < 0) {
      return invalid_argument(
          "device '{}': expected cpu, cuda, cuda:N, several of them with commas between, auto or "
          "all",
          name);
    }
    specs.push_back(fmt::format("cuda:{}", ordinal));
  }
  return specs;
}

}  // namespace

StatusOr<std::vector<NamedDevice>> parse_device_list(std::string_view text,
                                                     const std::function<int()>& num_gpus) {
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<std::string> specs, listed_specs(text, num_gpus));
  if (specs.size() > kMaxDevices) {
    return invalid_argument("device: {} of them, at most {} are allowed", specs.size(),
                            kMaxDevices);
  }
  const auto num_cpu = std::count(specs.begin(), specs.end(), "cpu");
  if (num_cpu > 0 && num_cpu < std::ssize(specs)) {
    return invalid_argument("device '{}': answers of CPU and GPU are not the same to the bit",
                            text);
  }
  std::vector<NamedDevice> devices;
  for (const std::string& spec : specs) {
    if (spec != "cpu" && std::count(specs.begin(), specs.end(), spec) > 1) {
      return invalid_argument("device '{}' is named twice", spec);
    }
    devices.push_back({spec, num_cpu > 1 ? fmt::format("cpu:{}", devices.size()) : spec});
  }
  return devices;
}

}  // namespace gapless
