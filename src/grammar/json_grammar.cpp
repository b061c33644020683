#include "grammar/json_grammar.h"

#include "base/json.h"
#include "grammar/compile_work.h"
#include "grammar/grammar_limits.h"
#include "grammar/json_machines.h"

namespace gapless {

StatusOr<Grammar> compile_json_schema(const boost::json::value& schema) {
  const CompileWork work(kMaxGrammarWork);
  SchemaExpander expander(schema);
  GrammarBuilder builder;
  JsonMachines machines(expander, builder);
  GAPLESS_ASSIGN_OR_RETURN(const JsonMachine* const root, machines.machine({{expander.root()}}));
  if (root->results.empty()) return invalid_argument("no value satisfies the schema");
  const BuildState end = builder.add_state();
  builder.set_may_end(end);
  const std::uint16_t table = builder.table(std::vector<BuildState>(root->results.size(), end));
  GAPLESS_RETURN_IF_ERROR(machines.fill_all());
  GAPLESS_ASSIGN_OR_RETURN(Grammar grammar, builder.finish(root->start));
  grammar.root_table = table;
  return grammar;
}

StatusOr<Grammar> compile_json_schema(std::string_view schema_text) {
  if (schema_text.size() > kMaxSchemaBytes) {
    return make_error(StatusCode::kResourceExhausted, "the schema has more than {} bytes",
                      kMaxSchemaBytes);
  }
  GAPLESS_ASSIGN_OR_RETURN(const boost::json::value schema, parse_json(schema_text, "schema"));
  return compile_json_schema(schema);
}

StatusOr<Grammar> compile_any_json_object() {
  return compile_json_schema(std::string_view(R"({"type": "object"})"));
}

}  // namespace gapless
