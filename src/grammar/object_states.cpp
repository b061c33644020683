// Objects: names in any order, each declared one at most once.
//
//   {  -->  first  -- " -->  name ...  -- " -->  colon  -- : -->  (value)  -->  after
//             |                                                                  |  |
//             }                                   next  <---------- , -----------+  }
//
// Several alternatives (anyOf of objects) are read at once: the states exist for each set of those that may
// still hold. A name or a value that an alternative does not allow takes it out of the set.
#include <algorithm>
#include <array>
#include <map>

#include "grammar/compile_work.h"
#include "grammar/json_machines.h"
#include "grammar/name_states.h"
#include "grammar/states_to_fill.h"

namespace gapless {
namespace {

using AliveSet = std::uint64_t;

// What a name of this kind may hold under each alternative.
struct NameClass {
  int bit = -1;                                                // of a declared name; -1: any other
  std::vector<std::optional<std::vector<SchemaRef>>> schemas;  // by alternative; nothing: forbidden
};

class ObjectStates {
 public:
  ObjectStates(JsonMachines& machines, const ContainerJob& job)
      : machines_(machines), builder_(machines.builder()), job_(job), name_states_(builder_) {}

  Status fill() {
    GAPLESS_RETURN_IF_ERROR(collect_names());
    GAPLESS_RETURN_IF_ERROR(make_name_languages());
    GAPLESS_RETURN_IF_ERROR(check_counts());
    AliveSet all = 0;
    for (std::size_t i = 0; i < job_.specs.size(); ++i) {
      GAPLESS_ASSIGN_OR_RETURN(const bool possible, is_possible(*job_.specs[i]));
      if (possible) all |= AliveSet{1} << i;
    }
    if (all == 0) return ok_status();
    const BuildState first = builder_.add_state();
    builder_.add_whitespace(first);
    GAPLESS_ASSIGN_OR_RETURN(const NameStart names, names_under(all));
    if (names.state != kNoBuildState) builder_.add_edge(first, '"', names.state, names.may_begin);
    add_close(first, all);
    builder_.add_edge(job_.start, '{', first, {.op = GrammarOp::kPush});
    while (const auto unfilled = after_states_.next()) {
      const auto& [state, alive] = *unfilled;
      builder_.add_whitespace(state);
      add_close(state, alive);
      GAPLESS_ASSIGN_OR_RETURN(const NameStart next_names, names_under(alive));
      if (next_names.state == kNoBuildState) continue;
      const BuildState next = builder_.add_state();
      builder_.add_whitespace(next);
      builder_.add_edge(state, ',', next, next_names.may_begin);
      builder_.add_edge(next, '"', next_names.state);
    }
    return ok_status();
  }

 private:
  // ---- names

  Status collect_names() {
    for (const SchemaSpec* spec : job_.specs) {
      for (const ObjectClause& clause : spec->objects) {
        for (const auto& [name, schema] : clause.properties) bits_.emplace(name, 0);
      }
      for (const std::string& name : spec->required) bits_.emplace(name, 0);
      for (const std::string& name : spec->forbidden) bits_.emplace(name, 0);
    }
    if (bits_.size() > kMaxObjectNames) {
      return make_error(StatusCode::kResourceExhausted, "properties: more than {} names",
                        kMaxObjectNames);
    }
    int bit = 0;
    for (auto& [name, number] : bits_) {
      number = bit++;
      const bool plain = std::all_of(name.begin(), name.end(),
                                     [](char c) { return static_cast<unsigned char>(c) >= 0x20; });
      if (!plain) return invalid_argument("properties: a name with a control character");
    }
    return ok_status();
  }

  // Languages that tell names apart: all strings, then each pattern, then each propertyNames.
  Status make_name_languages() {
    std::vector<ByteDfa> languages = {dfa_of_all_strings()};
    for (const SchemaSpec* spec : job_.specs) {
      for (const ObjectClause& clause : spec->objects) {
        for (const auto& [pattern, schema] : clause.patterns) {
          if (pattern_labels_.contains(pattern.get())) continue;
          pattern_labels_.emplace(pattern.get(), languages.size());
          GAPLESS_ASSIGN_OR_RETURN(const ByteDfa* const dfa, pattern->dfa());
          languages.push_back(*dfa);
        }
        if (clause.names == nullptr || names_labels_.contains(clause.names)) continue;
        GAPLESS_ASSIGN_OR_RETURN(const auto* const specs,
                                 machines_.expander().expand(clause.names));
        ByteDfa names;
        std::vector<ByteDfa> ways;
        for (const SchemaSpec& way : *specs) {
          if ((way.types & kStringType) == 0) continue;
          GAPLESS_ASSIGN_OR_RETURN(ByteDfa dfa, string_values(way, /*bounded=*/true));
          ways.push_back(std::move(dfa));
        }
        if (!ways.empty()) {
          GAPLESS_ASSIGN_OR_RETURN(names, labelled_union(std::move(ways)));
        }
        names_labels_.emplace(clause.names, languages.size());
        languages.push_back(std::move(names));
      }
    }
    if (languages.size() > kMaxLabels) {
      return make_error(StatusCode::kResourceExhausted, "patternProperties: more than {}",
                        kMaxLabels - 1);
    }
    GAPLESS_ASSIGN_OR_RETURN(ByteDfa all, labelled_union(std::move(languages)));
    return name_states_.set_names(bits_, std::move(all));
  }

  const ByteDfa& languages() const { return name_states_.languages(); }

  bool has(LabelSet labels, std::size_t label) const { return (labels >> label & 1) != 0; }

  // The schemas of a member under one alternative. `name`: nullptr for one that no clause declares.
  std::optional<std::vector<SchemaRef>> schemas_of(const SchemaSpec& spec, const std::string* name,
                                                   LabelSet labels) const {
    if (name != nullptr && spec.forbidden.contains(*name)) return std::nullopt;
    std::vector<SchemaRef> schemas;
    for (const ObjectClause& clause : spec.objects) {
      if (clause.names != nullptr && !has(labels, names_labels_.at(clause.names))) {
        return std::nullopt;
      }
      bool named = false;
      for (const auto& [property, schema] : clause.properties) {
        if (name == nullptr || property != *name) continue;
        schemas.push_back(schema);
        named = true;
      }
      for (const auto& [pattern, schema] : clause.patterns) {
        if (!has(labels, pattern_labels_.at(pattern.get()))) continue;
        schemas.push_back(schema);
        named = true;
      }
      if (!named && clause.additional != nullptr) schemas.push_back(clause.additional);
    }
    return schemas;
  }

  NameClass class_of(const std::string* name, LabelSet labels) const {
    NameClass c;
    if (name != nullptr) c.bit = bits_.at(*name);
    for (const SchemaSpec* spec : job_.specs) c.schemas.push_back(schemas_of(*spec, name, labels));
    return c;
  }

  // Whether what it requires is there to be had.
  StatusOr<bool> is_possible(const SchemaSpec& spec) {
    if (spec.min_properties > 0 && is_declared_only(spec)) {
      // What is declared under patterns or forbidden may be fewer still; their values are looked at elsewhere.
      std::size_t num_allowed = 0;
      for (const auto& [name, bit] : bits_) {
        num_allowed += schemas_of(spec, &name, languages().match(name)).has_value() ? 1 : 0;
      }
      if (num_allowed < static_cast<std::size_t>(spec.min_properties)) return false;
    }
    if (spec.max_properties != kNoLimit &&
        (spec.max_properties < spec.min_properties ||
         spec.max_properties < static_cast<int>(spec.required.size()))) {
      return false;
    }
    for (const std::string& name : spec.required) {
      const auto schemas = schemas_of(spec, &name, languages().match(name));
      if (!schemas) return false;
      GAPLESS_ASSIGN_OR_RETURN(const JsonMachine* const value,
                               machines_.machine({machines_.role_of(*schemas)}));
      if (value->results.empty()) return false;
    }
    return true;
  }

  static bool is_declared_only(const SchemaSpec& spec) {
    return std::any_of(spec.objects.begin(), spec.objects.end(), [](const ObjectClause& clause) {
      return clause.patterns.empty() && clause.additional != nullptr &&
             clause.additional->is_bool() && !clause.additional->get_bool();
    });
  }

  // A name that nobody declares may come twice, so members cannot be counted by their names.
  Status check_counts() const {
    for (const SchemaSpec* spec : job_.specs) {
      const int sure = std::max<int>(1, static_cast<int>(spec->required.size()));
      if (spec->min_properties <= sure) continue;
      if (!is_declared_only(*spec)) {
        return invalid_argument(
            "minProperties: with names that are not declared it must be at "
            "most 1 or the number of required ones");
      }
    }
    return ok_status();
  }

  // ---- states

  // The names that may come while some alternatives hold.
  StatusOr<NameStart> names_under(AliveSet alive) {
    if (const auto known = names_.find(alive); known != names_.end()) return known->second;
    GAPLESS_RETURN_IF_ERROR(builder_.check_size());
    GrammarAction room;
    builder_.set_conditions(room, conditions(alive));
    // Names that some alternative allows, and where each one leads.
    AllowedNames allowed;
    allowed.declared.resize(bits_.size());
    for (const auto& [name, bit] : bits_) {
      GAPLESS_RETURN_IF_ERROR(CompileWork::spend(work_of_a_name()));
      GAPLESS_ASSIGN_OR_RETURN(const auto colon,
                               colon_state(class_of(&name, languages().match(name)), alive));
      if (!colon) continue;
      NameEnd& end = allowed.declared[static_cast<std::size_t>(bit)].emplace(NameEnd{*colon, room});
      end.action.op = GrammarOp::kKey;
      end.action.result = static_cast<std::uint16_t>(bit);
    }
    for (const LabelSet labels : languages().labels) {
      if (labels == 0 || allowed.others.contains(labels)) continue;
      GAPLESS_ASSIGN_OR_RETURN(const auto colon, colon_state(class_of(nullptr, labels), alive));
      if (!colon) continue;
      NameEnd& end = allowed.others.emplace(labels, NameEnd{*colon, room}).first->second;
      end.action.op = GrammarOp::kOtherKey;
    }
    GAPLESS_ASSIGN_OR_RETURN(const NameStart start, name_states_.add(allowed, room));
    return names_[alive] = start;
  }

  // Behind a name's closing quote; nothing where no alternative allows it.
  StatusOr<std::optional<BuildState>> colon_state(const NameClass& name, AliveSet alive) {
    std::vector<Role> roles;
    std::vector<int> role_of_alternative(job_.specs.size(), -1);
    for (std::size_t i = 0; i < job_.specs.size(); ++i) {
      if ((alive >> i & 1) == 0 || !name.schemas[i]) continue;
      const Role role = machines_.role_of(*name.schemas[i]);
      const auto found = std::find(roles.begin(), roles.end(), role);
      role_of_alternative[i] = static_cast<int>(found - roles.begin());
      if (found == roles.end()) roles.push_back(role);
    }
    if (roles.empty()) return std::optional<BuildState>();
    // The same value leads the same way.
    const auto key = std::make_pair(roles, role_of_alternative);
    if (const auto known = colons_.find(key); known != colons_.end()) return known->second;
    GAPLESS_ASSIGN_OR_RETURN(const JsonMachine* const value, machines_.machine(roles));
    if (value->results.empty()) return colons_[key] = std::nullopt;
    std::vector<BuildState> next;
    for (const RoleSet result : value->results) {
      AliveSet left = 0;
      for (std::size_t i = 0; i < job_.specs.size(); ++i) {
        const int role = role_of_alternative[i];
        if (role >= 0 && (result >> role & 1) != 0) left |= AliveSet{1} << i;
      }
      next.push_back(after_state(left));
    }
    const BuildState colon = builder_.add_state();
    builder_.add_whitespace(colon);
    builder_.add_edge(colon, ':', value->start,
                      {.op = GrammarOp::kCall, .table = builder_.table(next)});
    return colons_[key] = colon;
  }

  BuildState after_state(AliveSet alive) { return after_states_.state(builder_, alive); }

  std::vector<GrammarCondition> conditions(AliveSet alive) const {
    std::vector<GrammarCondition> list;
    for (std::size_t i = 0; i < job_.specs.size(); ++i) {
      if ((alive >> i & 1) == 0) continue;
      const SchemaSpec& spec = *job_.specs[i];
      GrammarCondition condition{.required = {},
                                 .min = spec.min_properties,
                                 .max = spec.max_properties,
                                 .role = static_cast<std::uint32_t>(job_.roles[i])};
      for (const std::string& name : spec.required) {
        const int bit = bits_.at(name);
        condition.required[static_cast<std::size_t>(bit) / 32] |= 1u << bit % 32;
      }
      if (std::find(list.begin(), list.end(), condition) == list.end()) list.push_back(condition);
    }
    return list;
  }

  // Steps of finding out what a name may hold: its schemas are looked for in every clause.
  long work_of_a_name() const {
    std::size_t work = 20;
    for (const SchemaSpec* spec : job_.specs) {
      for (const ObjectClause& clause : spec->objects) work += 2 + clause.properties.size() / 2;
    }
    return static_cast<long>(work);
  }

  void add_close(BuildState state, AliveSet alive) {
    GrammarAction action{.op = GrammarOp::kClose};
    builder_.set_conditions(action, conditions(alive));
    builder_.add_edge(state, '}', state, action);
  }

  JsonMachines& machines_;
  GrammarBuilder& builder_;
  const ContainerJob& job_;
  std::map<std::string, int> bits_;
  std::map<const StringPattern*, std::size_t> pattern_labels_;
  std::map<SchemaRef, std::size_t> names_labels_;
  NameStates name_states_;
  std::map<AliveSet, NameStart> names_;
  StatesToFill<AliveSet> after_states_;
  std::map<std::pair<std::vector<Role>, std::vector<int>>, std::optional<BuildState>> colons_;
};

}  // namespace

Status fill_objects(JsonMachines& machines, const ContainerJob& job) {
  return ObjectStates(machines, job).fill();
}

}  // namespace gapless
