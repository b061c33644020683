// Log probabilities as OpenAI's two APIs show them: that of chats, and Ollama's after it, and the older one of completions.
#pragma once

#include <boost/json/object.hpp>
#include <span>

#include "skill/token_logprob.h"

namespace gapless {

// {"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}
boost::json::object logprob_json(const TokenLogprob& token);

// {"tokens": [text], "token_logprobs": [number], "top_logprobs": [{text: number}], "text_offset": [number]}: the chosen
// token is among the alternatives too, as that API has it. `text_offset` is where the first token begins in the
// answer's text, in characters; on return, where the next one does.
boost::json::object completion_logprobs_json(std::span<const TokenLogprob> tokens,
                                             std::int64_t& text_offset);

}  // namespace gapless
