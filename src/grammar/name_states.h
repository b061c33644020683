// The states that read the name of an object's member.
//
//    "  -->  a  --> g --> e -- " -->  (behind "age")
//            |      |     |
//            +------+-----+---->  (any other name)  -- " -->  (behind another one)
//
// The declared names are a tree. A name that is none of them leaves it, for the automaton of the languages that tell other names apart.
// What was there may not come again, so a beginning is legal only where some name that is left goes on so: otherwise an answer could
// run into a dead end. Actions (kName) on the way see to it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/byte_dfa.h"
#include "grammar/grammar_builder.h"
#include "grammar/string_states.h"
#include "grammar/string_tree.h"

namespace gapless {

// What a closing quote does.
struct NameEnd {
  BuildState to;
  GrammarAction action;
};

// The names that may come.
struct AllowedNames {
  std::vector<std::optional<NameEnd>> declared;  // by bit
  std::map<LabelSet, NameEnd> others;            // by the languages that the name is in
};

// Where names begin.
struct NameStart {
  BuildState state = kNoBuildState;  // behind the opening quote; kNoBuildState: no name may come
  GrammarAction may_begin;           // what must hold for any of them to come
};

class NameStates {
 public:
  explicit NameStates(GrammarBuilder& builder) : builder_(builder) {}

  // Once, before add(). `bits`: the declared names, numbered in their order. `languages`: with every string in it.
  Status set_names(const std::map<std::string, int>& bits, ByteDfa languages);
  const ByteDfa& languages() const { return languages_; }

  // `room`: the conditions under which one more member may come.
  StatusOr<NameStart> add(const AllowedNames& allowed, const GrammarAction& room);

 private:
  // What may come of a beginning of a name.
  struct Ways {
    NameSet names{};      // declared ones
    bool others = false;  // any other one

    friend bool operator==(const Ways&, const Ways&) = default;
  };

  class Adder;

  GrammarAction may_follow(const GrammarAction& room, const Ways& ways);

  GrammarBuilder& builder_;
  ByteDfa languages_;
  StringTree tree_;  // of the declared names; a node's string is the name's bit
  std::vector<std::int32_t>
      language_of_;  // by node: where the beginning stands among the languages
};

}  // namespace gapless
