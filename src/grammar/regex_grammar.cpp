#include "grammar/regex_grammar.h"

#include <set>

#include "grammar/byte_dfa.h"
#include "grammar/code_points.h"
#include "grammar/compile_work.h"
#include "grammar/grammar_builder.h"
#include "grammar/grammar_limits.h"
#include "grammar/regex_ast.h"

namespace gapless {
namespace {

StatusOr<Grammar> grammar_of(const ByteDfa& dfa) {
  if (dfa.empty()) return invalid_argument("pattern: no text matches it");
  GrammarBuilder builder;
  for (int state = 0; state < dfa.num_states(); ++state) builder.add_state();
  for (int state = 0; state < dfa.num_states(); ++state) {
    const auto from = static_cast<BuildState>(state);
    if (dfa.labels[static_cast<std::size_t>(state)] != 0) builder.set_may_end(from);
    for (int byte = 0; byte < 256; ++byte) {
      const auto b = static_cast<std::uint8_t>(byte);
      const std::int32_t to = dfa.step(state, b);
      if (to != ByteDfa::kDead) builder.add_edge(from, b, b, static_cast<BuildState>(to));
    }
  }
  return builder.finish(0);
}

}  // namespace

StatusOr<Grammar> compile_regex(std::string_view pattern) {
  const CompileWork work(kMaxGrammarWork);
  GAPLESS_ASSIGN_OR_RETURN(const RegexPtr regex, parse_regex(pattern));
  GAPLESS_ASSIGN_OR_RETURN(const ByteDfa dfa, make_dfa(std::span(&regex, 1)));
  return grammar_of(dfa);
}

StatusOr<Grammar> compile_choices(std::span<const std::string> choices) {
  if (choices.empty()) return invalid_argument("choice: the list is empty");
  const CompileWork work(kMaxGrammarWork);
  std::set<std::string> strings;
  for (const std::string& choice : choices) {
    if (choice.empty()) return invalid_argument("choice: one is empty");
    if (!is_utf8(choice)) return invalid_argument("choice: one is not UTF-8");
    strings.insert(choice);
  }
  GAPLESS_ASSIGN_OR_RETURN(const ByteDfa dfa, dfa_of_strings(strings));
  return grammar_of(dfa);
}

}  // namespace gapless
