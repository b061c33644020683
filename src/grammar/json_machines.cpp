#include "grammar/json_machines.h"

#include <algorithm>

#include "base/check.h"
#include "grammar/grammar_limits.h"
#include "grammar/string_states.h"

namespace gapless {
namespace {

// Roles of a machine with objects or arrays: what it returns is known only when it is filled in, so it
// has a result for every set of them.
constexpr std::size_t kMaxContainerRoles = 4;

// The number of a result, which a container's machine has for every set of roles.
std::uint16_t result_number(JsonMachine& machine, RoleSet roles, bool results_are_fixed) {
  if (results_are_fixed) return static_cast<std::uint16_t>(roles - 1);
  const auto found = std::find(machine.results.begin(), machine.results.end(), roles);
  const auto number = static_cast<std::uint16_t>(found - machine.results.begin());
  if (found == machine.results.end()) machine.results.push_back(roles);
  return number;
}

// nullptr: anything.
SchemaRef first_schema(const std::vector<Role>& roles) {
  for (const Role& role : roles) {
    if (!role.empty()) return role.front();
  }
  return nullptr;
}

bool same_length_bounds(const SchemaSpec& a, const SchemaSpec& b) {
  return a.min_length == b.min_length && a.max_length == b.max_length;
}

// The error of a bound that this keyword's value is past.
Status with_keyword(const Status& error, std::string_view keyword) {
  if (error.code() != StatusCode::kResourceExhausted) return error;
  return Status(error.code(), std::string(keyword) + ": " + error.message());
}

std::string_view string_keyword(const SchemaSpec& spec) {
  return spec.patterns.empty() && spec.not_patterns.empty() ? "minLength, maxLength"
                                                            : "pattern or format";
}

bool is_any_string(const SchemaSpec& spec) {
  return spec.patterns.empty() && spec.not_patterns.empty() && !spec.strings &&
         spec.not_strings.empty();
}

}  // namespace

JsonMachines::JsonMachines(SchemaExpander& expander, GrammarBuilder& builder)
    : expander_(expander), builder_(builder), nowhere_(builder.add_state()) {}

Role JsonMachines::role_of(const std::vector<SchemaRef>& schemas) {
  Role role;
  for (const SchemaRef schema : schemas) {
    if (const SchemaRef canonical = canonical_.of(schema)) role.push_back(canonical);
  }
  std::sort(role.begin(), role.end());
  role.erase(std::unique(role.begin(), role.end()), role.end());
  return role;
}

StatusOr<const JsonMachine*> JsonMachines::machine(const std::vector<Role>& roles) {
  if (const auto known = machines_.find(roles); known != machines_.end()) return &known->second;
  GAPLESS_RETURN_IF_ERROR(builder_.check_size());
  std::vector<Alternative> alternatives;
  bool has_containers = false;
  for (std::size_t role = 0; role < roles.size(); ++role) {
    GAPLESS_ASSIGN_OR_RETURN(std::vector<SchemaSpec> specs, expander_.expand_all(roles[role]));
    specs_.push_back(std::move(specs));
    for (const SchemaSpec& spec : specs_.back()) {
      alternatives.push_back({&spec, static_cast<int>(role)});
      has_containers |= (spec.types & (kObjectType | kArrayType)) != 0;
    }
  }
  const SchemaRef at = first_schema(roles);
  if (alternatives.size() > kMaxSchemaAlternatives) {
    return expander_.with_place(
        make_error(StatusCode::kResourceExhausted, "a value has more than {} alternatives",
                   kMaxSchemaAlternatives),
        at);
  }
  if (has_containers && roles.size() > kMaxContainerRoles) {
    return expander_.with_place(
        invalid_argument("anyOf: more than {} objects or lists may begin alike",
                         kMaxContainerRoles),
        at);
  }
  JsonMachine& machine = machines_[roles];
  machine.start = builder_.add_state();
  if (has_containers) {
    for (RoleSet set = 1; set < RoleSet{1} << roles.size(); ++set) machine.results.push_back(set);
    unfilled_.push_back({&machine, at, alternatives});
  }
  const Status filled = fill_scalars(machine, alternatives, has_containers);
  if (!filled.ok()) return expander_.with_place(filled, at);
  return &machine;
}

Status JsonMachines::fill_all() {
  while (!unfilled_.empty()) {
    const Unfilled next = std::move(unfilled_.front());
    unfilled_.pop_front();
    const Status filled = fill_containers(next);
    if (!filled.ok()) return expander_.with_place(filled, next.at);
    GAPLESS_RETURN_IF_ERROR(builder_.check_size());
  }
  return ok_status();
}

Status JsonMachines::fill_containers(const Unfilled& next) {
  ContainerJob objects{.start = next.machine->start, .specs = {}, .roles = {}}, arrays = objects;
  for (const Alternative& alternative : next.alternatives) {
    for (const auto& [type, job] :
         {std::pair(kObjectType, &objects), std::pair(kArrayType, &arrays)}) {
      if ((alternative.spec->types & type) == 0) continue;
      job->specs.push_back(alternative.spec);
      job->roles.push_back(alternative.role);
    }
  }
  if (!objects.specs.empty()) GAPLESS_RETURN_IF_ERROR(fill_objects(*this, objects));
  if (!arrays.specs.empty()) GAPLESS_RETURN_IF_ERROR(fill_arrays(*this, arrays));
  return ok_status();
}

// ---- values without members

Status JsonMachines::fill_scalars(JsonMachine& machine,
                                  const std::vector<Alternative>& alternatives,
                                  bool results_are_fixed) {
  builder_.add_whitespace(machine.start);
  GAPLESS_RETURN_IF_ERROR(fill_literals(machine, alternatives, results_are_fixed));
  GAPLESS_RETURN_IF_ERROR(fill_strings(machine, alternatives, results_are_fixed));
  return fill_numbers(machine, alternatives, results_are_fixed);
}

Status JsonMachines::fill_literals(JsonMachine& machine,
                                   const std::vector<Alternative>& alternatives,
                                   bool results_are_fixed) {
  for (const auto& [type, text] : {std::pair(kNullType, std::string_view("null")),
                                   std::pair(kFalseType, std::string_view("false")),
                                   std::pair(kTrueType, std::string_view("true"))}) {
    RoleSet roles = 0;
    for (const Alternative& a : alternatives) {
      if ((a.spec->types & type) != 0) roles |= RoleSet{1} << a.role;
    }
    if (roles == 0) continue;
    BuildState state = machine.start;
    for (std::size_t i = 0; i + 1 < text.size(); ++i) {
      const BuildState next = builder_.add_state();
      builder_.add_edge(state, text[i], next);
      state = next;
    }
    builder_.add_edge(
        state, text.back(), nowhere_,
        {.op = GrammarOp::kReturn, .result = result_number(machine, roles, results_are_fixed)});
  }
  return ok_status();
}

Status JsonMachines::fill_strings(JsonMachine& machine,
                                  const std::vector<Alternative>& alternatives,
                                  bool results_are_fixed) {
  std::vector<Alternative> strings;
  for (const Alternative& a : alternatives) {
    if ((a.spec->types & kStringType) != 0) strings.push_back(a);
  }
  if (strings.empty()) return ok_status();
  const SchemaSpec& first = *strings.front().spec;
  // Lengths are counted while the string is written; where alternatives count differently, their
  // automata do.
  const bool counts = std::all_of(strings.begin(), strings.end(), [&](const Alternative& a) {
    return same_length_bounds(*a.spec, first);
  });
  std::vector<ByteDfa> parts;
  bool all_any = true;
  for (const Alternative& a : strings) {
    StatusOr<ByteDfa> part = string_values(*a.spec, /*bounded=*/!counts);
    if (!part.ok()) return with_keyword(part.status(), string_keyword(*a.spec));
    parts.push_back(std::move(*part));
    all_any &= is_any_string(*a.spec) && counts;
  }
  const bool is_listed = first.strings.has_value();  // its lengths were looked at
  const bool bounded =
      counts && !is_listed && (first.min_length > 0 || first.max_length != kNoLimit);
  if (bounded && first.max_length != kNoLimit && first.max_length < first.min_length) {
    return ok_status();
  }
  GAPLESS_ASSIGN_OR_RETURN(const ByteDfa dfa, labelled_union(std::move(parts)));
  if (dfa.empty()) return ok_status();

  GrammarAction on_char;
  if (bounded) on_char = {.op = GrammarOp::kChar, .max = first.max_length};
  const auto on_quote = [&](std::int32_t q, BuildState state) {
    RoleSet roles = 0;
    for (std::size_t i = 0; i < strings.size(); ++i) {
      const LabelSet labels = dfa.labels[static_cast<std::size_t>(q)];
      if ((labels >> i & 1) != 0) roles |= RoleSet{1} << strings[i].role;
    }
    if (roles == 0) return;
    GrammarAction end{.op = GrammarOp::kReturn,
                      .result = result_number(machine, roles, results_are_fixed)};
    if (bounded) {
      end.op = GrammarOp::kStringEnd;
      end.min = first.min_length;
    }
    builder_.add_edge(state, '"', nowhere_, end);
  };
  StringStates states(builder_, dfa, on_char, /*on_control=*/{}, /*any_escape=*/all_any);
  GrammarAction begin;
  if (bounded) begin.op = GrammarOp::kStringBegin;
  builder_.add_edge(machine.start, '"', states.state(0), begin);
  states.fill(on_quote);
  return ok_status();
}

Status JsonMachines::fill_numbers(JsonMachine& machine,
                                  const std::vector<Alternative>& alternatives,
                                  bool results_are_fixed) {
  std::vector<Alternative> numbers;
  std::vector<ByteDfa> parts;
  for (const Alternative& a : alternatives) {
    if ((a.spec->types & kNumberType) == 0) continue;
    StatusOr<ByteDfa> part = number_texts(*a.spec);
    if (!part.ok()) return with_keyword(part.status(), "bounds of numbers");
    numbers.push_back(a);
    parts.push_back(std::move(*part));
  }
  if (numbers.empty()) return ok_status();
  GAPLESS_ASSIGN_OR_RETURN(const ByteDfa dfa, labelled_union(std::move(parts)));
  if (dfa.empty()) return ok_status();
  std::vector<BuildState> states;
  for (int q = 0; q < dfa.num_states(); ++q) states.push_back(builder_.add_state());
  for (int q = 0; q < dfa.num_states(); ++q) {
    const BuildState from = states[static_cast<std::size_t>(q)];
    for (int first = 0, last = 0; first < 128; first = last + 1) {
      const std::int32_t to = dfa.step(q, static_cast<std::uint8_t>(first));
      for (last = first; last < 127; ++last) {
        if (dfa.step(q, static_cast<std::uint8_t>(last + 1)) != to) break;
      }
      if (to == ByteDfa::kDead) continue;
      const auto add = [&](BuildState state) {
        builder_.add_edge(state, static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last),
                          states[static_cast<std::size_t>(to)]);
      };
      add(from);
      if (q == 0) add(machine.start);
    }
    RoleSet roles = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const LabelSet labels = dfa.labels[static_cast<std::size_t>(q)];
      if ((labels >> i & 1) != 0) roles |= RoleSet{1} << numbers[i].role;
    }
    if (roles == 0) continue;
    const GrammarAction end{.op = GrammarOp::kRedo,
                            .result = result_number(machine, roles, results_are_fixed)};
    for (const char byte : {' ', '\t', '\n', '\r', ',', '}', ']'}) {
      builder_.add_edge(from, byte, nowhere_, end);
    }
    builder_.set_may_end(from);
  }
  return ok_status();
}

}  // namespace gapless
