// JSON as Python's json.dumps(value, ensure_ascii=False, indent=...) writes it, which is how chat templates show JSON to
// a model (transformers' "tojson").
#pragma once

#include <boost/json/value.hpp>
#include <string>

namespace gapless {

// indent 0: on one line, with a blank after ':' and ','.
std::string python_json(const boost::json::value& value, int indent = 0);

}  // namespace gapless
