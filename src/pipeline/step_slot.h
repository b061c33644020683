// One of the pipeline's slots: the buffers, events and graphs of one step at a time.
//
//   h2d      [inputs]  .  .  .  .  .  [masks]           one packed copy; masks of host-masked rows
//                  \ inputs_ready           \ masks_ready
//   compute         [ forward .......][ . . [ sampling ]
//                                                 \ outputs_ready: the instant they are written
//   d2h                                            [outputs]
//                                                        \ outputs_landed: the host waits here
//
// Everything is allocated and captured once. All slots share the model's activation workspace,
// because all their work runs on the one compute stream; what a step must keep from its launch to
// its commit (inputs, hidden states, logits, outputs) is the slot's own.
//
// What has a graph of its sizes (step_graphs.h) is launched by it. A decode step's forward and
// sampling are one graph, unless sampling has to wait for masks. The alternatives that some rows
// ask for (top_logprobs) are one kernel launched behind the sampling, in no graph: such steps are
// rare, a variant with them would double the graphs of every slot, and other steps cost nothing.
//
// Calls in order, for each step: fill inputs(); launch_forward or launch_all; [launch_sampling];
// wait; read outputs(). The slot is free again when they have been read (I4). Threads: the engine
// thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/limits.h"
#include "base/status.h"
#include "device/device.h"
#include "pipeline/fill_inputs.h"
#include "pipeline/step_graphs.h"
#include "pipeline/step_layout.h"
#include "step/step_model.h"

namespace gapless {

// The three streams of the pipeline.
struct PipelineStreams {
  std::unique_ptr<Stream> h2d;
  std::unique_ptr<Stream> compute;
  std::unique_ptr<Stream> d2h;

  static StatusOr<PipelineStreams> create(Device& device);
  // Waits for all three. Start-up and shutdown only.
  Status synchronize();
  // The same after a failed launch, when a step may hang: an error when a stream is not done after
  // timeout_ns. 0: waits for ever.
  Status drain(std::int64_t timeout_ns);

  std::unique_ptr<Event> drained;
};

class StepSlot {
 public:
  // Allocates everything and captures the graphs. `device`, `model` and `streams` outlive the slot.
  static StatusOr<std::unique_ptr<StepSlot>> create(Device& device, StepModel& model,
                                                    PipelineStreams& streams);

  const StepInputs& inputs() const { return inputs_pinned_; }
  EncodeLists& encode_lists() { return encode_lists_; }
  // Mask of the i-th row of the batch, to be filled before launch_sampling.
  std::span<std::uint32_t> mask(int i);

  // Of device memory.
  std::size_t device_bytes() const;

  // Uploads the inputs and launches the forward. For kEncode that is the whole step: its images are
  // those of encode_lists().
  Status launch_forward(const StepShape& shape);
  // Uploads the inputs and launches forward and sampling.
  Status launch_all(const StepShape& shape);
  // Uploads the first num_masks masks and launches the sampling of launch_forward's step.
  Status launch_sampling(int num_masks);

  // The one wait of a step. An error means that the device is lost. False: the step did not end
  // within timeout_ns; 0 waits for ever.
  StatusOr<bool> wait(std::int64_t timeout_ns);
  std::span<const StepOutput> outputs() const;
  // Of the i-th row of the batch, when it asks: the first num_top_logprobs entries are valid.
  std::span<const TopLogprob, kMaxTopLogprobs> top_logprobs(int i) const;
  // Device time, in the device's clock.
  std::int64_t stamp_ns(StepStamp stamp) const;

 private:
  StepSlot(StepModel& model, PipelineStreams& streams);
  Status allocate(Device& device);

  Status upload_inputs(const StepShape& shape);
  // By the graph of its sizes, or op by op.
  Status run(StepPart part, const StepShape& shape);
  Status enqueue(StepPart part, const StepShape& shape);
  Status enqueue_forward(const StepShape& shape);
  Status enqueue_sampling(const StepShape& shape);
  Status place_images();
  Status finish_step(const StepShape& shape);

  StepModel& model_;
  PipelineStreams& streams_;
  const StepLayout layout_;
  const std::size_t mask_words_;

  Buffer inputs_dev_;
  Buffer crops_dev_;
  Buffer masks_dev_;
  Buffer intermediates_dev_;
  Buffer
      outputs_dev_;  // [max_step_rows] StepOutput, the stamps, [max_step_rows, kMaxTopLogprobs] TopLogprob
  std::size_t plain_outputs_bytes_ = 0;  // up to the stamps' end
  PinnedBuffer inputs_block_pinned_;
  PinnedBuffer masks_pinned_;
  PinnedBuffer outputs_pinned_;
  StepInputs inputs_pinned_;
  StepBuffers buffers_;
  EncodeLists encode_lists_;

  std::unique_ptr<Event> inputs_ready_;
  std::unique_ptr<Event> masks_ready_;
  std::unique_ptr<Event> outputs_ready_;
  std::unique_ptr<Event> outputs_landed_;
  StepGraphs graphs_;

  StepShape shape_;             // of the step in the slot
  bool sampled_apart_ = false;  // its sampling was launched after, not with, its forward
};

}  // namespace gapless
