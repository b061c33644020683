#include "base/file_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

namespace gapless {

StatusOr<std::string> read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec)) {
    return invalid_argument("{}: is a folder, not a file", path.string());
  }
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    return make_error(StatusCode::kNotFound, "{}: {}", path.string(), std::strerror(errno));
  }
  const auto end = file.tellg();
  if (end < 0) return data_loss("{}: cannot tell its size", path.string());
  const auto size = static_cast<std::size_t>(end);
  if (size > max_bytes) {
    return make_error(StatusCode::kResourceExhausted, "{}: {} bytes, more than the {} allowed",
                      path.string(), size, max_bytes);
  }
  std::string content(size, '\0');
  file.seekg(0);
  if (!file.read(content.data(), static_cast<std::streamsize>(size))) {
    return data_loss("{}: could not be read to its end", path.string());
  }
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
