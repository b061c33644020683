#include "grammar/text_with_calls.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/json.h"
#include "grammar/compile_work.h"
#include "grammar/grammar_limits.h"
#include "grammar/json_machines.h"

namespace gapless {
namespace {

namespace json = boost::json;

bool is_blank(char byte) {
  return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

// The longest end of `text` that `marker` begins with, the whole of the marker included.
std::string longest_beginning(std::string text, std::string_view marker) {
  while (!marker.starts_with(text)) text.erase(0, 1);
  return text;
}

// Arguments are one, whatever their schema says.
const json::value& any_object() {
  static const json::value schema = {{"type", "object"}};
  return schema;
}

class TextWithCalls {
 public:
  TextWithCalls(const json::array& functions, const CallForm& form, const json::value& document)
      : functions_(functions), form_(form), expander_(document), machines_(expander_, builder_) {}

  StatusOr<Grammar> build() {
    after_value_ = builder_.add_state();
    const BuildState behind_call = builder_.add_state();
    builder_.add_whitespace(after_value_);
    builder_.add_edge(after_value_, '}', behind_call);
    BuildState start = 0;
    if (form_.begin.empty()) {
      builder_.set_may_end(behind_call);
      start = builder_.add_state();
      const BuildState text = builder_.add_state();
      add_other_bytes(text, text);
      GAPLESS_RETURN_IF_ERROR(add_calls(start, text));
    } else {
      const BuildState call = builder_.add_state();
      GAPLESS_RETURN_IF_ERROR(add_calls(call, std::nullopt));
      start = add_text(call);
      add_literal(behind_call, form_.end, text_state(""));
    }
    GAPLESS_RETURN_IF_ERROR(machines_.fill_all());
    GAPLESS_ASSIGN_OR_RETURN(Grammar grammar, builder_.finish(start));
    grammar.root_table = table_;
    return grammar;
  }

 private:
  enum class Mode { kStart, kThought, kText };

  // ---- the text around calls

  // A state for each beginning of a marker that the text ends with.
  BuildState state_of(Mode mode, const std::string& beginning) {
    const auto [at, is_new] = states_.emplace(std::pair(mode, beginning), 0);
    if (is_new) {
      at->second = builder_.add_state();
      builder_.set_may_end(at->second);
    }
    return at->second;
  }
  BuildState text_state(const std::string& beginning) { return state_of(Mode::kText, beginning); }

  // Returns the start.
  BuildState add_text(BuildState call) {
    const auto each_byte = [&](Mode mode, std::string_view marker, const auto& next) {
      for (std::size_t length = 0; length < marker.size(); ++length) {
        const std::string beginning(marker.substr(0, length));
        const BuildState from = state_of(mode, beginning);
        for (int byte = 0; byte < 256; ++byte) {
          const char b = static_cast<char>(byte);
          builder_.add_edge(from, b, next(beginning + b));
        }
      }
    };
    const auto in_text = [&](const std::string& text) {
      const std::string beginning = longest_beginning(text, form_.begin);
      return beginning == form_.begin ? call : text_state(beginning);
    };
    each_byte(Mode::kText, form_.begin, in_text);
    if (form_.thought_begin.empty()) return text_state("");
    each_byte(Mode::kThought, form_.thought_end, [&](const std::string& text) {
      const std::string beginning = longest_beginning(text, form_.thought_end);
      return beginning == form_.thought_end ? text_state("") : state_of(Mode::kThought, beginning);
    });
    each_byte(Mode::kStart, form_.thought_begin, [&](const std::string& text) {
      if (text.size() == 1 && is_blank(text[0])) return state_of(Mode::kStart, "");
      if (text == form_.thought_begin) return state_of(Mode::kThought, "");
      return form_.thought_begin.starts_with(text) ? state_of(Mode::kStart, text) : in_text(text);
    });
    return state_of(Mode::kStart, "");
  }

  // ---- a call

  // Up to each function's value. `text`: where everything else leads until a name is whole; nothing: nothing else may come.
  Status add_calls(BuildState start, std::optional<BuildState> text) {
    begin_token(start, text);
    for (const json::value& function : functions_) {
      const json::object& fields = function.get_object();
      const auto* const parameters = &fields.at("parameters");
      GAPLESS_ASSIGN_OR_RETURN(const JsonMachine* const value,
                               machines_.machine({machines_.role_of({parameters, &any_object()})}));
      const std::string name(fields.at("name").get_string());
      if (value->results.empty()) {
        return invalid_argument("no value satisfies the parameters of '{}'", name);
      }
      BuildState at = start;
      for (const std::string& token :
           {std::string("{"), std::string("\"name\""), std::string(":")}) {
        at = add_token(at, token, text);
        begin_token(at, text);
      }
      at = add_token(at, '"' + name + '"', text);
      for (const std::string& token : {std::string(","), '"' + form_.arguments_key + '"'}) {
        builder_.add_whitespace(at);
        at = add_token(at, token, std::nullopt);
      }
      builder_.add_whitespace(at);
      table_ = builder_.table(std::vector<BuildState>(value->results.size(), after_value_));
      builder_.add_edge(at, ':', value->start, {.op = GrammarOp::kCall, .table = table_});
    }
    // An earlier edge stays, so what leads away from calls comes last.
    for (const BuildState state : before_names_) add_other_bytes(state, *text);
    return ok_status();
  }

  // Blanks in front of a token: any number of them where all may still be text.
  void begin_token(BuildState state, const std::optional<BuildState>& text) {
    if (!text) return builder_.add_whitespace(state);
    for (const char blank : {' ', '\t', '\n', '\r'}) builder_.add_edge(state, blank, state);
  }

  // Tokens that begin alike share their states. `text`: as in add_calls.
  BuildState add_token(BuildState at, std::string_view token,
                       const std::optional<BuildState>& text) {
    for (const char byte : token) {
      if (text) before_names_.insert(at);
      const auto [next, is_new] = next_in_call_.emplace(std::pair(at, byte), 0);
      if (is_new) {
        next->second = builder_.add_state();
        builder_.add_edge(at, byte, next->second);
      }
      at = next->second;
    }
    return at;
  }

  // The state's text may end here, and every byte that has no edge leads to `to`.
  void add_other_bytes(BuildState state, BuildState to) {
    builder_.set_may_end(state);
    builder_.add_edge(state, 0, 255, to);
  }

  void add_literal(BuildState from, std::string_view literal, BuildState to) {
    builder_.add_whitespace(from);
    for (std::size_t i = 0; i + 1 < literal.size(); ++i) {
      const BuildState next = builder_.add_state();
      builder_.add_edge(from, literal[i], next);
      from = next;
    }
    builder_.add_edge(from, literal.back(), to);
  }

  const json::array& functions_;
  const CallForm& form_;
  SchemaExpander expander_;
  GrammarBuilder builder_;
  JsonMachines machines_;
  BuildState after_value_ = 0;
  std::uint16_t table_ = 0;
  std::map<std::pair<Mode, std::string>, BuildState> states_;
  std::map<std::pair<BuildState, char>, BuildState> next_in_call_;
  std::set<BuildState> before_names_;
};

StatusOr<Grammar> build(const json::value& functions, const CallForm& form) {
  return TextWithCalls(functions.get_array(), form, functions).build();
}

bool is_strict(const json::value& function) {
  const json::value* const strict = function.get_object().if_contains("strict");
  return strict != nullptr && *strict == true;
}

void take_any_object(json::value& function) {
  function.get_object()["parameters"] = any_object();
}

// Whether the function alone can be held.
bool can_be_held(const json::value& functions, std::size_t i) {
  SchemaExpander expander(functions);
  GrammarBuilder builder;
  JsonMachines machines(expander, builder);
  const json::value& parameters = functions.get_array()[i].get_object().at("parameters");
  const auto machine = machines.machine({machines.role_of({&parameters, &any_object()})});
  return machine.ok() && !(*machine)->results.empty() && machines.fill_all().ok();
}

}  // namespace

std::string CallForm::key() const {
  std::string key;
  for (const std::string* part : {&begin, &end, &thought_begin, &thought_end, &arguments_key}) {
    key += fmt::format("{}:{}", part->size(), *part);
  }
  return key;
}

StatusOr<Grammar> compile_text_with_calls(std::string_view functions_text, const CallForm& form) {
  if (functions_text.size() > kMaxSchemaBytes) {
    return make_error(StatusCode::kResourceExhausted, "the functions have more than {} bytes",
                      kMaxSchemaBytes);
  }
  GAPLESS_ASSIGN_OR_RETURN(json::value functions, parse_json(functions_text, "functions"));
  json::array& list = functions.get_array();
  bool has_loose = false;
  for (const json::value& function : list) has_loose = has_loose || !is_strict(function);
  {
    const CompileWork work(kMaxGrammarWork);
    StatusOr<Grammar> grammar = build(functions, form);
    if (grammar.ok() || !has_loose) return grammar;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!is_strict(list[i]) && !can_be_held(functions, i)) take_any_object(list[i]);
    }
    grammar = build(functions, form);
    if (grammar.ok()) return grammar;
  }
  // Together they are too large, or the work was spent on one of them.
  for (json::value& function : list) {
    if (!is_strict(function)) take_any_object(function);
  }
  const CompileWork work(kMaxGrammarWork);
  return build(functions, form);
}

}  // namespace gapless
