#include "grammar/regex_grammar.h"

#include "grammar/byte_dfa.h"
#include "grammar/grammar_builder.h"
#include "grammar/regex_ast.h"

namespace gapless {
namespace {

StatusOr<Grammar> compile(const RegexPtr& regex) {
  GAPLESS_ASSIGN_OR_RETURN(const ByteDfa dfa, make_dfa(std::span(&regex, 1)));
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
  GAPLESS_ASSIGN_OR_RETURN(const RegexPtr regex, parse_regex(pattern));
  return compile(regex);
}

StatusOr<Grammar> compile_choices(std::span<const std::string> choices) {
  if (choices.empty()) return invalid_argument("choice: the list is empty");
  std::vector<RegexPtr> ways;
  for (const std::string& choice : choices) {
    if (choice.empty()) return invalid_argument("choice: one is empty");
    ways.push_back(regex_literal(choice));
  }
  return compile(regex_alternate(std::move(ways)));
}

}  // namespace gapless
