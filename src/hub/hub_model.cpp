#include "hub/hub_model.h"

#include <stdlib.h>

#include <span>

#include "base/file_bytes.h"
#include "base/limits.h"
#include "hub/hub_limits.h"
#include "model/model_source.h"
#include "model/registry.h"
#include "weights/checkpoint_shards.h"

namespace gapless {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kConfigFile = "config.json";
constexpr std::string_view kCodeFile = "moondream.py";
constexpr std::string_view kTokenizerFile = "tokenizer.json";
// Of text models, where they are published: the ends of an answer, and the chat template.
constexpr std::string_view kTextFiles[] = {"generation_config.json", "tokenizer_config.json",
                                           "chat_template.jinja"};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    const fs::path folder = fs::temp_directory_path(error);
    std::string pattern = (folder / "gapless-XXXXXX").string();
    if (!error && ::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }  // empty: there is none

 private:
  fs::path path_;
};

std::uint64_t little_endian_64(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return value;
}

// A file of the full size that holds the header only.
bool write_header(const fs::path& path, const HubRepository::Beginning& header) {
  std::error_code error;
  if (!write_file(path, std::as_bytes(std::span(header.bytes))).ok()) return false;
  fs::resize_file(path, header.file_bytes, error);
  return !error;
}

// The files that an error names are the hub's, not those of a folder that is gone.
Status without_folder(const Status& status, const fs::path& folder) {
  if (status.ok()) return status;
  std::string message = status.message();
  const std::string prefix = folder.string() + "/";
  for (std::size_t at = 0; (at = message.find(prefix, at)) != message.npos;) {
    message.erase(at, prefix.size());
  }
  return Status(status.code(), std::move(message));
}

// Fails when the repository's one file of weights, as far as its header says, is of a model that is
// not run here.
Status expect_a_model_that_runs(HubRepository& repository, const fs::path& config,
                                const std::optional<fs::path>& code) {
  StatusOr<HubRepository::Beginning> header = repository.beginning(kSingleFile, 8);
  if (header.status().code() == StatusCode::kNotFound) return ok_status();  // shards
  if (!header.ok()) return header.status();
  if (header->bytes.size() < 8) return data_loss("{}: is no safetensors file", kSingleFile);
  const std::uint64_t header_bytes = little_endian_64(header->bytes);
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return data_loss("{}: is no safetensors file", kSingleFile);
  }
  header = repository.beginning(kSingleFile, 8 + header_bytes);
  if (!header.ok()) return header.status();

  const TemporaryFolder folder;
  const fs::path weights = folder.path() / kSingleFile;
  std::error_code error;
  if (folder.path().empty() || !write_header(weights, *header)) return ok_status();
  fs::copy_file(config, folder.path() / kConfigFile, error);
  if (!error && code) fs::copy_file(*code, folder.path() / kCodeFile, error);
  if (error) return ok_status();
  return without_folder(find_model(weights.string()).status(), folder.path());
}

Status get_shards(HubRepository& repository, const fs::path& index) {
  GAPLESS_ASSIGN_OR_RETURN(const ShardIndex shards, read_shard_index(index));
  for (const std::string& file : shards.files) {
    GAPLESS_RETURN_IF_ERROR(repository.get(file).status());
  }
  return ok_status();
}

Status get_text_files(HubRepository& repository, bool offline) {
  for (const std::string_view file : kTextFiles) {
    if (offline || repository.cached(file)) continue;
    GAPLESS_RETURN_IF_ERROR(repository.get_if_any(file).status());
  }
  return ok_status();
}

// What Checkpoint::open() takes: one file, or an index and its shards.
Status get_weights(HubRepository& repository, bool offline) {
  if (repository.cached(kSingleFile)) return ok_status();
  if (const auto index = repository.cached(kIndexFile)) return get_shards(repository, *index);
  if (offline) return repository.get(kSingleFile).status();
  GAPLESS_ASSIGN_OR_RETURN(const std::optional<fs::path> single,
                           repository.get_if_any(kSingleFile));
  if (single) return ok_status();
  StatusOr<fs::path> index = repository.get(kIndexFile);
  if (index.status().code() == StatusCode::kNotFound) {
    return make_error(StatusCode::kNotFound, "{} has neither {} nor {}",
                      repository.name().to_string(), kSingleFile, kIndexFile);
  }
  if (!index.ok()) return index.status();
  return get_shards(repository, *index);
}

}  // namespace

StatusOr<HubModel> find_hub_model(const HubName& name, const HubSettings& settings,
                                  const HubEvents& events) {
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<HubHttp> http, HubHttp::create(settings));
  HubRepository repository(name, settings, *http, events);
  GAPLESS_ASSIGN_OR_RETURN(const fs::path config, repository.get(kConfigFile));
  GAPLESS_RETURN_IF_ERROR(choose_family(config).status().with_context(name.to_string()));
  if (!settings.offline && !repository.cached(kSingleFile) && !repository.cached(kIndexFile)) {
    GAPLESS_ASSIGN_OR_RETURN(const std::optional<fs::path> code, repository.get_if_any(kCodeFile));
    GAPLESS_RETURN_IF_ERROR(
        expect_a_model_that_runs(repository, config, code).with_context(name.to_string()));
  }
  GAPLESS_RETURN_IF_ERROR(get_weights(repository, settings.offline));

  HubModel model;
  model.checkpoint = repository.snapshot();
  GAPLESS_ASSIGN_OR_RETURN(const ModelSource source, find_model(model.checkpoint.string()));
  if (source.llama) GAPLESS_RETURN_IF_ERROR(get_text_files(repository, settings.offline));
  const std::string_view from =
      source.profile != nullptr ? source.profile->tokenizer_from : name.repository;
  if (from == name.repository) {
    GAPLESS_ASSIGN_OR_RETURN(model.tokenizer, repository.get(kTokenizerFile));
    return model;
  }
  GAPLESS_ASSIGN_OR_RETURN(HubName tokenizer_name, parse_hub_name(from));
  HubRepository tokenizer(std::move(tokenizer_name), settings, *http, events);
  GAPLESS_ASSIGN_OR_RETURN(model.tokenizer, tokenizer.get(kTokenizerFile));
  return model;
}

}  // namespace gapless
