// Writes one safetensors file as a stream: all tensors are declared first, then their data follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "weights/safetensors.h"

namespace gapless {

// The file appears under its name only when finish() succeeds; until then it has ".partial" added,
// and without finish() it is removed again.
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    TensorDType dtype = TensorDType::kF32;
    std::vector<std::int64_t> shape;
  };

  static StatusOr<SafetensorsWriter> create(
      const std::filesystem::path& path, std::span<const Tensor> tensors,
      const std::map<std::string, std::string>& metadata = {});
  SafetensorsWriter(SafetensorsWriter&&) = default;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = default;
  ~SafetensorsWriter();

  // The next bytes of the data: tensors in the order of their declaration, little-endian, dense.
  // Any cutting into pieces will do.
  Status append(std::span<const std::byte> bytes);

  // Fails when more or fewer bytes came than were declared.
  Status finish();

 private:
  SafetensorsWriter() = default;

  std::filesystem::path path_, partial_path_;
  std::ofstream file_;
  std::size_t missing_bytes_ = 0;
};

}  // namespace gapless
