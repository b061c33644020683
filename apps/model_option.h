// The --model option: a folder, a file, random weights or a name on the hub, and what it leads to.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/status.h"
#include "model/model_source.h"

namespace gapless {

struct ModelOption {
  std::string name;      // empty: the model that ships
  std::string adapter;   // a folder; empty: none
  bool offline = false;  // never download
};

// --model, --adapter and --offline
void add_model_option(CLI::App& command, ModelOption& option);

// For OWNER/NAME[@REVISION], where no such file is: from the cache of the hub, else downloaded into
// it, with a progress bar on standard error where that is a terminal. Anything else is as
// find_model() has it. With the adapter, if there is one.
StatusOr<ModelSource> find_chosen_model(const ModelOption& option);

}  // namespace gapless
