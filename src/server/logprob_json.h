// Log probabilities as OpenAI's chat API shows them, and Ollama's after it.
#pragma once

#include <boost/json/object.hpp>

#include "skill/token_logprob.h"

namespace gapless {

// {"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}
boost::json::object logprob_json(const TokenLogprob& token);

}  // namespace gapless
