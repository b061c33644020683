// The automaton of segment: the box, then a path that is SVG path data wherever it ends behind a whole command.
//
//   x {coord} -> y {coord} -> size {size} -> M or m -> its numbers -> {command, another set of numbers, eos} -> ...
//
// Commands, signs and numbers are classes of tokens (path_tokens.h). A command has as many numbers as SVG gives it, or
// several times as many; radii of arcs have no sign, their flags are 0 or 1. The length limit may cut a path anywhere:
// what is behind the last whole command is no part of the answer then.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "constraint/path_tokens.h"
#include "constraint/spatial_automaton.h"

namespace gapless {

inline constexpr int kNumSegmentStates = 50;

// Coordinates and sizes of an answer: its first tokens.
inline constexpr int kNumSegmentRegionTokens = 3;

// RowState::automaton of a new sequence of segment: behind the spatial states.
inline constexpr std::int32_t segment_start() {
  return kNumSpatialStates;
}

// Its states, as they lie in an automata pool from `first` on. Only ids of tokens.coord_id, size_id and eos_id are looked at.
std::vector<AutomatonState> build_segment_automaton(const SpatialTokens& tokens,
                                                    std::int32_t first = segment_start());

// The same automaton walked by the host (kRowHostMask): gives the same tokens. One per sequence. A mask replaces no
// token, so the tokens must not say any_token_is_coord.
class SegmentConstraint final : public TokenConstraint {
 public:
  // token_classes: path_token_classes() of the vocabulary.
  SegmentConstraint(const SpatialTokens& tokens, std::vector<std::uint8_t> token_classes);

  void allowed(std::span<std::uint32_t> mask) const override;
  // A token that is not allowed here changes nothing (the sampler cannot return one).
  void advance(TokenId token) override;

 private:
  const std::vector<std::uint8_t> token_classes_;
  const std::vector<AutomatonState> states_;
  RowState row_;
};

}  // namespace gapless
