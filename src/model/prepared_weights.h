// A second copy of matrices, in the layout that the backend's decode products want, in T or in 8 bits: of the logits'
// matrix, and of the text decoder's blocks' where a decode step is one launch (decode_path.h). Prefill keeps reading the rows
// of the first: a copy in T costs as much memory again as those matrices take (2.6 GB for Moondream 2 in bfloat16).
//
// Where memory is short the copy is the only place of these matrices, and in 8 bits of the vision encoder's and the
// projector's too. Their rows share the memory of one matrix, where each is restored for its product (restored_linear.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "kernels/prepared_parts.h"
#include "model/model_shape.h"
#include "model/text_weights.h"

namespace gapless {

// Matrices whose rows share memory.
struct SharedRows {
  // Each makes rows be there, and enqueues. `fill`: those of a group (TensorPlacement::group). `fill_rows`: some of the tensor
  // that is kInParts, at the begin of the shared memory.
  std::function<Status(int group)> fill = nullptr;
  std::function<Status(std::int64_t first_row, std::int64_t num_rows)> fill_rows = nullptr;
  // Prepared alone, behind the decoder's.
  std::vector<LinearWeights*> others = {};
};

// Groups: first the blocks' matrices, as prepared_parts() lists them, then the others.
constexpr int group_of_matrix(int block, int part) {
  return static_cast<int>(kMatricesPerBlock) * block + part;
}

// Bytes of the copy; 0 where the backend has no such layout. Addresses are not looked at. `blocks`: those of the blocks too, where
// one launch would read them.
std::size_t prepared_weights_bytes(const Kernels& kernels, const TextShape& shape,
                                   const TextWeights& text, PreparedFormat format,
                                   bool blocks = true);

// Makes the copy. `shared`: of weights that were laid out with groups (share_memory); their LinearWeights::restore is set here, but
// for the head in T, whose products read nothing but the copy. kFp8: of weights that round_weights_to_fp8 has rounded. The weights must be there
// once `stream` gets there; so is the copy after it.
Status prepare_decode_weights(Device& device, Kernels& kernels, Stream& stream,
                              const TextShape& shape, PreparedFormat format,
                              DecoderWeights& weights, const SharedRows* shared = nullptr,
                              bool blocks = true);

// Lays matrices of which only decode products read out for these, in T, in the place of their rows; LinearWeights::weight is nullptr
// then. Leaves those alone that would not fit there, and all where the backend has no such layout. The weights must be there once
// `stream` gets there; waits for it.
Status prepare_in_place(Device& device, Kernels& kernels, Stream& stream,
                        std::span<LinearWeights* const> matrices);

}  // namespace gapless
