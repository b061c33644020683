// Files of one repository: from the cache, else from the hub into the cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "hub/hub_cache.h"
#include "hub/hub_http.h"
#include "hub/hub_name.h"
#include "hub/hub_settings.h"

namespace gapless {

// What a person may want to see. All on the caller's thread.
struct HubEvents {
  // "moondream2/model.safetensors", and how much of it is there. Once with done == total.
  std::function<void(std::string_view file, std::uint64_t done, std::uint64_t total)> progress =
      [](std::string_view, std::uint64_t, std::uint64_t) {};
  std::function<void(std::string_view line)> notice = [](std::string_view) {};
};

// All files are of one commit: that of the cache where it knows one for the revision, else the one
// that the hub names first. A file's bytes are compared with the hash that the hub names before
// anybody can find them. Of two processes that want the same file one downloads it.
class HubRepository {
 public:
  // `http` and `settings` outlive it.
  HubRepository(HubName name, const HubSettings& settings, HubHttp& http, const HubEvents& events);

  // In the cache; nothing: it is not, or not whole.
  std::optional<std::filesystem::path> cached(std::string_view file) const;
  // In the cache or downloaded. NotFound: the commit has no such file. Unavailable: it is not in
  // the cache, and the hub was not to be asked or did not answer. InvalidArgument: the hub refuses,
  // or answers what it should not. DataLoss: the bytes are not what the hub says.
  StatusOr<std::filesystem::path> get(std::string_view file);
  // The same for a file that need not be: nothing when the commit has none.
  StatusOr<std::optional<std::filesystem::path>> get_if_any(std::string_view file);

  // The first `num_bytes` of a file, which are kept nowhere, and its size.
  struct Beginning {
    std::string bytes;
    std::uint64_t file_bytes = 0;
  };
  StatusOr<Beginning> beginning(std::string_view file, std::uint64_t num_bytes);

  const HubName& name() const { return name_; }
  // The folder with the files, once one of them was found.
  std::filesystem::path snapshot() const;

 private:
  struct RemoteFile {
    std::string commit;
    std::string etag;
    std::uint64_t num_bytes = 0;
  };
  struct Partial;

  Url url_of(std::string_view revision, std::string_view file) const;
  Status refusal(const HubAnswer& answer, std::string_view file) const;
  StatusOr<RemoteFile> look_up(std::string_view file);
  StatusOr<RemoteFile> describe(const HubAnswer& answer, std::string_view file) const;
  Status download(const RemoteFile& remote, std::string_view file);
  Status fill(Partial& partial, const RemoteFile& remote, std::string_view file);
  // Calls `attempt` until it succeeds, fails for good, or has brought nothing for too often.
  // `num_bytes` tells what it has brought so far.
  Status persist(const std::function<Status()>& attempt,
                 const std::function<std::uint64_t()>& num_bytes);

  const HubName name_;
  const HubSettings& settings_;
  HubHttp& http_;
  const HubEvents& events_;
  const HubCache cache_;
  std::optional<std::string> commit_;
  std::string retry_after_;  // of the last answer
  bool answered_ = false;    // the hub has, to anything
};

}  // namespace gapless
