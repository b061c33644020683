#include "model/model_source.h"

#include <charconv>
#include <ranges>
#include <system_error>

#include "model/llama/llama_prompts.h"
#include "model/llama/tensors.h"
#include "model/moondream/tensors.h"
#include "model/registry.h"

namespace gapless {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRandomPrefix = "random:";

// The size of a test, with the vocabulary of the shipped model and `num_more` ids without tokens.
void make_small(ModelConfig& config, int num_more) {
  config.text.dim = 128;
  config.text.ff_dim = 256;
  config.text.n_layers = 4;
  config.text.n_heads = config.text.n_kv_heads = 2;
  config.text.vocab_size = 768 + num_more;
  config.text.max_context = 2048;
  config.vision.enc_dim = 64;
  config.vision.enc_ff_dim = 90;
  config.vision.enc_n_layers = 2;
  config.vision.enc_n_heads = 2;  // of a size that every backend has
  config.vision.proj_inner_dim = 64;
  config.vision.proj_out_dim = 128;
  config.region.dim = 128;
  config.region.coord_feat_dim = config.region.size_feat_dim = 64;
  config.tokenizer.vocab_size = 768;
}

ModelConfig small_moondream3_config() {
  ModelConfig config = moondream3_config();
  make_small(config, 0);
  config.text.moe = {
      .num_experts = 16, .start_layer = 1, .experts_per_token = 4, .expert_inner_dim = 32};
  TokenizerConfig& tokenizer = config.tokenizer;
  tokenizer.caption_short = TokenizerConfig::ids({1, 566, 2, 485, 3});
  tokenizer.caption_normal = TokenizerConfig::ids({1, 566, 2, 575, 3});
  tokenizer.caption_long = TokenizerConfig::ids({1, 566, 2, 565, 3});
  tokenizer.query.prefix = TokenizerConfig::ids({1, 567, 2});
  tokenizer.detect.prefix = TokenizerConfig::ids({1, 568, 2});
  tokenizer.point.prefix = TokenizerConfig::ids({1, 561, 2});
  tokenizer.segment.prefix = TokenizerConfig::ids({1, 360, 2});
  return config;
}

// `config` in small. Its prompts keep their form: words of the shipped vocabulary between line breaks and colons.
ModelConfig small_older_config(ModelConfig config) {
  constexpr int kBreak = 31, kColon = 79, kTwoBreaks = 32;  // any tokens would do
  make_small(config, 32);
  config.region.inner_dim = 96;
  TokenizerConfig& tokenizer = config.tokenizer;
  const auto opened = [](int word) { return TokenizerConfig::ids({kBreak, kBreak, word, kColon}); };
  tokenizer.bos_id = tokenizer.eos_id = TokenId(0);
  tokenizer.coord_id = TokenId(798);
  tokenizer.size_id = TokenId(799);
  tokenizer.caption_short = opened(485);
  tokenizer.caption_normal = opened(575);
  if (!tokenizer.caption_long.empty()) tokenizer.caption_long = opened(565);
  tokenizer.query = {opened(567), opened(566)};
  tokenizer.detect = {opened(568), TokenizerConfig::ids({kTwoBreaks})};
  tokenizer.point = {opened(561), TokenizerConfig::ids({kTwoBreaks})};
  return config;
}

// By name, in the order in which a person reads them.
const std::vector<std::pair<std::string_view, ModelConfig>>& architectures() {
  static const std::vector<std::pair<std::string_view, ModelConfig>> list = {
      {"moondream2", moondream2_config()},
      {"moondream2-march", moondream2_march_config()},
      {"moondream2-january", moondream2_january_config()},
      {"moondream-0.5b", moondream_half_billion_config()},
      {"moondream3", moondream3_config()},
      {"moondream2-march-small", small_older_config(moondream2_march_config())},
      {"moondream-0.5b-small", small_older_config(moondream_half_billion_config())},
      {"moondream3-small", small_moondream3_config()}};
  return list;
}

StatusOr<std::uint64_t> parse_seed(std::string_view text) {
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size()) {
    return invalid_argument("'{}' is not a seed: a whole number from 0 to 2^64-1", text);
  }
  return seed;
}

Status set_architecture(std::string_view name, ModelSource& source) {
  StatusOr<ModelConfig> moondream = published_architecture(name);
  if (moondream.ok()) {
    source.config = *std::move(moondream);
    return ok_status();
  }
  StatusOr<LlamaConfig> llama = published_llama(name);
  if (!llama.ok()) {
    return invalid_argument("{}, {}", moondream.status().message(),
                            fmt::join(published_llama_names(), ", "));
  }
  source.llama = *std::move(llama);
  return ok_status();
}

// "moondream2:7"
StatusOr<ModelSource> random_model(std::string_view text) {
  const std::size_t colon = text.find(':');
  ModelSource source;
  source.name = std::string(kRandomPrefix) + std::string(text);
  GAPLESS_RETURN_IF_ERROR(set_architecture(text.substr(0, colon), source));
  source.random_seed = 0;
  if (colon != std::string_view::npos) {
    GAPLESS_ASSIGN_OR_RETURN(source.random_seed, parse_seed(text.substr(colon + 1)));
  }
  // Any tokenizer will do: it names tokens that mean nothing.
  GAPLESS_ASSIGN_OR_RETURN(const fs::path folder, shipped_model_folder());
  source.tokenizer = folder / "tokenizer.json";
  return source;
}

StatusOr<ModelSource> stored_model(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    return make_error(StatusCode::kNotFound,
                      "{}: no such file or folder (nor random:moondream2[:SEED], "
                      "random:moondream3[:SEED], random:moondream-0.5b[:SEED], "
                      "random:llama3-8b[:SEED], or "
                      "OWNER/NAME[@REVISION] of the hub)",
                      path.string());
  }
  GAPLESS_ASSIGN_OR_RETURN(const ModelFamily family, choose_family(path));
  ModelSource source;
  source.name = path.string();
  source.checkpoint = path;
  const fs::path folder = fs::is_directory(path, error) ? path : path.parent_path();
  source.tokenizer = folder / "tokenizer.json";
  if (family == ModelFamily::kLlama) {
    GAPLESS_ASSIGN_OR_RETURN(source.llama, read_llama_config(folder));
    return source;
  }
  GAPLESS_ASSIGN_OR_RETURN(RecognisedModel model, recognise_checkpoint(path));
  source.profile = model.profile;
  source.config = std::move(model.config);
  return source;
}

}  // namespace

StatusOr<ModelConfig> published_architecture(std::string_view name) {
  for (const auto& [known, config] : architectures()) {
    if (name == known) return config;
  }
  return invalid_argument("unknown architecture '{}': {}", name,
                          fmt::join(std::views::keys(architectures()), ", "));
}

StatusOr<fs::path> shipped_model_folder() {
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = binary.parent_path().parent_path() / "share/gapless/models/tiny";
  const fs::path in_source_tree = fs::path(GAPLESS_SOURCE_TREE) / "models/tiny";
  for (const fs::path& folder : {installed, in_source_tree}) {
    if (fs::exists(folder / "config.json", error)) return folder;
  }
  return make_error(StatusCode::kNotFound, "the shipped model is neither at {} nor at {}",
                    installed.string(), in_source_tree.string());
}

StatusOr<ModelSource> find_model(std::string_view name) {
  if (name.starts_with(kRandomPrefix)) return random_model(name.substr(kRandomPrefix.size()));
  if (!name.empty()) return stored_model(fs::path(name));
  GAPLESS_ASSIGN_OR_RETURN(const fs::path folder, shipped_model_folder());
  return stored_model(folder);
}

std::vector<WeightSpec> weight_specs(const ModelSource& source) {
  return source.llama ? weight_specs(*source.llama) : weight_specs(source.config);
}

StatusOr<Tokenizer> load_tokenizer(const ModelSource& source) {
  if (source.llama) return load_llama_tokenizer(source.tokenizer, *source.llama);
  return load_tokenizer(source.tokenizer, {source.profile, source.config});
}

Status with_expected_weights(const Status& status, const ModelSource& source) {
  if (status.ok() || source.profile == nullptr) return status;
  return make_error(status.code(), "{}; expected is model.safetensors of {}", status.message(),
                    source.profile->weights_from);
}

Status set_adapter(ModelSource& source, const fs::path& folder) {
  if (source.random_seed) {
    return invalid_argument("{}: random weights, which an adapter was not trained for",
                            source.name);
  }
  source.adapter = folder;
  return ok_status();
}

StatusOr<WeightSource> open_weights(const ModelSource& source) {
  const std::vector<WeightSpec> specs = weight_specs(source);
  StatusOr<WeightSource> weights = WeightSource::open(*source.checkpoint, specs);
  if (!weights.ok()) return with_expected_weights(weights.status(), source);
  if (!source.adapter.empty()) {
    GAPLESS_ASSIGN_OR_RETURN(LowRankAdapter adapter, LowRankAdapter::open(source.adapter, specs));
    weights->add_terms(std::move(adapter));
  }
  const bool has_quantised = weights->stored_bytes().contains(TensorDType::kF8E4M3);
  if (source.profile == nullptr || weights->stored_bytes().size() == (has_quantised ? 2 : 1)) {
    return weights;
  }
  std::string found;
  for (const auto& [dtype, bytes] : weights->stored_bytes()) {
    found += fmt::format("{}{}", found.empty() ? "" : " and ", tensor_dtype_name(dtype));
  }
  return with_expected_weights(
      invalid_argument("{}: its tensors are {}, where {} has one dtype",
                       weights->checkpoint().files().front(), found, source.profile->title),
      source);
}

StatusOr<std::string> describe_source(const ModelSource& source) {
  std::string out = fmt::format("{}\n", source.name);
  if (source.random_seed) {
    return out +
           fmt::format("  random weights of seed {}, made on the device\n", *source.random_seed);
  }
  GAPLESS_ASSIGN_OR_RETURN(const WeightSource weights, open_weights(source));
  out +=
      fmt::format("  {}\n", source.llama ? source.llama->architecture
                                         : RecognisedModel{source.profile, source.config}.title());
  std::error_code error;
  if (fs::exists(source.tokenizer, error)) {
    GAPLESS_ASSIGN_OR_RETURN(const Tokenizer tokenizer, load_tokenizer(source));
    out += fmt::format("  {}: {} tokens\n", source.tokenizer.string(), tokenizer.vocab_size());
  } else {
    out += fmt::format("  {}: missing, it cannot run without\n", source.tokenizer.string());
  }
  for (const std::string& file : weights.checkpoint().files()) out += fmt::format("  {}\n", file);
  if (const LowRankAdapter* adapter = weights.adapter()) {
    out += fmt::format("  {}: low-rank terms beside {} products, of rank {} at most\n",
                       source.adapter.string(), adapter->num_terms(), adapter->max_rank());
  }
  for (const auto& [dtype, bytes] : weights.stored_bytes()) {
    out += fmt::format("  {:.1f} MB of {}\n", static_cast<double>(bytes) / 1e6,
                       tensor_dtype_name(dtype));
  }
  return out;
}

}  // namespace gapless
