#include "config_file.h"

#include <fmt/format.h>

#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/file_bytes.h"

namespace gapless {
namespace {

// A few dozen keys; more is some other file.
constexpr std::size_t kMaxConfigFileBytes = 1u << 20;

// Reads one file into the options of one command.
class ConfigReader {
 public:
  ConfigReader(CLI::App& command, std::string path) : command_(command), path_(std::move(path)) {}

  void read() {
    if (path_.empty()) throw CLI::FileError("--config names no file", CLI::ExitCodes::FileError);
    const StatusOr<std::string> text = read_file(path_, kMaxConfigFileBytes);
    if (!text.ok()) throw CLI::FileError(text.status().message(), CLI::ExitCodes::FileError);
    try {
      read_sections(toml::parse(*text, path_));
    } catch (const toml::parse_error& not_toml) {
      fail(not_toml.source(), std::string(not_toml.description()));
    }
  }

 private:
  [[noreturn]] void fail(const toml::source_region& at, const std::string& message) const {
    throw CLI::ConfigError(fmt::format("{}, line {}: {}", path_, at.begin.line, message),
                           CLI::ExitCodes::ConfigError);
  }

  void read_sections(const toml::table& file) const {
    for (const auto& [key, value] : file) {
      if (key.str() != command_.get_name()) {
        fail(key.source(), value.is_table() ? fmt::format("unknown section [{}]; there is [{}]",
                                                          key.str(), command_.get_name())
                                            : fmt::format("'{}' stands outside of the section [{}]",
                                                          key.str(), command_.get_name()));
      }
      if (!value.is_table()) fail(key.source(), fmt::format("'{}' is no section", key.str()));
      for (const auto& [name, setting] : *value.as_table()) read_setting(name, setting);
    }
  }

  void read_setting(const toml::key& key, const toml::node& value) const {
    const std::string name(key.str());
    CLI::Option* const option = find_option(name);
    if (option == nullptr) {
      std::string dashed = name;
      std::replace(dashed.begin(), dashed.end(), '_', '-');
      fail(key.source(),
           fmt::format("unknown key '{}'{}", name,
                       find_option(dashed) ? fmt::format("; did you mean '{}'?", dashed) : ""));
    }
    const bool is_flag = option->get_expected_min() == 0;
    if (is_flag && !value.is_boolean()) {
      fail(value.source(), fmt::format("'{}' must be true or false", name));
    }
    const std::vector<std::string> inputs = texts_of(name, value);
    if (!option->empty()) return;  // the command line or the environment has said it
    try {
      if (is_flag) {
        option->add_result(option->get_flag_value(name, inputs.front()));
      } else {
        option->add_result(inputs);
      }
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      fail(value.source(), error.what());
    }
  }

  CLI::Option* find_option(const std::string& name) const {
    CLI::Option* const option = command_.get_option_no_throw("--" + name);
    return option != nullptr && option->get_configurable() ? option : nullptr;
  }

  std::vector<std::string> texts_of(const std::string& name, const toml::node& value) const {
    std::vector<std::string> texts;
    if (const toml::array* list = value.as_array()) {
      if (list->empty()) fail(value.source(), fmt::format("'{}' is an empty list", name));
      for (const toml::node& item : *list) texts.push_back(text_of(name, item));
    } else {
      texts.push_back(text_of(name, value));
    }
    return texts;
  }

  std::string text_of(const std::string& name, const toml::node& value) const {
    if (const auto* text = value.as_string()) return text->get();
    if (const auto* number = value.as_integer()) return std::to_string(number->get());
    if (const auto* number = value.as_floating_point()) return fmt::format("{}", number->get());
    if (const auto* flag = value.as_boolean()) return flag->get() ? "true" : "false";
    fail(value.source(), fmt::format("'{}' must be a string, a number, true, false or a list of "
                                     "these",
                                     name));
  }

  CLI::App& command_;
  const std::string path_;
};

}  // namespace

void add_config_option(CLI::App& command) {
  command
      .add_option_function<std::string>(
          "--config", [&command](const std::string& path) { ConfigReader(command, path).read(); },
          fmt::format("Read options from the section [{}] of a TOML file; what is not understood "
                      "there is an error",
                      command.get_name()))
      ->configurable(false);
}

}  // namespace gapless
