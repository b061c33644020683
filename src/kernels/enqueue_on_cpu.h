// For the backends that run on the CPU device: puts a plain function call into a stream.
#pragma once

#include <utility>

#include "base/status.h"
#include "device/cpu/cpu_stream.h"
#include "device/device.h"

namespace gapless {

// `params` is copied: what it points to must live until the work has run.
template <typename Function, typename Params>
Status enqueue_on_cpu(Stream& stream, Function function, const Params& params) {
  return static_cast<CpuStream*>(stream.native_handle())->enqueue([function, params] {
    function(params);
    return ok_status();
  });
}

}  // namespace gapless
