// Tokens in, a skill's answer out: the emit stage's half of a skill.
//
// One decoder per request, used by one thread at a time (the request's emit worker).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "skill/skill_result.h"
#include "step/row_state.h"
#include "text/chat_template.h"
#include "text/incremental_detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace gapless {

// A token as the pipeline committed it; x, y: the value of a coordinate or size token.
struct SampledToken {
  TokenId id;
  float x = 0;
  float y = 0;
  TokenConfidence confidence = {};  // where the request asks
};

class SkillDecoder {
 public:
  virtual ~SkillDecoder() = default;

  // Text that became final with this token (query, caption; segment: of its path; empty for the others). Never a part of
  // a UTF-8 character, never text that may still turn into a stop string.
  virtual std::string push(const SampledToken& token) = 0;

  // Reasoning that became final since the last call, with the same promises; it has no stop strings.
  virtual std::string take_reasoning() { return {}; }

  // The box of a segment, once, when it is known: before the first text.
  virtual std::optional<Box> take_box() { return std::nullopt; }

  // How many of the pushed tokens came before the answer: the reasoning and its end.
  virtual int num_reasoning_tokens() const { return 0; }

  // How many of the answer's tokens are part of it for certain, from the first on. A token is
  // when text that it takes part in (or text behind it) was returned, so those that a stop string
  // cuts off entirely never are. Tokens that carry values are at once.
  virtual int num_final_tokens() const = 0;

  // True once a stop string was found: nothing more will be emitted and the request can end.
  virtual bool stopped() const { return false; }

  // The remaining text. No push after this.
  virtual std::string finish() { return {}; }

  // Puts the answer (text and reasoning, points or boxes) into `result`. After finish().
  virtual void fill(SkillResult& result) const = 0;
};

// The part of it that lies in the picture.
Box box_around(const Point& center, float width, float height);

// The tokens that decoders look for.
struct AnswerTokenIds {
  TokenId coord;
  TokenId size;
  // Of reasoning: its end, how often that is fed again, and what begins and ends a part with points.
  TokenId answer = {};
  int num_answers_fed_again = 0;
  TokenId start_ground_points = {};
  TokenId end_ground = {};
};

// `tokenizer` must outlive the decoder; the request was validated. `chat`: how the model writes calls, for requests
// with tools.
std::unique_ptr<SkillDecoder> make_skill_decoder(const SkillRequest& request,
                                                 const Tokenizer& tokenizer,
                                                 const AnswerTokenIds& ids,
                                                 std::optional<ChatTemplate> chat = std::nullopt);

}  // namespace gapless
