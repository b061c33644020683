// The token ids that a model's prompts are made of: data of a checkpoint's configuration.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "text/chat_template.h"

namespace gapless {

// The prompt of a skill that has text in it: prefix, text, suffix.
struct SkillTemplate {
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;

  friend bool operator==(const SkillTemplate&, const SkillTemplate&) = default;
};

// A token that a tokenizer must have: the bytes that `id` stands for, as in "<|endoftext|>" or " caption".
struct TokenSpelling {
  TokenId id;
  std::string text;

  friend bool operator==(const TokenSpelling&, const TokenSpelling&) = default;
};

// An empty token list means that the model does not have that skill (or caption length).
// The defaults are those of the Moondream 2 release of 2025-06-21.
struct TokenizerConfig {
  // Of a model that has none of the skills.
  static TokenizerConfig without_skills() {
    TokenizerConfig config;
    for (TokenId* id :
         {&config.bos_id, &config.eos_id, &config.answer_id, &config.thinking_id, &config.coord_id,
          &config.size_id, &config.start_ground_points_id, &config.end_ground_id}) {
      *id = TokenId();
    }
    for (auto* list : {&config.caption_short, &config.caption_normal, &config.caption_long}) {
      list->clear();
    }
    for (SkillTemplate* skill : {&config.query, &config.detect, &config.point, &config.segment}) {
      *skill = {};
    }
    config.query_reasoning.clear();
    config.reasoning_denied.clear();
    return config;
  }

  static std::vector<TokenId> ids(std::initializer_list<int> values) {
    std::vector<TokenId> list;
    for (const int value : values) list.emplace_back(value);
    return list;
  }

  TokenId bos_id{0};  // an invalid one: prompts begin without
  TokenId eos_id{0};
  std::vector<TokenId> more_eos_ids;  // end an answer too
  TokenId answer_id{3};               // ends reasoning; never sampled in an answer
  TokenId thinking_id{4};             // opens reasoning
  TokenId coord_id{5};                // a coordinate: its value travels beside it
  TokenId size_id{6};                 // a width and height, likewise
  // The vocabulary has no coordinate and no size: after a prompt of point or detect, and after each
  // object, any token but eos begins a further one. coord_id and size_id are ids without tokens then.
  bool any_token_is_coord = false;
  TokenId start_ground_points_id{7};
  TokenId end_ground_id{9};

  std::vector<TokenId> caption_short = ids({1, 32708, 2, 12492, 3});
  std::vector<TokenId> caption_normal = ids({1, 32708, 2, 6382, 3});
  std::vector<TokenId> caption_long = ids({1, 32708, 2, 4059, 3});
  // The doubled 3 is what this release was trained with.
  SkillTemplate query{ids({1, 15381, 2}), ids({3, 3})};
  // In place of query's suffix, where the answer begins with reasoning; empty: this model does not reason.
  std::vector<TokenId> query_reasoning = ids({3, 4});
  std::vector<TokenId> reasoning_denied = ids({0, 6});  // never sampled while it reasons
  int num_answer_ids_fed_again = 0;  // answer_ids behind the one that ends reasoning
  SkillTemplate detect{ids({1, 7235, 476, 2}), ids({3})};
  SkillTemplate point{ids({1, 2581, 2}), ids({3})};
  SkillTemplate segment;  // that release has none
  bool gazes = true;      // to point at "gaze", from someone's eyes, is where they look
  // Whether the object's name of detect and point is tokenized with a space before it. (That of segment never is.)
  bool object_leading_space = true;
  // Likewise the question.
  bool question_leading_space = false;

  // Whether the model goes on with plain text, and how it reads a conversation.
  bool completes_text = false;
  std::optional<ChatTemplate> chat;
  // Why there is no chat template: ends the error.
  std::string why_no_chat = {};

  // What tells the tokenizer.json of these weights from another one. Nothing, and 0: not said.
  std::vector<TokenSpelling> spellings;
  int vocab_size = 0;  // 1 + the largest id

  // Every id above that there is, with repetitions: for Tokenizer::mark_special and for validation.
  std::vector<TokenId> all_ids() const {
    std::vector<TokenId> all = {
        bos_id,       eos_id, answer_id, thinking_id, coord_id, size_id, start_ground_points_id,
        end_ground_id};
    for (const auto* list :
         {&caption_short, &caption_normal, &caption_long, &query.prefix, &query.suffix,
          &query_reasoning, &reasoning_denied, &detect.prefix, &detect.suffix, &point.prefix,
          &point.suffix, &segment.prefix, &segment.suffix}) {
      all.insert(all.end(), list->begin(), list->end());
    }
    std::erase_if(all, [](TokenId id) { return !id.valid(); });
    return all;
  }

  friend bool operator==(const TokenizerConfig&, const TokenizerConfig&) = default;
};

}  // namespace gapless
