#include "weights/low_rank_adapter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/json.h"
#include "weights/weight_map.h"

namespace gapless {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxAdapterConfigBytes = 1u << 20;
constexpr std::string_view kWrapper =
    "base_model.model.";  // of PEFT, in front of the model's own names
constexpr std::string_view kEndOfA = ".lora_A.weight";

// How s follows from a rank.
struct AdapterScale {
  double alpha = 0;
  bool by_root = false;

  float of(std::int64_t rank) const {
    const auto r = static_cast<double>(rank);
    return static_cast<float>(alpha / (by_root ? std::sqrt(r) : r));
  }
};

bool is_absent(const boost::json::value& value) {
  return value.is_null() || (value.is_bool() && !value.as_bool()) ||
         (value.is_array() && value.as_array().empty()) ||
         (value.is_object() && value.as_object().empty());
}

StatusOr<AdapterScale> read_config(const fs::path& file) {
  GAPLESS_ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxAdapterConfigBytes));
  GAPLESS_ASSIGN_OR_RETURN(const boost::json::value document, parse_json(text, file.string()));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::of(document, file.string()));
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view kind, config.string("peft_type"));
  if (kind != "LORA") return config.error("peft_type", "LORA: other kinds are not known here");
  // What would make it another sum than the one above. (How a term was begun or trained does not.)
  for (const std::string_view key :
       {"alpha_pattern", "alora_invocation_tokens", "fan_in_fan_out", "layer_replication",
        "lora_bias", "modules_to_save", "target_parameters", "trainable_token_indices",
        "use_bdlora", "use_dora", "use_qalora"}) {
    const boost::json::value* value = config.find(key);
    if (value != nullptr && !is_absent(*value)) {
      return config.error(key, "absent: only plain low-rank terms are known here");
    }
  }
  // These begin by taking the term out of the base's weights, so it is another base.
  const boost::json::value* begun = config.find("init_lora_weights");
  if (begun != nullptr && begun->is_string()) {
    const std::string_view way = begun->as_string();
    for (const std::string_view changes_base : {"corda", "loftq", "olora", "pissa"}) {
      if (way.starts_with(changes_base)) {
        return config.error("init_lora_weights", "one that leaves the base's weights as they are");
      }
    }
  }
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view bias, config.string_or("bias", "none"));
  if (bias != "none") return config.error("bias", "none: an adapter's biases are not known here");
  AdapterScale scale;
  GAPLESS_ASSIGN_OR_RETURN(scale.by_root, config.boolean_or("use_rslora", false));
  if (config.find("lora_alpha") == nullptr) return config.error("lora_alpha", "a number");
  GAPLESS_ASSIGN_OR_RETURN(scale.alpha, config.number_or("lora_alpha", 0));
  return scale;
}

const WeightSpec* find_product(std::span<const WeightSpec> tensors, const std::string& name) {
  const std::string wanted = parameter_name(name);
  const auto found = std::ranges::find_if(tensors, [&](const WeightSpec& spec) {
    const bool is_product = spec.role == TensorRole::kProduct ||
                            spec.role == TensorRole::kResidualProduct ||
                            spec.role == TensorRole::kLogits;
    return is_product && spec.shape.size() == 2 && parameter_name(spec.name) == wanted;
  });
  return found == tensors.end() ? nullptr : &*found;
}

// A term as its file has it.
struct StoredTerm {
  std::string product;  // WeightSpec::name
  WeightSpec a, b;
};

StatusOr<std::vector<StoredTerm>> list_terms(const Checkpoint& checkpoint,
                                             std::span<const WeightSpec> tensors) {
  std::vector<StoredTerm> terms;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (!name.starts_with(kWrapper) || !name.ends_with(kEndOfA)) continue;
    const std::string product =
        name.substr(kWrapper.size(), name.size() - kWrapper.size() - kEndOfA.size());
    const WeightSpec* const spec = find_product(tensors, product + ".weight");
    const std::string& file = checkpoint.files()[tensor.file];
    if (spec == nullptr) {
      return invalid_argument("{}: '{}' is beside '{}', which is no product of this model", file,
                              name, product);
    }
    if (tensor.shape.size() != 2 || tensor.shape[0] < 1) {
      return invalid_argument("{}: tensor '{}' has shape {}; [rank, {}] is expected", file, name,
                              shape_to_string(tensor.shape), spec->row_size());
    }
    const std::string module = std::string(kWrapper) + product;
    terms.push_back({.product = spec->name,
                     .a = {.name = name, .shape = {tensor.shape[0], spec->row_size()}},
                     .b = {.name = module + ".lora_B.weight",
                           .shape = {spec->num_rows(), tensor.shape[0]},
                           // What the term is beside, which PEFT saves of embeddings and logits.
                           .stored_again_as = module + ".base_layer.weight"}});
  }
  if (terms.empty()) {
    return invalid_argument("{}: has no tensor '{}...{}'", checkpoint.files().front(), kWrapper,
                            kEndOfA);
  }
  return terms;
}

StatusOr<std::vector<float>> read_all(const WeightSource& source, const WeightSpec& spec) {
  std::vector<float> values(static_cast<std::size_t>(spec.num_elements()));
  GAPLESS_RETURN_IF_ERROR(source.read_as_f32(spec.name, values));
  return values;
}

}  // namespace

StatusOr<LowRankAdapter> LowRankAdapter::open(const fs::path& folder,
                                              std::span<const WeightSpec> tensors) {
  GAPLESS_ASSIGN_OR_RETURN(const AdapterScale scale, read_config(folder / "adapter_config.json"));
  const fs::path file = folder / "adapter_model.safetensors";
  GAPLESS_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(file));
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<StoredTerm> stored, list_terms(checkpoint, tensors));
  std::vector<WeightSpec> specs;
  for (const StoredTerm& term : stored) {
    specs.push_back(term.a);
    specs.push_back(term.b);
  }
  GAPLESS_ASSIGN_OR_RETURN(const WeightSource source, WeightSource::open(file, specs));
  LowRankAdapter adapter;
  for (const StoredTerm& from : stored) {
    Term term{.rank = from.a.num_rows(), .in = from.a.row_size(), .a = {}, .scaled_b = {}};
    GAPLESS_ASSIGN_OR_RETURN(term.a, read_all(source, from.a));
    GAPLESS_ASSIGN_OR_RETURN(term.scaled_b, read_all(source, from.b));
    for (float& value : term.scaled_b) value *= scale.of(term.rank);
    adapter.terms_.emplace(from.product, std::move(term));
  }
  return adapter;
}

void LowRankAdapter::add(std::string_view name, std::span<float> out, std::int64_t first) const {
  const auto found = terms_.find(name);
  if (found == terms_.end()) return;
  const Term& term = found->second;
  // Row after row, as far as `out` reaches.
  for (std::size_t done = 0; done < out.size();) {
    const std::int64_t element = first + static_cast<std::int64_t>(done);
    const std::int64_t row = element / term.in, column = element % term.in;
    const std::size_t count =
        std::min(out.size() - done, static_cast<std::size_t>(term.in - column));
    GAPLESS_CHECK((row + 1) * term.rank <= static_cast<std::int64_t>(term.scaled_b.size()));
    float* const to = out.data() + done;
    for (std::int64_t k = 0; k < term.rank; ++k) {
      const float factor = term.scaled_b[static_cast<std::size_t>(row * term.rank + k)];
      const float* const a = term.a.data() + k * term.in + column;
      for (std::size_t i = 0; i < count; ++i) to[i] += factor * a[i];
    }
    done += count;
  }
}

int LowRankAdapter::max_rank() const {
  std::int64_t rank = 0;
  for (const auto& [name, term] : terms_) rank = std::max(rank, term.rank);
  return static_cast<int>(rank);
}

}  // namespace gapless
