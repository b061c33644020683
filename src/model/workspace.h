// Activations of one step. One workspace serves every step of every slot, because all forwards and
// all samplings run in order on one compute stream (I1): a step's activations are dead when the
// next begins. Vision and text never run at once, so they share the same bytes. The features of crops
// are apart: an image of many crops is encoded in several steps, and others may run in between.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "model/model_shape.h"
#include "step/step_model.h"

namespace gapless {

// R = max_crops_per_encode * 729 rows, E = enc_dim, G = padded enc_ff_dim.
struct VisionWorkspace {
  void* patches = nullptr;          // [R, padded patch length] T
  void* x = nullptr;                // [R, E] T: the residual stream
  void* norm = nullptr;             // [R, E] T
  void* qkv = nullptr;              // [R, 3E] T
  void* attention = nullptr;        // [R, E] T
  void* after_attention = nullptr;  // [R, E] T: x + attention, in the place of qkv
  void* inner = nullptr;            // [R, G] T
  float* row_scales = nullptr;      // [R]: of norm or inner, while they are in 8 bits
  void* features = nullptr;         // [max_feature_crops * 729, E] T: the encoder's output
  void* pooled = nullptr;           // [729, 2E] T
  void* projector_inner = nullptr;  // [729, proj_inner_dim] T
};

// N = max_prefill_tokens, D = text dim, H = heads x head size, K = key heads x head size, F = padded ff_dim, twice
// where it is gated.
struct TextWorkspace {
  void* x = nullptr;          // [N, D] T: a prefill's residual stream (decode: StepBuffers::hidden)
  void* norm = nullptr;       // [N, D] T
  void* qkv = nullptr;        // [N, max(H + 2K, D)] T
  void* attention = nullptr;  // [N, max(H, D)] T
  void* inner = nullptr;      // [N, F] T; in a prefill scratch of scaled heads, too
  float* row_scales = nullptr;  // [N]: of norm or inner, while they are in 8 bits
  void* router_rows = nullptr;  // [N, D] T: of norm, while it is in 8 bits; of experts that may be
  void* last_norm = nullptr;    // [max rows, D] T: post_ln of the rows' last tokens
  void* attention_scratch = nullptr;  // in a decode step of scaled heads, too
  void* op_scratch = nullptr;         // of experts
  void* block_scratch = nullptr;
  void* sample_scratch = nullptr;
  void* region_scratch = nullptr;
  // A decode step's plan, made on the device from the rows' states.
  std::int32_t* positions = nullptr;        // [max_seats]
  std::int32_t* cache_slots = nullptr;      // [max_seats]
  AttentionSequence* sequences = nullptr;   // [max_seats]
  std::int32_t* input_index = nullptr;      // [max_seats]
  StepLogits* needed_logits = nullptr;      // one
  SharedPrefix* shared_prefixes = nullptr;  // [max_seats]
  std::uint32_t* any_lives = nullptr;       // one
};

// Crops that have a place for their features: those of a launch, or all of one image.
int max_feature_crops(const StepLimits& limits);

// Bytes that Workspace::create will allocate.
std::size_t workspace_bytes(const Kernels& kernels, const ModelShape& shape,
                            const StepLimits& limits);

class Workspace {
 public:
  static StatusOr<Workspace> create(Device& device, const Kernels& kernels, const ModelShape& shape,
                                    const StepLimits& limits);
  // Of a vision encoder that runs alone, a crop at a time. It has no text().
  static StatusOr<Workspace> create_for_crop(Device& device, const Kernels& kernels,
                                             const VisionShape& shape);

  const VisionWorkspace& vision() const { return vision_; }
  const TextWorkspace& text() const { return text_; }
  std::size_t bytes() const { return buffer_.size_bytes(); }

 private:
  Buffer buffer_;
  VisionWorkspace vision_;
  TextWorkspace text_;
};

}  // namespace gapless
