// The walk of many texts that begin in one state of a grammar. Bytes that lead back to that state, such as the characters of a
// string, take one look into a small table in place of the grammar's; so do those that are illegal there. The same function for the
// CPU kernels and the CUDA kernels.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "grammar/grammar_walk.h"

namespace gapless {

enum class LoopByte : std::uint8_t {
  kIllegal,
  kStays,      // and does nothing
  kCounts,     // stays, and counts into the length
  kLeadsAway,  // or does something else: take_byte knows
};

struct StateLoops {
  LoopByte bytes[256];
  std::uint16_t state;
  std::int32_t most;  // kCounts: GrammarAction::max
};

namespace state_loops {

inline constexpr std::int32_t kNoAction = INT32_MAX;

// The action that counts on an edge from `state` to itself; kNoAction: there is none.
GAPLESS_HOST_DEVICE inline std::int32_t counting_action(const GrammarTables& g, std::uint16_t state,
                                                        const GrammarEdge& edge) {
  if (edge.state != state || edge.action == 0) return kNoAction;
  const GrammarOp op = g.actions[edge.action].op;
  return op == GrammarOp::kSpace || op == GrammarOp::kChar ? edge.action : kNoAction;
}

// counting: the action whose edges are kCounts.
GAPLESS_HOST_DEVICE inline LoopByte kind_of(std::uint16_t state, const GrammarEdge& edge,
                                            std::int32_t counting) {
  if (edge.state == kDeadGrammarState) return LoopByte::kIllegal;
  if (edge.state != state) return LoopByte::kLeadsAway;
  if (edge.action == 0) return LoopByte::kStays;
  return edge.action == counting ? LoopByte::kCounts : LoopByte::kLeadsAway;
}

}  // namespace state_loops

inline StateLoops find_loops(const GrammarTables& g, std::uint16_t state) {
  const auto edge_of = [&](int byte) {
    return g.edges[static_cast<std::int64_t>(state) * g.num_classes + g.class_of[byte]];
  };
  std::int32_t counting = state_loops::kNoAction;
  for (int byte = 0; byte < 256; ++byte) {
    const std::int32_t action = state_loops::counting_action(g, state, edge_of(byte));
    if (action < counting) counting = action;
  }
  StateLoops loops;
  for (int byte = 0; byte < 256; ++byte) {
    loops.bytes[byte] = state_loops::kind_of(state, edge_of(byte), counting);
  }
  loops.state = state;
  loops.most = counting == state_loops::kNoAction ? -1 : g.actions[counting].max;
  return loops;
}

// What take_byte does with a byte in the loops' state. kLeadsAway: nothing yet.
template <typename Row>
GAPLESS_HOST_DEVICE inline LoopByte take_loop(const StateLoops& loops, Row& row,
                                              std::uint8_t byte) {
  const LoopByte kind = loops.bytes[byte];
  if (kind != LoopByte::kCounts) return kind;
  ++row.length;
  return loops.most < 0 || row.length_at_most(loops.most) ? kind : LoopByte::kIllegal;
}

// take_byte.
template <typename Row>
GAPLESS_HOST_DEVICE inline bool take_byte(const GrammarTables& g, const StateLoops& loops, Row& row,
                                          std::uint8_t byte) {
  if (row.state == loops.state) {
    const LoopByte kind = take_loop(loops, row, byte);
    if (kind != LoopByte::kLeadsAway) return kind != LoopByte::kIllegal;
  }
  return take_byte(g, row, byte);
}

}  // namespace gapless
