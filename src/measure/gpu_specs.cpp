#include "measure/gpu_specs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace gapless {
namespace {

// Bandwidth and matrix rate: the vendor's data sheets of A100 (80 GB, SXM), A10, L4, L40S, H100 (SXM), H200 and of the
// HGX B200; for GeForce the appendices of the white papers on Ampere GA102, Ada and Blackwell. Where a data sheet gives
// the rate of sparse matrices, half of it. Multiprocessors: the same papers; L4: its 7424 cores by 128; B200: what its
// driver reports.
constexpr GpuSpec kGpus[] = {
    {"A100", 80, 108, 2039, 312},     {"RTX 3090", 86, 82, 936, 71},
    {"A10", 86, 72, 600, 125},        {"L4", 89, 58, 300, 121},
    {"RTX 4090", 89, 128, 1008, 165}, {"L40S", 89, 142, 864, 362},
    {"H100", 90, 132, 3350, 989},     {"H200", 90, 132, 4800, 989},
    {"B200", 100, 148, 8000, 2250},   {"RTX 5090", 120, 170, 1792, 209.5},
};

struct PathNames {
  int capability;  // and later, up to the next entry's
  std::string_view path;
  std::string_view measured[2];  // the first: as what just this path is measured
  std::size_t num_measured;
};
constexpr PathNames kPathNames[] = {
    {80, "8.0", {"8.0"}, 1},   {86, "8.0", {"8.6", "8.0"}, 2}, {89, "8.9", {"8.9", "8.6"}, 2},
    {90, "9.0a", {"9.0a"}, 1}, {100, "9.0", {"9.0"}, 1},       {120, "9.0", {"12.0", "9.0"}, 2},
};

const PathNames& names_of(const GpuSpec& gpu) {
  const auto* after =
      std::find_if(std::begin(kPathNames), std::end(kPathNames),
                   [&](const PathNames& n) { return n.capability > gpu.capability; });
  return *std::prev(after);
}

std::string plain(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c != ' ') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const std::string_view vendor : {"nvidia", "geforce"}) {
    if (out.starts_with(vendor)) out.erase(0, vendor.size());
  }
  return out;
}

}  // namespace

std::span<const GpuSpec> gpu_specs() {
  return kGpus;
}

StatusOr<GpuSpec> find_gpu(std::string_view name) {
  const std::string wanted = plain(name);
  std::string names;
  for (const GpuSpec& gpu : kGpus) {
    if (plain(gpu.name) == wanted) return gpu;
    names += (names.empty() ? "" : ", ") + std::string(gpu.name);
  }
  return invalid_argument("no GPU '{}' is known here; there are {}", name, names);
}

std::string_view path_of(const GpuSpec& gpu) {
  return names_of(gpu).path;
}

std::span<const std::string_view> measured_names_of(const GpuSpec& gpu) {
  const PathNames& names = names_of(gpu);
  return {names.measured, names.num_measured};
}

std::string_view path_measured_as(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kPathNames), std::end(kPathNames),
                                         [&](const PathNames& n) { return n.measured[0] == name; });
  return found == std::end(kPathNames) ? name : found->path;
}

}  // namespace gapless
