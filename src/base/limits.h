// Every bound of the engine, each with its reason. Buffers are allocated from these at start-up.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gapless {

// Pipeline. Depth 1 is the blocking loop; 2 is ping-pong; beyond 4 only latency would grow.
inline constexpr int kMaxDepth = 4;
// Encode and prefill steps between two decode steps: one image and its prompt.
inline constexpr int kMaxFillsInARow = 2;
// A fill that takes longer owes the decode steps as much time (pipeline/plan.h). On a GPU none does:
// the longest, images packed to the brim, takes 60 ms. On a CPU one crop or the prompt of one image
// takes 40 ms and more, a decode step 3.
inline constexpr std::int64_t kLongFillNs = 150'000'000;
inline constexpr std::int64_t kCpuLongFillNs = 20'000'000;
// Requests that wait for a seat: more would time out before they are served.
inline constexpr int kMaxWaitingRequests = 1024;
// Image prefixes that the prefix cache keeps track of; pages run out first on today's GPUs.
inline constexpr int kMaxCachedPrefixes = 512;
// Seats: sequences that run at once. The largest decode batch. More would take most of a step for keys and
// values: on an H200 a step of 256 rows of Moondream 2 reads 43 GB of them.
inline constexpr int kMaxSeats = 256;
// Seats of a GPU where nobody says otherwise (--max-rows).
inline constexpr int kDefaultSeats = 64;
static_assert(kDefaultSeats <= kMaxSeats);
// Rows: places on the device. A sequence that has ended gives its seat back at once, but its row
// when no step in flight refers to it. When somebody is seated at most depth - 1 steps are in
// flight, with at most a seat's worth of such rows each: with so many rows to a seat there is
// always one for whoever gets a seat. A row takes its page table and 6 bytes for each token of the
// vocabulary (step/token_memory.h): with Moondream 2's 51,200 the rows of 64 seats are 79 MB.
inline constexpr int kRowsPerSeat = kMaxDepth;
inline constexpr int kMaxRows = kMaxSeats * kRowsPerSeat;
// Tokens per KV page: one page of one head is 16 x 64 x 2 bytes = 2 KiB in bf16, a good burst.
inline constexpr int kPageTokens = 16;
// Stop token ids that a request may name, and those that a model may have (Llama 3.1 has three); the
// device checks all of them.
inline constexpr int kMaxStopTokenIds = 16;
inline constexpr int kMaxModelStopIds = 4;
inline constexpr int kMaxStopIds = kMaxStopTokenIds + kMaxModelStopIds;
// Tokens that a request may bias. OpenAI allows 300; a step takes so many for each row it seats.
inline constexpr int kMaxLogitBiases = 1024;
// A bias is between -100, which nothing survives, and 100, which nothing withstands; presence and
// frequency penalties between -2 and 2: OpenAI's bounds.
inline constexpr float kMaxLogitBias = 100;
inline constexpr float kMaxPenalty = 2;
// A repetition penalty is a factor, of either side of 1. Useful ones are under 2.
inline constexpr float kMinRepetitionPenalty = 0.1f;
inline constexpr float kMaxRepetitionPenalty = 10;
// Most likely tokens that a request may ask for beside each of its answer: OpenAI's bound.
inline constexpr int kMaxTopLogprobs = 20;
// Fourier features of a coordinate or size (cosines and sines): 256 and 512 in every known model; a
// kernel keeps them on its stack or in shared memory.
inline constexpr int kMaxRegionFeatures = 2048;
// Objects that one point or detect request may return.
inline constexpr int kMaxObjects = 150;

// A step of the device that takes longer hangs (--step-timeout). The longest on a GPU, an encode of
// many crops, takes a tenth of a second; on two CPU cores the full-size model takes minutes for one.
inline constexpr int kStepTimeoutSeconds = 30;
inline constexpr int kCpuStepTimeoutSeconds = 600;
// Devices of one process: hosts of today have 8 or 16 GPUs.
inline constexpr std::size_t kMaxDevices = 64;
// Once the device is lost: the answers that say so are small and ready, a client that does not take
// them in this time will not.
inline constexpr int kLostDrainSeconds = 5;

// Work queued on one CPU stream before the host has to wait: a hundred steps of a large model. Only
// a runaway host gets there.
inline constexpr std::size_t kMaxQueuedCpuOps = 65'536;

// Images. 100 MPix of RGB is 300 MB: enough for any camera, not for a decompression bomb.
inline constexpr std::int64_t kMaxImagePixels = 100'000'000;
// Of a lossless WebP, and of an animated one, whose frames may be lossless. The library makes a picture of one colour in a single call and asks nobody meanwhile, so the call must be
// short: 100 MPix took 102 ms on a core, and a decoding ends within 50 ms of a cancel.
inline constexpr std::int64_t kMaxLosslessWebpPixels = 40'000'000;
inline constexpr std::int64_t kMaxImageSide = 65'535;
inline constexpr std::size_t kMaxImageBytes = 64u << 20;
// Local crops per image: select_tiling keeps to 12 except at extreme aspect ratios, where it grows
// with the square root of the long side: 54 at kMaxImageSide.
inline constexpr int kMaxTilesPerImage = 64;
// Scans of a progressive JPEG, each of which costs a pass over the whole picture. Encoders write
// about 10; libjpeg's own finest script for one component has fewer than 100.
inline constexpr int kMaxJpegScans = 100;
// Images of one prompt. Each takes 729 positions: a context of 2048 holds two, one of 4096 five.
inline constexpr std::size_t kMaxImagesPerPrompt = 8;
// libjpeg's working memory: the coefficients of a progressive CMYK picture of kMaxImagePixels
// take 2 x 4 bytes a pixel, and nothing legitimate takes more.
inline constexpr long kMaxJpegWorkBytes = 1L << 30;
// Memory for all pictures that are being decoded at once, unless --picture-memory-mb says otherwise:
// the largest progressive JPEG (coefficients and raster) or lossless WebP with transparency takes
// 0.9 GB, three other pictures of 100 MPix as much together.
inline constexpr std::int64_t kDefaultPictureMemoryBytes = std::int64_t{1} << 30;
// Segments that wait to be made exact. Each takes a second or more, so behind these one would wait for minutes: it stays coarse.
inline constexpr std::size_t kMaxWaitingRefinements = 64;
// A picture that waits to be decoded is overtaken by so many smaller ones at most.
inline constexpr int kMaxOvertaken = 16;
// One metadata chunk of a PNG in memory; what we read of them (PLTE, tRNS) is under 1 KiB.
inline constexpr std::size_t kMaxPngChunkBytes = 8u << 20;
// The side of a crop in pixels that a model's configuration may ask for: with kMaxTilesPerImage
// crops of it one image takes 200 MB.
inline constexpr int kMaxCropSize = 1024;

// Text. A prompt's text before tokenising.
inline constexpr std::size_t kMaxPromptBytes = 1u << 20;
// Largest published vocabularies have 2^18 entries and a tokenizer.json of 35 MB.
inline constexpr int kMaxVocabSize = 1 << 20;
inline constexpr std::size_t kMaxTokenizerJsonBytes = 64u << 20;
// tokenizer_config.json lists every added token once more, and holds a chat template.
inline constexpr std::size_t kMaxTokenizerConfigBytes = 8u << 20;
// Longest spelling of one token: bounds what one token may add to an answer.
inline constexpr std::size_t kMaxTokenBytes = 4096;
// The pre-tokenizer's regular expressions: the longest one, how many, and how far one match may
// backtrack (PCRE2's match limit) before the text is refused.
inline constexpr std::size_t kMaxRegexBytes = 16u << 10;
inline constexpr std::size_t kMaxPreTokenizerSteps = 16;
inline constexpr std::uint32_t kMaxRegexBacktracks = 20'000'000;
inline constexpr std::size_t kMaxRegexJitStackBytes = 1u << 20;
// Stop strings are matched against every chunk of text; OpenAI allows 4, others more.
inline constexpr std::size_t kMaxStopStrings = 16;
inline constexpr std::size_t kMaxStopStringBytes = 256;
// Points and boxes that one prompt may refer to: each costs two or three tokens of context.
inline constexpr std::size_t kMaxSpatialRefs = 64;

// Files of a model. JSON nests deeper than this only by accident or malice. The safetensors format
// itself allows headers of 100 MB.
inline constexpr std::size_t kMaxJsonDepth = 32;
inline constexpr std::size_t kMaxModelConfigBytes = 1u << 20;
inline constexpr std::size_t kMaxSafetensorsHeaderBytes = 100u << 20;
inline constexpr std::size_t kMaxSafetensorsShards = 1024;
inline constexpr std::size_t kMaxTensorRank = 8;
// Sides of a model: far above any that fits a device, low enough that no product of them overflows.
inline constexpr int kMaxModelDim = 1 << 16;
inline constexpr int kMaxModelLayers = 256;
// Experts of a layer, and those that a token goes through: published models have up to 256 and 8. A GPU block has
// a counter for each expert, a CPU kernel a list of the chosen ones on its stack.
inline constexpr int kMaxExperts = 256;
inline constexpr int kMaxExpertsPerToken = 16;
inline constexpr int kMaxCropSide = 4096;
inline constexpr int kMaxContext = 1 << 20;
// Of a model that was trained for more: 64 seats of Llama 3.1 8B at this length hold 69 GB of keys and
// values in bf16.
inline constexpr int kDefaultTextContext = 8192;
inline constexpr std::size_t kMaxTemplateTokens = 64;

// Server. The head of a request: browsers send 2 KiB, and cookies of other services on the same
// host may add some. Also the lines around a chunk of a body, and its trailers.
inline constexpr std::size_t kMaxHttpHeaderBytes = 32u << 10;
// The largest picture as base64, and the JSON around it.
inline constexpr std::size_t kMaxHttpBodyBytes = 96u << 20;
// Bodies of all requests together, from their first byte until the answer: what they hold in memory
// is about this. One more is refused with 503.
inline constexpr std::size_t kMaxHttpBodyBytesInFlight = std::size_t{1} << 30;
// A body up to this size is read where it arrived; JSON and base64 of a larger one would hold up
// other connections of that thread for milliseconds, at 96 MiB for 400.
inline constexpr std::size_t kMaxInlineBodyBytes = 1u << 20;
// Bytes that a client may send ahead of the answer that it waits for.
inline constexpr std::size_t kMaxHttpReadAheadBytes = 16u << 10;
// Open connections: each takes a file descriptor and about 20 KiB.
inline constexpr int kMaxHttpConnections = 4096;
// Connections that have not yet sent the head of an admissible request: each may keep a head and a
// read buffer, 50 MB in all. Clients send their head at once, so this many open ones within a
// round trip.
inline constexpr int kMaxHttpNewcomers = 1024;
// What may wait for a client that does not read. The longest answer of a model with 2048 positions
// is about 200 KB as events; with 20 alternatives to each token, an answer of 150 boxes is one
// event of 1 MB.
inline constexpr std::size_t kMaxHttpOutboxBytes = 2u << 20;
// Between two requests of a connection; browsers and pools reuse one within a minute.
inline constexpr int kHttpIdleSeconds = 75;
// From a head's first byte to its last: one network packet, in practice.
inline constexpr int kHttpHeadSeconds = 10;
// From the head to the body's end: a 10 MB picture over a slow uplink (2 Mbit/s) takes 40 s.
inline constexpr int kHttpBodySeconds = 90;
// A client that takes no byte of its answer for so long has stalled.
inline constexpr int kHttpWriteStallSeconds = 20;
// From the request to the first byte of its answer, and between two events of a stream. Proxies in
// front give up earlier.
inline constexpr int kHttpAnswerSeconds = 300;
// What a client that was refused is told to wait: a few answers end every second.
inline constexpr int kRetryAfterSeconds = 1;
inline constexpr std::size_t kMaxRequestIdBytes = 128;
// Pictures fetched by address (off unless hosts are allowed): a photograph of a phone has 10 MB;
// who does not deliver it in 5 s keeps his client waiting; CDNs redirect once or twice.
inline constexpr std::size_t kMaxFetchBytes = 20u << 20;
inline constexpr int kFetchSeconds = 5;
inline constexpr int kMaxFetchRedirects = 3;
inline constexpr int kMaxFetchesAtOnce = 64;
inline constexpr std::size_t kMaxFetchedImages = kMaxImagesPerPrompt;  // one after the other
inline constexpr std::size_t kMaxFetchUrlBytes = 4096;
// Chat: answers to one request (each is a generation of its own), and messages in it.
inline constexpr int kMaxChoices = 16;
inline constexpr std::size_t kMaxChatMessages = 256;
// Functions of a request, and calls of a message: OpenAI's bound. The model reads each, so the context bounds them anyway.
inline constexpr std::size_t kMaxTools = 128;
inline constexpr std::size_t kMaxToolNameBytes = 64;  // as in OpenAI's API

static_assert(kMaxDepth >= 2);
static_assert(kMaxHttpBodyBytes >= kMaxImageBytes / 3 * 4 + kMaxPromptBytes);
static_assert(kMaxHttpBodyBytesInFlight >= kMaxHttpBodyBytes);
static_assert(kMaxJpegWorkBytes >= kMaxImagePixels * 8);
static_assert(kPageTokens > 0 && (kPageTokens & (kPageTokens - 1)) == 0);

}  // namespace gapless
