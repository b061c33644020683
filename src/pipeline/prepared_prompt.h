// What preprocessing hands to the engine loop, and how the loop hands tokens on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/content_hash.h"
#include "base/finish_reason.h"
#include "base/ids.h"
#include "base/status.h"
#include "step/row_state.h"
#include "step/token_constraint.h"
#include "step/token_memory.h"

namespace gapless {

// The crops of one image in pinned memory. Owned by the prompt until its prefill is committed.
struct PreparedImage {
  ContentHash hash{};
  // Of this image and all before it in the prompt, in order; for the first one its own hash.
  ContentHash prefix_hash{};
  int tile_rows = 1;
  int tile_cols = 1;
  std::vector<const std::uint8_t*> crops_pinned;  // global crop first; each one crop_bytes
  std::shared_ptr<void> crops_owner;              // returns the crops to their pool
};

// The tokens of one request, ready to run. Its owner is preprocessing, and from submit() on the loop, which hands
// what is committed to the TokenSink.
struct PreparedPrompt {
  // Inputs in order. kImage inputs count through the prompt's images, 729 each: patch p of image i
  // is i * 729 + p; the loop turns that into a place of the image pool.
  std::vector<TokenInput> inputs;
  // BOS and the images' positions; 0 without an image. It consists of one block for each image: BOS
  // and the first image's positions, then the others' positions alone. A block's positions see each
  // other both ways and what is before them, so a block's keys and values depend on its image and
  // on those before it, and on nothing behind.
  int prefix_len = 0;
  std::vector<PreparedImage> images;
  // Sampling parameters, stop ids, denied ids, length limit, automaton start, grammar and flags. The loop
  // fills in input, position and the counters.
  RowState row;
  // Rows with kRowDecodesRegions: how many tokens, from the first on, may be coordinates or sizes; nothing: any. Steps behind them
  // decode no regions.
  std::optional<int> num_region_tokens;
  // Rows with kRowAdjustsLogits only: its tokens (once each, none of an image) and the biases. At most
  // one per token behind the prefix, one for BOS, and kMaxLogitBiases.
  std::vector<TokenNote> token_notes;
  // Keeps row.grammar on the device until no step can refer to it.
  std::shared_ptr<const void> device_grammar;
  // Host-masked rows only (kRowHostMask).
  std::unique_ptr<TokenConstraint> host_constraint;
  // host_now_ns() when the request came in; 0: when the loop gets the prompt.
  std::int64_t submitted_ns = 0;
};

// Where the block of the num_images-th image ends; in a prompt with images, 0 for none of them.
inline int prefix_end(const PreparedPrompt& prompt, int num_images, int image_tokens) {
  const int num_behind = static_cast<int>(prompt.images.size()) - num_images;
  if (num_images == 0 && num_behind > 0) return 0;
  return prompt.prefix_len - num_behind * image_tokens;
}

// One token that became part of a sequence. `x`, `y`: value of a coordinate or size token.
struct CommittedToken {
  TokenId token;
  float x = 0;
  float y = 0;
  float logprob = 0;
  TokenConfidence confidence = {};  // when the prompt's row asks (kRowWantsConfidence)
  // The most likely tokens at its place, when the prompt's row asks (SamplingSettings::num_top_logprobs);
  // fewer than asked for where the model has no more.
  std::vector<TopLogprob> top_logprobs;
};

// When things happened to a sequence, host_now_ns(), and what was spared.
struct SequenceTimes {
  std::int64_t submitted_ns = 0;
  std::int64_t queued_ns = 0;          // ready to run, in the loop's hands
  std::int64_t first_launched_ns = 0;  // its first step: an encode, or the prefill
  std::int64_t prefill_launched_ns = 0;
  std::int64_t first_token_ns = 0;  // the first token's commit, be it a stop id
  std::int64_t finished_ns = 0;
  int num_cached_tokens = 0;  // of the prompt, found in the prefix cache
};

// Receives a sequence's tokens on the engine thread; must return at once (it hands them to a
// queue). on_finished is the last call, exactly once per submitted prompt.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void on_token(const CommittedToken& token) = 0;
  virtual void on_finished(FinishReason reason, const Status& status,
                           const SequenceTimes& times) = 0;
};

}  // namespace gapless
