#include "model/llama/llama_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/limits.h"

namespace gapless {

TextShape text_shape(const LlamaConfig& config) {
  TextShape shape;
  shape.dim = config.hidden_size;
  shape.num_layers = config.num_layers;
  shape.heads = {.num_heads = config.num_heads,
                 .num_kv_heads = config.num_kv_heads,
                 .head_dim = config.head_dim};
  shape.rotary_dim = config.head_dim;
  shape.ff_dim = pad_inner(config.intermediate_size);
  shape.up_dim = 2 * shape.ff_dim;  // the gate beside it
  shape.vocab = config.vocab_size;
  shape.max_context = config.max_context;
  return shape;
}

namespace {

struct Published {
  std::string_view name;
  LlamaConfig config;
};

RopeScaling llama3_scaling(double factor) {
  return {.kind = RopeScaling::Kind::kLlama3,
          .factor = factor,
          .low_freq_factor = 1,
          .high_freq_factor = 4,
          .original_context = 8192};
}

std::vector<TokenId> ids(std::initializer_list<std::int32_t> values) {
  std::vector<TokenId> list;
  for (const std::int32_t value : values) list.emplace_back(value);
  return list;
}

// Llama 3.1 8B, Llama 3.2 1B, Qwen3 8B and 1.7B.
std::vector<Published> published() {
  const LlamaConfig llama8{.hidden_size = 4096,
                           .intermediate_size = 14336,
                           .num_layers = 32,
                           .num_heads = 32,
                           .num_kv_heads = 8,
                           .head_dim = 128,
                           .vocab_size = 128256,
                           .max_context = 131072,
                           .norm_eps = 1e-5f,
                           .rope_theta = 500000,
                           .rope_scaling = llama3_scaling(8),
                           .eos_ids = ids({128001, 128008, 128009})};
  LlamaConfig llama1 = llama8;
  llama1.hidden_size = 2048;
  llama1.intermediate_size = 8192;
  llama1.num_layers = 16;
  llama1.head_dim = 64;
  llama1.rope_scaling = llama3_scaling(32);
  llama1.tied_embeddings = true;
  const LlamaConfig qwen8{.architecture = "Qwen3ForCausalLM",
                          .hidden_size = 4096,
                          .intermediate_size = 12288,
                          .num_layers = 36,
                          .num_heads = 32,
                          .num_kv_heads = 8,
                          .head_dim = 128,
                          .vocab_size = 151936,
                          .max_context = 40960,
                          .norm_eps = 1e-6f,
                          .rope_theta = 1000000,
                          .qk_norm = true,
                          .eos_ids = ids({151645, 151643})};
  LlamaConfig qwen2 = qwen8;
  qwen2.hidden_size = 2048;
  qwen2.intermediate_size = 6144;
  qwen2.num_layers = 28;
  qwen2.num_heads = 16;
  qwen2.tied_embeddings = true;
  return {{"llama3-8b", llama8}, {"llama3-1b", llama1}, {"qwen3-8b", qwen8}, {"qwen3-1.7b", qwen2}};
}

}  // namespace

StatusOr<LlamaConfig> published_llama(std::string_view name) {
  for (const Published& one : published()) {
    if (one.name == name) return one.config;
  }
  return invalid_argument("unknown architecture '{}': {}", name,
                          fmt::join(published_llama_names(), ", "));
}

std::vector<std::string> published_llama_names() {
  std::vector<std::string> names;
  for (const Published& one : published()) names.emplace_back(one.name);
  return names;
}

}  // namespace gapless
