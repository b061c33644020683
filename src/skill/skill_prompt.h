// A skill's request becomes the inputs of a sequence: its token inputs, how its row samples and
// stops, and what constrains it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "skill/skill_request.h"
#include "step/row_state.h"
#include "step/token_constraint.h"
#include "step/token_memory.h"
#include "text/prompt_template.h"

namespace gapless {

struct SkillPrompt {
  std::vector<TokenInput> inputs;  // kImage inputs count through the request's images
  int prefix_len = 0;              // BOS and the images' positions; 0 without an image
  RowState row;                    // sampling, stop ids, limits, automaton, flags
  std::optional<int>
      num_region_tokens;  // kRowDecodesRegions: only so many tokens, from the first on, may be regions
  std::vector<TokenNote> token_notes;                // kRowAdjustsLogits
  std::unique_ptr<TokenConstraint> host_constraint;  // ConstraintMode::kHostMask
};

struct PromptLimits {
  int max_context = 0;   // positions of a sequence: prompt and generated tokens
  int image_tokens = 0;  // positions that an image takes
  int vocab = 0;         // tokens that a request may name
};

// Errors: what PromptBuilder refuses; ResourceExhausted for a prompt that leaves no room for one
// token and for max_tokens that do not fit, unless the request wants them cut (a max_tokens that was
// not asked for is cut to what fits); InvalidArgument for a token that the vocabulary does not have.
StatusOr<SkillPrompt> build_skill_prompt(const SkillRequest& request, const PromptBuilder& builder,
                                         const PromptLimits& limits);

}  // namespace gapless
