// The JSON files under bench/results: every one says which command made it, when, from which commit
// and on which device, and beside which ceiling its numbers stand.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <string>

#include "base/status.h"

namespace gapless {

struct ResultHeader {
  std::string command;  // empty: this process's own command line
  std::string commit;   // empty: asked of git, "unknown" where that fails
  std::string device;
  std::string model;
  std::string ceiling;  // "read bandwidth 4.55 TB/s"; "none" when there is none
};

// Writes the header's fields, the date (UTC) and those of `body`, indented. InvalidArgument when
// the file cannot be written.
Status write_result(const std::string& path, const ResultHeader& header,
                    const boost::json::object& body);

// JSON with one field per line; arrays of plain values on one.
std::string indented(const boost::json::value& value);

// To so many decimals, so that files can be read.
double rounded(double value, int decimals);

}  // namespace gapless
