#include <algorithm>

#include "base/file_bytes.h"
#include "base/limits.h"
#include "model/moondream/checkpoint_profile.h"
#include "weights/weight_map.h"

namespace gapless {
namespace {

namespace fs = std::filesystem;

using Rows = std::vector<const CheckpointProfile*>;

// "Moondream 2 of June 2025 (model.safetensors and config.json of X, tokenizer.json of Y)"
std::string where_to_get(const CheckpointProfile& profile) {
  return fmt::format("{} (model.safetensors and config.json of {}; tokenizer.json of {})",
                     profile.title, profile.weights_from, profile.tokenizer_from);
}

std::string profiles_that_run() {
  std::string list;
  for (const CheckpointProfile& profile : checkpoint_profiles()) {
    if (profile.runs) list += (list.empty() ? "" : "; ") + where_to_get(profile);
  }
  return list;
}

// The files of a checkpoint, as far as recognising it needs them.
class Files {
 public:
  static StatusOr<Files> open(const fs::path& path) {
    Files files;
    GAPLESS_ASSIGN_OR_RETURN(files.checkpoint, Checkpoint::open(path));
    std::error_code error;
    files.folder = fs::is_directory(path, error) ? path : path.parent_path();
    for (const auto& [name, tensor] : files.checkpoint.tensors()) {
      files.tensors.emplace(parameter_name(name), &tensor);
    }
    return files;
  }

  const CheckpointTensor* find(const TensorMark& mark) const {
    auto found = tensors.find(mark.name);
    if (found == tensors.end()) found = tensors.find(mark.legacy_name);
    return found == tensors.end() ? nullptr : found->second;
  }
  bool has(const TensorMark& mark) const {
    const CheckpointTensor* tensor = find(mark);
    return tensor != nullptr && tensor->shape == mark.shape;
  }
  bool exists(const char* name) const {
    std::error_code error;
    return fs::exists(folder / name, error);
  }
  const std::string& weights_file() const { return checkpoint.files().front(); }

  Checkpoint checkpoint;
  fs::path folder;
  std::map<std::string, const CheckpointTensor*, std::less<>> tensors;
};

// The moondream.py beside the weights, or nothing.
std::string code_beside(const Files& files) {
  if (!files.exists("moondream.py")) return {};
  auto code = read_file(files.folder / "moondream.py", kMaxModelConfigBytes);
  return code.ok() ? *std::move(code) : std::string();
}

// The repository in its Tokenizer.from_pretrained("..."), or nothing.
std::string tokenizer_named_by(std::string_view code) {
  constexpr std::string_view kCall = "Tokenizer.from_pretrained(";
  const std::size_t call = code.find(kCall);
  if (call == code.npos) return {};
  const std::size_t open = code.find_first_of("\"'", call + kCall.size());
  if (open == code.npos) return {};
  const std::size_t close = code.find(code[open], open + 1);
  return close == code.npos ? "" : std::string(code.substr(open + 1, close - open - 1));
}

// What a checkpoint has where models of the family have their token embeddings.
std::string describe_tensors(const Files& files) {
  const TensorMark& mark = checkpoint_profiles().front().marks.front();
  const CheckpointTensor* embeddings = files.find(mark);
  std::string text = fmt::format("{} tensors, ", files.tensors.size());
  return text +
         (embeddings == nullptr
              ? fmt::format("none of them '{}'", mark.name)
              : fmt::format("'{}' {} {}", mark.name, shape_to_string(embeddings->shape),
                            tensor_dtype_name(embeddings->dtype))) +
         (files.exists("config.json") ? "" : ", no config.json beside them");
}

// The row of the table, and by what it was told from others of the same tensors.
struct Match {
  const CheckpointProfile* profile = nullptr;
  std::string told_by;
};

std::string titles_of(const Rows& rows) {
  std::string list;
  for (const CheckpointProfile* row : rows) {
    list += fmt::format("{}{}", list.empty() ? "" : ", ", row->title);
  }
  return list;
}

// By the moondream.py beside the weights, which names `tokenizer`.
StatusOr<Match> tell_by_code(const Files& files, const Rows& candidates, std::string_view code,
                             std::string_view tokenizer) {
  const std::string file = (files.folder / "moondream.py").string();
  Rows rows;
  for (const CheckpointProfile* row : candidates) {
    if (row->code_tokenizer == tokenizer) rows.push_back(row);
  }
  if (rows.empty()) {
    return invalid_argument("{}: names the tokenizer {}, which {}; {}", file, tokenizer,
                            candidates.size() == 1
                                ? fmt::format("{} does not use, and that is what the tensors are",
                                              titles_of(candidates))
                                : "no model known to gapless uses",
                            profiles_that_run());
  }
  std::string told_by =
      fmt::format(" (the moondream.py beside it names the tokenizer {})", tokenizer);
  if (rows.size() == 1) return Match{rows.front(), std::move(told_by)};
  const CheckpointProfile* found = nullptr;
  for (const CheckpointProfile* row : rows) {
    if (code.find(row->code_has) == code.npos) continue;
    if (found != nullptr)
      return invalid_argument("{}: is that of {} at once", file, titles_of(rows));
    found = row;
  }
  if (found != nullptr) return Match{found, std::move(told_by)};
  return invalid_argument(
      "{}: names the tokenizer {}, but does not say how a size is made of its bin, so the release "
      "cannot be told: {}",
      file, tokenizer, titles_of(rows));
}

StatusOr<Match> tell_by_dtype(const Files& files, const Rows& candidates) {
  const TensorDType dtype = files.find(candidates.front()->marks.front())->dtype;
  std::string known;
  Rows rows;
  for (const CheckpointProfile* row : candidates) {
    if (row->stored_as == dtype) rows.push_back(row);
    known += fmt::format("{}{} in {}", known.empty() ? "" : ", ", row->title,
                         tensor_dtype_name(*row->stored_as));
  }
  if (rows.size() == 1) {
    return Match{rows.front(), fmt::format(" (its tensors are {}; the moondream.py of its release, "
                                           "put beside it, would be asked first)",
                                           tensor_dtype_name(dtype))};
  }
  return invalid_argument(
      "{}: its tensors are {}, so its release cannot be told: published are {}. Put the "
      "moondream.py of its release beside it",
      files.weights_file(), tensor_dtype_name(dtype), known);
}

StatusOr<Match> match_profile(const Files& files) {
  Rows candidates;
  for (const CheckpointProfile& profile : checkpoint_profiles()) {
    if (std::ranges::all_of(profile.marks, [&](const auto& mark) { return files.has(mark); })) {
      candidates.push_back(&profile);
    }
  }
  if (candidates.empty()) {
    return invalid_argument("{}: not a model that gapless knows ({}). It runs {}",
                            files.weights_file(), describe_tensors(files), profiles_that_run());
  }
  const std::string code = code_beside(files), tokenizer = tokenizer_named_by(code);
  const bool code_counts = !candidates.front()->code_tokenizer.empty() && !tokenizer.empty();
  if (code_counts) return tell_by_code(files, candidates, code, tokenizer);
  for (const CheckpointProfile* row : candidates) {
    if (!row->stored_as) return Match{row, ""};
  }
  return tell_by_dtype(files, candidates);
}

// A spelling that the tokenizer does not have, or nullptr.
const TokenSpelling* first_other(const Tokenizer& tokenizer,
                                 std::span<const TokenSpelling> spellings) {
  const auto differs = [&](const TokenSpelling& token) {
    return !tokenizer.has(token.id) || tokenizer.token_bytes(token.id) != token.text;
  };
  const auto found = std::ranges::find_if(spellings, differs);
  return found == spellings.end() ? nullptr : &*found;
}

// "; it is the tokenizer of Moondream 0.5B", if it is one of the table's.
std::string whose_tokenizer(const Tokenizer& tokenizer) {
  Rows rows;
  for (const CheckpointProfile& profile : checkpoint_profiles()) {
    if (!profile.spellings.empty() && first_other(tokenizer, profile.spellings) == nullptr) {
      rows.push_back(&profile);
    }
  }
  return rows.empty() ? "" : fmt::format("; it is the tokenizer of {}", titles_of(rows));
}

// The first id of the prompts that has no token.
std::optional<TokenId> missing_prompt_token(const Tokenizer& tokenizer,
                                            const TokenizerConfig& config) {
  for (const auto* list :
       {&config.caption_short, &config.caption_normal, &config.caption_long, &config.query.prefix,
        &config.query.suffix, &config.detect.prefix, &config.detect.suffix, &config.point.prefix,
        &config.point.suffix, &config.segment.prefix, &config.segment.suffix}) {
    for (const TokenId id : *list) {
      if (!tokenizer.has(id)) return id;
    }
  }
  return std::nullopt;
}

// What is wrong with it, or nothing.
std::string tokenizer_mismatch(const Tokenizer& tokenizer, const RecognisedModel& model) {
  const TokenizerConfig& config = model.config.tokenizer;
  const auto& spellings = model.profile ? model.profile->spellings : config.spellings;
  if (const TokenSpelling* other = first_other(tokenizer, spellings)) {
    return fmt::format("id {} is {}, but {} has '{}' there", other->id.value,
                       tokenizer.has(other->id)
                           ? fmt::format("'{}'", tokenizer.token_bytes(other->id))
                           : "no token",
                       model.title(), other->text);
  }
  if (config.vocab_size > 0 && tokenizer.vocab_size() != config.vocab_size) {
    return fmt::format("it has {} tokens, but {} has {}", tokenizer.vocab_size(), model.title(),
                       config.vocab_size);
  }
  if (tokenizer.vocab_size() > model.config.text.vocab_size) {
    return fmt::format("it has {} tokens, but the weights of {} only {}", tokenizer.vocab_size(),
                       model.title(), model.config.text.vocab_size);
  }
  if (model.profile == nullptr) return "";
  if (const auto id = missing_prompt_token(tokenizer, config)) {
    return fmt::format("it has no token {}, which the prompts of {} use", id->value, model.title());
  }
  return "";
}

}  // namespace

std::string_view RecognisedModel::title() const {
  return profile != nullptr ? profile->title : "a model made for gapless";
}

StatusOr<RecognisedModel> recognise_checkpoint(const fs::path& path) {
  GAPLESS_ASSIGN_OR_RETURN(const Files files, Files::open(path));
  const fs::path config_file = files.folder / "config.json";
  const bool has_config = files.exists("config.json");
  std::string json;
  RecognisedModel model;
  if (has_config) {
    GAPLESS_ASSIGN_OR_RETURN(json, read_file(config_file, kMaxModelConfigBytes));
    GAPLESS_ASSIGN_OR_RETURN(const bool ours, is_made_for_gapless(json, config_file.string()));
    if (ours) {
      GAPLESS_ASSIGN_OR_RETURN(model.config, parse_model_config(json, config_file.string()));
      return model;
    }
  }
  GAPLESS_ASSIGN_OR_RETURN(const Match match, match_profile(files));
  model.profile = match.profile;
  if (!model.profile->runs) {
    return invalid_argument("{}: this is {}{}, which gapless does not run: {}. It runs {}",
                            files.weights_file(), model.title(), match.told_by,
                            model.profile->why_not, profiles_that_run());
  }
  if (!has_config) {
    return make_error(StatusCode::kNotFound, "{}: is not there; expected is the config.json of {}",
                      config_file.string(), where_to_get(*model.profile));
  }
  GAPLESS_ASSIGN_OR_RETURN(model.config,
                           parse_model_config(json, config_file.string(), model.profile->config));
  GAPLESS_RETURN_IF_ERROR(expect_sizes(model.config, model.profile->config, config_file.string(),
                                       where_to_get(*model.profile)));
  return model;
}

StatusOr<Tokenizer> load_tokenizer(const fs::path& path, const RecognisedModel& model) {
  std::error_code error;
  const fs::path file = fs::is_directory(path, error) ? path / "tokenizer.json" : path;
  const std::string expected =
      model.profile
          ? fmt::format("; expected is the tokenizer.json of {}", model.profile->tokenizer_from)
          : "; expected is the tokenizer.json that config.json beside it describes";
  if (!fs::exists(file, error)) {
    return make_error(StatusCode::kNotFound, "{}: is not there{}", file.string(), expected);
  }
  GAPLESS_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::load(file));
  const std::string mismatch = tokenizer_mismatch(tokenizer, model);
  if (mismatch.empty()) return tokenizer;
  return invalid_argument("{}: not the tokenizer of these weights: {}{}{}", file.string(), mismatch,
                          whose_tokenizer(tokenizer), expected);
}

}  // namespace gapless
