// Makes the states of JSON values: one machine for each list of schemas that a value may satisfy.
#pragma once

#include <deque>
#include <map>
#include <span>
#include <vector>

#include "base/status.h"
#include "grammar/canonical_schema.h"
#include "grammar/grammar_builder.h"
#include "grammar/schema_expander.h"

namespace gapless {

// Schemas that a value must satisfy all at once.
using Role = std::vector<SchemaRef>;
// Bits of roles.
using RoleSet = std::uint32_t;

// The states that read one value and return which of the roles it satisfies.
struct JsonMachine {
  BuildState start = 0;
  std::vector<RoleSet> results;  // what it may return, by the number that it returns
};

class JsonMachines {
 public:
  JsonMachines(SchemaExpander& expander, GrammarBuilder& builder);

  // Objects and arrays are filled in by fill_all(), so that schemas may refer to themselves. Without
  // results: no value satisfies any role.
  StatusOr<const JsonMachine*> machine(const std::vector<Role>& roles);
  Status fill_all();

  // A list of schemas as a role: the same for the same schemas.
  Role role_of(const std::vector<SchemaRef>& schemas);

  GrammarBuilder& builder() { return builder_; }
  SchemaExpander& expander() { return expander_; }

 private:
  struct Alternative {
    const SchemaSpec* spec;
    int role;
  };
  struct Unfilled {
    const JsonMachine* machine;
    SchemaRef at;  // of its first role, for errors
    std::vector<Alternative> alternatives;
  };

  Status fill_containers(const Unfilled& next);
  Status fill_scalars(JsonMachine& machine, const std::vector<Alternative>& alternatives,
                      bool results_are_fixed);
  Status fill_literals(JsonMachine& machine, const std::vector<Alternative>& alternatives,
                       bool results_are_fixed);
  Status fill_strings(JsonMachine& machine, const std::vector<Alternative>& alternatives,
                      bool results_are_fixed);
  Status fill_numbers(JsonMachine& machine, const std::vector<Alternative>& alternatives,
                      bool results_are_fixed);

  SchemaExpander& expander_;
  GrammarBuilder& builder_;
  CanonicalSchemas canonical_;
  BuildState nowhere_;  // where edges lead that go where the frame says
  std::map<std::vector<Role>, JsonMachine> machines_;
  std::deque<std::vector<SchemaSpec>> specs_;
  std::deque<Unfilled> unfilled_;
};

// The objects and arrays of a machine (object_states.cpp, array_states.cpp). specs[i] gives role roles[i].
struct ContainerJob {
  BuildState start = 0;
  std::vector<const SchemaSpec*> specs;
  std::vector<int> roles;
};
Status fill_objects(JsonMachines& machines, const ContainerJob& job);
Status fill_arrays(JsonMachines& machines, const ContainerJob& job);

}  // namespace gapless
