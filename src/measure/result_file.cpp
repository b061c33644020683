#include "measure/result_file.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <sstream>

#include "base/json.h"

namespace gapless {
namespace {

std::string own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  std::string command = content.str();
  while (!command.empty() && command.back() == '\0') command.pop_back();
  std::replace(command.begin(), command.end(), '\0', ' ');
  // The program without its folder.
  const std::size_t end = command.find(' ');
  const std::size_t slash = command.rfind('/', end);
  return slash == std::string::npos ? command : command.substr(slash + 1);
}

std::string current_commit() {
  FILE* pipe = popen("git describe --always --dirty 2>/dev/null", "r");
  if (pipe == nullptr) return "unknown";
  std::array<char, 128> line{};
  const bool read = std::fgets(line.data(), static_cast<int>(line.size()), pipe) != nullptr;
  pclose(pipe);
  std::string commit = read ? line.data() : "unknown";
  while (!commit.empty() && commit.back() == '\n') commit.pop_back();
  return commit;
}

std::string utc_date() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

bool is_plain(const boost::json::value& value) {
  return !value.is_object() && !value.is_array();
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

void append(std::string& out, const boost::json::value& value, int indent) {
  const std::string inner(static_cast<std::size_t>(indent) + 2, ' ');
  const std::string outer(static_cast<std::size_t>(indent), ' ');
  if (value.is_double()) {
    out += number_text(value.get_double());
  } else if (is_plain(value)) {
    out += json_text(value);
  } else if (value.is_object()) {
    out += "{";
    const char* separator = "\n";
    for (const auto& field : value.get_object()) {
      out += separator + inner + json_text(field.key()) + ": ";
      append(out, field.value(), indent + 2);
      separator = ",\n";
    }
    out += "\n" + outer + "}";
  } else {
    const boost::json::array& items = value.get_array();
    const bool on_one_line = std::all_of(items.begin(), items.end(), is_plain);
    out += "[";
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += on_one_line ? ", " : ",";
      if (!on_one_line) out += "\n" + inner;
      append(out, items[i], indent + 2);
    }
    out += on_one_line ? "]" : "\n" + outer + "]";
  }
}

}  // namespace

std::string indented(const boost::json::value& value) {
  std::string out;
  append(out, value, 0);
  return out + "\n";
}

double rounded(double value, int decimals) {
  const double scale = std::pow(10.0, decimals);
  return std::round(value * scale) / scale;
}

Status write_result(const std::string& path, const ResultHeader& header,
                    const boost::json::object& body) {
  boost::json::object result;
  result["command"] = header.command.empty() ? own_command() : header.command;
  result["date"] = utc_date();
  result["commit"] = header.commit.empty() ? current_commit() : header.commit;
  result["device"] = header.device;
  result["model"] = header.model;
  result["ceiling"] = header.ceiling;
  for (const auto& field : body) result[field.key()] = field.value();
  std::ofstream file(path);
  file << indented(result);
  file.close();
  if (!file) return invalid_argument("{}: cannot be written", path);
  return ok_status();
}

}  // namespace gapless
