// Builds the tokens of a skill's prompt from the model's templates and the user's text.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "text/prompt_config.h"
#include "text/prompt_types.h"
#include "text/tokenizer.h"

namespace gapless {

// One position of a prompt. kCoord and kSize positions take their embedding from the region
// encoders instead of the embedding table; `id` is then coord_id or size_id.
struct PromptToken {
  enum class Kind { kText, kCoord, kSize };
  Kind kind = Kind::kText;
  TokenId id;
  float x = 0;  // kCoord: the coordinate; kSize: the width. In [0, 1] of the image.
  float y = 0;  // kSize: the height

  friend bool operator==(const PromptToken&, const PromptToken&) = default;
};

struct Prompt {
  std::vector<PromptToken> tokens;  // bos first
  // The embeddings of the image, or of all images one behind the other, go in front of
  // tokens[*image_position]; nothing without an image.
  std::optional<std::size_t> image_position;
};

// What a request for a skill that a model has not gets: says which models have it.
Status lacks_skill(std::string_view skill, bool is_text_model);

// Immutable; any thread. The tokenizer must outlive it. User text never becomes a special token.
//
// Errors: blank text, text that is not UTF-8 or too long, a skill that the model does not have, a
// reference outside of the image or without one.
class PromptBuilder {
 public:
  PromptBuilder(const Tokenizer& tokenizer, TokenizerConfig config)
      : tokenizer_(&tokenizer), config_(std::move(config)) {}

  const TokenizerConfig& config() const { return config_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

  // A point is read as the coordinates x and y; a box as the coordinates of its centre and its
  // size. The question goes in as it is. `reasoning`: the model reasons before it answers.
  StatusOr<Prompt> query(std::string_view question, bool has_image,
                         std::span<const SpatialRef> refs = {}, bool reasoning = false) const;
  StatusOr<Prompt> caption(CaptionLength length) const;
  // Whitespace around the object's name is dropped.
  StatusOr<Prompt> detect(std::string_view object) const;
  StatusOr<Prompt> point(std::string_view object, std::span<const SpatialRef> refs = {}) const;
  StatusOr<Prompt> segment(std::string_view object, std::span<const SpatialRef> refs = {}) const;
  // A conversation whose last message is the user's (chat_template.h).
  StatusOr<Prompt> chat(std::span<const ChatMessage> messages, const ChatOptions& options) const;
  // Ok where the model can reason before it answers.
  Status check_reasons() const;
  // Text that the model goes on with.
  StatusOr<Prompt> completion(std::string_view text) const;

 private:
  Status lacks(std::string_view skill) const { return lacks_skill(skill, config_.completes_text); }
  Prompt begin(bool has_image) const;
  void add_ids(std::span<const TokenId> ids, Prompt& prompt) const;
  Status add_refs(std::span<const SpatialRef> refs, Prompt& prompt) const;
  StatusOr<Prompt> object_prompt(std::string_view skill, const SkillTemplate& skill_template,
                                 bool leading_space, std::string_view object,
                                 std::span<const SpatialRef> refs) const;

  const Tokenizer* tokenizer_;
  TokenizerConfig config_;
};

}  // namespace gapless
