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
      : machines_(machines), builder_(machines.builder()), job_(job) {}

  Status fill() {
    GAPLESS_RETURN_IF_ERROR(collect_names());
    GAPLESS_RETURN_IF_ERROR(make_name_languages());
    GAPLESS_RETURN_IF_ERROR(make_trie());
    GAPLESS_RETURN_IF_ERROR(check_counts());
    AliveSet all = 0;
    for (std::size_t i = 0; i < job_.specs.size(); ++i) {
      GAPLESS_ASSIGN_OR_RETURN(const bool possible, is_possible(*job_.specs[i]));
      if (possible) all |= AliveSet{1} << i;
    }
    if (all == 0) return ok_status();
    const BuildState first = builder_.add_state();
    builder_.add_whitespace(first);
    GAPLESS_ASSIGN_OR_RETURN(const Names names, names_under(all));
    if (names.any) builder_.add_edge(first, '"', names.start, names.may_begin);
    add_close(first, all);
    builder_.add_edge(job_.start, '{', first, {.op = GrammarOp::kPush});
    while (const auto unfilled = after_states_.next()) {
      const auto& [state, alive] = *unfilled;
      builder_.add_whitespace(state);
      add_close(state, alive);
      GAPLESS_ASSIGN_OR_RETURN(const Names next_names, names_under(alive));
      if (!next_names.any) continue;
      const BuildState next = builder_.add_state();
      builder_.add_whitespace(next);
      builder_.add_edge(state, ',', next, next_names.may_begin);
      builder_.add_edge(next, '"', next_names.start);
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
          GAPLESS_ASSIGN_OR_RETURN(ByteDfa dfa, make_dfa(std::span(&pattern, 1)));
          languages.push_back(std::move(dfa));
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
          GAPLESS_ASSIGN_OR_RETURN(names, labelled_union(ways));
        }
        names_labels_.emplace(clause.names, languages.size());
        languages.push_back(std::move(names));
      }
    }
    if (languages.size() > kMaxLabels) {
      return make_error(StatusCode::kResourceExhausted, "patternProperties: more than {}",
                        kMaxLabels - 1);
    }
    GAPLESS_ASSIGN_OR_RETURN(languages_, labelled_union(languages));
    return ok_status();
  }

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
        num_allowed += schemas_of(spec, &name, languages_.match(name)).has_value() ? 1 : 0;
      }
      if (num_allowed < static_cast<std::size_t>(spec.min_properties)) return false;
    }
    if (spec.max_properties != kNoLimit &&
        (spec.max_properties < spec.min_properties ||
         spec.max_properties < static_cast<int>(spec.required.size()))) {
      return false;
    }
    for (const std::string& name : spec.required) {
      const auto schemas = schemas_of(spec, &name, languages_.match(name));
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

  // The names that may come while some alternatives hold. What was there may not come again, so a beginning is
  // legal only where some name that is left goes on so: otherwise an answer could run into a dead end.
  struct Names {
    bool any = false;
    BuildState start = 0;  // behind the opening quote
    GrammarAction may_begin;
  };

  StatusOr<Names> names_under(AliveSet alive) {
    if (const auto known = names_.find(alive); known != names_.end()) return known->second;
    GAPLESS_RETURN_IF_ERROR(builder_.check_size());
    GrammarAction room;
    builder_.set_conditions(room, conditions(alive));
    // Classes of names that some alternative allows, and where each one leads.
    std::vector<std::pair<BuildState, GrammarAction>> ends;
    std::map<std::string, std::size_t> named;  // name -> end; absent: not allowed
    for (const auto& [name, bit] : bits_) {
      GAPLESS_RETURN_IF_ERROR(CompileWork::spend(work_of_a_name()));
      GAPLESS_ASSIGN_OR_RETURN(const auto colon,
                               colon_state(class_of(&name, languages_.match(name)), alive));
      if (!colon) continue;
      GrammarAction action = room;
      action.op = GrammarOp::kKey;
      action.result = static_cast<std::uint16_t>(bit);
      named.emplace(name, ends.size());
      ends.emplace_back(*colon, action);
    }
    std::map<LabelSet, std::size_t> others;
    for (const LabelSet labels : languages_.labels) {
      if (labels == 0 || others.contains(labels)) continue;
      GAPLESS_ASSIGN_OR_RETURN(const auto colon, colon_state(class_of(nullptr, labels), alive));
      if (!colon) continue;
      GrammarAction action = room;
      action.op = GrammarOp::kOtherKey;
      others.emplace(labels, ends.size());
      ends.emplace_back(*colon, action);
    }
    GAPLESS_ASSIGN_OR_RETURN(const NameDfa names, name_dfa(named, others, room));
    if (names.dfa.empty()) return names_[alive] = Names();
    const auto on_quote = [&](int q, BuildState state) {
      const LabelSet label = names.dfa.labels[static_cast<std::size_t>(q)];
      if (label == 0) return;
      const auto& [colon, action] = ends[label - 1];
      builder_.add_edge(state, '"', colon, action);
    };
    const std::vector<BuildState> states =
        add_string_states(builder_, names.dfa, {}, /*any_escape=*/false, on_quote, &names.guards);
    return names_[alive] = {
               .any = true, .start = states.front(), .may_begin = names.guards.enter.front()};
  }

  struct NameChild {
    std::size_t byte_class;
    int node;
  };

  // The declared names as a tree, made once.
  struct NameTrie {
    ByteDfa classes;  // of the bytes that names and languages tell apart; no states
    std::vector<std::vector<NameChild>> children = {{}};
    std::vector<const std::string*> name = {nullptr};  // that ends here
    std::vector<int> parent = {-1};
  };

  Status make_trie() {
    trie_.classes = empty_name_dfa();
    for (const auto& [name, bit] : bits_) {
      std::size_t at = 0;
      for (const char c : name) {
        const std::size_t byte_class = trie_.classes.class_of[static_cast<std::uint8_t>(c)];
        // The names come in order: it goes on where the last one did, or nowhere yet.
        const std::vector<NameChild>& children = trie_.children[at];
        if (!children.empty() && children.back().byte_class == byte_class) {
          at = static_cast<std::size_t>(children.back().node);
          continue;
        }
        const std::size_t node = trie_.children.size();
        if (node >= kMaxGrammarStates) {
          return make_error(StatusCode::kResourceExhausted,
                            "properties: names that differ in more than {} characters",
                            kMaxGrammarStates);
        }
        trie_.children[at].push_back({byte_class, static_cast<int>(node)});
        trie_.children.emplace_back();
        trie_.name.push_back(nullptr);
        trie_.parent.push_back(static_cast<int>(at));
        at = node;
      }
      trie_.name[at] = &name;
    }
    return ok_status();
  }

  // Of the languages' states, those from which a name that nobody declares can end.
  std::vector<char> reach_others(const std::map<LabelSet, std::size_t>& others) const {
    const auto num_states = static_cast<std::size_t>(languages_.num_states());
    const auto num_classes = static_cast<std::size_t>(languages_.num_classes);
    std::vector<char> reach(num_states, 0);
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t state = num_states; state-- > 0;) {
        if (reach[state]) continue;
        bool now = others.contains(languages_.labels[state]);
        for (std::size_t c = 0; c < num_classes && !now; ++c) {
          const std::int32_t to = languages_.next[state * num_classes + c];
          now = to != ByteDfa::kDead && reach[static_cast<std::size_t>(to)];
        }
        if (now) reach[state] = 1, changed = true;
      }
    }
    return reach;
  }

  // Of the tree's nodes, the declared names that go on from there and are allowed.
  std::vector<NameSet> names_behind(const std::map<std::string, std::size_t>& named) const {
    std::vector<NameSet> sets(trie_.name.size(), NameSet{});
    for (std::size_t node = sets.size(); node-- > 0;) {
      if (trie_.name[node] != nullptr && named.contains(*trie_.name[node])) {
        const int bit = bits_.at(*trie_.name[node]);
        sets[node][static_cast<std::size_t>(bit) / 32] |= 1u << bit % 32;
      }
      if (trie_.parent[node] < 0) continue;
      NameSet& above = sets[static_cast<std::size_t>(trie_.parent[node])];
      for (std::size_t i = 0; i < above.size(); ++i) above[i] |= sets[node][i];
    }
    return sets;
  }

  // What may come of a beginning of a name.
  struct Ways {
    NameSet names{};      // declared ones
    bool others = false;  // any other one

    friend bool operator==(const Ways&, const Ways&) = default;
  };

  // What must hold where only these may follow.
  GrammarAction may_follow(const GrammarAction& room, const Ways& ways) {
    if (ways.others && !is_bounded(room)) return {};
    GrammarAction action = room;
    action.op = GrammarOp::kName;
    action.result = builder_.name_set(ways.names);
    action.table = ways.others ? 1 : 0;
    return action;
  }

  // An automaton whose label is the number of the name's end, plus one. States are pairs: how far the
  // name is a declared one, and where it stands among the languages.
  struct NameDfa {
    ByteDfa dfa;
    NameGuards guards;
  };

  StatusOr<NameDfa> name_dfa(const std::map<std::string, std::size_t>& named,
                             const std::map<LabelSet, std::size_t>& others,
                             const GrammarAction& room) {
    ByteDfa dfa = trie_.classes;
    const std::vector<std::uint8_t> bytes = byte_of_each_class(dfa);
    struct Pair {
      int node;
      std::int32_t language;
      std::int32_t from;  // the one before it, of a pair on the tree
    };
    std::vector<Pair> pairs;
    // Of pairs off the tree, and of those on it: a node of a tree is reached in one way only.
    std::vector<std::int32_t> off_tree(static_cast<std::size_t>(languages_.num_states()), -1);
    const auto number_of = [&](int node, std::int32_t language, std::int32_t from) {
      if (node >= 0) {
        pairs.push_back({node, language, from});
        return static_cast<std::int32_t>(pairs.size() - 1);
      }
      std::int32_t& number = off_tree[static_cast<std::size_t>(language)];
      if (number < 0) {
        number = static_cast<std::int32_t>(pairs.size());
        pairs.push_back({node, language, from});
      }
      return number;
    };
    number_of(0, others.empty() ? ByteDfa::kDead : 0, -1);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      GAPLESS_RETURN_IF_ERROR(CompileWork::spend(dfa.num_classes));
      const auto [node, language, from] = pairs[i];
      const auto at = static_cast<std::size_t>(node);
      LabelSet label = 0;
      if (node >= 0 && trie_.name[at] != nullptr) {
        const auto found = named.find(*trie_.name[at]);
        if (found != named.end()) label = found->second + 1;
      } else if (language != ByteDfa::kDead) {
        const auto found = others.find(languages_.labels[static_cast<std::size_t>(language)]);
        if (found != others.end()) label = found->second + 1;
      }
      dfa.labels.push_back(label);
      const std::size_t row = dfa.next.size();
      dfa.next.resize(row + bytes.size(), ByteDfa::kDead);
      const auto here = static_cast<std::int32_t>(i);
      if (node >= 0) {
        for (const NameChild& child : trie_.children[at]) {
          const std::int32_t to = languages_.step(language, bytes[child.byte_class]);
          dfa.next[row + child.byte_class] = number_of(child.node, to, here);
        }
      }
      if (language == ByteDfa::kDead) continue;
      for (std::size_t c = 0; c < bytes.size(); ++c) {
        if (dfa.next[row + c] != ByteDfa::kDead) continue;
        const std::int32_t to = languages_.step(language, bytes[c]);
        if (to != ByteDfa::kDead) dfa.next[row + c] = number_of(-1, to, here);
      }
    }
    // From the tree's leaves up: whether a name that nobody declares may come of it.
    const std::vector<char> off_tree_others = reach_others(others);
    std::vector<char> has_others(pairs.size(), 0);
    for (std::size_t i = pairs.size(); i-- > 0;) {
      if (pairs[i].node < 0) {
        has_others[i] = off_tree_others[static_cast<std::size_t>(pairs[i].language)];
        continue;
      }
      const bool is_name = trie_.name[static_cast<std::size_t>(pairs[i].node)] != nullptr;
      has_others[i] = dfa.labels[i] != 0 && !is_name;
      for (std::size_t c = 0; c < bytes.size() && !has_others[i]; ++c) {
        const std::int32_t to = dfa.next[i * bytes.size() + c];
        if (to == ByteDfa::kDead) continue;
        const Pair& next = pairs[static_cast<std::size_t>(to)];
        has_others[i] = next.node < 0 ? off_tree_others[static_cast<std::size_t>(next.language)]
                                      : has_others[static_cast<std::size_t>(to)];
      }
    }
    const std::vector<NameSet> behind = names_behind(named);
    const auto ways_at = [&](std::size_t number) {
      Ways ways{.names = {}, .others = has_others[number] != 0};
      const int node = pairs[number].node;
      if (node >= 0) ways.names = behind[static_cast<std::size_t>(node)];
      return ways;
    };
    std::vector<std::int32_t> kept;
    NameDfa result{.dfa = trimmed(dfa, &kept), .guards = {}};
    if (result.dfa.empty()) return result;
    std::vector<Ways> ways;
    for (const std::int32_t number : kept) {
      const auto at = static_cast<std::size_t>(number);
      ways.push_back(ways_at(at));
      // As before it: then it was looked at there.
      const std::int32_t from = pairs[at].from;
      const bool is_new = pairs[at].node >= 0 &&
                          (from < 0 || !(ways.back() == ways_at(static_cast<std::size_t>(from))));
      result.guards.enter.push_back(is_new ? may_follow(room, ways.back()) : GrammarAction());
    }
    const std::vector<std::size_t> escape_classes = classes_with_escapes(result.dfa);
    for (std::size_t q = 0; q < ways.size(); ++q) {
      const Ways escaped = ways_of_escapes(result.dfa, q, ways, escape_classes);
      result.guards.escape.push_back(
          escaped == ways[q] || escaped == Ways() ? GrammarAction() : may_follow(room, escaped));
    }
    // No declared name has a control character.
    result.guards.control = may_follow(room, {.names = {}, .others = true});
    return result;
  }

  static std::vector<std::size_t> classes_with_escapes(const ByteDfa& dfa) {
    std::vector<std::size_t> classes;
    for (int byte = 0; byte < 256; ++byte) {
      if (!has_escape(static_cast<std::uint8_t>(byte))) continue;
      const std::size_t byte_class = dfa.class_of[static_cast<std::size_t>(byte)];
      if (classes.empty() || classes.back() != byte_class) classes.push_back(byte_class);
    }
    return classes;
  }

  // What may come of state q when the next character is spelled with a backslash.
  static Ways ways_of_escapes(const ByteDfa& dfa, std::size_t q, std::span<const Ways> ways,
                              std::span<const std::size_t> escape_classes) {
    Ways escaped;
    const std::size_t row = q * static_cast<std::size_t>(dfa.num_classes);
    for (const std::size_t byte_class : escape_classes) {
      const std::int32_t to = dfa.next[row + byte_class];
      if (to == ByteDfa::kDead) continue;
      const Ways& next = ways[static_cast<std::size_t>(to)];
      escaped.others = escaped.others || next.others;
      for (std::size_t i = 0; i < next.names.size(); ++i) escaped.names[i] |= next.names[i];
    }
    return escaped;
  }

  // Classes of the bytes that names and languages tell apart.
  ByteDfa empty_name_dfa() const {
    std::array<bool, 257> starts_class{};
    for (std::size_t byte = 1; byte < 256; ++byte) {
      starts_class[byte] = languages_.class_of[byte] != languages_.class_of[byte - 1];
    }
    for (const auto& [name, bit] : bits_) {
      for (const char c : name) {
        const auto byte = static_cast<std::uint8_t>(c);
        starts_class[byte] = starts_class[std::size_t{byte} + 1] = true;
      }
    }
    ByteDfa dfa;
    number_classes(starts_class, dfa);
    return dfa;
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

  bool is_bounded(const GrammarAction& room) const { return builder_.is_bounded(room); }

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
  std::map<const Regex*, std::size_t> pattern_labels_;
  std::map<SchemaRef, std::size_t> names_labels_;
  ByteDfa languages_;
  NameTrie trie_;
  std::map<AliveSet, Names> names_;
  StatesToFill<AliveSet> after_states_;
  std::map<std::pair<std::vector<Role>, std::vector<int>>, std::optional<BuildState>> colons_;
};

}  // namespace

Status fill_objects(JsonMachines& machines, const ContainerJob& job) {
  return ObjectStates(machines, job).fill();
}

}  // namespace gapless
