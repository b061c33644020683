#include "skill/grammar_fields.h"

#include <boost/json/array.hpp>
#include <string>
#include <string_view>

#include "base/json.h"

namespace gapless {
namespace {

namespace json = boost::json;

using Kind = GrammarSpec::Kind;

// A schema, or its text: some clients send one, some the other.
StatusOr<GrammarSpec> schema_spec(std::string_view field, const json::value& schema) {
  if (!schema.is_object() && !schema.is_bool() && !schema.is_string()) {
    return invalid_field(field, "must be a JSON Schema");
  }
  GrammarSpec spec{.kind = Kind::kJsonSchema, .field = std::string(field)};
  spec.text = schema.is_string() ? std::string(schema.get_string()) : json_text(schema);
  return spec;
}

StatusOr<GrammarSpec> regex_spec(std::string_view field, const json::value& pattern) {
  if (!pattern.is_string()) return invalid_field(field, "must be a regular expression");
  return GrammarSpec{
      .kind = Kind::kRegex, .text = std::string(pattern.get_string()), .field = std::string(field)};
}

StatusOr<GrammarSpec> choice_spec(std::string_view field, const json::value& choices) {
  GrammarSpec spec{.kind = Kind::kChoice, .field = std::string(field)};
  if (!choices.is_array()) return invalid_field(field, "must be a list of strings");
  for (const json::value& choice : choices.get_array()) {
    if (!choice.is_string()) return invalid_field(field, "must be a list of strings");
    spec.choices.emplace_back(choice.get_string());
  }
  return spec;
}

using MaybeSpec = std::optional<GrammarSpec>;

StatusOr<MaybeSpec> read_response_format(std::string_view field, const json::value& format) {
  const json::object* object = format.if_object();
  const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
  if (type == nullptr || !type->is_string()) {
    return invalid_field(field, "must be an object with a string 'type'");
  }
  if (*type == "text") return MaybeSpec();
  // Some servers take a schema here, so clients send one.
  const json::value* own = object->if_contains("schema");
  if (*type == "json_object" && own != nullptr && !own->is_null()) {
    GAPLESS_ASSIGN_OR_RETURN(GrammarSpec spec, schema_spec(field, *own));
    return MaybeSpec(std::move(spec));
  }
  if (*type == "json_object") {
    return MaybeSpec(GrammarSpec{.kind = Kind::kJsonObject, .field = std::string(field)});
  }
  if (*type != "json_schema") {
    return invalid_field(field, "may be of type text, json_object or json_schema");
  }
  const json::value* named = object->if_contains("json_schema");
  const json::value* schema =
      named == nullptr || !named->is_object() ? nullptr : named->get_object().if_contains("schema");
  if (schema == nullptr) {
    return invalid_field(field, "of type json_schema needs json_schema.schema");
  }
  // strict or not: the answer keeps to the schema.
  GAPLESS_ASSIGN_OR_RETURN(GrammarSpec spec, schema_spec(field, *schema));
  return MaybeSpec(std::move(spec));
}

StatusOr<MaybeSpec> read_structured_outputs(std::string_view field, const json::value& outputs) {
  if (!outputs.is_object()) return invalid_field(field, "must be an object");
  MaybeSpec spec;
  for (const auto& member : outputs.get_object()) {
    const std::string_view name = member.key();
    const json::value& value = member.value();
    if (value.is_null() || value == false) continue;
    if (spec) return invalid_field(field, "may ask for one thing only");
    if (name == "json") {
      GAPLESS_ASSIGN_OR_RETURN(spec, schema_spec(field, value));
    } else if (name == "regex") {
      GAPLESS_ASSIGN_OR_RETURN(spec, regex_spec(field, value));
    } else if (name == "choice") {
      GAPLESS_ASSIGN_OR_RETURN(spec, choice_spec(field, value));
    } else if (name == "json_object" && value.is_bool()) {
      spec = GrammarSpec{.kind = Kind::kJsonObject, .field = std::string(field)};
    } else {
      return invalid_field(
          field, "cannot have '{}'; it may have json, regex, choice or json_object", name);
    }
  }
  return spec;
}

template <typename Read>
StatusOr<MaybeSpec> as_maybe(Read read, std::string_view field, const json::value& value) {
  GAPLESS_ASSIGN_OR_RETURN(GrammarSpec spec, read(field, value));
  return MaybeSpec(std::move(spec));
}

StatusOr<MaybeSpec> read_field(std::string_view field, const json::value& value) {
  if (field == "response_format") return read_response_format(field, value);
  if (field == "structured_outputs") return read_structured_outputs(field, value);
  if (field == "guided_regex") return as_maybe(regex_spec, field, value);
  if (field == "guided_choice") return as_maybe(choice_spec, field, value);
  return as_maybe(schema_spec, field, value);
}

}  // namespace

StatusOr<std::optional<GrammarSpec>> read_grammar_fields(
    std::initializer_list<const json::object*> objects) {
  MaybeSpec found;
  for (const json::object* object : objects) {
    if (object == nullptr) continue;
    for (const std::string_view field : kGrammarFields) {
      const json::value* value = object->if_contains(field);
      if (value == nullptr || value->is_null()) continue;
      GAPLESS_ASSIGN_OR_RETURN(MaybeSpec spec, read_field(field, *value));
      if (!spec) continue;
      if (found) {
        return invalid_field(field, "and {} both say what the answer must look like", found->field);
      }
      found = std::move(spec);
    }
  }
  return found;
}

}  // namespace gapless
