// Any bytes as a safetensors file: an error, or tensors that lie inside of it.
//
// The input is the header's JSON and the data; the length in front is added here, so that mutations
// reach the JSON. (A first byte of 0 gives the raw bytes to the parser instead.) Start it on
// tests/fuzz/corpus/safetensors.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "weights/safetensors.h"

namespace {

void check(std::span<const std::byte> file) {
  const auto entries = gapless::parse_safetensors(file, "fuzz");
  if (!entries.ok()) return;
  unsigned sum = 0;
  for (const auto& entry : *entries) {
    GAPLESS_CHECK(entry.begin <= entry.end && entry.end <= file.size());
    for (std::size_t i = entry.begin; i < entry.end; ++i) sum += std::to_integer<unsigned>(file[i]);
  }
  [[maybe_unused]] volatile unsigned keep = sum;  // the reads must happen
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 0 && data[0] == 0) {
    check(std::as_bytes(std::span(data + 1, size - 1)));
    return 0;
  }
  // The data begin behind the last '}'.
  std::size_t header_bytes = size;
  while (header_bytes > 0 && data[header_bytes - 1] != '}') --header_bytes;
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header_bytes >> (8 * i));
  file.append(reinterpret_cast<const char*>(data), size);
  check(std::as_bytes(std::span(file)));
  return 0;
}
