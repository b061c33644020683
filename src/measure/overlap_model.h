// The cost model of the GPU bubble: how much faster the pipelined loop is than the blocking one,
// predicted from parts that are measured apart ("Popping the GPU Bubble", Moondream's article on
// its engine Photon, has the first formula).
//
//   speedup = T_block / T_pipe x (1 - z)
//
// T_block, T_pipe: period of a decode step at depth 1 and at depth d. z is the zombie tax: an
// answer of L tokens that ends at step t leaves a dead row in the d - 1 steps launched before
// step t was committed.
//
//   z = (d - 1) / L x s
//   s(B) = B x dT/dB / T     the share of the step that grows with its rows B: what one
//                            row costs, times B. dT/dB is taken towards the next smaller
//                            number of streams that was measured.
//   s(1) = 1                 a dead step costs a whole one; where the device lets dead steps exit
//                            early, that share of it.
//
// With the article's own periods this gives its predicted column.
//
// `gapless bench overlap` predicts a pipelined run from a blocking one step by step
// (window_figures.h), where T_pipe is what device and host need for a step, and takes s(B) from
// here.
#pragma once

#include <span>

namespace gapless {

struct PeriodPoint {
  int num_streams = 1;
  double period = 0;  // in any unit
};

// s(B) for `num_streams`, which must be among `points` (in order of streams). `dead_step_share`:
// s(1); also used for the smallest number of streams measured when that is larger than 1, where
// there is no difference to take.
double growing_share(std::span<const PeriodPoint> points, int num_streams,
                     double dead_step_share = 1);

// z. `depth` of the pipelined run.
double zombie_tax(int depth, double mean_tokens, double growing_share);

// Speedup minus 1.
double predicted_gain(double blocking_period, double pipelined_period, double zombie_tax);

}  // namespace gapless
