// The token automata of the spatial skills (point, detect, gaze): closed and finite, so that the
// device masks, samples and advances without the host, and constrained rows run ahead like plain
// ones.
//
//   point    x {coord, eos} -> y {coord} -> x ...
//   detect   x {coord, eos} -> y {coord} -> size {size} -> x ...
//   gaze     x {coord, eos} -> y {coord} -> end {eos}: at most one point
//
// A model whose vocabulary has no coordinate (any_token_is_coord) begins an object with any token but
// eos: x is a state in which every token may be sampled, and what is not eos becomes coord.
//
// After a sampled eos the row is done (eos is among its stop ids), so the edge's target is never
// used; it leads back to its own state. How many objects a request may return is bounded by the
// row's length limit (spatial_max_generated), not by the automaton.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "step/row_state.h"
#include "step/token_constraint.h"

namespace gapless {

enum class SpatialSkill { kPoint, kDetect, kGaze };

// The special ids of a tokenizer that the automata are made of.
struct SpatialTokens {
  std::int32_t coord_id = 0;
  std::int32_t size_id = 0;
  std::int32_t eos_id = 0;
  // coord_id and size_id are ids that the vocabulary has no tokens for.
  bool any_token_is_coord = false;
};

inline constexpr int kNumSpatialStates = 8;

// The states of all three automata, as they lie in the device's automata pool from index 0 on.
std::array<AutomatonState, kNumSpatialStates> build_spatial_automata(const SpatialTokens& tokens);

// Where a skill's automaton starts: the value of RowState::automaton for a new sequence.
std::int32_t automaton_start(SpatialSkill skill);

// RowState::max_generated that returns at most `max_objects` whole objects: their tokens and one
// eos. Gaze returns at most one point whatever max_objects says. max_objects must lie in [1,
// kMaxObjects].
std::int32_t spatial_max_generated(SpatialSkill skill, int max_objects);

// The same automaton walked by the host (kRowHostMask): gives the same tokens. One per sequence. A mask
// replaces no token, so the tokens must not say any_token_is_coord.
class SpatialConstraint final : public TokenConstraint {
 public:
  SpatialConstraint(SpatialSkill skill, const SpatialTokens& tokens);

  void allowed(std::span<std::uint32_t> mask) const override;
  // A token that is not allowed here changes nothing (the sampler cannot return one).
  void advance(TokenId token) override;

 private:
  std::array<AutomatonState, kNumSpatialStates> states_;
  std::int32_t current_;
};

}  // namespace gapless
