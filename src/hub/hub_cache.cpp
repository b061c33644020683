#include "hub/hub_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "base/file_bytes.h"

namespace gapless {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxRefBytes = 256;

Status failed(const fs::path& path, const std::error_code& error) {
  return invalid_argument("{}: {}", path.string(), error.message());
}

Status make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  return error ? failed(path, error) : ok_status();
}

// Beside `path`, and nobody else's.
fs::path temporary_name(const fs::path& path) {
  fs::path name = path;
  name += fmt::format(".{}.tmp", ::getpid());
  return name;
}

// Readers see the old one or the new one.
Status replace(const fs::path& temporary, const fs::path& path) {
  std::error_code error;
  fs::rename(temporary, path, error);
  return error ? failed(path, error) : ok_status();
}

}  // namespace

HubCache::HubCache(const fs::path& cache, HubName name)
    : root_(cache / name.folder()),
      locks_(cache / ".locks" / name.folder()),
      name_(std::move(name)) {}

std::optional<std::string> HubCache::commit() const {
  if (is_commit(name_.revision)) return name_.revision;
  const StatusOr<std::string> text = read_file(root_ / "refs" / name_.revision, kMaxRefBytes);
  if (!text.ok()) return std::nullopt;
  const std::string commit = text->substr(0, text->find_last_not_of(" \r\n\t") + 1);
  if (!is_commit(commit)) return std::nullopt;
  return commit;
}

std::optional<fs::path> HubCache::find(std::string_view commit, std::string_view file) const {
  const fs::path path = snapshot(commit) / file;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;  // also when the link leads nowhere
  return path;
}

bool HubCache::is_absent(std::string_view commit, std::string_view file) const {
  std::error_code error;
  return fs::exists(root_ / ".no_exist" / commit / file, error);
}

fs::path HubCache::snapshot(std::string_view commit) const {
  return root_ / "snapshots" / commit;
}

fs::path HubCache::blob(std::string_view etag) const {
  return root_ / "blobs" / etag;
}

fs::path HubCache::lock_file(std::string_view etag) const {
  return locks_ / fmt::format("{}.lock", etag);
}

Status HubCache::prepare(std::string_view commit) const {
  for (const fs::path& folder : {locks_, root_ / "blobs", snapshot(commit)}) {
    GAPLESS_RETURN_IF_ERROR(make_folder(folder));
  }
  return ok_status();
}

Status HubCache::link(std::string_view commit, std::string_view file, std::string_view etag) const {
  const fs::path path = snapshot(commit) / file;
  const fs::path temporary = temporary_name(path);
  std::error_code error;
  fs::remove(temporary, error);
  fs::create_symlink(fs::path("../../blobs") / etag, temporary, error);
  if (error) return failed(path, error);
  return replace(temporary, path);
}

Status HubCache::note_absent(std::string_view commit, std::string_view file) const {
  const fs::path folder = root_ / ".no_exist" / commit;
  GAPLESS_RETURN_IF_ERROR(make_folder(folder));
  return write_file(folder / file, {});
}

Status HubCache::set_commit(std::string_view commit) const {
  if (name_.revision == commit) return ok_status();
  const fs::path path = root_ / "refs" / name_.revision;
  GAPLESS_RETURN_IF_ERROR(make_folder(path.parent_path()));
  const fs::path temporary = temporary_name(path);
  GAPLESS_RETURN_IF_ERROR(write_file(temporary, std::as_bytes(std::span(commit))));
  return replace(temporary, path);
}

StatusOr<FileLock> FileLock::acquire(const fs::path& path, const std::function<void()>& on_wait) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0664);
  if (fd < 0) return invalid_argument("{}: {}", path.string(), std::strerror(errno));
  FileLock lock(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return lock;
  on_wait();
  int result = 0;
  do {
    result = ::flock(fd, LOCK_EX);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return lock;
  return invalid_argument("{}: {}", path.string(), std::strerror(errno));
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace gapless
