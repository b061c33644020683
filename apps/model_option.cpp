#include "model_option.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/clock.h"
#include "base/log.h"
#include "download_text.h"
#include "hub/hub_model.h"
#include "option_values.h"

namespace gapless {
namespace {

// What a download shows: a line at its beginning, and a bar on a terminal.
class DownloadDisplay {
 public:
  HubEvents events() {
    HubEvents events;
    events.progress = [this](std::string_view file, std::uint64_t done, std::uint64_t total) {
      if (file != file_) {
        file_ = file;
        log_info("downloading {} ({})", file_, bytes_text(total));
        text_.emplace(file_, done, total, host_now_ns());
      }
      if (done == total) return clear();
      if (is_terminal_) print(text_->update(done, host_now_ns()));
    };
    events.notice = [this](std::string_view line) {
      clear();
      log_warning("{}", line);
    };
    return events;
  }
  ~DownloadDisplay() { clear(); }

 private:
  void clear() {
    if (text_) print(text_->clear());
  }
  static void print(const std::string& text) {
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
  }

  const bool is_terminal_ = isatty(STDERR_FILENO) == 1;
  std::string file_;
  std::optional<DownloadText> text_;
};

// What would download it.
std::string download_command(const HubName& name, const HubSettings& settings) {
  const std::string unset =
      settings.offline_variable.empty() ? "" : "env -u " + settings.offline_variable + " ";
  return fmt::format("{}gapless info --model {}", unset, name.to_string());
}

StatusOr<ModelSource> find_named_model(const ModelOption& option) {
  GAPLESS_ASSIGN_OR_RETURN(const HubName name, parse_hub_name(option.name));
  GAPLESS_ASSIGN_OR_RETURN(HubSettings settings, hub_settings([](const char* variable) {
                             return std::getenv(variable);
                           }));
  if (option.offline) {
    settings.offline = true;
    settings.offline_variable.clear();
  }
  DownloadDisplay display;
  const StatusOr<HubModel> model = find_hub_model(name, settings, display.events());
  if (model.status().code() == StatusCode::kUnavailable && settings.offline) {
    return make_error(StatusCode::kUnavailable,
                      "{} is no file or folder here; on the hub: {}, and {} says not to download; "
                      "this does: {}",
                      option.name, model.status().message(),
                      settings.offline_variable.empty() ? "--offline" : settings.offline_variable,
                      download_command(name, settings));
  }
  // A folder's name that was mistyped looks like one of the hub.
  if (!model.ok()) {
    return model.status().with_context(
        fmt::format("{} is no file or folder here; on the hub", option.name));
  }
  GAPLESS_ASSIGN_OR_RETURN(ModelSource source, find_model(model->checkpoint.string()));
  source.name = name.repository;
  source.tokenizer = model->tokenizer;
  return source;
}

}  // namespace

void add_model_option(CLI::App& command, ModelOption& option) {
  command
      .add_option("--model", option.name,
                  "Folder or file of published weights; OWNER/NAME[@REVISION] of the Hugging "
                  "Face hub, from its cache or downloaded into it; random:moondream2[:SEED], "
                  "random:moondream2-march, random:moondream2-january, "
                  "random:moondream-0.5b, random:moondream3, random:llama3-8b, "
                  "random:llama3-1b, random:qwen3-8b, "
                  "random:qwen3-1.7b. Without it: the small model that ships")
      ->check(not_empty());
  command.add_option(
      "--adapter", option.adapter,
      "Folder with a fine-tune of the model as PEFT saves it: low-rank terms (LoRA), "
      "added to the weights when these are loaded");
  command.add_flag("--offline", option.offline,
                   "Download nothing: --model OWNER/NAME has to be in the cache");
}

StatusOr<ModelSource> find_chosen_model(const ModelOption& option) {
  std::error_code error;
  const bool is_on_hub =
      looks_like_hub_name(option.name) && !std::filesystem::exists(option.name, error);
  GAPLESS_ASSIGN_OR_RETURN(ModelSource source,
                           is_on_hub ? find_named_model(option) : find_model(option.name));
  if (!option.adapter.empty()) GAPLESS_RETURN_IF_ERROR(set_adapter(source, option.adapter));
  return source;
}

}  // namespace gapless
