#include "constraint/legal_tokens.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace gapless {
namespace {

// Notes for which lengths at a walk's beginning its comparisons would come out the same.
struct LengthWatch {
  std::int32_t begin = 0;   // the length at the beginning
  bool is_original = true;  // no other length has begun since
  WalkInterval lengths;

  bool at_most(std::int32_t length, std::int32_t limit) {
    const bool result = length <= limit;
    if (is_original) lengths.note(result, limit - (length - begin));
    return result;
  }
};

// What a byte changed: a few numbers, and at most the top two frames. Copying a row for each node of the vocabulary would cost
// more than the walk.
struct Undo {
  std::uint16_t state = 0, depth = 0;
  std::int32_t length = 0;
  bool length_is_original = false, has_frames = false;
  int num_original_frames = 0;
  GrammarFrame frames[2];
};

// The row of a walk (grammar_walk.h) that takes bytes back.
class UndoableRow {
 public:
  std::uint16_t state, depth;
  std::int32_t length;

  explicit UndoableRow(const GrammarRow& row)
      : state(row.state),
        depth(row.depth),
        length(row.length),
        begin_(row),
        row_(row),
        num_original_frames_(row.depth + 1),
        counts_(row.depth + std::size_t{1}) {
    watch_.begin = row.length;
  }

  bool reach(int) {
    keep_frames();
    return true;
  }
  GrammarFrame& frame(int at) { return row_.frames[at]; }
  bool open_frame(int at, std::uint16_t next) {
    keep_frames();
    num_original_frames_ = std::min(num_original_frames_, at);
    return row_.open_frame(at, next);
  }
  bool length_at_most(std::int32_t limit) { return watch_.at_most(length, limit); }
  bool length_at_least(std::int32_t limit) { return !watch_.at_most(length, limit - 1); }
  bool count_at_most(int at, std::int32_t count, std::int32_t limit) {
    const bool result = count <= limit;
    if (at < num_original_frames_) {
      counts_[static_cast<std::size_t>(at)].note(result, limit - (count - begin_.frames[at].count));
    }
    return result;
  }
  void begin_length() {
    length = 0;
    watch_.is_original = false;
  }

  // What this byte changes goes to `undo`.
  void begin_byte(Undo& undo) {
    undo_ = &undo;
    undo.state = state;
    undo.depth = depth;
    undo.length = length;
    undo.length_is_original = watch_.is_original;
    undo.num_original_frames = num_original_frames_;
    undo.has_frames = false;
  }
  void take_back(const Undo& undo) {
    state = undo.state;
    depth = undo.depth;
    length = undo.length;
    watch_.is_original = undo.length_is_original;
    num_original_frames_ = undo.num_original_frames;
    if (!undo.has_frames) return;
    row_.frames[undo.depth] = undo.frames[0];
    if (undo.depth < kMaxGrammarDepth) row_.frames[undo.depth + 1u] = undo.frames[1];
  }

  WalkExtent extent() const { return {watch_.lengths, counts_}; }
  const GrammarRow& row() {
    row_.state = state;
    row_.depth = depth;
    row_.length = length;
    return row_;
  }

 private:
  void keep_frames() {
    if (undo_->has_frames) return;
    undo_->has_frames = true;
    undo_->frames[0] = row_.frames[undo_->depth];
    if (undo_->depth < kMaxGrammarDepth) undo_->frames[1] = row_.frames[undo_->depth + 1u];
  }

  const GrammarRow& begin_;
  GrammarRow row_;
  int num_original_frames_;  // those that the walk has not opened itself
  LengthWatch watch_;
  std::vector<WalkInterval>
      counts_;  // at the walk's beginning, for which its comparisons are the same
  Undo* undo_ = nullptr;
};

class Walk {
 public:
  Walk(const Grammar& grammar, const GrammarRow& row, int longest)
      : tables_(tables_of(grammar)), row_(row) {
    undo_.resize(static_cast<std::size_t>(longest));
  }

  // Bytes taken so far: back to so many of them.
  void back_to(int num_bytes) {
    while (num_bytes_ > num_bytes) row_.take_back(undo_[static_cast<std::size_t>(--num_bytes_)]);
  }

  // False: illegal, and nothing has changed.
  bool take(std::uint8_t byte) {
    row_.begin_byte(undo_[static_cast<std::size_t>(num_bytes_++)]);
    const bool legal = take_byte(tables_, row_, byte);
    if (!legal) back_to(num_bytes_ - 1);
    return legal;
  }

  WalkExtent extent() const { return row_.extent(); }
  const GrammarRow& row() { return row_.row(); }

 private:
  const GrammarTables tables_;
  UndoableRow row_;
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

bool WalkExtent::contains(const GrammarRow& row) const {
  for (std::size_t depth = 0; depth < counts.size(); ++depth) {
    if (!counts[depth].contains(row.frames[depth].count)) return false;
  }
  return lengths.contains(row.length);
}

WalkExtent find_legal_tokens(const Grammar& grammar, const GrammarRow& row,
                             const VocabularyTrie& vocabulary, std::span<std::uint32_t> mask) {
  Walk walk(grammar, row, vocabulary.longest());
  walk_vocabulary(walk, vocabulary, [mask](std::span<const std::int32_t> tokens) {
    for (const std::int32_t token : tokens) {
      mask[static_cast<std::size_t>(token) / 32] |= 1u << (token % 32);
    }
  });
  return walk.extent();
}

void visit_legal_tokens(
    const Grammar& grammar, const GrammarRow& row, const VocabularyTrie& vocabulary,
    const std::function<void(const GrammarRow&, std::span<const std::int32_t>)>& visit) {
  Walk walk(grammar, row, vocabulary.longest());
  walk_vocabulary(walk, vocabulary,
                  [&](std::span<const std::int32_t> tokens) { visit(walk.row(), tokens); });
}

}  // namespace gapless
