#include "model/model_source.h"

#include <charconv>
#include <system_error>

namespace gapless {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRandomPrefix = "random:";

ModelConfig moondream_half_billion_config() {
  ModelConfig config = moondream2_config();
  config.text.dim = 1024;
  config.text.ff_dim = 4096;
  config.text.n_heads = 16;
  config.text.n_kv_heads = 16;
  config.vision.enc_dim = 720;
  config.vision.enc_ff_dim = 2690;
  config.vision.enc_n_heads = 10;
  config.vision.proj_out_dim = 1024;
  config.region.dim = 1024;
  return config;
}

StatusOr<std::uint64_t> parse_seed(std::string_view text) {
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size()) {
    return invalid_argument("'{}' is not a seed: a whole number from 0 to 2^64-1", text);
  }
  return seed;
}

// "moondream2:7"
StatusOr<ModelSource> random_model(std::string_view text) {
  const std::size_t colon = text.find(':');
  ModelSource source;
  source.name = std::string(kRandomPrefix) + std::string(text);
  GAPLESS_ASSIGN_OR_RETURN(source.config, published_architecture(text.substr(0, colon)));
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
                      "random:moondream-0.5b[:SEED], or OWNER/NAME[@REVISION] of the hub)",
                      path.string());
  }
  ModelSource source;
  source.name = path.string();
  source.checkpoint = path;
  const fs::path folder = fs::is_directory(path, error) ? path : path.parent_path();
  source.tokenizer = folder / "tokenizer.json";
  GAPLESS_ASSIGN_OR_RETURN(RecognisedModel model, recognise_checkpoint(path));
  source.profile = model.profile;
  source.config = std::move(model.config);
  return source;
}

}  // namespace

StatusOr<ModelConfig> published_architecture(std::string_view name) {
  if (name == "moondream2") return moondream2_config();
  if (name == "moondream-0.5b") return moondream_half_billion_config();
  return invalid_argument("unknown architecture '{}': moondream2 or moondream-0.5b", name);
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

StatusOr<Tokenizer> load_tokenizer(const ModelSource& source) {
  return load_tokenizer(source.tokenizer, {source.profile, source.config});
}

Status with_expected_weights(const Status& status, const ModelSource& source) {
  if (status.ok() || source.profile == nullptr) return status;
  return make_error(status.code(), "{}; expected is model.safetensors of {}", status.message(),
                    source.profile->weights_from);
}

StatusOr<WeightSource> open_weights(const ModelSource& source) {
  StatusOr<WeightSource> weights = WeightSource::open(*source.checkpoint, source.config);
  if (!weights.ok()) return with_expected_weights(weights.status(), source);
  if (source.profile == nullptr || weights->stored_bytes().size() == 1) return weights;
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
  out += fmt::format("  {}\n", RecognisedModel{source.profile, source.config}.title());
  std::error_code error;
  if (fs::exists(source.tokenizer, error)) {
    GAPLESS_ASSIGN_OR_RETURN(const Tokenizer tokenizer, load_tokenizer(source));
    out += fmt::format("  {}: {} tokens\n", source.tokenizer.string(), tokenizer.vocab_size());
  } else {
    out += fmt::format("  {}: missing, it cannot run without\n", source.tokenizer.string());
  }
  for (const std::string& file : weights.checkpoint().files()) out += fmt::format("  {}\n", file);
  for (const auto& [dtype, bytes] : weights.stored_bytes()) {
    out += fmt::format("  {:.1f} MB of {}\n", static_cast<double>(bytes) / 1e6,
                       tensor_dtype_name(dtype));
  }
  return out;
}

}  // namespace gapless
