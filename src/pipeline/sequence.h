// One generation of one request, from submission to release. Owned by the engine thread once it
// has left the mailbox.
#pragma once

#include <cstdint>
#include <memory>

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

  // While seated.
  RowId row;
  int num_cached = 0;      // prompt tokens found in the prefix cache; not computed again
  PageId tail_page;        // on a hit: the cache's partly filled page, to be copied into our own
  ImageSlotId image_slot;  // invalid: no image, a prefix hit, or the prefill is committed
  int num_launched = 0;    // tokens whose step was launched, committed or not
  int num_committed = 0;

  int prompt_tokens() const { return static_cast<int>(prompt.inputs.size()); }
  bool host_masked() const { return (prompt.row.flags & kRowHostMask) != 0; }
  bool decodes_regions() const { return (prompt.row.flags & kRowDecodesRegions) != 0; }
  bool asks_top_logprobs() const { return prompt.row.num_top_logprobs > 0; }
  bool is_prefilled() const { return num_launched > 0; }
};

}  // namespace gapless
