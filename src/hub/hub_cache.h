// The cache of Python's huggingface_hub on disk, read and written in its own layout, so that either
// finds what the other one has downloaded:
//
//   CACHE/models--OWNER--NAME/refs/REVISION              a commit
//                            /snapshots/COMMIT/FILE      -> ../../blobs/ETAG
//                            /blobs/ETAG                 the bytes, named by what they hold
//                            /blobs/ETAG.incomplete      the beginning of them
//                            /.no_exist/COMMIT/FILE      a file that the commit does not have
//   CACHE/.locks/models--OWNER--NAME/ETAG.lock           held by who writes the blob
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "hub/hub_name.h"

namespace gapless {

// One repository's part of the cache. File names are plain: no separators.
class HubCache {
 public:
  HubCache(const std::filesystem::path& cache, HubName name);

  // What the name's revision stands for: itself when it is a commit, else what refs/ says; nothing
  // when that is not known.
  std::optional<std::string> commit() const;
  // The file in the commit's snapshot; nothing unless its bytes are there.
  std::optional<std::filesystem::path> find(std::string_view commit, std::string_view file) const;
  // Known not to be part of the commit.
  bool is_absent(std::string_view commit, std::string_view file) const;

  std::filesystem::path snapshot(std::string_view commit) const;
  std::filesystem::path blob(std::string_view etag) const;
  std::filesystem::path lock_file(std::string_view etag) const;

  // Makes the folders that the others write to.
  Status prepare(std::string_view commit) const;
  Status link(std::string_view commit, std::string_view file, std::string_view etag) const;
  Status note_absent(std::string_view commit, std::string_view file) const;
  Status set_commit(std::string_view commit) const;

 private:
  const std::filesystem::path root_;  // CACHE/models--OWNER--NAME
  const std::filesystem::path locks_;
  const HubName name_;
};

// flock(2) on a file, as huggingface_hub's; the kernel takes it back from a process that dies.
class FileLock {
 public:
  // Waits for whoever holds it; `on_wait` is called first then.
  static StatusOr<FileLock> acquire(const std::filesystem::path& path,
                                    const std::function<void()>& on_wait);
  FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace gapless
