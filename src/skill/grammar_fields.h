// The fields of a request that say what its answer must look like, in every spelling that clients use.
#pragma once

#include <boost/json/object.hpp>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "base/status.h"
#include "grammar/grammar_spec.h"

namespace gapless {

// OpenAI's; vLLM's, the last three of older versions; and Moondream's.
inline constexpr std::string_view kGrammarFields[] = {"response_format", "structured_outputs",
                                                      "guided_json",     "guided_regex",
                                                      "guided_choice",   "json_schema"};

// The one that is there, in whichever of these objects (nullptr: none). Nothing: the answer is free. InvalidArgument: it is
// not what it should be, or there are two.
StatusOr<std::optional<GrammarSpec>> read_grammar_fields(
    std::initializer_list<const boost::json::object*> objects);

}  // namespace gapless
