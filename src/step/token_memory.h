// What a row remembers of each token of the vocabulary, for penalties and biases.
//
// It lives on the device, indexed by row, so that the penalties of token t+1 see token t without the
// host: the kernel that ends a step counts its token, the next step's sampling reads the count. The
// kernel that seats a sequence clears its row and writes what the host knows (TokenNote). Only rows
// with kRowAdjustsLogits have a memory: that of the others is neither cleared, read nor written.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"

namespace gapless {

// A token's `uses`: how often it was generated, and whether the prompt holds it.
inline constexpr std::uint16_t kTokenInPrompt = 0x8000;
inline constexpr std::uint16_t kMaxTokenUses = 0x7fff;  // more are counted as this many

struct TokenMemory {
  std::uint16_t* uses = nullptr;  // [num_rows, stride]
  float* biases = nullptr;        // [num_rows, stride], added to the logit
  std::int64_t stride = 0;        // token_memory_stride(vocab)
};

// Entries of one row. A multiple of 8, so that a row of `uses` is cleared in words of 16 bytes.
inline constexpr std::int64_t token_memory_stride(int vocab) {
  return (std::int64_t{vocab} + 7) / 8 * 8;
}

// What the host tells a new row of one token.
struct TokenNote {
  std::int32_t token = 0;
  std::int32_t in_prompt = 0;  // 1: the prompt holds it
  float bias = 0;
};
static_assert(sizeof(TokenNote) == 12);

}  // namespace gapless
