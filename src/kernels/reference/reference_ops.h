// The ops of kernels.h as plain functions on host memory: float32 tensors, one obvious loop nest
// each, double accumulation. They are the oracle for every other backend; nothing here is fast.
//
// Tests call them directly on host arrays. An argument `round_as` makes an op round its
// intermediate values where a backend with that activation type rounds them.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>

#include "kernels/kernels.h"

namespace gapless::reference {

// linear.cpp
void linear(const LinearParams& params);
double gelu_tanh(double x);  // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))

// norm.cpp
void norm(const NormParams& params);
// One row; y may be x.
void norm_row(const NormWeights& weights, const float* x, float* y, int dim);

// gate.cpp
void gate(const GateParams& params);
double silu(double x);      // x / (1 + exp(-x))
double gelu_erf(double x);  // x / 2 (1 + erf(x / sqrt(2)))
double activate(Activation activation, double x);

// experts.cpp
struct ChosenExpert {
  std::int32_t expert = 0;
  float weight = 0;
};
// Of one row's logits, in falling order of these, with the weights rounded. There are at least as
// many logits as chosen ones. Where logits are not numbers some experts are chosen, each once.
void choose_experts(std::span<const float> logits, std::span<ChosenExpert> chosen,
                    DType round_as = DType::kF32);
// Expert `index` of a layer's, as a feed-forward of its own; its products hold float32.
LinearWeights expert_of(const LinearWeights& first, int index);
void experts(const ExpertsParams& params, DType round_as = DType::kF32);

// scale_heads.cpp
void scale_heads(const ScaleHeadsParams& params);

// vision.cpp
void patchify(const PatchifyParams& params);
void vision_attention(const VisionAttentionParams& params);
void stitch_and_pool(const StitchAndPoolParams& params);

// embed.cpp
void embed(const EmbedParams& params, DType round_as = DType::kF32);

// rope_cache.cpp
void rope_and_cache(const RopeAndCacheParams& params);
void copy_pages(const CopyPagesParams& params);

// attention.cpp
void paged_attention(const PagedAttentionParams& params);

// grammar_masks.cpp
void grammar_masks(const GrammarMasksParams& params);
// A live row with a grammar to where it stands now.
void move_grammar_row(const GrammarMasksParams& params, std::int32_t row);

// sampling.cpp
struct SampledToken {
  std::int32_t token = 0;
  float logprob = 0;
};
// One row's part of TokenMemory.
struct RowMemory {
  const std::uint16_t* uses = nullptr;
  const float* biases = nullptr;
};
struct Automata {
  // Not explicit: rows without an automaton pass nullptr.
  Automata(const AutomatonState* states_in, const std::uint8_t* token_classes_in = nullptr)
      : states(states_in), token_classes(token_classes_in) {}
  const AutomatonState* states;
  const std::uint8_t* token_classes;
};
// The candidates of a live row, where its state alone says them and nobody reads its logprob; otherwise nothing.
std::optional<std::set<std::int32_t>> few_candidates(const RowState& row,
                                                     const AutomatonState* automata, int vocab);
// One row. mask: of mask_of(), or nullptr; memory only for a kRowAdjustsLogits one; u
// is the uniform number in [0, 1).
SampledToken sample_row(const float* logits, int vocab, const RowState& row,
                        const Automata& automata, const std::uint32_t* mask, double u,
                        const RowMemory& memory = {});
void sample(const SampleParams& params);
// Of one token of one row; kImpossibleLogprob when its logit is not finite.
float logprob_of(const float* logits, int vocab, std::int32_t token);
void top_logprobs(const TopLogprobsParams& params);

// regions.cpp
void decode_regions(const DecodeRegionsParams& params);
float confidence_of_best(const float* logits, int num_bins);  // the largest one's softmax
float coordinate_of_bin(int bin, int num_bins);               // bin / (num_bins - 1)
float coordinate_of_bin(int bin, int num_bins, int divisor);  // 0: num_bins - 1
float size_of_bin(int bin, int num_bins);
float size_of_bin(int bin, int num_bins, bool linear);

// rows.cpp
void begin_step(const BeginStepParams& params);
void plan_decode(const PlanDecodeParams& params);
void gather_rows(const GatherRowsParams& params);
void advance_rows(const AdvanceRowsParams& params);

// random.cpp
void fill_random(const FillRandomParams& params);
void round_to_fp8(const RoundToFp8Params& params);
void rows_to_fp8(const RowsToFp8Params& params);

}  // namespace gapless::reference
