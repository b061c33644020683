// A StepModel without a neural network: its tokens depend on everything that a pipeline could get
// wrong.
//
// It keeps what the real model keeps in device memory (row states, page table, KV pages, image
// pool) and reads a step's inputs from the slot's device buffers. Per position p of a sequence:
//   value(p)   the input: token id, or the image's digest and the index in it, or a coordinate
//   entry(p)   what the KV cache holds: a hash of value(p), p and acc(p-1); inside an image's block
//              a hash of value(p), p, acc before the block and a digest of the block (whose
//              positions see each other both ways)
//   acc(p)     the sum of the hashed entries 0..p, read through the page table
// The next token is a hash of acc(last), the seed, the number of tokens so far and, of a row with
// kRowAdjustsLogits, its notes of tokens; and so are its alternatives. So one wrong page, row,
// position, input, mask or embedding changes every token from there on. An entry also carries its
// position, and one that is read at another position is counted in num_faults().
//
// Runs on the CPU device (asynchronous, for ThreadSanitizer) and on the simulated device (virtual
// time, scripted durations; inputs that change while a kernel runs are counted in num_faults()).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "pipeline/prepared_prompt.h"
#include "step/step_model.h"
#include "step/token_constraint.h"

namespace gapless {

// The device's grammars, which are numbers: what a row may sample is FakeConstraint's of that number, kept by the row on the device. A
// row must not walk one that nobody holds.
class FakeGrammars {
 public:
  static constexpr int kNum = 64;

  std::shared_ptr<const void> hold(int grammar);
  bool is_held(int grammar) const {
    return num_holders_[static_cast<std::size_t>(grammar)].load() > 0;
  }

 private:
  std::array<std::atomic<int>, kNum> num_holders_{};
};

struct FakeModelConfig {
  StepLimits limits;
  int vocab = 64;
  int max_context = 256;
  int image_tokens = 20;  // 1 + 20 is no multiple of a page, so prefixes have a tail page
  std::size_t crop_bytes = 8;
  std::vector<AutomatonState> automata;
  std::vector<std::uint8_t> token_classes = {};  // by token, where the automata have classes
  std::shared_ptr<FakeGrammars> grammars = std::make_shared<FakeGrammars>();

  // Scripted durations on the simulated device; nothing on the CPU.
  std::function<std::int64_t(const StepShape&)> forward_ns;
  std::function<std::int64_t(const StepShape&)> sampling_ns;

  // A row's tokens depend on how many rows the launch has: what a kernel does that is not
  // row-invariant.
  bool depends_on_batch = false;

  // Limits of a small model that reach every bound quickly.
  static FakeModelConfig small();
};

inline constexpr std::int32_t kFakeStopId = 0;
inline constexpr std::int32_t kFakeCoordId = 1;
inline constexpr std::int32_t kFakeSizeId = 2;

// A seed that makes the model sample kFakeStopId (where the row may sample it) once it has
// generated `num_tokens` tokens; negative: never of its own accord.
std::uint64_t fake_seed(std::uint32_t seed, int num_tokens);

class FakeModel : public StepModel {
 public:
  static StatusOr<std::unique_ptr<FakeModel>> create(Device& device, FakeModelConfig config);

  const StepModelInfo& info() const override { return info_; }
  const StepLimits& limits() const override { return config_.limits; }
  Status forward(Stream& compute, const StepShape& shape, const StepBuffers& buffers) override;
  Status project(Stream& compute, std::span<const EncodeImage> images,
                 const StepBuffers& buffers) override;
  Status sample(Stream& compute, const StepShape& shape, const StepBuffers& buffers) override;
  Status top_logprobs(Stream& compute, const StepShape& shape, const StepBuffers& buffers) override;
  Status stamp(Stream& compute, std::uint64_t* stamp_dev) override;

  // Entries read at a wrong position, live rows that wrote to the trash page, inputs that changed
  // while a kernel was using them, grammars that nobody held.
  std::int64_t num_faults() const { return num_faults_.load(); }
  int num_top_logprobs_calls() const { return num_top_logprobs_calls_; }

 private:
  FakeModel(Device& device, FakeModelConfig config);
  Status allocate();
  Status enqueue(Stream& stream, std::int64_t duration_ns, std::function<void()> begin,
                 std::function<void()> end, const char* label);

  void encode(const StepShape& shape, const StepBuffers& buffers);
  void place_images(std::span<const EncodeImage> images);
  void begin_step(const StepBuffers& buffers);
  void prefill(const StepShape& shape, const StepBuffers& buffers);
  void decode(const StepShape& shape, const StepBuffers& buffers);
  std::vector<std::uint32_t> grammar_mask(std::int32_t row_id, const RowState& row);
  void sample_rows(const StepShape& shape, const StepBuffers& buffers);
  void rank_tokens(const StepShape& shape, const StepBuffers& buffers);
  std::uint64_t input_value(const TokenInput& input) const;
  std::uint64_t sum_entries(std::int32_t row, int num_tokens);
  void write_entry(std::int32_t row, int position, int cache_slot, std::uint64_t entry);

  Device& device_;
  const FakeModelConfig config_;
  StepModelInfo info_;
  Buffer rows_dev_;          // [num_rows] RowState
  Buffer grammar_rows_dev_;  // [num_rows] state of a row with a grammar, uint64
  Buffer notes_dev_;         // [num_rows] digest of a kRowAdjustsLogits row's notes
  Buffer page_table_dev_;    // [num_rows, max_pages_per_row] int32
  Buffer entries_dev_;       // [num_pages, kPageTokens] uint64
  Buffer image_pool_dev_;    // [num_image_slots] uint64
  Buffer features_dev_;      // by crop, uint64
  std::atomic<std::int64_t> num_faults_{0};
  int num_top_logprobs_calls_ = 0;
};

// A host-masked row's constraint: which tokens are allowed depends on every token so far. Allows
// the stop id always.
class FakeConstraint : public TokenConstraint {
 public:
  FakeConstraint(int vocab, std::uint64_t seed) : vocab_(vocab), state_(seed) {}
  void allowed(std::span<std::uint32_t> mask) const override;
  void advance(TokenId token) override;
  std::uint64_t state() const { return state_; }

 private:
  const int vocab_;
  std::uint64_t state_;
};

// What the model answers to a prompt, computed one token after the other on the host, without
// pages, rows, slots or batches. The prompt's constraint is not used: `constraint` is a fresh one
// like it, or null.
struct FakeAnswer {
  std::vector<CommittedToken> tokens;
  FinishReason reason = FinishReason::kStop;
};
FakeAnswer fake_answer(const FakeModelConfig& config, const PreparedPrompt& prompt,
                       TokenConstraint* constraint);

}  // namespace gapless
