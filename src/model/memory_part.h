// What a model's device memory is used for.
#pragma once

#include <cstddef>
#include <string>

namespace gapless {

struct MemoryPart {
  std::string name;  // for a person: "weights"
  std::size_t bytes = 0;
};

}  // namespace gapless
