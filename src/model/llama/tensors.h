// The tensors of the Llama family, under their published names.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "kernels/dtype.h"
#include "model/llama/llama_config.h"
#include "model/tensor_layout.h"
#include "model/text_weights.h"
#include "weights/weight_map.h"

namespace gapless {

// In the order in which they lie on the device: q, k and v one behind the other make one product, and so
// do gate and up.
std::vector<WeightSpec> weight_specs(const LlamaConfig& config);

// The decoder that they make. `find` knows weight_specs(config).
TextWeights find_text_weights(const TensorFinder& find, const LlamaConfig& config);

// Groups of tensors that may share memory (GroupOfTensor): those of prepare_decode_weights.
int llama_group_of(const std::string& name);

// As the function of the same name in moondream/model_weights.h.
StatusOr<DecoderWeights> allocate_weights(Device& device, Stream& stream, const LlamaConfig& config,
                                          DType dtype, const GroupOfTensor& group_of = nullptr);

// Which products and norms the decoder has; the addresses mean nothing.
TextWeights describe_text_weights(const LlamaConfig& config);

}  // namespace gapless
