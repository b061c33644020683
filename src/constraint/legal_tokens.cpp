#include "constraint/legal_tokens.h"

#include <algorithm>
#include <vector>

namespace gapless {
namespace {

// A row that bytes can be taken from again. Copying a row for each node of the vocabulary would cost more than the
// walk: a byte changes a few numbers, and at most one of the top two frames.
class Walk {
 public:
  Walk(const Grammar& grammar, const GrammarRow& row, int longest)
      : grammar_(grammar), row_(row), begin_length_(row.length) {
    undo_.resize(static_cast<std::size_t>(longest));
  }

  // Bytes taken so far: back to so many of them.
  void back_to(int num_bytes) {
    while (num_bytes_ > num_bytes) {
      const Undo& undo = undo_[static_cast<std::size_t>(--num_bytes_)];
      row_.state = undo.state;
      row_.depth = undo.depth;
      row_.length = undo.length;
      length_is_original_ = undo.length_is_original;
      if (!undo.has_frames) continue;
      row_.frames[undo.depth] = undo.frames[0];
      if (undo.depth < kMaxGrammarDepth) row_.frames[undo.depth + 1u] = undo.frames[1];
    }
  }

  // False: illegal, and nothing has changed.
  bool take(std::uint8_t byte) {
    const GrammarEdge edge = grammar_.edge(row_.state, byte);
    if (edge.state == kDeadGrammarState) return false;
    Undo& undo = undo_[static_cast<std::size_t>(num_bytes_++)];
    undo.state = row_.state;
    undo.depth = row_.depth;
    undo.length = row_.length;
    undo.length_is_original = length_is_original_;
    undo.has_frames = false;
    if (edge.action == 0) {
      row_.state = edge.state;
      return true;
    }
    const GrammarAction& action = grammar_.actions[edge.action];
    bool legal = true;
    switch (action.op) {
      case GrammarOp::kSpace:
      case GrammarOp::kChar:
        row_.state = edge.state;
        ++row_.length;
        legal = action.max < 0 || is_at_most(action.max);
        break;
      case GrammarOp::kStringEnd:
        legal = !is_at_most(action.min - 1) && take_other(byte, undo);
        break;
      default:
        legal = take_other(byte, undo);
    }
    if (!legal) back_to(num_bytes_ - 1);
    return legal;
  }

  LengthInterval lengths() const { return lengths_; }
  const GrammarRow& row() const { return row_; }

 private:
  struct Undo {
    std::uint16_t state, depth;
    std::int32_t length;
    bool length_is_original, has_frames;
    GrammarFrame frames[2];
  };

  // Compares the length, and notes for which lengths at the beginning it would come out the same.
  bool is_at_most(std::int32_t limit) {
    const bool result = row_.length <= limit;
    if (length_is_original_) {
      const std::int32_t added = row_.length - begin_length_;
      if (result) {
        lengths_.most = std::min(lengths_.most, limit - added);
      } else {
        lengths_.least = std::max(lengths_.least, limit - added + 1);
      }
    }
    return result;
  }

  // Any other operation: it begins a new length.
  bool take_other(std::uint8_t byte, Undo& undo) {
    undo.has_frames = true;
    undo.frames[0] = row_.frames[row_.depth];
    if (row_.depth < kMaxGrammarDepth) undo.frames[1] = row_.frames[row_.depth + 1u];
    length_is_original_ = false;
    return advance(grammar_, row_, byte);
  }

  const Grammar& grammar_;
  GrammarRow row_;
  const std::int32_t begin_length_;
  bool length_is_original_ = true;
  LengthInterval lengths_;
  int num_bytes_ = 0;
  std::vector<Undo> undo_;
};

// All tokens once, each beginning of a token once.
template <typename Visit>
void walk_vocabulary(Walk& walk, const VocabularyTrie& vocabulary, const Visit& visit) {
  const std::span<const VocabularyTrie::Node> nodes = vocabulary.nodes();
  for (std::size_t i = 0; i < nodes.size();) {
    const VocabularyTrie::Node& node = nodes[i];
    walk.back_to(node.depth - 1);
    if (!walk.take(node.byte)) {
      i = static_cast<std::size_t>(node.end);
      continue;
    }
    if (node.num_tokens > 0) visit(vocabulary.tokens_of(node));
    ++i;
  }
}

}  // namespace

LengthInterval find_legal_tokens(const Grammar& grammar, const GrammarRow& row,
                                 const VocabularyTrie& vocabulary, std::span<std::uint32_t> mask) {
  Walk walk(grammar, row, vocabulary.longest());
  walk_vocabulary(walk, vocabulary, [mask](std::span<const std::int32_t> tokens) {
    for (const std::int32_t token : tokens) {
      mask[static_cast<std::size_t>(token) / 32] |= 1u << (token % 32);
    }
  });
  return walk.lengths();
}

void visit_legal_tokens(
    const Grammar& grammar, const GrammarRow& row, const VocabularyTrie& vocabulary,
    const std::function<void(const GrammarRow&, std::span<const std::int32_t>)>& visit) {
  Walk walk(grammar, row, vocabulary.longest());
  walk_vocabulary(walk, vocabulary,
                  [&](std::span<const std::int32_t> tokens) { visit(walk.row(), tokens); });
}

}  // namespace gapless
