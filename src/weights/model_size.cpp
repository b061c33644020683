#include "weights/model_size.h"

#include "weights/weight_map.h"

namespace gapless {

ModelSize model_size(const ModelConfig& config) {
  ModelSize size;
  for (const WeightSpec& spec : weight_specs(config)) {
    const bool text = spec.name.starts_with("model.text.");
    const bool vision = spec.name.starts_with("model.vision.");
    (text ? size.text : vision ? size.vision : size.region) += spec.num_elements();
    if (text && spec.name != "model.text.wte") size.decode_shared += spec.num_elements();
  }
  size.decode_per_row = config.text.dim;
  const std::int64_t kv_dim = std::int64_t{config.text.n_kv_heads} * config.text.head_dim();
  size.kv_per_token = 2 * config.text.n_layers * kv_dim;
  return size;
}

}  // namespace gapless
