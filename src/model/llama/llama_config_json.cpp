// config.json <-> LlamaConfig.
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cmath>

#include "base/file_bytes.h"
#include "base/json.h"
#include "base/limits.h"
#include "model/llama/llama_config.h"

namespace gapless {
namespace {

namespace json = boost::json;

constexpr std::string_view kQwen3 = "Qwen3ForCausalLM";
constexpr std::array kHeadSizes = {32, 64, 128};

Status unsupported(const JsonObject& root, std::string_view key, std::string_view found,
                   std::string_view what_runs) {
  return invalid_argument("{}: {} is {}, which gapless does not compute; {}", root.name(), key,
                          found, what_runs);
}

Status read_size(const JsonObject& root, std::string_view key, int max, int& value) {
  GAPLESS_ASSIGN_OR_RETURN(const std::int64_t read, root.integer(key, 1, max));
  value = static_cast<int>(read);
  return ok_status();
}

// What would change the results.
Status refuse_other_computations(const JsonObject& root) {
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view act, root.string_or("hidden_act", "silu"));
  if (act != "silu") return unsupported(root, "hidden_act", act, "silu runs");
  GAPLESS_ASSIGN_OR_RETURN(const bool window, root.boolean_or("use_sliding_window", false));
  if (window) return unsupported(root, "use_sliding_window", "true", "full attention runs");
  if (root.find("quantization_config") != nullptr) {
    return unsupported(root, "quantization_config", "there",
                       "weights in F16, BF16 or F32 run, and --weights fp8 rounds them");
  }
  if (root.find("layer_types") != nullptr) {
    GAPLESS_ASSIGN_OR_RETURN(const json::array* types, root.array("layer_types"));
    for (const json::value& type : *types) {
      if (!type.is_string() || type.get_string() != "full_attention") {
        return unsupported(root, "layer_types", "not full_attention alone", "full attention runs");
      }
    }
  }
  return ok_status();
}

StatusOr<double> positive(const JsonObject& section, std::string_view key, double fallback) {
  GAPLESS_ASSIGN_OR_RETURN(const double value, section.number_or(key, fallback));
  if (!(value > 0) || !std::isfinite(value)) return section.error(key, "a number above 0");
  return value;
}

StatusOr<RopeScaling::Kind> scaling_kind(const JsonObject& section) {
  // Files of before 2024 say "type".
  const char* const key = section.find("rope_type") != nullptr ? "rope_type" : "type";
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view kind, section.string_or(key, "default"));
  if (kind == "default") return RopeScaling::Kind::kNone;
  if (kind == "linear") return RopeScaling::Kind::kLinear;
  if (kind == "llama3") return RopeScaling::Kind::kLlama3;
  if (kind == "yarn") return RopeScaling::Kind::kYarn;
  return unsupported(section, key, kind, "default, linear, llama3 and yarn run");
}

StatusOr<RopeScaling> read_scaling(const JsonObject& section, int max_context) {
  RopeScaling scaling;
  GAPLESS_ASSIGN_OR_RETURN(scaling.kind, scaling_kind(section));
  GAPLESS_ASSIGN_OR_RETURN(const double partial, section.number_or("partial_rotary_factor", 1));
  if (partial != 1) {
    return unsupported(section, "partial_rotary_factor", fmt::format("{}", partial), "1 runs");
  }
  if (scaling.kind == RopeScaling::Kind::kNone) return scaling;
  if (section.find("factor") == nullptr) return section.error("factor", "there");
  GAPLESS_ASSIGN_OR_RETURN(scaling.factor, positive(section, "factor", 1));
  if (scaling.kind == RopeScaling::Kind::kLinear) return scaling;
  GAPLESS_ASSIGN_OR_RETURN(
      const std::int64_t original,
      section.integer_or("original_max_position_embeddings", max_context, 1, kMaxContext));
  scaling.original_context = static_cast<int>(original);
  if (scaling.kind == RopeScaling::Kind::kLlama3) {
    GAPLESS_ASSIGN_OR_RETURN(scaling.low_freq_factor, positive(section, "low_freq_factor", 1));
    GAPLESS_ASSIGN_OR_RETURN(scaling.high_freq_factor, positive(section, "high_freq_factor", 4));
    if (scaling.high_freq_factor == scaling.low_freq_factor) {
      return section.error("high_freq_factor", "different from low_freq_factor");
    }
    return scaling;
  }
  GAPLESS_ASSIGN_OR_RETURN(scaling.beta_fast, positive(section, "beta_fast", 32));
  GAPLESS_ASSIGN_OR_RETURN(scaling.beta_slow, positive(section, "beta_slow", 1));
  GAPLESS_ASSIGN_OR_RETURN(scaling.mscale, section.number_or("mscale", 0));
  GAPLESS_ASSIGN_OR_RETURN(scaling.mscale_all_dim, section.number_or("mscale_all_dim", 0));
  GAPLESS_ASSIGN_OR_RETURN(scaling.attention_factor, section.number_or("attention_factor", 0));
  GAPLESS_ASSIGN_OR_RETURN(scaling.truncate, section.boolean_or("truncate", true));
  return scaling;
}

// Published files have "rope_theta" beside "rope_scaling"; transformers 5 writes both as
// "rope_parameters".
Status read_rope(const JsonObject& root, LlamaConfig& config) {
  GAPLESS_ASSIGN_OR_RETURN(config.rope_theta, positive(root, "rope_theta", config.rope_theta));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (root.find(key) == nullptr) continue;
    GAPLESS_ASSIGN_OR_RETURN(const JsonObject section, root.object(key));
    GAPLESS_ASSIGN_OR_RETURN(config.rope_theta, positive(section, "rope_theta", config.rope_theta));
    GAPLESS_ASSIGN_OR_RETURN(config.rope_scaling, read_scaling(section, config.max_context));
  }
  if (config.rope_theta <= 1) return root.error("rope_theta", "a number above 1");
  return ok_status();
}

StatusOr<std::vector<TokenId>> read_eos_ids(const JsonObject& root) {
  constexpr std::string_view kKey = "eos_token_id";
  const json::value* value = root.find(kKey);
  std::vector<TokenId> ids;
  if (value == nullptr) return ids;
  const json::array single = value->is_array() ? json::array() : json::array{*value};
  const json::array& list = value->is_array() ? value->get_array() : single;
  if (list.size() > kMaxModelStopIds) {
    return root.error(kKey, fmt::format("at most {} token ids", kMaxModelStopIds));
  }
  for (const json::value& id : list) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= kMaxVocabSize) {
      return root.error(kKey, "a token id or a list of them");
    }
    ids.emplace_back(static_cast<std::int32_t>(id.get_int64()));
  }
  return ids;
}

Status read_sizes(const JsonObject& root, LlamaConfig& config) {
  GAPLESS_RETURN_IF_ERROR(read_size(root, "hidden_size", kMaxModelDim, config.hidden_size));
  GAPLESS_RETURN_IF_ERROR(
      read_size(root, "intermediate_size", kMaxModelDim, config.intermediate_size));
  GAPLESS_RETURN_IF_ERROR(read_size(root, "num_hidden_layers", kMaxModelLayers, config.num_layers));
  GAPLESS_RETURN_IF_ERROR(read_size(root, "num_attention_heads", kMaxModelDim, config.num_heads));
  GAPLESS_RETURN_IF_ERROR(read_size(root, "vocab_size", kMaxVocabSize, config.vocab_size));
  GAPLESS_RETURN_IF_ERROR(
      read_size(root, "max_position_embeddings", kMaxContext, config.max_context));
  GAPLESS_ASSIGN_OR_RETURN(
      const std::int64_t kv_heads,
      root.integer_or("num_key_value_heads", config.num_heads, 1, kMaxModelDim));
  config.num_kv_heads = static_cast<int>(kv_heads);
  const int derived = config.hidden_size / config.num_heads;
  GAPLESS_ASSIGN_OR_RETURN(const std::int64_t head_dim,
                           root.integer_or("head_dim", derived, 0, kMaxModelDim));
  config.head_dim = static_cast<int>(head_dim);
  return ok_status();
}

Status validate(const LlamaConfig& config, const JsonObject& root) {
  if (config.num_heads % config.num_kv_heads != 0) {
    return invalid_argument("{}: num_key_value_heads = {} does not divide num_attention_heads = {}",
                            root.name(), config.num_kv_heads, config.num_heads);
  }
  if (std::ranges::find(kHeadSizes, config.head_dim) == kHeadSizes.end()) {
    return unsupported(root, "head_dim", fmt::format("{}", config.head_dim),
                       fmt::format("heads of {} run", fmt::join(kHeadSizes, ", ")));
  }
  if (config.hidden_size % kRowPadding != 0) {
    return unsupported(root, "hidden_size", fmt::format("{}", config.hidden_size),
                       fmt::format("multiples of {} run", kRowPadding));
  }
  return ok_status();
}

json::object scaling_to_json(const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScaling::Kind::kNone:
      return {{"rope_type", "default"}};
    case RopeScaling::Kind::kLinear:
      return {{"rope_type", "linear"}, {"factor", scaling.factor}};
    case RopeScaling::Kind::kLlama3:
      return {{"rope_type", "llama3"},
              {"factor", scaling.factor},
              {"low_freq_factor", scaling.low_freq_factor},
              {"high_freq_factor", scaling.high_freq_factor},
              {"original_max_position_embeddings", scaling.original_context}};
    case RopeScaling::Kind::kYarn:
      break;
  }
  return {{"rope_type", "yarn"},
          {"factor", scaling.factor},
          {"original_max_position_embeddings", scaling.original_context},
          {"beta_fast", scaling.beta_fast},
          {"beta_slow", scaling.beta_slow},
          {"mscale", scaling.mscale},
          {"mscale_all_dim", scaling.mscale_all_dim},
          {"attention_factor", scaling.attention_factor},
          {"truncate", scaling.truncate}};
}

}  // namespace

StatusOr<LlamaConfig> parse_llama_config(std::string_view text, std::string_view name) {
  GAPLESS_ASSIGN_OR_RETURN(const json::value document, parse_json(text, name));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject root, JsonObject::of(document, name));
  LlamaConfig config;
  // A file may leave "architectures" out; then its "model_type" says as much (registry.h).
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view type, root.string_or("model_type", ""));
  config.qk_norm = type == "qwen3";
  if (root.find("architectures") != nullptr) {
    GAPLESS_ASSIGN_OR_RETURN(const json::array* list, root.array("architectures"));
    config.qk_norm = !list->empty() && list->front() == json::value(kQwen3);
  }
  if (config.qk_norm) config.architecture = kQwen3;
  GAPLESS_RETURN_IF_ERROR(refuse_other_computations(root));
  GAPLESS_RETURN_IF_ERROR(read_sizes(root, config));
  GAPLESS_RETURN_IF_ERROR(validate(config, root));
  GAPLESS_ASSIGN_OR_RETURN(const double eps, positive(root, "rms_norm_eps", 1e-6));
  config.norm_eps = static_cast<float>(eps);
  GAPLESS_RETURN_IF_ERROR(read_rope(root, config));
  GAPLESS_ASSIGN_OR_RETURN(config.attention_bias, root.boolean_or("attention_bias", false));
  GAPLESS_ASSIGN_OR_RETURN(config.mlp_bias, root.boolean_or("mlp_bias", false));
  GAPLESS_ASSIGN_OR_RETURN(config.tied_embeddings, root.boolean_or("tie_word_embeddings", false));
  GAPLESS_ASSIGN_OR_RETURN(config.eos_ids, read_eos_ids(root));
  return config;
}

StatusOr<std::vector<TokenId>> parse_generation_config(std::string_view text,
                                                       std::string_view name) {
  GAPLESS_ASSIGN_OR_RETURN(const json::value document, parse_json(text, name));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject root, JsonObject::of(document, name));
  return read_eos_ids(root);
}

StatusOr<LlamaConfig> read_llama_config(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  GAPLESS_ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxModelConfigBytes));
  GAPLESS_ASSIGN_OR_RETURN(LlamaConfig config, parse_llama_config(text, file.string()));
  const std::filesystem::path generation = folder / "generation_config.json";
  std::error_code error;
  if (std::filesystem::exists(generation, error)) {
    GAPLESS_ASSIGN_OR_RETURN(const std::string said, read_file(generation, kMaxModelConfigBytes));
    GAPLESS_ASSIGN_OR_RETURN(std::vector<TokenId> ids,
                             parse_generation_config(said, generation.string()));
    if (!ids.empty()) config.eos_ids = std::move(ids);
  }
  for (const TokenId id : config.eos_ids) {
    if (id.value < config.vocab_size) continue;
    return invalid_argument("{}: eos_token_id {} of a vocabulary of {}", folder.string(), id.value,
                            config.vocab_size);
  }
  return config;
}

std::string llama_config_to_json(const LlamaConfig& config) {
  json::array eos;
  for (const TokenId id : config.eos_ids) eos.emplace_back(id.value);
  const json::object root{{"architectures", json::array{config.architecture}},
                          {"model_type", config.qk_norm ? "qwen3" : "llama"},
                          {"hidden_size", config.hidden_size},
                          {"intermediate_size", config.intermediate_size},
                          {"num_hidden_layers", config.num_layers},
                          {"num_attention_heads", config.num_heads},
                          {"num_key_value_heads", config.num_kv_heads},
                          {"head_dim", config.head_dim},
                          {"vocab_size", config.vocab_size},
                          {"max_position_embeddings", config.max_context},
                          {"rms_norm_eps", config.norm_eps},
                          {"rope_theta", config.rope_theta},
                          {"rope_scaling", scaling_to_json(config.rope_scaling)},
                          {"attention_bias", config.attention_bias},
                          {"mlp_bias", config.mlp_bias},
                          {"tie_word_embeddings", config.tied_embeddings},
                          {"hidden_act", "silu"},
                          {"eos_token_id", std::move(eos)}};
  return json_text(root) + "\n";
}

}  // namespace gapless
