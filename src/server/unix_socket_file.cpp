#include "server/unix_socket_file.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace gapless {
namespace {

// With its terminating zero.
constexpr std::size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path);

// 0, or the errno of a connection to `path`.
int errno_of_connection(const std::string& path) {
  // A server whose queue is full must not hold us up.
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return errno;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int failed =
      ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = failed == 0 ? 0 : errno;
  ::close(socket);
  return error;
}

}  // namespace

Status UnixSocketFile::make_room(const std::string& path) {
  const bool has_zero = path.find('\0') != std::string::npos;
  if (path.empty() || path.size() >= kMaxPathBytes || has_zero) {
    return invalid_argument("the path of a Unix socket must have 1 to {} bytes, none of them zero",
                            kMaxPathBytes - 1);
  }
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return ok_status();
    return make_error(StatusCode::kUnavailable, "cannot listen on {}: {}", path,
                      std::strerror(errno));
  }
  if (!S_ISSOCK(found.st_mode)) {
    return invalid_argument("cannot listen on {}: something that is no socket is there", path);
  }
  const int error = errno_of_connection(path);
  if (error != ECONNREFUSED) {
    return make_error(
        StatusCode::kUnavailable, "cannot listen on {}: {}", path,
        error == 0 || error == EAGAIN ? "a server listens there" : std::strerror(error));
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return make_error(StatusCode::kUnavailable, "cannot remove the old socket {}: {}", path,
                      std::strerror(errno));
  }
  return ok_status();
}

StatusOr<UnixSocketFile> UnixSocketFile::take(const std::string& path) {
  struct stat found {};
  if (::chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || ::lstat(path.c_str(), &found) != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    return make_error(StatusCode::kUnavailable, "cannot listen on {}: {}", path,
                      std::strerror(error));
  }
  return UnixSocketFile(path, found.st_dev, found.st_ino);
}

UnixSocketFile::UnixSocketFile(std::string path, dev_t device, ino_t inode)
    : path_(std::move(path)), device_(device), inode_(inode) {}

UnixSocketFile::UnixSocketFile(UnixSocketFile&& other) noexcept
    : path_(std::exchange(other.path_, {})), device_(other.device_), inode_(other.inode_) {}

UnixSocketFile::~UnixSocketFile() {
  struct stat found {};
  if (path_.empty() || ::lstat(path_.c_str(), &found) != 0) return;
  if (found.st_dev == device_ && found.st_ino == inode_) ::unlink(path_.c_str());
}

}  // namespace gapless
