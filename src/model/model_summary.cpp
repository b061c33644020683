#include "model/model_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/limits.h"
#include "model/decode_path.h"
#include "model/llama/tensors.h"
#include "model/moondream/model_weights.h"
#include "model/moondream/tensors.h"

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
  if (const MoeConfig& moe = text.moe; moe.num_experts > 0) {
    out +=
        fmt::format("           from layer {} on {} experts of {}, {} for each token\n",
                    moe.start_layer, moe.num_experts, moe.expert_inner_dim, moe.experts_per_token);
  }
  out += fmt::format("           context {}, rope theta {}{}\n", text.max_context, text.rope_theta,
                     text.tau_attn ? ", heads scaled by token and position" : "");
  out += fmt::format("  vision   {} layers, width {}, {} heads of {}, MLP {}\n",
                     vision.enc_n_layers, vision.enc_dim, vision.enc_n_heads,
                     vision.enc_dim / vision.enc_n_heads, vision.enc_ff_dim);
  out += fmt::format("           crops of {0}x{0} in patches of {1}x{1}, projector {2}\n",
                     vision.crop_size, vision.enc_patch_size, vision.proj_inner_dim);
  out += fmt::format(
      "  region   {} coordinate bins, 2 x {}{} size bins, {}\n", region.coord_out_dim,
      region.size_out_dim / 2, region.linear_sizes ? " linear" : "",
      region.linear_decoders ? "one product each" : fmt::format("MLP {}", region.inner_dim));
  for (const NumericsOption& option : numerics_options()) {
    const auto choice = static_cast<std::size_t>(option.get(config.numerics));
    if (choice == 0) continue;
    out += fmt::format("           {}: {}\n", option.name, option.choices[choice].name);
  }
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

// Of `num_experts`, when each of so many tokens takes its own at random.
double experts_touched(const FeedForward& ff, int num_tokens) {
  const double share = static_cast<double>(ff.experts_per_token) / ff.num_experts;
  return ff.num_experts * (1 - std::pow(1 - share, num_tokens));
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

std::vector<StepTraffic> decode_step_traffic(const TextShape& shape, const TextWeights& text,
                                             DType dtype, PreparedFormat weights,
                                             KvFormat kv_format, int num_rows, int context,
                                             std::optional<double> experts_of_layer) {
  const auto element = static_cast<std::int64_t>(dtype_bytes(dtype));
  // Scales not counted. Single ops read no matrices in 8 bits.
  const bool in_fp8 =
      weights == PreparedFormat::kFp8 && check_one_launch_decode(shape, text, kv_format).ok();
  const std::int64_t weight = in_fp8 ? 1 : element;
  const std::int64_t kv_token = std::int64_t{shape.num_layers} * 2 * shape.heads.kv_width() *
                                static_cast<std::int64_t>(kv_element_bytes(kv_format, dtype));
  const auto matrix = [&](const LinearWeights& one) {
    return std::int64_t{one.in} * one.out * (one.int8 != nullptr ? 1 : weight);
  };
  const auto bias = [&](const LinearWeights& one) {
    return one.bias == nullptr ? 0 : one.out * element;
  };
  const auto norm = [&](const NormWeights& one, std::int64_t width) {
    return width * element * ((one.gamma != nullptr ? 1 : 0) + (one.beta != nullptr ? 1 : 0));
  };
  std::int64_t norms = 0, qkv = 0, proj = 0, mlp = 0, scales = 0, routers = 0, experts = 0;
  std::string experts_name;
  for (const DecoderBlock& block : text.blocks) {
    norms += norm(block.norm, shape.dim) + norm(block.ff_norm, shape.dim) +
             norm(block.q_norm, shape.heads.head_dim) + norm(block.k_norm, shape.heads.head_dim) +
             bias(block.qkv) + bias(block.proj) + bias(block.ff.up) + bias(block.ff.down);
    qkv += matrix(block.qkv);
    proj += matrix(block.proj);
    if (block.head_scales.alpha != nullptr) {
      scales += (std::int64_t{block.head_scales.products.in} * block.head_scales.products.out +
                 shape.heads.num_heads) *
                element;
    }
    if (block.ff.kind != FeedForwardKind::kExperts) {
      mlp += matrix(block.ff.up) + matrix(block.ff.down);
      continue;
    }
    const double touched =
        experts_of_layer.value_or(experts_touched(block.ff, std::max(1, num_rows)));
    routers +=
        std::int64_t{block.ff.router.in} * block.ff.router.out * element + bias(block.ff.router);
    experts +=
        std::llround(touched * static_cast<double>(matrix(block.ff.up) + matrix(block.ff.down)));
    experts_name = fmt::format("experts ({:.1f} of {})", touched, block.ff.num_experts);
  }
  std::vector<StepTraffic> traffic = {
      {"norms and biases", norms},
      {"qkv", qkv},
      {"KV cache read", std::int64_t{num_rows} * context * kv_token},
      {"KV cache write", num_rows * kv_token},
      {"attention projection", proj},
      {"MLP", mlp},
      {"lm_head", norm(text.post_ln, shape.dim) + bias(text.lm_head) + matrix(text.lm_head)}};
  if (scales > 0) traffic.push_back({"head scales", scales});
  if (routers > 0) traffic.insert(traffic.end(), {{"routers", routers}, {experts_name, experts}});
  return traffic;
}

std::vector<StepTraffic> region_step_traffic(const ModelConfig& config, DType dtype) {
  const auto& region = config.region;
  const auto element = static_cast<std::int64_t>(dtype_bytes(dtype));
  auto linear = [&](std::int64_t out, std::int64_t in) { return (out * in + out) * element; };
  const auto decoder = [&](std::int64_t bins) {
    return region.linear_decoders
               ? linear(bins, region.dim)
               : linear(region.inner_dim, region.dim) + linear(bins, region.inner_dim);
  };
  return {{"coordinate decoder", decoder(region.coord_out_dim)},
          {"size decoder", decoder(region.size_out_dim)},
          {"region encoders",
           linear(region.dim, region.coord_feat_dim) + linear(region.dim, region.size_feat_dim)}};
}

std::int64_t total_bytes(const std::vector<StepTraffic>& traffic) {
  std::int64_t total = 0;
  for (const StepTraffic& item : traffic) total += item.bytes;
  return total;
}

namespace {

std::string describe_step(const TextShape& shape, const TextWeights& text, PreparedFormat weights,
                          KvFormat kv_format, int num_rows, int context) {
  const std::vector<StepTraffic> step =
      decode_step_traffic(shape, text, DType::kBF16, weights, kv_format, num_rows, context);
  std::string out =
      fmt::format("bytes of one decode step: {} rows, {} cached tokens each, bf16{}{}\n", num_rows,
                  context, weights == PreparedFormat::kFp8 ? ", matrices fp8" : "",
                  kv_format == KvFormat::kFp8 ? ", KV cache fp8" : "");
  out += describe_traffic(step);
  return out + fmt::format("  {:<24} {:>10.1f} MB\n", "total", megabytes(total_bytes(step)));
}

}  // namespace

std::string describe_model(const ModelConfig& config, PreparedFormat weights, KvFormat kv_format,
                           int num_rows, int context) {
  const TextShape shape = text_shape(config);
  const TextWeights text = describe_text_weights(config);
  std::string out = describe_configuration(config) + describe_parameters(config);
  out += describe_step(shape, text, weights, kv_format, num_rows, context);
  out += "on top, in a step that samples a coordinate or a size\n";
  out += describe_traffic(region_step_traffic(config, DType::kBF16));
  return out + describe_decode_path(shape, text, kv_format);
}

namespace {

// As the model is loaded without --max-context, and if that differs with all that it was trained for.
std::string describe_text_decode_path(const TextShape& trained, const TextWeights& text) {
  TextShape usual = trained;
  usual.max_context = std::min(trained.max_context, kDefaultTextContext);
  std::string out = describe_decode_path(usual, text);
  const Status longest = check_one_launch_decode(trained, text);
  if (check_one_launch_decode(usual, text).ok() && !longest.ok()) {
    out += fmt::format("  with --max-context {}: composed, because {}\n", trained.max_context,
                       longest.message());
  }
  return out;
}

}  // namespace

std::string describe_model(const LlamaConfig& config, PreparedFormat weights, KvFormat kv_format,
                           int num_rows, int context) {
  const TextShape shape = text_shape(config);
  const TextWeights text = describe_text_weights(config);
  std::int64_t parameters = 0;
  for (const WeightSpec& spec : weight_specs(config)) parameters += spec.num_elements();
  std::string out = "configuration\n";
  out += fmt::format("  {}: {} layers, width {}, {} heads of {} and {} of keys, MLP {}\n",
                     config.architecture, config.num_layers, config.hidden_size, config.num_heads,
                     config.head_dim, config.num_kv_heads, config.intermediate_size);
  out +=
      fmt::format("  vocabulary {}{}, context {}, rope theta {}\n", config.vocab_size,
                  config.tied_embeddings ? " (tied)" : "", config.max_context, config.rope_theta);
  out += fmt::format("parameters\n  {:<8} {:>15} {:>10.1f} MB bf16 {:>10.1f} MB float32\n", "total",
                     with_separators(parameters), megabytes(2 * parameters),
                     megabytes(4 * parameters));
  return out + describe_step(shape, text, weights, kv_format, num_rows, context) +
         describe_text_decode_path(shape, text);
}

}  // namespace gapless
