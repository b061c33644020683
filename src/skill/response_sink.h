// Where an answer goes: the command line, an HTTP connection, a test.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "skill/skill_result.h"
#include "skill/token_logprob.h"

namespace gapless {

// Called on one emit worker, in order, and for the last event of a segment on the thread that refined it; must not block them for long. Exactly one of on_done and
// on_error comes, last.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  // Text that is final: whole UTF-8 characters, no part of a stop string. `num_tokens`: generated
  // so far.
  virtual void on_text(std::string_view chunk, int num_tokens) = 0;
  // Reasoning, which comes before the answer's text: whole UTF-8 characters.
  virtual void on_reasoning(std::string_view /*chunk*/, int /*num_tokens*/) {}
  // The box of a segment, before the pieces of its path, which come as text: a whole command with its numbers each.
  virtual void on_box(const Box& /*box*/, int /*num_tokens*/) {}
  // When the request asks for logprobs: the tokens of the on_text that follows, or for the answer
  // of on_done. Together they are the tokens of the answer, in order; those that a stop string cuts
  // off entirely do not come.
  virtual void on_logprobs(std::vector<TokenLogprob> /*tokens*/) {}
  virtual void on_done(const SkillResult& result) = 0;
  virtual void on_error(const Status& status) = 0;
};

}  // namespace gapless
