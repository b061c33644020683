// Fields that clients of Moondream's, OpenAI's, vLLM's, SGLang's or llama.cpp's servers send, that would
// change the answer, and that nothing here does. To ignore one would be to answer another question.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "base/status.h"

namespace gapless {

// InvalidArgument, with the field, for the first such field whose value does not mean "off". Off are
// null, false, 0, "", "none", "off", "disabled", an empty list, an object whose every value is off, and
// the neutral value of the field, if it has one. Fields that are not listed are not judged.
Status refuse_unsupported(const boost::json::object& fields);

// Whether a value means "off".
bool means_off(const boost::json::value& value);

}  // namespace gapless
