// One generation of one request, from submission to release. Owned by the engine thread once it
// has left the mailbox.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "kv/page_table.h"
#include "pipeline/prepared_prompt.h"

namespace gapless {

using ImageSlotId = Id<struct ImageSlotTag>;  // a place in the model's image-embedding pool

struct Sequence {
  SequenceId id;
  PreparedPrompt prompt;
  std::shared_ptr<TokenSink> sink;
  SequenceTimes times;
  bool needs_encode = false;  // when it came in

  // While seated.
  RowId row;
  int num_cached = 0;         // prompt tokens found in the prefix cache; not computed again
  int num_cached_images = 0;  // whose blocks those are
  PageId tail_page;           // on a hit: the cache's partly filled page, to be copied into our own
  // By image. Invalid: found in the prefix cache, or the prefill is committed.
  std::vector<ImageSlotId> image_slots;
  int num_launched = 0;  // tokens whose step was launched, committed or not
  int num_sampled = 0;   // tokens committed, a stop id among them

  int prompt_tokens() const { return static_cast<int>(prompt.inputs.size()); }
  int num_images() const { return static_cast<int>(prompt.images.size()); }
  // Blocks that its prefill computes, each a sequence of its own to the attention (the text belongs
  // to the last one).
  int num_segments() const { return std::max(1, num_images() - num_cached_images); }
  bool host_masked() const { return (prompt.row.flags & kRowHostMask) != 0; }
  bool holds_grammar() const { return prompt.row.grammar != kNoGrammar; }
  // Whether its next step's token may be a coordinate or a size.
  bool decodes_regions() const {
    const bool may_still = !prompt.num_region_tokens || num_launched < *prompt.num_region_tokens;
    return may_still && (prompt.row.flags & kRowDecodesRegions) != 0;
  }
  bool asks_top_logprobs() const { return prompt.row.sampling.num_top_logprobs > 0; }
  bool is_prefilled() const { return num_launched > 0; }
};

}  // namespace gapless
