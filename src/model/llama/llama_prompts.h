// What the prompts of a model of the Llama family are made of.
#pragma once

#include <filesystem>

#include "base/status.h"
#include "model/llama/llama_config.h"
#include "text/prompt_config.h"
#include "text/tokenizer.h"

namespace gapless {

// tokenizer.json. Refused when it has more tokens than the model.
StatusOr<Tokenizer> load_llama_tokenizer(const std::filesystem::path& file,
                                         const LlamaConfig& config);

// From the chat template that is published in `folder` (chat_template.jinja, or in tokenizer_config.json) and the
// tokenizer. A folder without a template is a model without one; so is an unknown template, and TokenizerConfig
// says why. An error: the tokenizer lacks a token of the template.
StatusOr<TokenizerConfig> read_llama_prompts(const std::filesystem::path& folder,
                                             const LlamaConfig& config, const Tokenizer& tokenizer);

}  // namespace gapless
