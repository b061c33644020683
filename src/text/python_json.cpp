#include "text/python_json.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace gapless {
namespace {

namespace json = boost::json;

// Python's repr(): the shortest digits that come back, plain from 1e-4 up to 1e16.
std::string float_text(double value) {
  char digits[32];
  const auto end =
      std::to_chars(digits, digits + sizeof(digits), value, std::chars_format::scientific).ptr;
  const std::string_view text(digits, static_cast<std::size_t>(end - digits));
  const int exponent = std::atoi(std::string(text.substr(text.find('e') + 1)).c_str());
  if (value != 0 && (exponent < -4 || exponent >= 16)) return std::string(text);
  char plain[64];
  const auto plain_end =
      std::to_chars(plain, plain + sizeof(plain), value, std::chars_format::fixed).ptr;
  std::string out(plain, plain_end);
  if (out.find('.') == out.npos) out += ".0";
  return out;
}

class PythonWriter {
 public:
  explicit PythonWriter(int indent) : indent_(indent) {}

  void write(const json::value& value, int depth) {
    switch (value.kind()) {
      case json::kind::null:
        out_ += "null";
        return;
      case json::kind::bool_:
        out_ += value.get_bool() ? "true" : "false";
        return;
      case json::kind::int64:
        out_ += std::to_string(value.get_int64());
        return;
      case json::kind::uint64:
        out_ += std::to_string(value.get_uint64());
        return;
      case json::kind::double_:
        out_ += float_text(value.get_double());
        return;
      case json::kind::string:
        string(value.get_string());
        return;
      case json::kind::array:
        items(value.get_array(), depth, '[', ']',
              [&](const json::value& item) { write(item, depth + 1); });
        return;
      case json::kind::object:
        items(value.get_object(), depth, '{', '}', [&](const json::key_value_pair& member) {
          string(member.key());
          out_ += ": ";
          write(member.value(), depth + 1);
        });
        return;
    }
  }
  std::string take() { return std::move(out_); }

 private:
  template <typename List, typename WriteItem>
  void items(const List& list, int depth, char open, char close, WriteItem write_item) {
    out_ += open;
    bool first = true;
    for (const auto& item : list) {
      if (!first) out_ += indent_ > 0 ? "," : ", ";
      first = false;
      line(depth + 1);
      write_item(item);
    }
    if (!first) line(depth);
    out_ += close;
  }
  void line(int depth) {
    if (indent_ == 0) return;
    out_ += '\n';
    out_.append(static_cast<std::size_t>(depth * indent_), ' ');
  }
  void string(std::string_view text) {
    out_ += '"';
    for (const char c : text) {
      switch (c) {
        case '"':
          out_ += "\\\"";
          break;
        case '\\':
          out_ += "\\\\";
          break;
        case '\n':
          out_ += "\\n";
          break;
        case '\r':
          out_ += "\\r";
          break;
        case '\t':
          out_ += "\\t";
          break;
        case '\b':
          out_ += "\\b";
          break;
        case '\f':
          out_ += "\\f";
          break;
        default:
          if (static_cast<unsigned char>(c) < 0x20) {
            out_ += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
          } else {
            out_ += c;
          }
      }
    }
    out_ += '"';
  }

  const int indent_;
  std::string out_;
};

}  // namespace

std::string python_json(const json::value& value, int indent) {
  PythonWriter writer(indent);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace gapless
