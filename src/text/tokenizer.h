// Byte-level byte-pair encoding, read from a Hugging Face tokenizer.json.
//
// Supported: model BPE (merges as "a b" or ["a", "b"], ignore_merges); added tokens; no normalizer, or NFC;
// pre-tokenizer ByteLevel, or a Sequence of Split and Digits steps that ends with ByteLevel;
// decoder ByteLevel. Anything else that would change tokens is refused with an error that names it.
// The post_processor (but for begin_id()), truncation and padding sections are not applied: prompts are built from
// templates (prompt_template.h), and encode() gives the tokens of the text alone.
//
// Immutable once loaded; any thread may call the const functions.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"

namespace gapless {

// What happens to the spelling of an added token, such as "<|endoftext|>", inside a text.
enum class AddedTokens {
  kAsText,   // special tokens are ordinary text: for everything that a user wrote
  kAsTokens  // special tokens become their ids, as Hugging Face's encode() does
};
// (Added tokens that are not special, such as runs of spaces, are matched either way.)

enum class SpecialTokens { kSkip, kKeep };

class Tokenizer {
 public:
  // `path`: tokenizer.json, or a folder that holds it.
  static StatusOr<Tokenizer> load(const std::filesystem::path& path);
  // `name` begins every error.
  static StatusOr<Tokenizer> parse(std::string_view json, std::string_view name);

  // Special tokens of a model's templates that tokenizer.json does not mark: those of `ids` that
  // are added tokens become special. Call before sharing the tokenizer between threads.
  void mark_special(std::span<const TokenId> ids);

  // The tokens of the text. Errors: not UTF-8 (names the byte), longer than kMaxPromptBytes. Costs
  // O(n log n) whatever the text is.
  StatusOr<std::vector<TokenId>> encode(std::string_view text,
                                        AddedTokens added = AddedTokens::kAsText) const;

  // The bytes of the tokens, which need not be whole UTF-8 characters.
  std::string decode(std::span<const TokenId> ids,
                     SpecialTokens special = SpecialTokens::kSkip) const;

  // The bytes of each token of a text, by id; empty for special tokens and for ids without a token.
  std::vector<std::string> text_of_tokens() const;

  // The bytes of one token. An id without a token (a model may have more rows than its tokenizer
  // has tokens) gives the visible placeholder "<|1234|>".
  std::string token_bytes(TokenId id) const;

  bool has(TokenId id) const { return find(id) != nullptr; }
  bool is_special(TokenId id) const;
  // 1 + the largest id.
  int vocab_size() const { return static_cast<int>(tokens_.size()); }
  // The token that the post_processor puts in front of a text ("<|begin_of_text|>"), if it does.
  std::optional<TokenId> begin_id() const { return begin_id_; }
  // The token with this spelling in tokenizer.json ("Ġthe", "<|endoftext|>").
  std::optional<TokenId> id_of(std::string_view spelling) const;

 private:
  friend class TokenizerJson;

  struct Token {
    std::string spelling;  // as in tokenizer.json; empty: the id has no token
    std::string bytes;
    bool added = false;
    bool special = false;
    bool normalized = false;  // matched after the added tokens that are not
  };
  Tokenizer(std::vector<Token> tokens, Bpe bpe, PreTokenizer pre_tokenizer, bool ignore_merges);

  const Token* find(TokenId id) const;
  void encode_word(std::string_view word, std::vector<TokenId>& ids) const;
  Status encode_text(std::string_view text, std::vector<TokenId>& ids) const;
  void build_added_token_sets();

  std::vector<Token> tokens_;  // by id
  std::unordered_map<std::string, TokenId> id_of_spelling_;
  Bpe bpe_;
  PreTokenizer pre_tokenizer_;
  bool ignore_merges_ = false;
  bool normalizes_nfc_ = false;
  std::optional<TokenId> begin_id_;
  // Matched one set after the other, for kAsText and for kAsTokens.
  std::array<AddedTokenSet, 2> plain_added_, all_added_;
};

}  // namespace gapless
