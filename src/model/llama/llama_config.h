// The configuration of a text decoder of the Llama family, read from its config.json: Llama 3.x, and Qwen3
// (dense), which differs by its normalised query and key heads.
//
// Facts: the published config.json files and transformers' LlamaConfig and Qwen3Config, whose defaults a
// field takes that the file leaves out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "model/model_shape.h"
#include "model/rope_table.h"

namespace gapless {

struct LlamaConfig {
  std::string architecture = "LlamaForCausalLM";
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int max_context = 0;  // what the model was trained for: max_position_embeddings
  float norm_eps = 1e-6f;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool qk_norm = false;          // RMS norm of each query and key head (Qwen3)
  bool attention_bias = false;   // on q, k, v and o
  bool mlp_bias = false;         // on gate, up and down
  bool tied_embeddings = false;  // the logits' matrix is the table of token embeddings
  // Ends of an answer: of config.json, until generation_config.json beside it says otherwise.
  std::vector<TokenId> eos_ids;

  friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;
};

// Parses and validates. `name` begins every error, which names the field. Refuses what would change the
// results and is not computed here: other activations, sliding windows, quantised weights, other kinds of
// rope scaling, head sizes other than 32, 64 and 128.
StatusOr<LlamaConfig> parse_llama_config(std::string_view json, std::string_view name);

// "eos_token_id" of a generation_config.json: one id or several; empty where it says none.
StatusOr<std::vector<TokenId>> parse_generation_config(std::string_view json,
                                                       std::string_view name);

// config.json of `folder`, with the eos_ids of generation_config.json where that is there.
StatusOr<LlamaConfig> read_llama_config(const std::filesystem::path& folder);

// A config.json that parse_llama_config turns into the same configuration.
std::string llama_config_to_json(const LlamaConfig& config);

// Shapes of published models: "llama3-8b", "llama3-1b", "qwen3-8b", "qwen3-1.7b"; their rope scaling and
// context too.
StatusOr<LlamaConfig> published_llama(std::string_view name);
std::vector<std::string> published_llama_names();

TextShape text_shape(const LlamaConfig& config);

}  // namespace gapless
