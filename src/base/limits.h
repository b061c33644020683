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

// Images. 100 MPix of RGB is 300 MB: enough for any camera, not for a decompression bomb.
inline constexpr std::int64_t kMaxImagePixels = 100'000'000;
inline constexpr std::int64_t kMaxImageSide = 65'535;
inline constexpr std::size_t kMaxImageBytes = 64u << 20;
// Scans of a progressive JPEG, each of which costs a pass over the whole picture. Encoders write
// about 10; libjpeg's own finest script for one component has fewer than 100.
inline constexpr int kMaxJpegScans = 100;
// libjpeg's working memory: the coefficients of a progressive CMYK picture of kMaxImagePixels
// take 2 x 4 bytes a pixel, and nothing legitimate takes more.
inline constexpr long kMaxJpegWorkBytes = 1L << 30;
// One metadata chunk of a PNG in memory; what we read of them (PLTE, tRNS) is under 1 KiB.
inline constexpr std::size_t kMaxPngChunkBytes = 8u << 20;
// Local crops per image: select_tiling keeps to 12 except at extreme aspect ratios, where the
// formula grows with the width; beyond this the image is refused.
inline constexpr int kMaxTilesPerImage = 256;
// The side of a crop in pixels that a model's configuration may ask for: with kMaxTilesPerImage
// crops of it one image takes 800 MB.
inline constexpr int kMaxCropSize = 1024;

// Text. A prompt's text before tokenising, and the longest file of model metadata we parse.
inline constexpr std::size_t kMaxPromptBytes = 1u << 20;
inline constexpr std::size_t kMaxTokenizerJsonBytes = 256u << 20;
inline constexpr std::size_t kMaxSafetensorsHeaderBytes = 100u << 20;

static_assert(kMaxDepth >= 2);
static_assert(kMaxJpegWorkBytes >= kMaxImagePixels * 8);
static_assert(kPageTokens > 0 && (kPageTokens & (kPageTokens - 1)) == 0);

}  // namespace gapless
