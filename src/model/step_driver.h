// Runs a StepModel one step at a time, without the pipeline: upload, forward, sample, download,
// wait. For tests, parity tools and `gapless bench forward`; the real path is the pipeline's loop.
//
// Row r owns the pages 1 + r * max_pages_per_row onwards; image slots are the caller's choice.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "step/step_model.h"

namespace gapless {

// One image to encode: its crops, global first.
struct DriverImage {
  std::span<const std::uint8_t> crops;  // [num_crops, crop, crop, 3]
  int tile_rows = 1;
  int tile_cols = 1;
  int image_slot = 0;
};

// One sequence of a prefill.
struct DriverPrompt {
  int row = 0;
  std::vector<TokenInput> inputs;  // kImage ids count through the whole image pool
  int num_cached = 0;              // tokens that are in the cache already
  // Whose pages hold them: -1, the row's own; otherwise that row's, shared as the prefix cache
  // does: whole pages by reference, the last, partly filled one as a copy.
  int cached_by_row = -1;
  int prefix_len = 0;
  // Of several images: where the blocks of all but the last end, past num_cached.
  std::vector<int> block_ends;
  // Sampling settings and limits; the driver sets the position. No penalties, no biases.
  RowState state;
};

class StepDriver {
 public:
  static StatusOr<std::unique_ptr<StepDriver>> create(Device& device, StepModel& model);

  // All images, in one launch where they fit.
  Status encode(std::span<const DriverImage> images);

  // One launch; the outputs come in the order of the prompts.
  StatusOr<std::vector<StepOutput>> prefill(std::span<const DriverPrompt> prompts,
                                            bool with_regions = true);

  // The forwards of the same steps alone, as graphs: the device's time of each of `repeats` runs,
  // in nanoseconds, after a few that do not count.
  StatusOr<std::vector<double>> time_encode(std::span<const DriverImage> images, int repeats);
  StatusOr<std::vector<double>> time_prefill(std::span<const DriverPrompt> prompts, int repeats);
  // Forward and sampling of a decode step of these rows (-1: padding), as one graph: the rows that
  // live go on by a token in each run.
  StatusOr<std::vector<double>> time_decode(std::span<const std::int32_t> rows, int repeats);
  // From now on the device rests before each timed run: back to back, long runs reach the limit of
  // its power, and its clock falls.
  void rest_between_runs(std::chrono::milliseconds rest) { rest_ = rest; }

  // One launch; -1 is padding.
  StatusOr<std::vector<StepOutput>> decode(std::span<const std::int32_t> rows,
                                           bool with_regions = true);

  // From now on decode() captures each batch size once, as the pipeline does, and replays the
  // graph.
  void use_graphs() { graphs_on_ = true; }

  // Prefills one prompt and decodes until the row is done; all outputs, the last one included.
  StatusOr<std::vector<StepOutput>> generate(const DriverPrompt& prompt);

  // The page that holds a position of a row that owns all its pages.
  int page_of(int row, int position) const;

  // [rows, dim] T before post_ln, of the step before.
  const void* hidden_dev() const { return buffers_.hidden; }
  // Of the step before: [rows, vocab]; and bytes of anything on the device.
  StatusOr<std::vector<float>> logits(int num_rows);
  StatusOr<std::vector<std::byte>> read(const void* from_dev, std::size_t bytes);

 private:
  // The inputs of a step, laid out the same in pinned and in device memory.
  struct Inputs {
    std::int32_t* rows;
    std::int32_t* counts;  // installs, deltas, copies
    std::int32_t* install_rows;
    RowState* installs;
    PageTableDelta* deltas;
    PageCopy* copies;
    TokenInput* tokens;
    std::int32_t* positions;
    std::int32_t* cache_slots;
    AttentionSequence* sequences;
    std::int32_t* last_tokens;
    std::int32_t* tokens_consumed;
  };

  StepDriver(Device& device, StepModel& model) : device_(device), model_(model) {}
  Status allocate();
  Inputs carve_inputs(void* base, std::size_t* bytes) const;
  void add_prompt(const DriverPrompt& prompt, int index, StepShape& shape);
  void add_page(int row, int index, int page);
  void share_pages(const DriverPrompt& prompt);
  void map_pages(const DriverPrompt& prompt);
  StatusOr<std::vector<EncodeImage>> upload_crops(std::span<const DriverImage> images);
  Status forward(const StepShape& shape);
  StepShape add_prompts(std::span<const DriverPrompt> prompts, bool with_regions);
  StatusOr<std::vector<double>> time_forward(const StepShape& shape,
                                             std::span<const EncodeImage> images, int repeats);
  // From one stamp of the graph to another.
  StatusOr<std::vector<double>> time_graph(Graph& graph, StepStamp from, StepStamp to, int repeats);
  StepShape set_decode_rows(std::span<const std::int32_t> rows, bool with_regions);
  Status launch(const StepShape& shape);
  Status launch_graph(const StepShape& shape);
  StatusOr<std::vector<StepOutput>> run(const StepShape& shape);

  Device& device_;
  StepModel& model_;
  std::chrono::milliseconds rest_{0};
  std::unique_ptr<Stream> stream_;
  Buffer inputs_dev_, outputs_dev_, crops_dev_;
  PinnedBuffer inputs_pinned_, transfer_pinned_;
  std::size_t input_bytes_ = 0;
  Inputs in_{};  // pinned
  StepBuffers buffers_;
  std::vector<int> mapped_pages_;  // per row
  bool graphs_on_ = false;
  std::map<int, std::unique_ptr<Graph>> graphs_;  // by batch size
};

}  // namespace gapless
