// Reads and writes whole files; large read-only ones through a memory map.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace gapless {

// The error names the path. Files larger than max_bytes are refused before they are read; pipes, whose
// size nobody knows, when they have brought more.
StatusOr<std::string> read_file(const std::filesystem::path& path, std::size_t max_bytes);

Status write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);

// A read-only memory map of a file; unmapped on destruction. The bytes live as long as the map.
class MappedFile {
 public:
  static StatusOr<MappedFile> open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace gapless
