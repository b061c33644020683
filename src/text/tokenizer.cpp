#include "text/tokenizer.h"

#include <deque>

#include "base/file_bytes.h"
#include "base/limits.h"
#include "text/byte_level.h"
#include "text/normalize_nfc.h"
#include "text/utf8.h"

namespace gapless {

StatusOr<Tokenizer> Tokenizer::load(const std::filesystem::path& path) {
  std::error_code ec;
  const bool is_folder = std::filesystem::is_directory(path, ec);
  const std::filesystem::path file = is_folder ? path / "tokenizer.json" : path;
  GAPLESS_ASSIGN_OR_RETURN(const std::string json, read_file(file, kMaxTokenizerJsonBytes));
  return parse(json, file.string());
}

Tokenizer::Tokenizer(std::vector<Token> tokens, Bpe bpe, PreTokenizer pre_tokenizer,
                     bool ignore_merges)
    : tokens_(std::move(tokens)),
      bpe_(std::move(bpe)),
      pre_tokenizer_(std::move(pre_tokenizer)),
      ignore_merges_(ignore_merges) {
  std::vector<TokenId> special;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i].spelling.empty()) continue;
    const TokenId id(static_cast<std::int32_t>(i));
    id_of_spelling_.emplace(tokens_[i].spelling, id);
    if (tokens_[i].special) special.push_back(id);
  }
  mark_special(special);
}

void Tokenizer::mark_special(std::span<const TokenId> ids) {
  std::vector<TokenId> marked;
  for (const TokenId id : ids) {
    const Token* token = find(id);
    if (token == nullptr || !token->added) continue;
    tokens_[static_cast<std::size_t>(id.value)].special = true;
    marked.push_back(id);
  }
  // Ordinary text must not reach a special token by merging its letters either.
  bpe_.forbid(marked);
  build_added_token_sets();
}

void Tokenizer::build_added_token_sets() {
  plain_added_ = all_added_ = {};
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const Token& token = tokens_[i];
    if (!token.added) continue;
    const TokenId id(static_cast<std::int32_t>(i));
    const std::size_t pass = token.normalized ? 1 : 0;
    const std::string spelling =
        token.normalized && normalizes_nfc_ ? normalize_nfc(token.spelling) : token.spelling;
    all_added_[pass].add(spelling, id);
    if (!token.special) plain_added_[pass].add(spelling, id);
  }
}

StatusOr<std::vector<TokenId>> Tokenizer::encode(std::string_view text, AddedTokens added) const {
  if (text.size() > kMaxPromptBytes) {
    return invalid_argument("a text of {} bytes, more than the {} allowed", text.size(),
                            kMaxPromptBytes);
  }
  if (const auto offset = find_invalid_utf8(text)) {
    return invalid_argument("the text is not UTF-8 at byte {}", *offset);
  }
  const auto& sets = added == AddedTokens::kAsText ? plain_added_ : all_added_;
  std::vector<TokenId> ids;
  Status status;
  const auto on_token = [&](TokenId id) { ids.push_back(id); };
  const auto on_text = [&](std::string_view part) {
    if (status.ok()) status = encode_text(part, ids);
  };
  const auto on_part = [&](std::string_view part) {
    if (!normalizes_nfc_ || is_ascii(part)) return sets[1].split(part, on_text, on_token);
    sets[1].split(normalize_nfc(part), on_text, on_token);
  };
  sets[0].split(text, on_part, on_token);
  GAPLESS_RETURN_IF_ERROR(status);
  return ids;
}

Status Tokenizer::encode_text(std::string_view text, std::vector<TokenId>& ids) const {
  std::vector<std::string_view> words;
  std::deque<std::string> prefixed;
  GAPLESS_RETURN_IF_ERROR(pre_tokenizer_.split(text, words, prefixed));
  for (const std::string_view word : words) encode_word(word, ids);
  return ok_status();
}

void Tokenizer::encode_word(std::string_view word, std::vector<TokenId>& ids) const {
  if (ignore_merges_ && word.size() <= kMaxTokenBytes) {
    const auto whole = id_of(to_byte_level(word));
    if (whole && !is_special(*whole)) {
      ids.push_back(*whole);
      return;
    }
  }
  bpe_.encode(word, ids);
}

const Tokenizer::Token* Tokenizer::find(TokenId id) const {
  if (id.value < 0 || id.value >= vocab_size()) return nullptr;
  const Token& token = tokens_[static_cast<std::size_t>(id.value)];
  return token.spelling.empty() ? nullptr : &token;
}

std::vector<std::string> Tokenizer::text_of_tokens() const {
  std::vector<std::string> bytes;
  for (const Token& token : tokens_) {
    bytes.push_back(token.spelling.empty() || token.special ? std::string() : token.bytes);
  }
  return bytes;
}

bool Tokenizer::is_special(TokenId id) const {
  const Token* token = find(id);
  return token != nullptr && token->special;
}

std::string Tokenizer::token_bytes(TokenId id) const {
  const Token* token = find(id);
  return token != nullptr ? token->bytes : fmt::format("<|{}|>", id.value);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, SpecialTokens special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (special == SpecialTokens::kSkip && is_special(id)) continue;
    bytes += token_bytes(id);
  }
  return bytes;
}

std::optional<TokenId> Tokenizer::id_of(std::string_view spelling) const {
  const auto found = id_of_spelling_.find(std::string(spelling));
  if (found == id_of_spelling_.end()) return std::nullopt;
  return found->second;
}

}  // namespace gapless
