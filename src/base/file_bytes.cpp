#include "base/file_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

namespace gapless {

namespace {

// Of a pipe, as of some of /proc's files, the size is known at its end only: so it is read in pieces.
StatusOr<std::string> read_to_end(int fd, std::size_t max_bytes) {
  constexpr std::size_t kMinPieceBytes = 64u << 10;
  struct stat info {};
  if (::fstat(fd, &info) != 0) return data_loss("{}", std::strerror(errno));
  if (S_ISDIR(info.st_mode)) return invalid_argument("is a folder, not a file");
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size > max_bytes) {
    return make_error(StatusCode::kResourceExhausted, "{} bytes, more than the {} allowed", size,
                      max_bytes);
  }
  std::string content;
  std::size_t num_read = 0;
  while (true) {
    // One more byte shows whether that was the end.
    if (num_read == content.size()) content.resize(std::max(size + 1, num_read + kMinPieceBytes));
    const ssize_t count = ::read(fd, content.data() + num_read, content.size() - num_read);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return data_loss("could not be read: {}", std::strerror(errno));
    if (count == 0) break;
    num_read += static_cast<std::size_t>(count);
    if (num_read > max_bytes) {
      return make_error(StatusCode::kResourceExhausted, "more than the {} bytes allowed",
                        max_bytes);
    }
  }
  content.resize(num_read);
  return content;
}

}  // namespace

StatusOr<std::string> read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return make_error(StatusCode::kNotFound, "{}: {}", path.string(), std::strerror(errno));
  }
  StatusOr<std::string> content = read_to_end(fd, max_bytes);
  ::close(fd);
  if (!content.ok()) return content.status().with_context(path.string());
  return content;
}

Status write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file) return invalid_argument("{}: {}", path.string(), std::strerror(errno));
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return data_loss("{}: could not be written", path.string());
  return ok_status();
}

StatusOr<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return make_error(StatusCode::kNotFound, "{}: {}", path.string(), std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return invalid_argument("{}: is not a regular file", path.string());
  }
  MappedFile mapped;
  mapped.size_ = static_cast<std::size_t>(info.st_size);
  if (mapped.size_ > 0) {
    void* address = ::mmap(nullptr, mapped.size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (address == MAP_FAILED) {
      const int error = errno;
      ::close(fd);
      return data_loss("{}: mmap: {}", path.string(), std::strerror(error));
    }
    mapped.data_ = static_cast<const std::byte*>(address);
  }
  ::close(fd);
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace gapless
