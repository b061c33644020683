#include "model/model_summary.h"

#include <fmt/format.h>

#include <utility>

#include "model/decode_path.h"
#include "weights/weight_map.h"

namespace gapless {
namespace {

double megabytes(std::int64_t bytes) {
  return static_cast<double>(bytes) / 1e6;
}

std::string with_separators(std::int64_t number) {
  std::string digits = std::to_string(number);
  for (auto i = static_cast<std::ptrdiff_t>(digits.size()) - 3; i > 0; i -= 3) {
    digits.insert(static_cast<std::size_t>(i), 1, ',');
  }
  return digits;
}

std::string describe_configuration(const ModelConfig& config) {
  const auto& text = config.text;
  const auto& vision = config.vision;
  const auto& region = config.region;
  std::string out = "configuration\n";
  out += fmt::format("  text     {} layers, width {}, {} heads of {}, MLP {}, vocabulary {}\n",
                     text.n_layers, text.dim, text.n_heads, text.dim / text.n_heads, text.ff_dim,
                     text.vocab_size);
  out += fmt::format("           context {}, rope theta {}\n", text.max_context, text.rope_theta);
  out += fmt::format("  vision   {} layers, width {}, {} heads of {}, MLP {}\n",
                     vision.enc_n_layers, vision.enc_dim, vision.enc_n_heads,
                     vision.enc_dim / vision.enc_n_heads, vision.enc_ff_dim);
  out += fmt::format("           crops of {0}x{0} in patches of {1}x{1}, projector {2}\n",
                     vision.crop_size, vision.enc_patch_size, vision.proj_inner_dim);
  out += fmt::format("  region   {} coordinate bins, 2 x {} size bins, MLP {}\n",
                     region.coord_out_dim, region.size_out_dim / 2, region.inner_dim);
  return out;
}

std::string describe_parameters(const ModelConfig& config) {
  const ModelSize size = model_size(config);
  std::string out = "parameters\n";
  const std::pair<const char*, std::int64_t> parts[] = {{"text", size.text},
                                                        {"vision", size.vision},
                                                        {"region", size.region},
                                                        {"total", size.total()}};
  for (const auto& [part, count] : parts) {
    out += fmt::format("  {:<8} {:>15} {:>10.1f} MB bf16 {:>10.1f} MB float32\n", part,
                       with_separators(count), megabytes(2 * count), megabytes(4 * count));
  }
  return out;
}

std::string describe_traffic(const std::vector<StepTraffic>& traffic) {
  std::string out;
  for (const StepTraffic& item : traffic) {
    out += fmt::format("  {:<24} {:>10.1f} MB\n", item.component, megabytes(item.bytes));
  }
  return out;
}

}  // namespace

ModelSize model_size(const ModelConfig& config) {
  ModelSize size;
  for (const WeightSpec& spec : weight_specs(config)) {
    const bool text = spec.name.starts_with("model.text.");
    const bool vision = spec.name.starts_with("model.vision.");
    (text ? size.text : vision ? size.vision : size.region) += spec.num_elements();
  }
  return size;
}

std::vector<StepTraffic> decode_step_traffic(const ModelConfig& config, DType dtype,
                                             PreparedFormat weights, KvFormat kv_format,
                                             int num_rows, int context) {
  const std::int64_t d = config.text.dim;
  const std::int64_t ff = config.text.ff_dim;
  const std::int64_t layers = config.text.n_layers;
  const std::int64_t vocab = config.text.vocab_size;
  const auto element = static_cast<std::int64_t>(dtype_bytes(dtype));
  // Scales not counted.
  const std::int64_t weight = weights == PreparedFormat::kFp8 ? 1 : element;
  const std::int64_t kv_token =
      layers * 2 * d * static_cast<std::int64_t>(kv_element_bytes(kv_format, dtype));
  // Per layer: LayerNorm 2d, biases of qkv 3d, proj d, fc1 ff, fc2 d.
  return {{"layer norms and biases", layers * (7 * d + ff) * element},
          {"qkv", layers * 3 * d * d * weight},
          {"KV cache read", std::int64_t{num_rows} * context * kv_token},
          {"KV cache write", num_rows * kv_token},
          {"attention projection", layers * d * d * weight},
          {"MLP", layers * 2 * d * ff * weight},
          {"lm_head", (2 * d + vocab) * element + vocab * d * weight}};
}

std::vector<StepTraffic> region_step_traffic(const ModelConfig& config, DType dtype) {
  const auto& region = config.region;
  const auto element = static_cast<std::int64_t>(dtype_bytes(dtype));
  auto linear = [&](std::int64_t out, std::int64_t in) { return (out * in + out) * element; };
  return {{"coordinate decoder",
           linear(region.inner_dim, region.dim) + linear(region.coord_out_dim, region.inner_dim)},
          {"size decoder",
           linear(region.inner_dim, region.dim) + linear(region.size_out_dim, region.inner_dim)},
          {"region encoders",
           linear(region.dim, region.coord_feat_dim) + linear(region.dim, region.size_feat_dim)}};
}

std::int64_t total_bytes(const std::vector<StepTraffic>& traffic) {
  std::int64_t total = 0;
  for (const StepTraffic& item : traffic) total += item.bytes;
  return total;
}

std::string describe_model(const ModelConfig& config, PreparedFormat weights, KvFormat kv_format,
                           int num_rows, int context) {
  const std::vector<StepTraffic> step =
      decode_step_traffic(config, DType::kBF16, weights, kv_format, num_rows, context);
  std::string out = describe_configuration(config) + describe_parameters(config);
  out += fmt::format("bytes of one decode step: {} rows, {} cached tokens each, bf16{}{}\n",
                     num_rows, context, weights == PreparedFormat::kFp8 ? ", matrices fp8" : "",
                     kv_format == KvFormat::kFp8 ? ", KV cache fp8" : "");
  out += describe_traffic(step);
  out += fmt::format("  {:<24} {:>10.1f} MB\n", "total", megabytes(total_bytes(step)));
  out += "on top, in a step that samples a coordinate or a size\n";
  out += describe_traffic(region_step_traffic(config, DType::kBF16));
  return out + describe_decode_path(config);
}

}  // namespace gapless
