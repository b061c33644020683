// The walk of many texts that begin in one state of a grammar. Bytes that lead back to that state, such as the characters of a
// string, take one look into a small table in place of the grammar's; so do those that are illegal there. And where all characters of
// a text lead back to a state, the text takes one look (character_kinds.h). The same functions for the CPU kernels and the CUDA
// kernels.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "base/keep_loop.h"
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

// Which second byte of a text is illegal behind which first one, in the loops' state. Also behind a first one that leads away: behind a
// number's digits a blank ends the number, and 55,108 of Qwen's tokens are a blank and a word. None of them needs to be walked.
struct SecondBytes {
  static constexpr int kNumWords = 256 / 32;
  static constexpr int kMaxAway = 32;  // first bytes that lead away
  // Rows of `illegal`. The others are those of first bytes that lead away.
  static constexpr int kFirstIsIllegal = 0;  // so is every second one
  static constexpr int kBehindLoops = 1;     // the first one leads back
  static constexpr int kUnknown = 2;         // of this first byte nothing is known
  static constexpr int kNumFixed = 3;

  std::uint8_t row_of[256];  // by first byte
  // Bits, by second byte. A text of one byte says that byte as its second one too: its bit is set only where the first one is illegal.
  std::uint32_t illegal[kNumFixed + kMaxAway][kNumWords];

  GAPLESS_HOST_DEVICE bool say_illegal(TextSummary text) const {
    const int second = text.second_byte();
    return (illegal[row_of[text.first_byte()]][second / 32] >> second % 32 & 1) != 0;
  }
  // Longer characters stay unknown, which are few where they lead away.
  GAPLESS_HOST_DEVICE static bool may_have_row(const StateLoops& loops, int byte) {
    return byte < 0x80 && loops.bytes[byte] == LoopByte::kLeadsAway;
  }
  // Of a first byte without a row of its own.
  GAPLESS_HOST_DEVICE static std::uint8_t fixed_row(LoopByte first) {
    if (first == LoopByte::kIllegal) return kFirstIsIllegal;
    return first == LoopByte::kLeadsAway ? kUnknown : kBehindLoops;
  }
  // Behind `first` the row's state is `state`; kDeadGrammarState: it is illegal.
  GAPLESS_HOST_DEVICE static bool is_illegal(const GrammarTables& g, std::uint16_t state,
                                             std::uint8_t first, std::uint8_t second,
                                             std::uint8_t class_of_second) {
    if (state == kDeadGrammarState) return true;
    return first != second &&
           g.edges[static_cast<std::int64_t>(state) * g.num_classes + class_of_second].state ==
               kDeadGrammarState;
  }
};

namespace state_loops {

// Where a row is behind one byte, of a probe that begins at the row. What the probe notes of counts is part of the answer.
template <int kNumFrames>
GAPLESS_HOST_DEVICE inline std::uint16_t state_behind(const GrammarTables& g,
                                                      GrammarProbe<kNumFrames>& probe,
                                                      std::uint8_t byte) {
  static_assert(kNumFrames > 2);  // a byte uses the innermost frame, and one beside it
  probe.again();
  return take_byte(g, probe, byte) ? probe.state : kDeadGrammarState;
}

}  // namespace state_loops

// `probe` begins at the row that the loops' state is of. At most max_away first bytes that lead away are looked behind.
template <int kNumFrames>
inline SecondBytes find_second_bytes(const GrammarTables& g, const StateLoops& loops,
                                     GrammarProbe<kNumFrames>& probe, int max_away) {
  SecondBytes seconds{};
  int num_away = 0;
  for (int first = 0; first < 256; ++first) {
    std::uint32_t& word = seconds.illegal[SecondBytes::kBehindLoops][first / 32];
    if (loops.bytes[first] == LoopByte::kIllegal) word |= 1u << first % 32;
    seconds.row_of[first] = SecondBytes::fixed_row(loops.bytes[first]);
    if (!SecondBytes::may_have_row(loops, first) || num_away == max_away) continue;
    const auto byte = static_cast<std::uint8_t>(first);
    const std::uint16_t state = state_loops::state_behind(g, probe, byte);
    const int row = SecondBytes::kNumFixed + num_away++;
    seconds.row_of[first] = static_cast<std::uint8_t>(row);
    for (int second = 0; second < 256; ++second) {
      if (SecondBytes::is_illegal(g, state, byte, static_cast<std::uint8_t>(second),
                                  g.class_of[second])) {
        seconds.illegal[row][second / 32] |= 1u << second % 32;
      }
    }
  }
  for (std::uint32_t& word : seconds.illegal[SecondBytes::kFirstIsIllegal]) word = ~0u;
  return seconds;
}

// So many whole characters that lead back to the row's state. False: illegal.
template <typename Row>
GAPLESS_HOST_DEVICE inline bool take_characters(const CharacterLoops& loops, Row& row,
                                                std::int32_t num_characters) {
  if (loops.counts == 0) return true;
  row.length += num_characters;
  return loops.most < 0 || row.length_at_most(loops.most);
}

// What one look at a text says of it in a state, whose characters' loops `here` are. kLeadsAway: take_text knows, and the row is as
// it was. kStays: all of it is taken. Without branches, because threads of a warp look at texts side by side.
template <typename Row>
GAPLESS_HOST_DEVICE inline LoopByte take_at_once(const CharacterLoops& here,
                                                 const SecondBytes& seconds, TextSummary text,
                                                 Row& row) {
  const bool is_empty = text.kinds() == 0;
  // Blanks and a word, where words are illegal: characters that lead back, and then one that is illegal.
  const bool has_illegal = (text.kinds() & ~(here.kinds | here.illegal)) == 0;
  const bool is_illegal = is_empty | has_illegal | seconds.say_illegal(text);
  if (here.hold(text) & !is_empty) {
    return take_characters(here, row, text.num_characters()) ? LoopByte::kStays
                                                             : LoopByte::kIllegal;
  }
  return is_illegal ? LoopByte::kIllegal : LoopByte::kLeadsAway;
}

// All bytes of a text: byte(i), num_bytes and `summary`, of which take_at_once did not know. False: illegal, and the row is undefined.
template <typename Row, typename Text>
GAPLESS_HOST_DEVICE inline bool take_text(const GrammarTables& g, const StateLoops& loops, Row& row,
                                          const Text& text) {
  std::uint16_t looked_at = loops.state;
  int num_left = text.summary.num_characters();
  int i = 0;
  while (i < text.num_bytes) {
    if (row.state == loops.state) {
      // To the first byte that leads away. Threads of a warp meet again behind it, so that they look into the grammar's tables together.
      LoopByte kind = LoopByte::kStays;
      GAPLESS_KEEP_LOOP
      while (i < text.num_bytes) {
        const std::uint8_t byte = text.byte(i);
        kind = take_loop(loops, row, byte);
        if (kind == LoopByte::kIllegal || kind == LoopByte::kLeadsAway) break;
        if ((byte & 0xC0) != 0x80) --num_left;
        ++i;
      }
      if (kind == LoopByte::kIllegal) return false;
      if (kind != LoopByte::kLeadsAway) break;
    }
    const std::uint8_t byte = text.byte(i);
    const bool begins_character = (byte & 0xC0) != 0x80;
    if (begins_character && row.state != looked_at) {
      looked_at = row.state;
      const CharacterLoops here = g.character_loops[row.state];
      if (here.hold(text.summary)) return take_characters(here, row, num_left);
    }
    if (begins_character) --num_left;
    if (!take_byte(g, row, byte)) return false;
    ++i;
  }
  return text.num_bytes > 0;
}

}  // namespace gapless
