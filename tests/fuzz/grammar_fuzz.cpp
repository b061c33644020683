// Any bytes as a schema, a pattern, a list of choices and the parameters of a function: an error, or tables that any bytes can be
// walked through.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
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
  // A function that need not be held takes any object.
  const auto parameters = parse_json(text, "parameters");
  if (parameters.ok() && parameters->is_object()) {
    const auto calls =
        compile_grammar({.kind = GrammarSpec::Kind::kCalls,
                         .text = R"([{"name": "f", "parameters": )" + text + "}]",
                         .calls = {.begin = "<call>", .end = "</call>", .arguments_key = "x"}});
    if (calls.ok()) {
      walk(*calls, R"(<call>{"name": "f", "x": )" + text + "}</call>" + text);
      GAPLESS_CHECK(accepts(*calls, "text"));
    }
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
