// Reads the sections of tokenizer.json into a Tokenizer, and refuses what it does not know.
#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

#include "base/json.h"
#include "base/limits.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace gapless {

class TokenizerJson {
 public:
  static StatusOr<Tokenizer> read(const JsonObject& root);

 private:
  using Token = Tokenizer::Token;

  explicit TokenizerJson(const JsonObject& root) : root_(root) {}

  Status read_vocab(const JsonObject& model);
  Status read_merges(const JsonObject& model);
  Status read_added_tokens();
  Status read_added_token(const JsonObject& added);
  Status set_token(std::int64_t id, std::string_view spelling);
  StatusOr<std::array<TokenId, 256>> byte_tokens() const;
  StatusOr<TokenId> token_of(std::string_view spelling, std::size_t merge_index) const;

  const JsonObject& root_;
  std::vector<Token> tokens_;
  std::unordered_map<std::string, TokenId> id_of_;
  std::vector<Bpe::Merge> merges_;
};

namespace {

Status unsupported(const JsonObject& section, std::string_view key, std::string_view what) {
  return invalid_argument("{}: {} {} is not supported", section.name(), key, what);
}

// Missing, null or an empty Sequence: false. NFC, also alone in a Sequence: true.
StatusOr<bool> normalizes_nfc(const JsonObject& root) {
  if (root.find("normalizer") == nullptr) return false;
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject normalizer, root.object("normalizer"));
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view type, normalizer.string("type"));
  if (type == "Sequence") {
    GAPLESS_ASSIGN_OR_RETURN(const auto* parts, normalizer.array("normalizers"));
    if (parts->empty()) return false;
    if (parts->size() == 1) {
      GAPLESS_ASSIGN_OR_RETURN(const JsonObject only, JsonObject::of(parts->front(), root.name(),
                                                                     "normalizer.normalizers[0]"));
      GAPLESS_ASSIGN_OR_RETURN(const std::string_view only_type, only.string("type"));
      if (only_type == "NFC") return true;
    }
  }
  if (type == "NFC") return true;
  return unsupported(root, "normalizer", type);
}

Status expect_byte_level_decoder(const JsonObject& root) {
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject decoder, root.object("decoder"));
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view type, decoder.string("type"));
  if (type == "ByteLevel") return ok_status();
  if (type == "Sequence") {
    GAPLESS_ASSIGN_OR_RETURN(const auto* parts, decoder.array("decoders"));
    if (parts->size() == 1) {
      GAPLESS_ASSIGN_OR_RETURN(const JsonObject only,
                               JsonObject::of(parts->front(), root.name(), "decoder.decoders[0]"));
      GAPLESS_ASSIGN_OR_RETURN(const std::string_view only_type, only.string("type"));
      if (only_type == "ByteLevel") return ok_status();
    }
  }
  return unsupported(root, "decoder", type);
}

Status add_split_step(const JsonObject& step, PreTokenizer& pre_tokenizer) {
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject pattern, step.object("pattern"));
  const bool literal = pattern.find("String") != nullptr;
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view text,
                           pattern.string(literal ? "String" : "Regex"));
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view behavior, step.string("behavior"));
  GAPLESS_ASSIGN_OR_RETURN(const bool invert, step.boolean_or("invert", false));
  if (behavior != "Isolated" && behavior != "Removed") {
    return unsupported(step, "pre_tokenizer Split with behavior", behavior);
  }
  const auto on_match =
      behavior == "Isolated" ? PreTokenizer::OnMatch::kIsolate : PreTokenizer::OnMatch::kRemove;
  return pre_tokenizer.add_split(text, literal, on_match, invert).with_context(step.name());
}

Status add_step(const JsonObject& step, bool is_last, PreTokenizer& pre_tokenizer) {
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view type, step.string("type"));
  if (type == "ByteLevel") {
    if (!is_last) return unsupported(step, "pre_tokenizer", "ByteLevel before another step");
    GAPLESS_ASSIGN_OR_RETURN(const bool prefix, step.boolean_or("add_prefix_space", true));
    GAPLESS_ASSIGN_OR_RETURN(const bool use_regex, step.boolean_or("use_regex", true));
    return pre_tokenizer.set_byte_level(prefix, use_regex);
  }
  if (is_last)
    return unsupported(step, "pre_tokenizer", fmt::format("without ByteLevel ({})", type));
  if (type == "Split") return add_split_step(step, pre_tokenizer);
  if (type == "Digits") {
    GAPLESS_ASSIGN_OR_RETURN(const bool individual, step.boolean_or("individual_digits", false));
    return pre_tokenizer.add_split(individual ? "\\p{N}" : "\\p{N}+", /*literal=*/false,
                                   PreTokenizer::OnMatch::kIsolate, /*invert=*/false);
  }
  return unsupported(step, "pre_tokenizer", type);
}

StatusOr<PreTokenizer> read_pre_tokenizer(const JsonObject& root) {
  PreTokenizer pre_tokenizer;
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject section, root.object("pre_tokenizer"));
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view type, section.string("type"));
  if (type != "Sequence") {
    GAPLESS_RETURN_IF_ERROR(add_step(section, /*is_last=*/true, pre_tokenizer));
    return pre_tokenizer;
  }
  GAPLESS_ASSIGN_OR_RETURN(const auto* steps, section.array("pretokenizers"));
  if (steps->empty()) return unsupported(root, "pre_tokenizer", "without ByteLevel");
  for (std::size_t i = 0; i < steps->size(); ++i) {
    const std::string where = fmt::format("pre_tokenizer.pretokenizers[{}]", i);
    GAPLESS_ASSIGN_OR_RETURN(const JsonObject step,
                             JsonObject::of((*steps)[i], root.name(), where));
    GAPLESS_RETURN_IF_ERROR(add_step(step, i + 1 == steps->size(), pre_tokenizer));
  }
  return pre_tokenizer;
}

// The special token with which a TemplateProcessing begins a single text; empty: none.
StatusOr<std::string_view> begin_token_of(const JsonObject& processor) {
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view type, processor.string("type"));
  if (type == "Sequence") {
    GAPLESS_ASSIGN_OR_RETURN(const auto* parts, processor.array("processors"));
    for (const boost::json::value& part : *parts) {
      GAPLESS_ASSIGN_OR_RETURN(const JsonObject one,
                               JsonObject::of(part, processor.name(), "post_processor.processors"));
      GAPLESS_ASSIGN_OR_RETURN(const std::string_view kind, one.string("type"));
      if (kind == "TemplateProcessing") return begin_token_of(one);
    }
    return std::string_view();
  }
  if (type != "TemplateProcessing") return std::string_view();
  GAPLESS_ASSIGN_OR_RETURN(const auto* single, processor.array("single"));
  if (single->empty()) return std::string_view();
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject first, JsonObject::of(single->front(), processor.name(),
                                                                  "post_processor.single[0]"));
  if (first.find("SpecialToken") == nullptr) return std::string_view();
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject token, first.object("SpecialToken"));
  return token.string("id");
}

StatusOr<std::string_view> begin_token(const JsonObject& root) {
  if (root.find("post_processor") == nullptr) return std::string_view();
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject processor, root.object("post_processor"));
  return begin_token_of(processor);
}

// What BPE may be told besides its vocabulary and merges.
Status check_model_options(const JsonObject& model) {
  GAPLESS_ASSIGN_OR_RETURN(const double dropout, model.number_or("dropout", 0));
  if (dropout != 0) return unsupported(model, "model.dropout", "above 0");
  GAPLESS_ASSIGN_OR_RETURN(const bool byte_fallback, model.boolean_or("byte_fallback", false));
  if (byte_fallback) return unsupported(model, "model.byte_fallback", "true");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    GAPLESS_ASSIGN_OR_RETURN(const std::string_view affix, model.string_or(key, ""));
    if (!affix.empty()) return unsupported(model, fmt::format("model.{}", key), affix);
  }
  return ok_status();
}

// Bytes that occur in no valid UTF-8 text.
bool never_in_utf8(int byte) {
  return byte == 0xC0 || byte == 0xC1 || byte >= 0xF5;
}

}  // namespace

Status TokenizerJson::set_token(std::int64_t id, std::string_view spelling) {
  if (spelling.empty() || spelling.size() > kMaxTokenBytes) {
    return invalid_argument("{}: token {} is {} bytes long; 1 to {} are allowed", root_.name(), id,
                            spelling.size(), kMaxTokenBytes);
  }
  const auto at = static_cast<std::size_t>(id);
  if (at >= tokens_.size()) tokens_.resize(at + 1);
  Token& token = tokens_[at];
  if (!token.spelling.empty() && token.spelling != spelling) {
    return invalid_argument("{}: id {} belongs to both '{}' and '{}'", root_.name(), id,
                            token.spelling, spelling);
  }
  const auto [known, is_new] =
      id_of_.try_emplace(std::string(spelling), TokenId(static_cast<std::int32_t>(id)));
  if (!is_new && known->second.value != id) {
    return invalid_argument("{}: token '{}' has both id {} and id {}", root_.name(), spelling,
                            known->second.value, id);
  }
  token.spelling = spelling;
  // Spellings outside of the byte-level alphabet stand for themselves.
  token.bytes = from_byte_level(spelling).value_or(std::string(spelling));
  return ok_status();
}

Status TokenizerJson::read_vocab(const JsonObject& model) {
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject vocab, model.object("vocab"));
  for (const auto& entry : vocab.fields()) {
    GAPLESS_ASSIGN_OR_RETURN(const std::int64_t id,
                             vocab.integer(std::string_view(entry.key()), 0, kMaxVocabSize - 1));
    GAPLESS_RETURN_IF_ERROR(set_token(id, std::string_view(entry.key())));
  }
  return ok_status();
}

StatusOr<TokenId> TokenizerJson::token_of(std::string_view spelling,
                                          std::size_t merge_index) const {
  const auto found = id_of_.find(std::string(spelling));
  if (found == id_of_.end()) {
    return invalid_argument("{}: model.merges[{}] names '{}', which is not in the vocabulary",
                            root_.name(), merge_index, spelling);
  }
  return found->second;
}

Status TokenizerJson::read_merges(const JsonObject& model) {
  GAPLESS_ASSIGN_OR_RETURN(const auto* merges, model.array("merges"));
  merges_.reserve(merges->size());
  for (std::size_t i = 0; i < merges->size(); ++i) {
    const boost::json::value& merge = (*merges)[i];
    std::string_view left, right;
    if (merge.is_string()) {
      const std::string_view both = merge.get_string();
      const std::size_t space = both.find(' ');
      if (space != std::string_view::npos && both.find(' ', space + 1) == std::string_view::npos) {
        left = both.substr(0, space);
        right = both.substr(space + 1);
      }
    } else if (merge.is_array() && merge.get_array().size() == 2 &&
               merge.get_array()[0].is_string() && merge.get_array()[1].is_string()) {
      left = merge.get_array()[0].get_string();
      right = merge.get_array()[1].get_string();
    }
    if (left.empty() || right.empty()) {
      return invalid_argument("{}: model.merges[{}] must be a pair of tokens", root_.name(), i);
    }
    Bpe::Merge pair;
    GAPLESS_ASSIGN_OR_RETURN(pair.left, token_of(left, i));
    GAPLESS_ASSIGN_OR_RETURN(pair.right, token_of(right, i));
    GAPLESS_ASSIGN_OR_RETURN(pair.merged, token_of(std::string(left) + std::string(right), i));
    merges_.push_back(pair);
  }
  return ok_status();
}

Status TokenizerJson::read_added_tokens() {
  if (root_.find("added_tokens") == nullptr) return ok_status();
  GAPLESS_ASSIGN_OR_RETURN(const auto* list, root_.array("added_tokens"));
  for (std::size_t i = 0; i < list->size(); ++i) {
    GAPLESS_ASSIGN_OR_RETURN(
        const JsonObject added,
        JsonObject::of((*list)[i], root_.name(), fmt::format("added_tokens[{}]", i)));
    GAPLESS_RETURN_IF_ERROR(read_added_token(added));
  }
  return ok_status();
}

Status TokenizerJson::read_added_token(const JsonObject& added) {
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view content, added.string("content"));
  GAPLESS_ASSIGN_OR_RETURN(const std::int64_t id, added.integer("id", 0, kMaxVocabSize - 1));
  for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
    GAPLESS_ASSIGN_OR_RETURN(const bool set, added.boolean_or(flag, false));
    if (set) return unsupported(added, fmt::format("added token '{}' with", content), flag);
  }
  GAPLESS_RETURN_IF_ERROR(set_token(id, content));
  Token& token = tokens_[static_cast<std::size_t>(id)];
  token.added = true;
  GAPLESS_ASSIGN_OR_RETURN(token.special, added.boolean_or("special", false));
  GAPLESS_ASSIGN_OR_RETURN(token.normalized, added.boolean_or("normalized", !token.special));
  return ok_status();
}

StatusOr<std::array<TokenId, 256>> TokenizerJson::byte_tokens() const {
  std::array<TokenId, 256> tokens;
  const auto& alphabet = byte_level_alphabet();
  for (int byte = 0; byte < 256; ++byte) {
    const auto at = static_cast<std::size_t>(byte);
    const auto found = id_of_.find(alphabet[at]);
    if (found != id_of_.end()) {
      tokens[at] = found->second;
    } else if (!never_in_utf8(byte)) {
      return invalid_argument("{}: model.vocab has no token for byte 0x{:02X} ('{}')", root_.name(),
                              byte, alphabet[at]);
    }
  }
  return tokens;
}

StatusOr<Tokenizer> TokenizerJson::read(const JsonObject& root) {
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject model, root.object("model"));
  // Very old files leave the type out.
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view type, model.string_or("type", "BPE"));
  if (type != "BPE") {
    return invalid_argument("{}: model type {} is not supported; only BPE is", root.name(), type);
  }
  GAPLESS_RETURN_IF_ERROR(check_model_options(model));
  GAPLESS_ASSIGN_OR_RETURN(const bool nfc, normalizes_nfc(root));
  GAPLESS_RETURN_IF_ERROR(expect_byte_level_decoder(root));
  GAPLESS_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, read_pre_tokenizer(root));
  GAPLESS_ASSIGN_OR_RETURN(const bool ignore_merges, model.boolean_or("ignore_merges", false));

  TokenizerJson reader(root);
  GAPLESS_RETURN_IF_ERROR(reader.read_vocab(model));
  GAPLESS_ASSIGN_OR_RETURN(const auto byte_tokens, reader.byte_tokens());
  GAPLESS_RETURN_IF_ERROR(reader.read_merges(model));
  GAPLESS_RETURN_IF_ERROR(reader.read_added_tokens());
  Tokenizer tokenizer(std::move(reader.tokens_), Bpe(byte_tokens, reader.merges_),
                      std::move(pre_tokenizer), ignore_merges);
  tokenizer.normalizes_nfc_ = nfc;
  tokenizer.build_added_token_sets();
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view begin, begin_token(root));
  tokenizer.begin_id_ = tokenizer.id_of(begin);
  return tokenizer;
}

StatusOr<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view name) {
  if (json.size() > kMaxTokenizerJsonBytes) {
    return make_error(StatusCode::kResourceExhausted, "{}: {} bytes, more than the {} allowed",
                      name, json.size(), kMaxTokenizerJsonBytes);
  }
  GAPLESS_ASSIGN_OR_RETURN(const boost::json::value document, parse_json(json, name));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject root, JsonObject::of(document, name));
  return TokenizerJson::read(root);
}

}  // namespace gapless
