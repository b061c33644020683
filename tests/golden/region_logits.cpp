#include "tests/golden/region_logits.h"

#include "kernels/dense_ops.h"

namespace gapless {

StatusOr<std::vector<float>> region_logits(LoadedModel& loaded, const void* hidden_dev,
                                           const LinearWeights& fc1, const LinearWeights& fc2) {
  Device& device = *loaded.device;
  Kernels& kernels = *loaded.kernels;
  const auto num_logits = static_cast<std::size_t>(fc2.out);
  const std::size_t bytes = num_logits * sizeof(float);
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.create_stream("regions"));
  GAPLESS_ASSIGN_OR_RETURN(
      const Buffer inner,
      device.allocate(static_cast<std::size_t>(fc1.out) * dtype_bytes(kernels.activation_dtype())));
  GAPLESS_ASSIGN_OR_RETURN(const Buffer logits, device.allocate(bytes));
  GAPLESS_ASSIGN_OR_RETURN(const PinnedBuffer pinned, device.allocate_pinned(bytes));

  LinearParams first = dense_linear(kernels, hidden_dev, fc1, inner.data(), 1);
  first.activation = Activation::kGeluTanh;
  first.decode = true;
  GAPLESS_RETURN_IF_ERROR(kernels.linear(*stream, first));
  LinearParams second = dense_linear(kernels, inner.data(), fc2, logits.data(), 1);
  second.y_dtype = DType::kF32;
  second.decode = true;
  GAPLESS_RETURN_IF_ERROR(kernels.linear(*stream, second));
  GAPLESS_RETURN_IF_ERROR(stream->copy_to_host(pinned.data(), logits.data(), bytes));
  GAPLESS_RETURN_IF_ERROR(stream->synchronize());
  const auto* values = pinned.as<float>();
  return std::vector<float>(values, values + num_logits);
}

}  // namespace gapless
