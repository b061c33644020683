// Memory that a captured graph fills with zeros at its beginning, in place of fills later on (Stream::take_zeros).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "base/status.h"

namespace gapless {

// Makes `graph` fill these bytes with zeros before everything else. What it would fill with zeros inside them later it no longer does: what
// followed such a fill follows what was before it. Fills in conditional bodies stay. The graph is not being captured any more and not
// instantiated yet.
Status fill_zeros_first(cudaGraph_t graph, std::byte* begin, std::size_t bytes);

}  // namespace gapless
