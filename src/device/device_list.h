// What --device names where several devices are allowed.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace gapless {

// N of "cuda:N", 0 of "cuda"; -1 for any other text.
int cuda_ordinal(std::string_view name);

// How many GPUs this process sees (CUDA_VISIBLE_DEVICES); 0 where there is no CUDA. device/cuda or
// device/no_cuda.
int num_cuda_devices();

struct NamedDevice {
  std::string spec;   // for open_device: "cpu", "cuda:1"
  std::string label;  // unique: "cpu", "cuda:1"; of several CPU engines "cpu:0", "cpu:1"
};

// "all": every GPU. Otherwise names with commas between them, such as "cuda:0,cuda:2" or "cpu,cpu";
// "cuda" is "cuda:0". At most kMaxDevices (base/limits.h).
//
// InvalidArgument: another name; a GPU that is named twice, which would share its memory with itself;
// CPU and GPU together, whose answers are not the same to the bit. Unavailable: "all" without a GPU.
// Whether a GPU exists is found out by opening it: `num_gpus` is asked for "all" only, because asking
// starts the driver.
StatusOr<std::vector<NamedDevice>> parse_device_list(std::string_view text,
                                                     const std::function<int()>& num_gpus);

}  // namespace gapless
