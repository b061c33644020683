// The lines of `gapless batch`: requests in, answers out. docs/batch.md describes both for users.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/status.h"

namespace gapless {

// One request of the input.
struct BatchLine {
  int number = 0;         // from 1; blank lines count and are passed over
  boost::json::value id;  // its field "id"; its number where it has none
  std::string key;        // the id as JSON text: what --resume compares
  StatusOr<boost::json::object> fields = boost::json::object();  // or why there are none
};

// Reads a file of requests line by line.
class BatchReader {
 public:
  // The error names the file.
  static StatusOr<BatchReader> open(const std::filesystem::path& path);

  // False at the end of the file. An error: the file could not be read to its end.
  StatusOr<bool> next(BatchLine& line);

 private:
  BatchReader() = default;
  std::filesystem::path path_;
  std::ifstream file_;
  int number_ = 0;
};

// The keys of all requests, each with the number of its line. InvalidArgument: two lines have the
// same id, and the answers could not be told apart.
using BatchKeys = std::unordered_map<std::string, int>;
StatusOr<BatchKeys> scan_requests(const std::filesystem::path& path);

}  // namespace gapless
