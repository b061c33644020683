// Any bytes as a schema, a pattern and a list of choices: an error, or tables that any bytes can be walked through.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "grammar/grammar_limits.h"
#include "grammar/grammar_spec.h"

namespace {

using namespace gapless;

void walk(const Grammar& grammar, std::string_view bytes) {
  GAPLESS_CHECK(grammar.num_states <= kMaxGrammarStates);
  GAPLESS_CHECK(grammar.bytes() <= 4 * kMaxGrammarTableBytes);
  GrammarRow row = begin_row(grammar);
  for (const char byte : bytes) {
    if (!advance(grammar, row, static_cast<std::uint8_t>(byte))) {
      row = begin_row(grammar);
      continue;
    }
    GAPLESS_CHECK(row.state < grammar.num_states && row.depth <= kMaxGrammarDepth);
    (void)may_end(grammar, row);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const auto kind : {GrammarSpec::Kind::kJsonSchema, GrammarSpec::Kind::kRegex}) {
    const auto grammar = compile_grammar({.kind = kind, .text = text});
    if (grammar.ok()) walk(*grammar, text);
  }
  GrammarSpec choices{.kind = GrammarSpec::Kind::kChoice};
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    choices.choices.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  const auto grammar = compile_grammar(choices);
  if (grammar.ok()) {
    for (const std::string& choice : choices.choices) GAPLESS_CHECK(accepts(*grammar, choice));
  }
  return 0;
}
