// Free text in which a model may call functions: any bytes, until the text itself says that a call begins. From there on the call is
// held to the schema of its function.
//
//         any byte                                   bounded blanks between all of them
//         +----+          marker          {   "name"   :   "weather"   ,   "arguments"   :          }   marker
//         v    |     ( ) - - - - -> ( ) ------------------------------------------------> (value) ---> ( ) - - -> (text)
//       (text) -----> ^ as far as it goes
//
// Without markers the answer begins with the call and is nothing else; what begins in another way is text to its end. A call there
// has begun when the name of a function is whole.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"

namespace gapless {

struct CallForm {
  // Around each call; both empty: the whole answer is a call or text.
  std::string begin, end;
  // A passage that may begin the answer, in which no call begins. Both may be empty.
  std::string thought_begin, thought_end;
  std::string arguments_key;

  // For the cache of grammars.
  std::string key() const;
};

// `functions`: a list of {"name", "parameters": a schema, "strict": whether it must be kept exactly}, as JSON; the names need no escapes in JSON.
// A function that is not strict and whose schema cannot be held takes any JSON object. Errors are those of compile_json_schema().
StatusOr<Grammar> compile_text_with_calls(std::string_view functions, const CallForm& form);

}  // namespace gapless
