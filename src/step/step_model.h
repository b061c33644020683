// What the pipeline asks of a model: launch one step's forward, and its sampling, on a stream.
//
// The real models (model/decoder_model.h) launch kernels; sim/fake_model.h launches scripted
// ones. The pipeline knows nothing else of either. A launch only enqueues: it never waits,
// allocates nothing, and forward and sample must be capturable in a graph: what changes from step
// to step of one shape is read from the slot's device buffers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/limits.h"
#include "base/status.h"
#include "device/device.h"
#include "step/row_state.h"
#include "step/token_memory.h"

namespace gapless {

enum class StepKind : std::uint8_t { kEncode, kPrefill, kDecode };

// Bounds that size every buffer; fixed at start-up.
struct StepLimits {
  int max_seats = 32;              // sequences that run at once: the largest decode batch
  int max_prefill_tokens = 4096;   // token budget of one prefill launch (>= max_context)
  int max_prefill_sequences = 16;  // and segments: a prompt of n images counts as n
  int max_crops_per_encode = 26;   // crops of one encode launch; a larger image takes several
  int max_images_per_encode = 8;
  std::int64_t long_fill_ns = kLongFillNs;  // pipeline/plan.h, rule 5
  int num_pages = 0;                        // KV pages, page 0 is trash
  int max_pages_per_row = 0;                // ceil(max_context / kPageTokens)
  int num_image_slots = 64;                 // places in the image-embedding pool
  int max_page_copies = 16;
  int max_page_deltas = 0;  // per launch
  // The largest prefill and encode that are captured in graphs (pipeline/step_graphs.h); 0: none.
  // max_graph_tokens <= max_prefill_tokens, max_graph_crops <= max_crops_per_encode.
  int max_graph_tokens = 0;
  int max_graph_crops = 0;

  // Places on the device for sequences: those that have a seat, and those that have ended and that
  // steps in flight still refer to (kRowsPerSeat).
  int num_rows() const { return max_seats * kRowsPerSeat; }
  // Rows of one step, padding included: of a decode step, or of a prefill with a prompt of several images.
  int max_step_rows() const { return std::max(max_seats, max_prefill_sequences); }
};

// Notes of one prefill, at most: of the tokens that it computes, for each of its sequences of BOS,
// which may lie in a cached prefix, and of what requests bias.
inline int max_token_notes(const StepLimits& limits) {
  return limits.max_prefill_tokens + limits.max_prefill_sequences * (1 + kMaxLogitBiases);
}

// An image whose last crop an encode step encodes. Its crops' features lie from first_crop on, some
// from earlier steps: the global crop, then the tiles row-major (none when 1x1: the global crop is
// the tile).
struct EncodeImage {
  int first_crop = 0;
  int num_crops = 0;
  int tile_rows = 1;
  int tile_cols = 1;
  int image_slot = 0;  // writes rows [image_slot*grid*grid, ...) of the image-embedding pool
};

// Sizes of one launch. Rows, segments and tokens include the padding up to a bucket: rows[i] = -1,
// a segment without tokens, tokens that belong to no sequence and whose cache slot lies in page 0.
struct StepShape {
  StepKind kind = StepKind::kDecode;
  int num_rows = 0;                // decode: the batch bucket; prefill: sequences
  int num_tokens = 0;              // prefill: packed tokens
  int num_segments = 0;            // prefill: entries of StepBuffers::sequences, at least num_rows
  int max_new_tokens = 1;          // prefill: the longest segment (an upper bound)
  int num_crops = 0;               // encode: of this step
  int first_crop = 0;              // encode: where their features go; not 0 where an image goes on
  int num_token_notes = 0;         // prefill: of all the rows that it installs
  bool with_regions = false;       // some row may sample a coordinate or a size
  bool with_grammars = false;      // some row is held to a grammar on the device
  bool with_top_logprobs = false;  // some row asks for alternatives
};

// Device addresses of one slot's inputs and outputs, all fixed for the life of the slot. The inputs
// are written by one packed copy before the forward.
struct StepBuffers {
  // Inputs of every kind.
  const std::int32_t* rows = nullptr;  // [max_step_rows], -1 = padding
  const std::int32_t* num_installs = nullptr;
  const std::int32_t* install_rows = nullptr;  // [max_prefill_sequences]
  const RowState* installs = nullptr;          // [max_prefill_sequences]
  const std::int32_t* num_deltas = nullptr;
  const PageTableDelta* deltas = nullptr;  // [max_page_deltas]
  const std::int32_t* num_copies = nullptr;
  const PageCopy* copies = nullptr;  // [max_page_copies]
  // Inputs of a prefill.
  const TokenInput* inputs = nullptr;         // [max_prefill_tokens]
  const std::int32_t* positions = nullptr;    // [max_prefill_tokens]
  const std::int32_t* cache_slots = nullptr;  // [max_prefill_tokens]
  // [max_prefill_sequences] One for each sequence, or several one behind the other: a prompt with
  // several images is cut where an image's block ends, since positions of one block do not see
  // those of a later one. The parts of one sequence follow each other in the packed tokens too.
  const AttentionSequence* sequences = nullptr;
  const std::int32_t* last_tokens =
      nullptr;  // [max_prefill_sequences]: index of each one's last token
  const std::int32_t* tokens_consumed = nullptr;  // [max_prefill_sequences]
  // Install i has notes first_notes[i] to first_notes[i + 1].
  const std::int32_t* first_notes = nullptr;  // [max_prefill_sequences + 1]
  const TokenNote* notes = nullptr;           // [max_token_notes(limits)]
  // Inputs of an encode: uint8 crops [max_crops_per_encode, crop, crop, 3].
  const std::uint8_t* crops = nullptr;
  // Host masks, uploaded between forward and sampling; rows without one are not read.
  const std::uint32_t* host_masks = nullptr;  // [max_step_rows, mask_words]
  // Between forward and sampling.
  void* hidden = nullptr;  // [max_step_rows, dim] T, before post_ln
  float* logits =
      nullptr;  // [max_step_rows, vocab]; a decode step's may hold those alone that its rows read
  std::int32_t* tokens = nullptr;          // [max_step_rows]
  float* logprobs = nullptr;               // [max_step_rows]
  float* values = nullptr;                 // [max_step_rows, 2]
  TokenConfidence* confidences = nullptr;  // [max_step_rows]
  // Outputs: one block, copied to the host as it is.
  StepOutput* outputs = nullptr;    // [max_step_rows]
  std::uint64_t* stamps = nullptr;  // [kNumStamps] device time, ns
  // The block's end, copied only for a step with_top_logprobs.
  TopLogprob* top_logprobs = nullptr;  // [max_step_rows, kMaxTopLogprobs]
};

enum StepStamp { kForwardBegin, kForwardEnd, kSamplingBegin, kSamplingEnd, kNumStamps };

struct StepModelInfo {
  int vocab = 0;
  int hidden_dim = 0;
  int max_context = 0;
  int image_tokens = 0;          // 729
  std::size_t hidden_bytes = 0;  // of one row of StepBuffers::hidden
  std::size_t crop_bytes = 0;    // of one crop
  bool holds_grammars = false;   // RowState::grammar may be set
  // What a decode step reads, for the ledger's bytes over bandwidth; 0: unknown. A step whose rows read few logits reads less.
  std::int64_t decode_weight_bytes = 0;  // once per step
  std::int64_t kv_token_bytes = 0;       // per cached token of each live row
};

class StepModel {
 public:
  virtual ~StepModel() = default;

  virtual const StepModelInfo& info() const = 0;
  virtual const StepLimits& limits() const = 0;

  // Encode: crops to features, those of crop i to place first_crop + i, where only encode steps
  // write. Prefill, decode: installs rows and applies page-table deltas (a prefill page copies too),
  // runs the decoder, writes hidden and logits of each row, of a decode step those that sample will read.
  virtual Status forward(Stream& compute, const StepShape& shape, const StepBuffers& buffers) = 0;

  // Encode, after the forward: each whole image's features into its slot. Never captured: a few launches
  // per image, whose sizes and places differ.
  virtual Status project(Stream& compute, std::span<const EncodeImage> images,
                         const StepBuffers& buffers) = 0;

  // Prefill, decode: samples, decodes regions, advances the rows, writes the outputs.
  virtual Status sample(Stream& compute, const StepShape& shape, const StepBuffers& buffers) = 0;

  // Behind the sampling of a step with_top_logprobs: the alternatives of the rows that ask. A call
  // of its own, never part of a captured step, so that steps without them launch what they always
  // do and no graph exists twice.
  virtual Status top_logprobs(Stream& compute, const StepShape& shape,
                              const StepBuffers& buffers) = 0;

  // Writes the device clock to *stamp.
  virtual Status stamp(Stream& compute, std::uint64_t* stamp_dev) = 0;
};

}  // namespace gapless
