// Products of matrices whose rows are not kept (LinearWeights::restore).
#pragma once

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"

namespace gapless {

// Kernels::linear; rows that are not kept are restored first. Where their memory holds only some of a matrix' rows at a time, these
// are multiplied before the next ones are restored.
Status restored_linear(Kernels& kernels, Stream& stream, const LinearParams& params);

}  // namespace gapless
