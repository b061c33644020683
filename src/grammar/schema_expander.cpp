#include "grammar/schema_expander.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "grammar/compile_work.h"
#include "grammar/grammar_limits.h"
#include "grammar/string_formats.h"

namespace gapless {
namespace {

namespace json = boost::json;
using Specs = std::vector<SchemaSpec>;

const json::value* find(const json::object& object, std::string_view key) {
  const auto at = object.find(key);
  return at == object.end() ? nullptr : &at->value();
}

std::uint8_t type_bits(std::string_view name) {
  if (name == "null") return kNullType;
  if (name == "boolean") return kFalseType | kTrueType;
  if (name == "number" || name == "integer") return kNumberType;
  if (name == "string") return kStringType;
  if (name == "object") return kObjectType;
  if (name == "array") return kArrayType;
  return 0;
}

SchemaSpec only(std::uint8_t types) {
  SchemaSpec spec;
  spec.types = types;
  return spec;
}

std::optional<int> count_of(const json::value& value) {
  constexpr std::int64_t kMost = 1'000'000'000;
  if (value.is_int64() && value.get_int64() >= 0) {
    return static_cast<int>(std::min(value.get_int64(), kMost));
  }
  if (value.is_uint64()) return static_cast<int>(kMost);
  if (value.is_double() && value.get_double() >= 0 && value.get_double() < 1e9 &&
      value.get_double() == std::floor(value.get_double())) {
    return static_cast<int>(value.get_double());
  }
  return std::nullopt;
}

// Steps that copying and merging it take.
long weight_of(const SchemaSpec& spec) {
  std::size_t weight = 20 + spec.not_number_texts.size() + spec.not_strings.size() +
                       spec.required.size() + spec.forbidden.size() + spec.patterns.size();
  if (spec.strings) weight += spec.strings->size();
  if (spec.number_texts) weight += spec.number_texts->size();
  for (const ObjectClause& clause : spec.objects) {
    weight += 5 + clause.properties.size() + clause.patterns.size();
  }
  for (const ArrayClause& clause : spec.arrays) weight += 5 + clause.prefix.size();
  return static_cast<long>(weight * 5);
}

std::optional<Decimal> decimal_of(const json::value& value) {
  if (!value.is_number()) return std::nullopt;
  return Decimal::parse(texts_of_number(value).front());
}

// "~1" and "~0" of a JSON pointer, "%XX" of the fragment it stands in.
std::string pointer_token(std::string_view token) {
  std::string out;
  for (std::size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '~' && i + 1 < token.size()) {
      out.push_back(token[++i] == '1' ? '/' : '~');
    } else if (token[i] == '%' && i + 2 < token.size()) {
      int byte = 0;
      std::from_chars(token.data() + i + 1, token.data() + i + 3, byte, 16);
      out.push_back(static_cast<char>(byte));
      i += 2;
    } else {
      out.push_back(token[i]);
    }
  }
  return out;
}

// Depth first; false when `wanted` is not below `from`.
bool find_place(const json::value& from, SchemaRef wanted, std::string& place) {
  if (&from == wanted) return true;
  const std::size_t length = place.size();
  if (const auto* object = from.if_object()) {
    for (const auto& member : *object) {
      place.append("/").append(std::string_view(member.key()));
      if (find_place(member.value(), wanted, place)) return true;
      place.resize(length);
    }
  } else if (const auto* array = from.if_array()) {
    for (std::size_t i = 0; i < array->size(); ++i) {
      place += fmt::format("/{}", i);
      if (find_place((*array)[i], wanted, place)) return true;
      place.resize(length);
    }
  }
  return false;
}

}  // namespace

SchemaExpander::SchemaExpander(const json::value& schema) : root_(schema) {
  const auto* object = schema.if_object();
  const json::value* dialect = object == nullptr ? nullptr : find(*object, "$schema");
  if (dialect == nullptr || !dialect->is_string()) return;
  const std::string_view name = dialect->get_string();
  for (const auto& [part, draft] :
       {std::pair("draft-03", 3), std::pair("draft-04", 4), std::pair("draft-06", 6),
        std::pair("draft-07", 7), std::pair("2019-09", 2019)}) {
    if (name.find(part) != std::string_view::npos) draft_ = draft;
  }
}

const json::value* SchemaExpander::keyword(const json::object& object,
                                           std::string_view name) const {
  static constexpr std::pair<std::string_view, int> kSince[] = {{"const", 6},
                                                                {"contains", 6},
                                                                {"propertyNames", 6},
                                                                {"if", 7},
                                                                {"dependentRequired", 2019},
                                                                {"dependentSchemas", 2019},
                                                                {"unevaluatedItems", 2019},
                                                                {"unevaluatedProperties", 2019},
                                                                {"$recursiveRef", 2019},
                                                                {"prefixItems", 2020},
                                                                {"$dynamicRef", 2020}};
  for (const auto& [keyword_name, draft] : kSince) {
    if (keyword_name == name && draft_ < draft) return nullptr;
  }
  return find(object, name);
}

// ---- places and references

std::string SchemaExpander::place_of(SchemaRef schema) const {
  std::string place = "#";
  if (schema != nullptr && find_place(root_, schema, place)) return place;
  return "#";
}

Status SchemaExpander::refuse(SchemaRef schema, std::string_view keyword,
                              std::string_view why) const {
  return invalid_argument("{}: {} {}", place_of(schema), keyword, why);
}

StatusOr<StringPatternPtr> SchemaExpander::search_pattern(SchemaRef schema,
                                                          std::string_view keyword,
                                                          std::string_view text) {
  if (const auto known = patterns_.find(text); known != patterns_.end()) return known->second;
  StatusOr<RegexPtr> regex = parse_search_regex(text);
  if (regex.ok()) {
    auto pattern = std::make_shared<const StringPattern>(std::move(*regex));
    return patterns_.emplace(text, std::move(pattern)).first->second;
  }
  const Status& error = regex.status();
  std::string_view why = error.message();
  constexpr std::string_view kSameWord = "pattern: ";  // as a regular expression's errors begin
  if (why.starts_with(kSameWord)) why.remove_prefix(kSameWord.size());
  return invalid_argument("{}: {}: {}", place_of(schema), keyword, why);
}

Status SchemaExpander::with_place(const Status& error, SchemaRef schema) const {
  if (error.message().starts_with('#')) return error;
  return Status(error.code(), place_of(schema) + ": " + error.message());
}

SchemaRef SchemaExpander::made(json::value schema) {
  made_.push_back(std::move(schema));
  return &made_.back();
}

void SchemaExpander::note_ids(SchemaRef schema) const {
  if (const auto* object = schema->if_object()) {
    for (const char* key : {"$id", "id", "$anchor"}) {
      const json::value* id = find(*object, key);
      if (id == nullptr || !id->is_string()) continue;
      const std::string text(id->get_string());
      by_id_.emplace(std::string_view(key) == "$anchor" ? "#" + text : text, schema);
    }
    for (const auto& member : *object) note_ids(&member.value());
  } else if (const auto* array = schema->if_array()) {
    for (const json::value& item : *array) note_ids(&item);
  }
}

StatusOr<SchemaRef> SchemaExpander::resolve(SchemaRef from, std::string_view reference) const {
  if (reference == "#") return &root_;
  if (!reference.starts_with("#/")) {
    if (!ids_are_noted_) note_ids(&root_);
    ids_are_noted_ = true;
    if (const auto found = by_id_.find(reference); found != by_id_.end()) return found->second;
    return refuse(from, "$ref", fmt::format("'{}' leads out of the schema", reference));
  }
  SchemaRef at = &root_;
  std::string_view rest = reference.substr(2);
  while (true) {
    const std::size_t slash = std::min(rest.find('/'), rest.size());
    const std::string token = pointer_token(rest.substr(0, slash));
    if (const auto* object = at->if_object()) {
      at = find(*object, token);
    } else if (const auto* array = at->if_array()) {
      std::size_t index = array->size();
      std::from_chars(token.data(), token.data() + token.size(), index);
      at = index < array->size() ? &(*array)[index] : nullptr;
    } else {
      at = nullptr;
    }
    if (at == nullptr) {
      return refuse(from, "$ref", fmt::format("'{}' is not in the schema", reference));
    }
    if (slash == rest.size()) return at;
    rest.remove_prefix(slash + 1);
  }
}

// ---- expanding

StatusOr<const std::vector<SchemaSpec>*> SchemaExpander::expand(SchemaRef schema) {
  if (const auto known = expanded_.find(schema); known != expanded_.end()) return &known->second;
  if (std::find(expanding_.begin(), expanding_.end(), schema) != expanding_.end()) {
    return refuse(schema, "$ref", "comes back to itself without a value in between");
  }
  if (expanded_.size() >= kMaxSchemaNodes || expanding_.size() >= kMaxRegexDepth) {
    return refuse(schema, "the schema", "is too large");
  }
  expanding_.push_back(schema);
  StatusOr<Specs> specs = expand_now(schema);
  expanding_.pop_back();
  if (!specs.ok()) return specs.status();
  return &expanded_.emplace(schema, std::move(*specs)).first->second;
}

StatusOr<Specs> SchemaExpander::expand_all(const std::vector<SchemaRef>& schemas) {
  Specs all = {SchemaSpec()};
  for (const SchemaRef schema : schemas) {
    GAPLESS_ASSIGN_OR_RETURN(const Specs* const specs, expand(schema));
    GAPLESS_ASSIGN_OR_RETURN(all, both(all, *specs, schema));
  }
  return all;
}

StatusOr<Specs> SchemaExpander::both(const Specs& a, const Specs& b, SchemaRef at) const {
  Specs result;
  for (const SchemaSpec& x : a) {
    for (const SchemaSpec& y : b) {
      GAPLESS_RETURN_IF_ERROR(CompileWork::spend(weight_of(x) + weight_of(y)));
      if (x.says_nothing() || y.says_nothing()) {
        const SchemaSpec& other = x.says_nothing() ? y : x;
        if (other.types != 0) result.push_back(other);
      } else if (std::optional<SchemaSpec> spec = merge(x, y)) {
        result.push_back(std::move(*spec));
      }
    }
  }
  if (result.size() > kMaxSchemaAlternatives) {
    return refuse(at, "the schema",
                  fmt::format("has more than {} alternatives", kMaxSchemaAlternatives));
  }
  return result;
}

StatusOr<Specs> SchemaExpander::expand_now(SchemaRef schema) {
  if (schema == nullptr) return Specs{SchemaSpec()};
  if (const bool* allowed = schema->if_bool()) return *allowed ? Specs{SchemaSpec()} : Specs{};
  const auto* object = schema->if_object();
  if (object == nullptr) return refuse(schema, "a schema", "must be an object or a boolean");
  return expand_keywords(schema, *object);
}

StatusOr<Specs> SchemaExpander::expand_keywords(SchemaRef schema, const json::object& object) {
  Specs result = {SchemaSpec()};
  const auto keep = [&](const Specs& specs) -> Status {
    GAPLESS_ASSIGN_OR_RETURN(result, both(result, specs, schema));
    return ok_status();
  };
  if (const json::value* reference = find(object, "$ref")) {
    if (!reference->is_string()) return refuse(schema, "$ref", "must be a string");
    GAPLESS_ASSIGN_OR_RETURN(const SchemaRef target, resolve(schema, reference->get_string()));
    GAPLESS_ASSIGN_OR_RETURN(const Specs* const specs, expand(target));
    GAPLESS_RETURN_IF_ERROR(keep(*specs));
    if (draft_ <= 7) return result;
  }
  for (const char* keyword : {"$dynamicRef", "$recursiveRef", "unevaluatedProperties",
                              "unevaluatedItems", "contains", "dependentSchemas"}) {
    const json::value* value = this->keyword(object, keyword);
    const bool allows_anything = value != nullptr && value->is_bool() && value->get_bool() &&
                                 std::string_view(keyword).starts_with("unevaluated");
    if (value == nullptr || allows_anything) continue;
    return refuse(schema, keyword, "is not supported");
  }
  Specs own(1);
  GAPLESS_ASSIGN_OR_RETURN(own.front(), own_spec(schema, object));
  GAPLESS_RETURN_IF_ERROR(keep(own));
  if (const json::value* value = keyword(object, "const")) {
    GAPLESS_ASSIGN_OR_RETURN(const Specs specs, enumerated(schema, value, 1));
    GAPLESS_RETURN_IF_ERROR(keep(specs));
  }
  if (const json::value* values = find(object, "enum")) {
    if (!values->is_array()) return refuse(schema, "enum", "must be a list");
    GAPLESS_ASSIGN_OR_RETURN(const Specs specs, enumerated(schema, values->get_array().data(),
                                                           values->get_array().size()));
    GAPLESS_RETURN_IF_ERROR(keep(specs));
  }
  if (const json::value* list = find(object, "allOf")) {
    if (!list->is_array()) return refuse(schema, "allOf", "must be a list");
    for (const json::value& part : list->get_array()) {
      GAPLESS_ASSIGN_OR_RETURN(const Specs* const specs, expand(&part));
      GAPLESS_RETURN_IF_ERROR(keep(*specs));
    }
  }
  for (const char* keyword : {"dependencies", "dependentRequired"}) {
    const json::value* list = this->keyword(object, keyword);
    if (list == nullptr) continue;
    if (!list->is_object()) return refuse(schema, keyword, "must be an object");
    GAPLESS_ASSIGN_OR_RETURN(const Specs specs, dependencies(schema, list->get_object()));
    GAPLESS_RETURN_IF_ERROR(keep(specs));
  }
  if (const json::value* condition = keyword(object, "if")) {
    GAPLESS_ASSIGN_OR_RETURN(const Specs* const holds, expand(condition));
    GAPLESS_ASSIGN_OR_RETURN(const Specs fails, negate(condition));
    GAPLESS_ASSIGN_OR_RETURN(const Specs* const then, expand(find(object, "then")));
    GAPLESS_ASSIGN_OR_RETURN(const Specs* const otherwise, expand(find(object, "else")));
    GAPLESS_ASSIGN_OR_RETURN(Specs ways, both(*holds, *then, schema));
    GAPLESS_ASSIGN_OR_RETURN(const Specs others, both(fails, *otherwise, schema));
    ways.insert(ways.end(), others.begin(), others.end());
    GAPLESS_RETURN_IF_ERROR(keep(ways));
  }
  if (const json::value* unwanted = find(object, "not")) {
    GAPLESS_ASSIGN_OR_RETURN(const Specs specs, negate(unwanted));
    GAPLESS_RETURN_IF_ERROR(keep(specs));
  }
  if (const json::value* list = find(object, "anyOf")) {
    if (!list->is_array()) return refuse(schema, "anyOf", "must be a list");
    Specs ways;
    for (const json::value& branch : list->get_array()) {
      GAPLESS_ASSIGN_OR_RETURN(const Specs* const specs, expand(&branch));
      ways.insert(ways.end(), specs->begin(), specs->end());
    }
    GAPLESS_RETURN_IF_ERROR(keep(ways));
  }
  if (const json::value* list = find(object, "oneOf")) {
    if (!list->is_array()) return refuse(schema, "oneOf", "must be a list");
    GAPLESS_ASSIGN_OR_RETURN(result, one_of(schema, result, list->get_array()));
  }
  return result;
}

// With `base` (everything beside oneOf) merged into each branch: what is common to all branches
// often is what tells them apart.
StatusOr<Specs> SchemaExpander::one_of(SchemaRef schema, const Specs& base,
                                       const json::array& branches) {
  std::vector<Specs> ways;
  for (const json::value& branch : branches) {
    GAPLESS_ASSIGN_OR_RETURN(const Specs* const specs, expand(&branch));
    GAPLESS_ASSIGN_OR_RETURN(Specs merged, both(base, *specs, schema));
    ways.push_back(std::move(merged));
  }
  Specs result;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    Specs alone = ways[i];
    for (std::size_t j = 0; j < ways.size(); ++j) {
      if (i == j) continue;
      GAPLESS_ASSIGN_OR_RETURN(const bool apart, disjoint_all(alone, ways[j], 0));
      if (apart) continue;
      const StatusOr<Specs> others = negate(&branches[j]);
      if (!others.ok()) {
        return refuse(schema, "oneOf", fmt::format("branches {} and {} may hold at once", i, j));
      }
      GAPLESS_ASSIGN_OR_RETURN(alone, both(alone, *others, schema));
    }
    result.insert(result.end(), alone.begin(), alone.end());
  }
  if (result.size() > kMaxSchemaAlternatives) {
    return refuse(schema, "oneOf",
                  fmt::format("has more than {} alternatives", kMaxSchemaAlternatives));
  }
  return result;
}

// For each name: it is not there, or what depends on it holds.
StatusOr<Specs> SchemaExpander::dependencies(SchemaRef schema, const json::object& list) {
  Specs result = {SchemaSpec()};
  for (const auto& member : list) {
    const std::string name(member.key());
    SchemaSpec absent;
    absent.forbidden.insert(name);
    Specs present;
    if (const auto* names = member.value().if_array()) {
      SchemaSpec spec = only(kObjectType);
      spec.required.insert(name);
      for (const json::value& required : *names) {
        if (!required.is_string()) return refuse(schema, "dependencies", "must name properties");
        spec.required.insert(std::string(required.get_string()));
      }
      present.push_back(spec);
    } else {
      SchemaSpec with_name = only(kObjectType);
      with_name.required.insert(name);
      GAPLESS_ASSIGN_OR_RETURN(const Specs* const specs, expand(&member.value()));
      GAPLESS_ASSIGN_OR_RETURN(present, both({with_name}, *specs, schema));
    }
    present.push_back(absent);
    GAPLESS_ASSIGN_OR_RETURN(result, both(result, present, schema));
  }
  return result;
}

StatusOr<Specs> SchemaExpander::enumerated(SchemaRef schema, const json::value* values,
                                           std::size_t count) {
  Specs result;
  SchemaSpec scalars = only(0);
  scalars.strings.emplace();
  scalars.number_texts.emplace();
  for (std::size_t i = 0; i < count; ++i) {
    const json::value& value = values[i];
    switch (value.kind()) {
      case json::kind::null:
        scalars.types |= kNullType;
        break;
      case json::kind::bool_:
        scalars.types |= value.get_bool() ? kTrueType : kFalseType;
        break;
      case json::kind::string:
        scalars.types |= kStringType;
        scalars.strings->insert(std::string(value.get_string()));
        break;
      case json::kind::object: {
        SchemaSpec spec = only(kObjectType);
        ObjectClause clause;
        for (const auto& member : value.get_object()) {
          json::object constant;
          constant["const"] = member.value();
          clause.properties.emplace_back(member.key(), made(std::move(constant)));
          spec.required.insert(std::string(member.key()));
        }
        clause.additional = made(false);
        spec.objects.push_back(std::move(clause));
        result.push_back(std::move(spec));
        break;
      }
      case json::kind::array: {
        SchemaSpec spec = only(kArrayType);
        ArrayClause clause;
        for (const json::value& item : value.get_array()) {
          json::object constant;
          constant["const"] = item;
          clause.prefix.push_back(made(std::move(constant)));
        }
        spec.min_items = spec.max_items = static_cast<int>(clause.prefix.size());
        clause.items = made(false);
        spec.arrays.push_back(std::move(clause));
        result.push_back(std::move(spec));
        break;
      }
      default:
        scalars.types |= kNumberType;
        for (std::string& text : texts_of_number(value)) {
          scalars.number_texts->push_back(std::move(text));
        }
    }
  }
  if (scalars.types != 0) result.push_back(std::move(scalars));
  if (result.size() > kMaxSchemaAlternatives) {
    return refuse(schema, "enum",
                  fmt::format("has more than {} objects and lists", kMaxSchemaAlternatives));
  }
  return result;
}

// ---- one schema's own keywords

StatusOr<SchemaSpec> SchemaExpander::own_spec(SchemaRef schema, const json::object& object) {
  SchemaSpec spec;
  for (const auto& member : object) {
    const std::string_view keyword = member.key();
    if (keyword == "type") {
      GAPLESS_RETURN_IF_ERROR(read_types(schema, member.value(), spec));
    } else {
      GAPLESS_RETURN_IF_ERROR(read_number(schema, keyword, member.value(), spec));
      GAPLESS_RETURN_IF_ERROR(read_string(schema, keyword, member.value(), spec));
    }
  }
  GAPLESS_RETURN_IF_ERROR(read_object(schema, object, spec));
  GAPLESS_RETURN_IF_ERROR(read_array(schema, object, spec));
  // Draft 4: a boolean beside the bound.
  for (const auto& [keyword, bound] : {std::pair("exclusiveMinimum", &spec.number.min),
                                       std::pair("exclusiveMaximum", &spec.number.max)}) {
    const json::value* flag = find(object, keyword);
    if (flag != nullptr && flag->is_bool() && flag->get_bool() && *bound)
      (*bound)->exclusive = true;
  }
  return spec;
}

Status SchemaExpander::read_types(SchemaRef schema, const json::value& value,
                                  SchemaSpec& spec) const {
  std::vector<std::string_view> names;
  if (value.is_string()) {
    names.push_back(value.get_string());
  } else if (const auto* list = value.if_array()) {
    for (const json::value& name : *list) {
      if (!name.is_string()) return refuse(schema, "type", "must name types");
      names.push_back(name.get_string());
    }
  } else {
    return refuse(schema, "type", "must be a string or a list of them");
  }
  spec.types = 0;
  bool any_number = false, whole_number = false;
  for (const std::string_view name : names) {
    const std::uint8_t bits = type_bits(name);
    if (bits == 0) return refuse(schema, "type", fmt::format("'{}' is unknown", name));
    spec.types |= bits;
    any_number |= name == "number";
    whole_number |= name == "integer";
  }
  spec.number.integer = whole_number && !any_number;
  return ok_status();
}

Status SchemaExpander::read_number(SchemaRef schema, std::string_view keyword,
                                   const json::value& value, SchemaSpec& spec) const {
  const bool lower = keyword == "minimum" || keyword == "exclusiveMinimum";
  const bool upper = keyword == "maximum" || keyword == "exclusiveMaximum";
  if (!lower && !upper && keyword != "multipleOf") return ok_status();
  const bool exclusive = keyword.starts_with("exclusive");
  if (exclusive && value.is_bool()) return ok_status();  // own_spec()
  const std::optional<Decimal> number = decimal_of(value);
  if (!number) return refuse(schema, keyword, "must be a number");
  if (keyword == "multipleOf") {
    if (number->negative || number->is_zero()) return refuse(schema, keyword, "must be positive");
    spec.number.multiples_of.push_back(*number);
    return ok_status();
  }
  SchemaSpec bound;
  (lower ? bound.number.min : bound.number.max) = Bound{*number, exclusive};
  bound.number.integer = spec.number.integer;
  const SchemaSpec merged = *merge(spec, bound);
  spec.number = merged.number;
  return ok_status();
}

Status SchemaExpander::read_string(SchemaRef schema, std::string_view keyword,
                                   const json::value& value, SchemaSpec& spec) {
  if (keyword == "minLength" || keyword == "maxLength") {
    const std::optional<int> count = count_of(value);
    if (!count) return refuse(schema, keyword, "must be a whole number, not negative");
    (keyword == "minLength" ? spec.min_length : spec.max_length) = *count;
  } else if (keyword == "pattern") {
    if (!value.is_string()) return refuse(schema, keyword, "must be a string");
    GAPLESS_ASSIGN_OR_RETURN(StringPatternPtr pattern,
                             search_pattern(schema, keyword, value.get_string()));
    spec.patterns.push_back(std::move(pattern));
  } else if (keyword == "format") {
    if (!value.is_string()) return ok_status();
    const StringFormat* const format = find_string_format(value.get_string());
    if (format == nullptr) return ok_status();  // not one of the standard: it says nothing
    if (format->pattern == nullptr) {
      return refuse(schema, keyword, fmt::format("'{}' is not supported", format->name));
    }
    spec.patterns.push_back(format->pattern);
    if (format->max_length > 0 &&
        (spec.max_length == kNoLimit || spec.max_length > format->max_length)) {
      spec.max_length = format->max_length;
    }
  }
  return ok_status();
}

Status SchemaExpander::read_count(SchemaRef schema, const json::object& object, const char* keyword,
                                  int& count) const {
  const json::value* const value = find(object, keyword);
  if (value == nullptr) return ok_status();
  const std::optional<int> found = count_of(*value);
  if (!found) return refuse(schema, keyword, "must be a whole number, not negative");
  count = *found;
  return ok_status();
}

Status SchemaExpander::read_object(SchemaRef schema, const json::object& object, SchemaSpec& spec) {
  ObjectClause clause;
  bool says_something = false;
  if (const json::value* properties = find(object, "properties")) {
    if (!properties->is_object()) return refuse(schema, "properties", "must be an object");
    for (const auto& member : properties->get_object()) {
      clause.properties.emplace_back(member.key(), &member.value());
    }
    says_something = true;
  }
  if (const json::value* patterns = find(object, "patternProperties")) {
    if (!patterns->is_object()) return refuse(schema, "patternProperties", "must be an object");
    for (const auto& member : patterns->get_object()) {
      GAPLESS_ASSIGN_OR_RETURN(StringPatternPtr pattern,
                               search_pattern(schema, "patternProperties", member.key()));
      clause.patterns.emplace_back(std::move(pattern), &member.value());
    }
    says_something = true;
  }
  if (const json::value* additional = find(object, "additionalProperties")) {
    clause.additional = additional;
    says_something = true;
  }
  if (const json::value* names = keyword(object, "propertyNames")) {
    clause.names = names;
    says_something = true;
  }
  if (says_something) spec.objects.push_back(std::move(clause));
  if (const json::value* required = find(object, "required")) {
    if (!required->is_array()) return refuse(schema, "required", "must be a list of names");
    for (const json::value& name : required->get_array()) {
      if (!name.is_string()) return refuse(schema, "required", "must be a list of names");
      spec.required.insert(std::string(name.get_string()));
    }
  }
  GAPLESS_RETURN_IF_ERROR(read_count(schema, object, "minProperties", spec.min_properties));
  GAPLESS_RETURN_IF_ERROR(read_count(schema, object, "maxProperties", spec.max_properties));
  return ok_status();
}

Status SchemaExpander::read_array(SchemaRef schema, const json::object& object,
                                  SchemaSpec& spec) const {
  ArrayClause clause;
  bool says_something = false;
  const json::value* items = find(object, "items");
  const json::value* prefix = keyword(object, "prefixItems");
  if (items != nullptr && items->is_array()) {  // up to 2019-09
    prefix = items;
    items = find(object, "additionalItems");
  }
  if (prefix != nullptr) {
    if (!prefix->is_array()) return refuse(schema, "prefixItems", "must be a list");
    for (const json::value& item : prefix->get_array()) clause.prefix.push_back(&item);
    says_something = true;
  }
  if (items != nullptr) {
    clause.items = items;
    says_something = true;
  }
  if (says_something) spec.arrays.push_back(std::move(clause));
  GAPLESS_RETURN_IF_ERROR(read_count(schema, object, "minItems", spec.min_items));
  GAPLESS_RETURN_IF_ERROR(read_count(schema, object, "maxItems", spec.max_items));
  const json::value* unique = find(object, "uniqueItems");
  if (unique != nullptr && unique->is_bool() && unique->get_bool() &&
      (spec.max_items == kNoLimit || spec.max_items > 1)) {
    return refuse(schema, "uniqueItems", "is not supported");
  }
  return ok_status();
}

// ---- not

StatusOr<Specs> SchemaExpander::negate(SchemaRef schema) {
  if (const auto known = negated_.find(schema); known != negated_.end()) return known->second;
  if (std::find(negating_.begin(), negating_.end(), schema) != negating_.end() ||
      negating_.size() >= kMaxRegexDepth) {
    return refuse(schema, "not", "of a schema that refers to itself");
  }
  negating_.push_back(schema);
  StatusOr<Specs> specs = negate_now(schema);
  negating_.pop_back();
  if (specs.ok()) negated_.emplace(schema, *specs);
  return specs;
}

StatusOr<Specs> SchemaExpander::negate_now(SchemaRef schema) {
  if (schema == nullptr) return Specs{};
  if (const bool* allowed = schema->if_bool()) return *allowed ? Specs{} : Specs{SchemaSpec()};
  const auto* object = schema->if_object();
  if (object == nullptr) return refuse(schema, "a schema", "must be an object or a boolean");
  // A value fails a schema when it fails one of its keywords.
  Specs result;
  for (const auto& member : *object) {
    GAPLESS_ASSIGN_OR_RETURN(const Specs specs,
                             negate_keyword(schema, member.key(), member.value()));
    result.insert(result.end(), specs.begin(), specs.end());
  }
  return result;
}

StatusOr<Specs> SchemaExpander::negate_keyword(SchemaRef schema, std::string_view keyword,
                                               const json::value& value) {
  static constexpr std::string_view kSaysNothing[] = {
      "title",      "description", "default", "examples",    "example",
      "$comment",   "$id",         "$schema", "definitions", "$defs",
      "deprecated", "readOnly",    "id",      "writeOnly",   "$anchor"};
  if (std::find(std::begin(kSaysNothing), std::end(kSaysNothing), keyword) !=
      std::end(kSaysNothing)) {
    return Specs{};
  }
  if (keyword == "type") {
    SchemaSpec types;
    GAPLESS_RETURN_IF_ERROR(read_types(schema, value, types));
    if (types.number.integer) return refuse(schema, "not", "of integers is not supported");
    const auto others = static_cast<std::uint8_t>(kAllTypes & ~types.types);
    return others == 0 ? Specs{} : Specs{only(others)};
  }
  if (keyword == "required" && value.is_array()) {
    Specs result;
    for (const json::value& name : value.get_array()) {
      if (!name.is_string()) return refuse(schema, "required", "must be a list of names");
      SchemaSpec spec = only(kObjectType);
      spec.forbidden.insert(std::string(name.get_string()));
      result.push_back(std::move(spec));
    }
    return result;
  }
  if (keyword == "properties" && value.is_object()) {
    Specs result;
    for (const auto& member : value.get_object()) {
      json::object other;
      other["not"] = member.value();
      SchemaSpec spec = only(kObjectType);
      ObjectClause clause;
      clause.properties.emplace_back(member.key(), made(std::move(other)));
      spec.objects.push_back(std::move(clause));
      spec.required.insert(std::string(member.key()));
      result.push_back(std::move(spec));
    }
    return result;
  }
  if (keyword == "const" || (keyword == "enum" && value.is_array())) {
    const json::value* values = keyword == "const" ? &value : value.get_array().data();
    const std::size_t count = keyword == "const" ? 1 : value.get_array().size();
    GAPLESS_ASSIGN_OR_RETURN(const Specs listed, enumerated(schema, values, count));
    if (listed.empty()) return Specs{SchemaSpec()};
    if (listed.size() > 1 || (listed[0].types & (kObjectType | kArrayType)) != 0) {
      return refuse(schema, "not", "of objects and lists in an enum is not supported");
    }
    SchemaSpec others;
    others.types &=
        static_cast<std::uint8_t>(~(listed[0].types & (kNullType | kFalseType | kTrueType)));
    others.not_strings = *listed[0].strings;
    others.not_number_texts = *listed[0].number_texts;
    return Specs{others};
  }
  if (keyword == "pattern" && value.is_string()) {
    SchemaSpec spec = only(kStringType);
    GAPLESS_ASSIGN_OR_RETURN(StringPatternPtr pattern,
                             search_pattern(schema, keyword, value.get_string()));
    spec.not_patterns.push_back(std::move(pattern));
    return Specs{spec};
  }
  if (keyword == "minLength" || keyword == "maxLength") {
    const std::optional<int> count = count_of(value);
    if (!count) return refuse(schema, keyword, "must be a whole number, not negative");
    SchemaSpec spec = only(kStringType);
    if (keyword == "maxLength") {
      spec.min_length = *count + 1;
    } else if (*count == 0) {
      return Specs{};
    } else {
      spec.max_length = *count - 1;
    }
    return Specs{spec};
  }
  const bool lower = keyword == "minimum" || keyword == "exclusiveMinimum";
  if (lower || keyword == "maximum" || keyword == "exclusiveMaximum") {
    const std::optional<Decimal> number = decimal_of(value);
    if (!number) return refuse(schema, keyword, "must be a number");
    SchemaSpec spec = only(kNumberType);
    const Bound bound{*number, !keyword.starts_with("exclusive")};
    (lower ? spec.number.max : spec.number.min) = bound;
    return Specs{spec};
  }
  if (keyword == "$ref" && value.is_string()) {
    GAPLESS_ASSIGN_OR_RETURN(const SchemaRef target, resolve(schema, value.get_string()));
    return negate(target);
  }
  if (keyword == "not") {
    GAPLESS_ASSIGN_OR_RETURN(const Specs* const specs, expand(&value));
    return *specs;
  }
  if ((keyword == "anyOf" || keyword == "allOf") && value.is_array()) {
    Specs result = keyword == "anyOf" ? Specs{SchemaSpec()} : Specs{};
    for (const json::value& part : value.get_array()) {
      GAPLESS_ASSIGN_OR_RETURN(const Specs specs, negate(&part));
      if (keyword == "anyOf") {
        GAPLESS_ASSIGN_OR_RETURN(result, both(result, specs, schema));
      } else {
        result.insert(result.end(), specs.begin(), specs.end());
      }
    }
    return result;
  }
  if (keyword == "additionalProperties" && value.is_bool() && value.get_bool()) return Specs{};
  return refuse(schema, "not", fmt::format("of {} is not supported", keyword));
}

// ---- oneOf: are two specs apart?

StatusOr<bool> SchemaExpander::disjoint_all(const Specs& a, const Specs& b, int depth) {
  for (const SchemaSpec& x : a) {
    for (const SchemaSpec& y : b) {
      GAPLESS_ASSIGN_OR_RETURN(const bool apart, disjoint(x, y, depth));
      if (!apart) return false;
    }
  }
  return true;
}

StatusOr<bool> SchemaExpander::disjoint(const SchemaSpec& a, const SchemaSpec& b, int depth) {
  GAPLESS_RETURN_IF_ERROR(CompileWork::spend(weight_of(a) + weight_of(b)));
  const std::uint8_t common = a.types & b.types;
  if ((common & (kNullType | kFalseType | kTrueType)) != 0) return false;
  if ((common & kNumberType) != 0) {
    GAPLESS_ASSIGN_OR_RETURN(const ByteDfa x, number_texts(a));
    GAPLESS_ASSIGN_OR_RETURN(const ByteDfa y, number_texts(b));
    if (intersects(x, y)) return false;
  }
  if ((common & kStringType) != 0) {
    const bool lengths_apart = (a.max_length != kNoLimit && a.max_length < b.min_length) ||
                               (b.max_length != kNoLimit && b.max_length < a.min_length);
    if (!lengths_apart) {
      GAPLESS_ASSIGN_OR_RETURN(const ByteDfa x, string_values(a, /*bounded=*/false));
      GAPLESS_ASSIGN_OR_RETURN(const ByteDfa y, string_values(b, /*bounded=*/false));
      if (intersects(x, y)) return false;
    }
  }
  if ((common & kObjectType) != 0) {
    GAPLESS_ASSIGN_OR_RETURN(const bool apart, disjoint_objects(a, b, depth));
    if (!apart) return false;
  }
  if ((common & kArrayType) != 0) {
    const bool sizes_apart = (a.max_items != kNoLimit && a.max_items < b.min_items) ||
                             (b.max_items != kNoLimit && b.max_items < a.min_items);
    if (sizes_apart) return true;
    // The first item, where both have one.
    if (depth >= 3 || a.min_items == 0 || b.min_items == 0) return false;
    const auto first_of = [](const SchemaSpec& spec) {
      std::vector<SchemaRef> schemas;
      for (const ArrayClause& clause : spec.arrays) {
        schemas.push_back(clause.prefix.empty() ? clause.items : clause.prefix.front());
      }
      return schemas;
    };
    GAPLESS_ASSIGN_OR_RETURN(const Specs x, expand_all(first_of(a)));
    GAPLESS_ASSIGN_OR_RETURN(const Specs y, expand_all(first_of(b)));
    return disjoint_all(x, y, depth + 1);
  }
  return true;
}

StatusOr<bool> SchemaExpander::disjoint_objects(const SchemaSpec& a, const SchemaSpec& b,
                                                int depth) {
  std::set<std::string> names = a.required;
  names.insert(b.required.begin(), b.required.end());
  for (const std::string& name : names) {
    const auto x = member_schemas(a, name), y = member_schemas(b, name);
    if (!x || !y) return true;  // one asks for it, the other forbids it
    if (depth >= 3) continue;
    GAPLESS_ASSIGN_OR_RETURN(const Specs values_of_a, expand_all(*x));
    GAPLESS_ASSIGN_OR_RETURN(const Specs values_of_b, expand_all(*y));
    GAPLESS_ASSIGN_OR_RETURN(const bool apart, disjoint_all(values_of_a, values_of_b, depth + 1));
    if (apart) return true;
  }
  return false;
}

std::optional<std::vector<SchemaRef>> member_schemas(const SchemaSpec& spec,
                                                     std::string_view name) {
  if (spec.forbidden.contains(std::string(name))) return std::nullopt;
  std::vector<SchemaRef> schemas;
  for (const ObjectClause& clause : spec.objects) {
    bool named = false;
    for (const auto& [property, schema] : clause.properties) {
      if (property != name) continue;
      schemas.push_back(schema);
      named = true;
    }
    for (const auto& [pattern, schema] : clause.patterns) {
      const auto dfa = pattern->dfa();
      if (!dfa.ok() || (*dfa)->match(name) == 0) continue;
      schemas.push_back(schema);
      named = true;
    }
    if (!named && clause.additional != nullptr) schemas.push_back(clause.additional);
  }
  return schemas;
}

}  // namespace gapless
