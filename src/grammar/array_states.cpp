// Arrays: a prefix whose items have schemas of their own, then items that are all alike.
//
// Several alternatives are read at once, as objects' are (object_states.cpp).
#include <algorithm>
#include <iterator>
#include <map>

#include "grammar/compile_work.h"
#include "grammar/json_machines.h"
#include "grammar/states_to_fill.h"

namespace gapless {
namespace {

using AliveSet = std::uint64_t;

class ArrayStates {
 public:
  ArrayStates(JsonMachines& machines, const ContainerJob& job)
      : machines_(machines), builder_(machines.builder()), job_(job) {
    for (const SchemaSpec* spec : job.specs) {
      for (const ArrayClause& clause : spec->arrays) {
        longest_prefix_ = std::max(longest_prefix_, clause.prefix.size());
      }
    }
  }

  Status fill() {
    AliveSet all = 0;
    for (std::size_t i = 0; i < job_.specs.size(); ++i) {
      const SchemaSpec& spec = *job_.specs[i];
      if (spec.max_items == kNoLimit || spec.min_items <= spec.max_items) all |= AliveSet{1} << i;
    }
    if (all == 0) return ok_status();
    const BuildState first = builder_.add_state();
    builder_.add_whitespace(first);
    add_close(first, all, 0);
    GAPLESS_ASSIGN_OR_RETURN(const auto item, item_at({all, 0}));
    std::uint16_t table = 0;
    if (item) {
      table = item->table;
      if (has_room(all)) builder_.copy_edges_later(item->start, first);
    }
    builder_.add_edge(job_.start, '[', first, {.op = GrammarOp::kPush, .table = table});
    while (const auto unfilled = after_states_.next()) {
      const auto& [state, place] = *unfilled;
      builder_.add_whitespace(state);
      add_close(state, place.alive, 1);
      GAPLESS_ASSIGN_OR_RETURN(const auto next, item_at(place));
      if (!next) continue;
      GrammarAction comma{.op = GrammarOp::kComma, .table = next->table};
      builder_.set_conditions(comma, conditions(place.alive));
      builder_.add_edge(state, ',', next->start, comma);
    }
    return ok_status();
  }

 private:
  // Alternatives that may still hold, and the number of items so far, as far as it matters.
  struct Place {
    AliveSet alive = 0;
    std::size_t index = 0;

    friend auto operator<=>(const Place&, const Place&) = default;
  };
  struct Item {
    BuildState start;
    std::uint16_t table;
  };

  bool has_room(AliveSet alive) const {
    for (std::size_t i = 0; i < job_.specs.size(); ++i) {
      if ((alive >> i & 1) != 0 && job_.specs[i]->max_items != 0) return true;
    }
    return false;
  }

  // The item that comes at a place; nothing where none may.
  StatusOr<std::optional<Item>> item_at(const Place& place) {
    GAPLESS_RETURN_IF_ERROR(CompileWork::spend(50 * std::ssize(job_.specs)));
    std::vector<Role> roles;
    std::vector<int> role_of_alternative(job_.specs.size(), -1);
    for (std::size_t i = 0; i < job_.specs.size(); ++i) {
      if ((place.alive >> i & 1) == 0) continue;
      std::vector<SchemaRef> schemas;
      for (const ArrayClause& clause : job_.specs[i]->arrays) {
        schemas.push_back(place.index < clause.prefix.size() ? clause.prefix[place.index]
                                                             : clause.items);
      }
      const Role role = machines_.role_of(schemas);
      const auto found = std::find(roles.begin(), roles.end(), role);
      role_of_alternative[i] = static_cast<int>(found - roles.begin());
      if (found == roles.end()) roles.push_back(role);
    }
    GAPLESS_ASSIGN_OR_RETURN(const JsonMachine* const value, machines_.machine(roles));
    if (value->results.empty()) return std::optional<Item>();
    std::vector<BuildState> next;
    for (const RoleSet result : value->results) {
      AliveSet left = 0;
      for (std::size_t i = 0; i < job_.specs.size(); ++i) {
        const int role = role_of_alternative[i];
        if (role >= 0 && (result >> role & 1) != 0) left |= AliveSet{1} << i;
      }
      next.push_back(after_state({left, std::min(place.index + 1, longest_prefix_)}));
    }
    return std::optional<Item>({value->start, builder_.table(next)});
  }

  BuildState after_state(const Place& place) { return after_states_.state(builder_, place); }

  std::vector<GrammarCondition> conditions(AliveSet alive) const {
    std::vector<GrammarCondition> list;
    for (std::size_t i = 0; i < job_.specs.size(); ++i) {
      if ((alive >> i & 1) == 0) continue;
      const GrammarCondition condition{.required = {},
                                       .min = job_.specs[i]->min_items,
                                       .max = job_.specs[i]->max_items,
                                       .role = static_cast<std::uint32_t>(job_.roles[i])};
      if (std::find(list.begin(), list.end(), condition) == list.end()) list.push_back(condition);
    }
    return list;
  }

  void add_close(BuildState state, AliveSet alive, std::uint16_t uncounted) {
    GrammarAction action{.op = GrammarOp::kClose, .result = uncounted};
    builder_.set_conditions(action, conditions(alive));
    builder_.add_edge(state, ']', state, action);
  }

  JsonMachines& machines_;
  GrammarBuilder& builder_;
  const ContainerJob& job_;
  std::size_t longest_prefix_ = 0;
  StatesToFill<Place> after_states_;
};

}  // namespace

Status fill_arrays(JsonMachines& machines, const ContainerJob& job) {
  return ArrayStates(machines, job).fill();
}

}  // namespace gapless
