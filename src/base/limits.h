// Every bound of the engine, each with its reason. Buffers are allocated from these at start-up.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gapless {

// Pipeline. Depth 1 is the blocking loop; 2 is ping-pong; beyond 4 only latency would grow.
inline constexpr int kMaxDepth = 4;
// Rows (sequences that hold a seat on the device). The largest decode batch.
inline constexpr int kMaxRows = 64;
// Tokens per KV page: one page of one head is 16 x 64 x 2 bytes = 2 KiB in bf16, a good burst.
inline constexpr int kPageTokens = 16;
// Stop token ids per sequence that the device itself checks.
inline constexpr int kMaxStopIds = 8;
// Objects that one point or detect request may return.
inline constexpr int kMaxObjects = 150;

// Work queued on one CPU stream before the host has to wait: a hundred steps of a large model. Only
// a runaway host gets there.
inline constexpr std::size_t kMaxQueuedCpuOps = 65'536;

// Images. 100 MPix of RGB is 300 MB: enough for any camera, not for a decompression bomb.
inline constexpr std::int64_t kMaxImagePixels = 100'000'000;
inline constexpr std::int64_t kMaxImageSide = 65'535;
inline constexpr std::size_t kMaxImageBytes = 64u << 20;
// Local crops per image: select_tiling keeps to 12 except at extreme aspect ratios, where it grows
// with the square root of the long side: 54 at kMaxImageSide.
inline constexpr int kMaxTilesPerImage = 64;

// Text. A prompt's text before tokenising, and the longest file of model metadata we parse.
inline constexpr std::size_t kMaxPromptBytes = 1u << 20;
inline constexpr std::size_t kMaxTokenizerJsonBytes = 256u << 20;
inline constexpr std::size_t kMaxSafetensorsHeaderBytes = 100u << 20;

static_assert(kMaxDepth >= 2);
static_assert(kPageTokens > 0 && (kPageTokens & (kPageTokens - 1)) == 0);

}  // namespace gapless
