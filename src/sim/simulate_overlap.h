// The Photon article's table, simulated: the real loop on the simulated device, with what the
// article gives as parts, held against what it gives as results.
//
//   gain = T_block / T_pipe * (1 - z) - 1          (Photon article, "A cost model for the bubble")
//   z    = s(B) / L, s(1) = 1                      the zombie tax: at B streams a zombie is one row
//   s(B) = B * dT/dB / T                           more, and costs what a row adds to the step
//
// Parts: the decode step's forward and sampling; the host's work per decode step, which is what the
// article's blocking period leaves for it, T_block - forward - sampling; the mean length of
// answers. Nothing else: no idle time is added, and no constant fitted. So T_block comes out as
// given, and everything else (the pipelined period, the gain) may miss the article's figure, and
// says by how much.
//
// What is simulated: B streams, each of which sends its next request when the last one ends;
// answers of random length, mean L, that end with a stop token; real scheduling at depth 1 and at
// depth 2; zombies. The time of prefills, the same in both runs, is taken out, as the article's
// periods are those of decode steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace gapless {

struct OverlapCase {
  std::string gpu;
  int streams = 1;
  double forward_ms = 0;
  double sampling_ms = 0;
  double period_ms = 0;          // pipelined
  double block_ms = 0;           // blocking period
  double mean_tokens = 0;        // L
  double row_share = 1;          // s(B)
  double article_predicted = 0;  // gain, percent
  double article_observed = 0;   // gain, percent

  // The host's work per decode step.
  double host_ms() const { return block_ms - forward_ms - sampling_ms; }
};

// The six rows of the article: RTX 3090 and B200 at 1, 8 and 32 streams. row_share is derived
// from the article's own periods (slope between neighbouring stream counts).
std::vector<OverlapCase> article_cases();

// Percent.
double predicted_gain(const OverlapCase& overlap_case);

struct OverlapRun {
  double period_ms = 0;     // per decode step
  double tokens_per_s = 0;  // sampled tokens, stop tokens included
  double zombie_share = 0;  // of decode rows
  double busy_share = 0;    // of the device's time
};

struct OverlapResult {
  OverlapRun blocking;
  OverlapRun pipelined;
  double gain_percent = 0;  // of tokens per second
};

// Simulated less the article's figure.
struct OverlapMiss {
  double blocking_ms = 0;
  double pipelined_ms = 0;
  double predicted_points = 0;  // of its predicted gain
  double observed_points = 0;   // of its observed gain
};
OverlapMiss miss_of(const OverlapCase& overlap_case, const OverlapResult& result);

struct OverlapOptions {
  std::uint64_t seed = 1;
  int depth = 2;
  int requests_per_stream = 40;
};

StatusOr<OverlapResult> simulate_overlap(const OverlapCase& overlap_case,
                                         const OverlapOptions& options = {});

}  // namespace gapless
