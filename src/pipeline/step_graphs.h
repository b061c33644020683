// The graphs of one slot: a launch of a step whose sizes have one costs one call.
//
// A graph fixes a launch's sizes, so a step is padded up to the next *bucket* that has a graph:
//
//   decode   rows: powers of two             padding rows are -1
//   prefill  tokens: 16, 32, 64, 128, then   padding tokens belong to no sequence and write to the
//            every 128                       trash page; padding sequences have no tokens, row -1
//            sequences: 1, 4, all          (segments where prompts have several images)
//   encode   crops: every number             (no padding: a crop is worth milliseconds; an image
//                                            that goes on in a later step goes op by op)
//
// Steps of 128 tokens cost little where matrix products work on tiles of some 128 rows: on an H200 741 tokens take
// what 768 do, 3.77 ms (forward-768-rest-h200.json), and 896 a tenth more than 770. Prefills and
// encodes of more than StepLimits::max_graph_tokens and max_graph_crops are launched op by op: they
// keep the device busy for many times what their launch takes. On a device whose launches are cheap
// these limits are 0, and nothing is padded.
#pragma once

#include <compare>
#include <functional>
#include <map>
#include <memory>

#include "base/status.h"
#include "device/device.h"
#include "step/step_model.h"

namespace gapless {

// The smallest batch bucket that takes num_rows.
int decode_bucket(int num_rows, int max_rows);

// The smallest token bucket that takes num_tokens; num_tokens itself when it is more than
// limits.max_graph_tokens.
int prefill_token_bucket(int num_tokens, const StepLimits& limits);
int prefill_row_bucket(int num_rows, int max_rows);

// Forward and sampling apart, or both in one: a decode step whose sampling waits for nothing.
enum class StepPart : std::uint8_t { kForward, kSampling, kBoth };

class StepGraphs {
 public:
  // Enqueues the part of a step on `stream` by its ops.
  using Enqueue = std::function<Status(StepPart, const StepShape&)>;

  // Captures a graph for every part and bucket within `limits`, where the model holds grammars with and without them.
  // Start-up only.
  Status capture(Stream& stream, const StepLimits& limits, const Enqueue& enqueue,
                 bool holds_grammars = false);

  // nullptr where there is none.
  Graph* find(StepPart part, const StepShape& shape) const;
  std::size_t size() const { return graphs_.size(); }

 private:
  struct Key {
    StepPart part = StepPart::kForward;
    StepKind kind = StepKind::kDecode;
    int num_rows = 0;
    int num_tokens = 0;
    int num_crops = 0;
    int first_crop = 0;
    bool with_regions = false;
    bool with_grammars = false;
    auto operator<=>(const Key&) const = default;
  };
  static Key key_of(StepPart part, const StepShape& shape);

  std::map<Key, std::unique_ptr<Graph>> graphs_;
};

}  // namespace gapless
