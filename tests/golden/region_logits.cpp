#include "tests/golden/region_logits.h"

#include <algorithm>

#include "kernels/dense_ops.h"

namespace gapless {

StatusOr<std::vector<float>> region_logits(LoadedModel& loaded, const void* hidden_dev,
                                           RegionHead head) {
  Device& device = *loaded.device;
  Kernels& kernels = *loaded.kernels;
  const RegionDecoderWeights& weights = loaded.vision_language_model()->weights().region.decoder;
  const bool is_size = head == RegionHead::kSize;
  const LinearWeights& fc1 = is_size ? weights.size_fc1 : weights.coord_fc1;
  const LinearWeights& fc2 = is_size ? weights.size_fc2 : weights.coord_fc2;
  const auto num_logits = static_cast<std::size_t>(fc2.out);
  const std::size_t bytes = num_logits * sizeof(float);
  const std::size_t element_bytes = dtype_bytes(kernels.activation_dtype());
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.create_stream("regions"));
  GAPLESS_ASSIGN_OR_RETURN(
      const Buffer normed,
      device.allocate(static_cast<std::size_t>(weights.dim()) * element_bytes));
  GAPLESS_ASSIGN_OR_RETURN(
      const Buffer inner,
      device.allocate(static_cast<std::size_t>(std::max(fc1.out, 1)) * element_bytes));
  GAPLESS_ASSIGN_OR_RETURN(const Buffer logits, device.allocate(bytes));
  GAPLESS_ASSIGN_OR_RETURN(const PinnedBuffer pinned, device.allocate_pinned(bytes));

  const void* x = hidden_dev;
  for (const NormWeights& norm : weights.norms) {
    if (norm.gamma == nullptr) continue;
    GAPLESS_RETURN_IF_ERROR(
        kernels.norm(*stream, dense_norm(x, norm, normed.data(), weights.dim(), 1)));
    x = normed.data();
  }
  if (fc1.out > 0) {
    LinearParams first = dense_linear(kernels, x, fc1, inner.data(), 1);
    first.activation = Activation::kGeluTanh;
    first.decode = true;
    GAPLESS_RETURN_IF_ERROR(kernels.linear(*stream, first));
    x = inner.data();
  }
  LinearParams second = dense_linear(kernels, x, fc2, logits.data(), 1);
  second.y_dtype = DType::kF32;
  second.decode = true;
  GAPLESS_RETURN_IF_ERROR(kernels.linear(*stream, second));
  GAPLESS_RETURN_IF_ERROR(stream->copy_to_host(pinned.data(), logits.data(), bytes));
  GAPLESS_RETURN_IF_ERROR(stream->synchronize());
  const auto* values = pinned.as<float>();
  return std::vector<float>(values, values + num_logits);
}

}  // namespace gapless
