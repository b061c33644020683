#include "model/llama/llama_prompts.h"

#include <optional>
#include <string>

#include "base/file_bytes.h"
#include "base/json.h"
#include "base/limits.h"

namespace gapless {
namespace {

namespace fs = std::filesystem;

// "chat_template": a string, or a list of named ones of which "default" counts.
StatusOr<std::string> template_of_tokenizer_config(const fs::path& file) {
  GAPLESS_ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxTokenizerConfigBytes));
  GAPLESS_ASSIGN_OR_RETURN(const boost::json::value document, parse_json(text, file.string()));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject root, JsonObject::of(document, file.string()));
  const boost::json::value* found = root.find("chat_template");
  if (found == nullptr) return std::string();
  if (found->is_string()) return std::string(found->get_string());
  GAPLESS_ASSIGN_OR_RETURN(const boost::json::array* list, root.array("chat_template"));
  for (std::size_t i = 0; i < list->size(); ++i) {
    GAPLESS_ASSIGN_OR_RETURN(
        const JsonObject one,
        JsonObject::of((*list)[i], file.string(), fmt::format("chat_template[{}]", i)));
    GAPLESS_ASSIGN_OR_RETURN(const std::string_view name, one.string("name"));
    if (name != "default") continue;
    GAPLESS_ASSIGN_OR_RETURN(const std::string_view jinja, one.string("template"));
    return std::string(jinja);
  }
  return std::string();
}

// Empty: the folder has none.
StatusOr<std::string> published_template(const fs::path& folder) {
  std::error_code error;
  const fs::path own = folder / "chat_template.jinja";
  if (fs::exists(own, error)) return read_file(own, kMaxTokenizerConfigBytes);
  const fs::path config = folder / "tokenizer_config.json";
  if (fs::exists(config, error)) return template_of_tokenizer_config(config);
  return std::string();
}

}  // namespace

StatusOr<Tokenizer> load_llama_tokenizer(const fs::path& file, const LlamaConfig& config) {
  std::error_code error;
  if (!fs::exists(file, error)) {
    return make_error(StatusCode::kNotFound,
                      "{}: is not there; expected is the tokenizer.json that is published with the "
                      "weights",
                      file.string());
  }
  GAPLESS_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::load(file));
  if (tokenizer.vocab_size() > config.vocab_size) {
    return invalid_argument(
        "{}: not the tokenizer of these weights: it has {} tokens, they have {}", file.string(),
        tokenizer.vocab_size(), config.vocab_size);
  }
  return tokenizer;
}

StatusOr<TokenizerConfig> read_llama_prompts(const fs::path& folder, const LlamaConfig& config,
                                             const Tokenizer& tokenizer) {
  TokenizerConfig prompts = TokenizerConfig::without_skills();
  prompts.completes_text = true;
  prompts.bos_id = tokenizer.begin_id().value_or(TokenId());
  if (!config.eos_ids.empty()) {
    prompts.eos_id = config.eos_ids.front();
    prompts.more_eos_ids.assign(config.eos_ids.begin() + 1, config.eos_ids.end());
  }
  GAPLESS_ASSIGN_OR_RETURN(const std::string jinja, published_template(folder));
  if (jinja.empty()) {
    prompts.why_no_chat = ": neither chat_template.jinja nor tokenizer_config.json has one";
    return prompts;
  }
  prompts.chat = recognise_chat_template(jinja);
  if (!prompts.chat) {
    prompts.why_no_chat = " that gapless knows: its own is neither Llama 3's nor Qwen3's";
    return prompts;
  }
  for (const std::string_view token : special_tokens_of(*prompts.chat)) {
    if (tokenizer.id_of(token)) continue;
    return invalid_argument(
        "{}: the tokenizer has no token '{}', which the chat template of {} needs", folder.string(),
        token, chat_template_name(*prompts.chat));
  }
  return prompts;
}

}  // namespace gapless
