// The state of a sequence that lives on the device, and what one step reports of it.
// Plain structs, shared byte for byte by the host, the CPU kernels and the CUDA kernels.
//
// Indexed by row (a place of the sequence's own), never by the position in a batch: a decode launch sends a list
// of rows, and the kernels gather the rest from here. That gather is the carry-over: the token
// sampled by step t is read by step t+1 from device memory and never waits for the host.
#pragma once

#include <cstdint>

#include "base/limits.h"
#include "step/sampling_settings.h"

namespace gapless {

// Where one input embedding comes from.
enum class InputKind : std::int32_t {
  kText = 0,   // wte[id]
  kImage = 1,  // row `id` of the image-embedding pool
  kCoord = 2,  // coordinate encoder of x in [0, 1]
  kSize = 3,   // size encoder of (x, y) = (width, height) in [0, 1]
};

struct TokenInput {
  InputKind kind = InputKind::kText;
  std::int32_t id = 0;
  float x = 0;
  float y = 0;
};
static_assert(sizeof(TokenInput) == 16);

// A device automaton: finite; states of all automata lie in one pool. Sampling tokens[i] moves to next[i] (an index
// into the pool, or kNoAutomaton: free from there on).
//
// In a closed state exactly the listed tokens may be sampled. In an open one every token may be, but those whose edge
// is kForbiddenEdge; a token without an edge counts as `otherwise`, which has one, or, where there is none, stays in
// the state. Of rows with max_after_exit edge 0 of an open state is the exit: once the row has generated exit_at
// tokens the exit's token is the only one that may be sampled, and behind the exit the row generates at most
// max_after_exit tokens.
//
// A closed state may also list classes of tokens: those of a class c with bit c in `classes` may be sampled too, and move
// to class_next[c]. A token's class is that of a table by token (token_classes of the ops), which all automata share; 0
// is no class. A token with an edge goes by its edge.
inline constexpr int kMaxAutomatonEdges = 4;
inline constexpr int kNumTokenClasses = 12;
inline constexpr std::int32_t kForbiddenEdge = -2;
struct AutomatonState {
  std::int32_t num_edges = 0;
  std::int32_t tokens[kMaxAutomatonEdges] = {};
  std::int32_t next[kMaxAutomatonEdges] = {};
  std::int32_t is_open = 0;
  std::int32_t otherwise = -1;  // -1: none
  std::uint32_t classes = 0;    // of closed states; bit 0 is 0
  std::int32_t class_next[kNumTokenClasses] = {};
};

enum RowFlags : std::int32_t {
  kRowDecodesRegions = 1,   // a sampled coord_id / size_id is decoded by the region heads
  kRowHostMask = 2,         // the host uploads this row's mask each step; sampling waits for it
  kRowAdjustsLogits = 4,    // penalties or biases: the row has a token memory (token_memory.h)
  kRowWantsConfidence = 8,  // StepOutput::confidence is told
  kRowSkipsLogprob = 16,    // nobody reads StepOutput::logprob: it is 0
};

inline constexpr int kMaxDeniedIds = 4;
inline constexpr std::int32_t kNoAutomaton = -1;
inline constexpr std::int32_t kNoGrammar = -1;

struct RowState {
  TokenInput input;           // the next step's input
  std::int32_t position = 0;  // its position in the sequence = number of cached tokens
  std::int32_t num_generated = 0;
  std::int32_t max_generated = 0;         // length limit, >= 1
  std::int32_t done = 0;                  // set by the device at a stop id or at the limit
  std::int32_t automaton = kNoAutomaton;  // index of the current AutomatonState, or kNoAutomaton
  std::int32_t grammar = kNoGrammar;      // index into the device's grammars, or kNoGrammar
  std::int32_t flags = 0;                 // RowFlags
  std::int32_t exit_at = 0;               // of open automaton states (AutomatonState)
  std::int32_t max_after_exit = 0;        // 0: open states have no exit
  std::int32_t num_stop_ids = 0;
  std::int32_t num_denied_ids = 0;
  std::int32_t stop_ids[kMaxStopIds] = {};
  std::int32_t denied_ids[kMaxDeniedIds] = {};  // never sampled (ignored under an automaton)
  SamplingSettings sampling;                    // the user's
};
static_assert(sizeof(RowState) % 8 == 0);

enum class StepOutcome : std::int32_t {
  kContinues = 0,
  kStopped = 1,      // the sampled token is a stop id (it is not part of the answer)
  kLength = 2,       // the sampled token is the last one allowed (it is part of the answer)
  kAlreadyDone = 3,  // a zombie: the row was done before this step; nothing changed
};

// Logprob of a token whose logit is not finite: it still prints as a number.
inline constexpr float kImpossibleLogprob = -9999.0f;

// One of the most likely tokens of a row. token -1: there is none (any more).
struct TopLogprob {
  std::int32_t token = -1;
  float logprob = kImpossibleLogprob;

  friend bool operator==(const TopLogprob&, const TopLogprob&) = default;
};
static_assert(sizeof(TopLogprob) == 8);

// How sure a row's token is, by the model's own logits: shares of softmaxes at temperature 1.
struct TokenConfidence {
  float token = 0;  // of the token among those that the row might have sampled
  float x = 0;      // of a coordinate's bin, or a width's, among all bins
  float y = 0;      // of a height's bin

  friend bool operator==(const TokenConfidence&, const TokenConfidence&) = default;
};
static_assert(sizeof(TokenConfidence) == 12);

// One row of one step, copied to the host. The stamps lie behind the last one (StepBuffers), on 8 bytes.
struct alignas(8) StepOutput {
  std::int32_t token = 0;
  StepOutcome outcome = StepOutcome::kContinues;
  float x = 0;  // coordinate, or width
  float y = 0;  // height
  // Natural log of its probability before masks, temperature and filters; 0 of a kRowSkipsLogprob row.
  float logprob = 0;
  std::int32_t position = 0;   // of the token this step consumed
  TokenConfidence confidence;  // of a kRowWantsConfidence row
};
static_assert(sizeof(StepOutput) == 40);

// One sequence of a launch, for attention.
struct AttentionSequence {
  std::int32_t row = 0;
  std::int32_t first_token = 0;  // its first token in the packed batch
  std::int32_t num_tokens = 0;   // new tokens; 0 = a done row, nothing to do
  std::int32_t num_cached = 0;   // tokens already in the cache before this launch
  std::int32_t prefix_len =
      0;  // positions [0, prefix_len) see each other both ways (BOS + image); 0: causal
};

// One entry of the page table to set before a launch.
struct PageTableDelta {
  std::int32_t row = 0;
  std::int32_t index = 0;  // page number within the sequence
  std::int32_t page = 0;
};

struct PageCopy {
  std::int32_t from = 0;
  std::int32_t to = 0;
};

}  // namespace gapless
