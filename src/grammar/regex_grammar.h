// Grammars of plain text: a regular expression, or a list of choices.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "grammar/grammar.h"

namespace gapless {

// The strings that the whole pattern matches.
StatusOr<Grammar> compile_regex(std::string_view pattern);
// One of the choices. InvalidArgument: there is none, or one is empty.
StatusOr<Grammar> compile_choices(std::span<const std::string> choices);

}  // namespace gapless
