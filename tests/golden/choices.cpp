#include "tests/golden/choices.h"

#include <gtest/gtest.h>

#include <cmath>

#include "constraint/segment_automaton.h"

namespace gapless {
namespace {

// A sampled value's bin: the inverse of coordinate = bin / divisor, and of size = bin / bins or
// size = 2^(10 bin / (bins - 1) - 10).
std::int32_t coord_bin(float value, const ModelConfig& config) {
  const int num_bins = config.region.coord_out_dim;
  const bool by_bins = config.numerics.coord_divisor == CoordDivisor::kNumBins;
  const int divisor = by_bins ? num_bins : num_bins - 1;
  return static_cast<std::int32_t>(std::lround(value * static_cast<float>(divisor)));
}
std::int32_t size_bin(float value, const ModelConfig& config) {
  const int num_bins = config.region.size_out_dim / 2;
  if (config.region.linear_sizes) {
    return static_cast<std::int32_t>(std::lround(value * static_cast<float>(num_bins)));
  }
  const float position = (std::log2(value) + 10.0f) / 10.0f;
  return static_cast<std::int32_t>(std::lround(position * static_cast<float>(num_bins - 1)));
}

class Comparison {
 public:
  Comparison(const GoldenRequest& expected, const ModelConfig& config, const ChoiceErrors& errors)
      : expected_(expected), config_(config), errors_(errors) {}

  // False once a choice differed.
  bool step(std::size_t i, const StepOutput& output) {
    const TokenizerConfig& tokenizer = config_.tokenizer;
    const std::int32_t eos = tokenizer.eos_id.value;
    const std::int32_t wanted = i < expected_.token_ids.size() ? expected_.token_ids[i] : eos;
    if (is_decision(i) &&
        !same(output.token, wanted, expected_.margins.at(next_margin_++), errors_.token)) {
      return false;
    }
    EXPECT_EQ(output.token, wanted);
    if (!expected_.has_regions()) return true;
    if (wanted == tokenizer.coord_id.value) {
      return bin(coord_bin(output.x, config_), errors_.coord);
    }
    if (wanted == tokenizer.size_id.value) {
      return bin(size_bin(output.x, config_), errors_.size) &&
             bin(size_bin(output.y, config_), errors_.size);
    }
    return true;
  }

 private:
  // Points and boxes choose between an object and the end; y and size follow without a choice. The box of a segment
  // always comes.
  bool is_decision(std::size_t i) const {
    if (expected_.is_segment()) return i >= std::size_t{kNumSegmentRegionTokens};
    if (!expected_.is_spatial()) return true;
    const std::size_t steps_per_object = expected_.skill == "point" ? 2 : 3;
    return i % steps_per_object == 0;
  }

  bool bin(std::int32_t actual, double error) {
    const std::int32_t wanted = expected_.bins.at(next_bin_);
    return same(actual, wanted, expected_.bin_margins.at(next_bin_++), error);
  }

  static bool same(std::int32_t actual, std::int32_t wanted, double margin, double error) {
    if (actual == wanted) return true;
    EXPECT_LE(margin, error) << "chose " << actual << " where the oracle chose " << wanted;
    return false;
  }

  const GoldenRequest& expected_;
  const ModelConfig& config_;
  const ChoiceErrors& errors_;
  std::size_t next_margin_ = 0;
  std::size_t next_bin_ = 0;
};

}  // namespace

void compare_choices(const GoldenRequest& expected, std::span<const StepOutput> outputs,
                     const ModelConfig& config, const ChoiceErrors& errors) {
  Comparison comparison(expected, config, errors);
  const std::size_t num_steps = expected.token_ids.size() + (expected.ended_at_limit ? 0 : 1);
  for (std::size_t i = 0; i < num_steps; ++i) {
    SCOPED_TRACE("step " + std::to_string(i));
    ASSERT_LT(i, outputs.size()) << "ended early";
    if (!comparison.step(i, outputs[i])) return;
  }
}

}  // namespace gapless
