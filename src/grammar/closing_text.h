// A short text that ends an answer from wherever it stands.
//
//   {"kind": "ci        rcle"        ,"r":0        }
//   where it stands --> the value --> what is required --> the end
//
// At each place the shortest way on is taken: out of a value, to a member that is required and not there yet, to the
// end of the object or list. It is short, not always the shortest: a value that decides between alternatives
// is chosen by its own length. Every text was walked through the grammar, so it does end the answer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "grammar/grammar.h"

namespace gapless {

// Thread-safe. The grammar outlives it.
class ClosingText {
 public:
  // Finds out what values cost: takes some milliseconds for a large grammar.
  explicit ClosingText(const Grammar& grammar);

  // The text in pieces: values, and names with their colons; none where the answer may end here. Nothing: no text was
  // found, which may be there all the same (a pattern under a minLength, an object that leaves one order only). Takes the
  // steps that it needs from `work`, and finds nothing when they are spent.
  std::optional<std::vector<std::string>> find(const GrammarRow& row, long& work) const;

 private:
  // Counted characters on a way.
  struct Chars {
    std::int32_t num = 0;
    bool begins = false;  // the string begins on the way: what was counted before is something else

    // Characters of the string at the way's end, for a row at its beginning.
    std::int32_t in(const GrammarRow& row) const { return num + (begins ? 0 : row.length); }
  };
  // An operation that is reached from a state by bytes without one that counts here.
  struct Exit {
    GrammarOp op = GrammarOp::kNone;  // kNone: the answer may end
    std::uint16_t action = 0;
    std::uint16_t to = 0;
    Chars chars;
    std::string path;  // with the operation's own byte, but for kRedo
  };
  // A state that a counted character leads back to.
  struct Loop {
    std::uint16_t state = 0;
    std::uint8_t byte = 0;
    Chars chars;
    std::string path;
  };
  struct Exits {
    std::vector<Exit> list;  // the nearest first
    std::optional<Loop> loop;
    std::size_t num_bytes = 0;  // that they take
  };
  using Push = std::pair<std::uint16_t, std::uint16_t>;  // the state behind it, its table

  // None when the work is spent.
  std::shared_ptr<const Exits> exits_of(std::uint16_t state, long& work) const;
  Exits find_exits(std::uint16_t state, long& work) const;
  const GrammarAction& action_of(const Exit& exit) const { return grammar_.actions[exit.action]; }

  void find_costs();
  int least_cost(const Exits& exits) const;
  int cost_of_value(std::uint16_t start, long& work) const;
  int cost_of_push(const Push& push, long& work) const;
  int cost_of_members(const Exits& exits, const GrammarCondition& condition, long& work) const;
  int cost_of_items(const Exits& exits, const Push& push, const GrammarCondition& condition,
                    long& work) const;
  int known_cost(const Push& push) const;

  int rank(const Exit& exit, const GrammarRow& row) const;
  bool is_wanted(const Exit& key, const GrammarRow& row) const;
  std::optional<std::string> text_of(const Exit& exit, const Exits& exits, const GrammarRow& row,
                                     long& work) const;
  bool take(const Exit& exit, const std::string& text, GrammarRow& row) const;

  const Grammar& grammar_;
  std::vector<std::uint8_t> class_bytes_;
  std::map<std::uint16_t, int> value_costs_;  // by their first state
  std::map<Push, int> push_costs_;
  mutable Mutex mutex_;
  mutable std::unordered_map<std::uint16_t, std::shared_ptr<const Exits>> exits_
      GAPLESS_GUARDED_BY(mutex_);
  mutable std::size_t num_kept_bytes_ GAPLESS_GUARDED_BY(mutex_) = 0;
};

}  // namespace gapless
