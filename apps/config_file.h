// Options of a command from a TOML file.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace gapless {

// Adds --config FILE: the table [NAME-OF-THE-COMMAND] of the file holds the command's options
// without their dashes. The command line and the environment win over the file. To be called before
// the other options are added: they get their values when --config is read.
//
// Everything that is not understood is an error that names the line: a file that is no TOML, another
// table, a key that is no option, a value that the option does not take, an empty list. A server
// must not start without its keys because somebody wrote api_key.
void add_config_option(CLI::App& command);

}  // namespace gapless
