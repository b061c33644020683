#include "grammar/grammar_spec.h"

#include "grammar/json_grammar.h"
#include "grammar/regex_grammar.h"

namespace gapless {
namespace {

StatusOr<Grammar> compile(const GrammarSpec& spec) {
  switch (spec.kind) {
    case GrammarSpec::Kind::kJsonSchema:
      return compile_json_schema(spec.text);
    case GrammarSpec::Kind::kJsonObject:
      return compile_any_json_object();
    case GrammarSpec::Kind::kRegex:
      return compile_regex(spec.text);
    case GrammarSpec::Kind::kChoice:
      return compile_choices(spec.choices);
    case GrammarSpec::Kind::kCalls:
      return compile_text_with_calls(spec.text, spec.calls);
  }
  return make_error(StatusCode::kInternal, "unknown kind of grammar");
}

}  // namespace

std::string GrammarSpec::key() const {
  std::string key = fmt::format("{}:{}:{}:", static_cast<int>(kind), field, text.size());
  key += text;
  for (const std::string& choice : choices) {
    key += fmt::format(":{}:", choice.size());
    key += choice;
  }
  if (kind == Kind::kCalls) key += calls.key();
  return key;
}

StatusOr<Grammar> compile_grammar(const GrammarSpec& spec) {
  StatusOr<Grammar> grammar = compile(spec);
  if (grammar.ok()) return grammar;
  const Status& status = grammar.status();
  // The last: a schema that is no JSON.
  const bool is_the_specs = status.code() == StatusCode::kInvalidArgument ||
                            status.code() == StatusCode::kResourceExhausted ||
                            status.code() == StatusCode::kDataLoss;
  if (!is_the_specs) return status;
  return invalid_field(spec.field.empty() ? "grammar" : spec.field, "cannot be held: {}",
                       status.message());
}

}  // namespace gapless
