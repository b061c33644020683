// Files that were compiled into the binary (cmake/embed_files.cmake): the playground of web/, and
// docs/openapi.json.
#pragma once

#include <span>
#include <string_view>

namespace gapless {

struct EmbeddedFile {
  std::string_view name;  // "index.html"
  std::span<const unsigned char> bytes;
};

std::span<const EmbeddedFile> embedded_files();

}  // namespace gapless
