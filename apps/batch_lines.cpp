#include "batch_lines.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/limits.h"

namespace gapless {
namespace {

namespace json = boost::json;

// A line is what a request over HTTP is.
constexpr std::size_t kMaxLineBytes = kMaxHttpBodyBytes;

enum class ReadLine { kLine, kTooLong, kEnd };

// Without the newline. Of a line that is too long the rest is passed over.
ReadLine read_line(std::istream& file, std::string& text) {
  text.clear();
  bool too_long = false;
  std::streambuf& bytes = *file.rdbuf();
  using Traits = std::char_traits<char>;
  int next = bytes.sbumpc();
  if (next == Traits::eof()) return ReadLine::kEnd;
  for (; next != Traits::eof() && next != '\n'; next = bytes.sbumpc()) {
    if (text.size() < kMaxLineBytes) {
      text += static_cast<char>(next);
    } else {
      too_long = true;
    }
  }
  return too_long ? ReadLine::kTooLong : ReadLine::kLine;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r") == std::string_view::npos;
}

StatusOr<json::object> parse_fields(std::string_view text) {
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  boost::system::error_code error;
  json::value value = json::parse(text, error, {}, options);
  if (error) return invalid_argument("not valid JSON: {}", error.message());
  if (!value.is_object()) return invalid_argument("not a JSON object");
  return std::move(value.get_object());
}

// Gives the line its id, whatever is wrong with it.
void identify(BatchLine& line) {
  line.id = line.number;
  if (line.fields.ok()) {
    const json::value* id = line.fields->if_contains("id");
    if (id != nullptr && (id->is_string() || id->is_int64())) {
      line.id = *id;
    } else if (id != nullptr && !id->is_null()) {
      line.fields = invalid_argument("id must be a string or an integer");
    }
  }
  line.key = json::serialize(line.id);
}

}  // namespace

StatusOr<BatchReader> BatchReader::open(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return make_error(StatusCode::kNotFound, "{}: there is no such file", path.string());
  }
  if (!std::filesystem::is_regular_file(path, error)) {
    return invalid_argument("{}: must be a regular file, as it is read twice", path.string());
  }
  BatchReader reader;
  reader.path_ = path;
  reader.file_.open(path, std::ios::binary);
  if (!reader.file_) return invalid_argument("{}: {}", path.string(), std::strerror(errno));
  return reader;
}

StatusOr<bool> BatchReader::next(BatchLine& line) {
  std::string text;
  while (true) {
    ReadLine read = ReadLine::kEnd;
    try {
      read = read_line(file_, text);
    } catch (const std::ios_base::failure& failure) {
      return data_loss("{}, line {}: {}", path_.string(), number_ + 1, failure.what());
    }
    if (read == ReadLine::kEnd) return false;
    ++number_;
    if (read == ReadLine::kLine && is_blank(text)) continue;
    line.number = number_;
    line.fields = read == ReadLine::kLine ? parse_fields(text)
                                          : invalid_argument("longer than {} bytes", kMaxLineBytes);
    identify(line);
    return true;
  }
}

StatusOr<BatchKeys> scan_requests(const std::filesystem::path& path) {
  GAPLESS_ASSIGN_OR_RETURN(BatchReader reader, BatchReader::open(path));
  BatchKeys keys;
  BatchLine line;
  while (true) {
    GAPLESS_ASSIGN_OR_RETURN(const bool more, reader.next(line));
    if (!more) return keys;
    const auto [at, is_new] = keys.emplace(line.key, line.number);
    if (!is_new) {
      return invalid_argument("{}, line {}: id {} is that of line {} already", path.string(),
                              line.number, line.key, at->second);
    }
  }
}

}  // namespace gapless
