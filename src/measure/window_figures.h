// What one measured window comes to, and what a depth-1 window says about a deeper one.
#pragma once

#include <cstdint>

#include "measure/closed_loop.h"

namespace gapless {

// One window of `gapless bench overlap`. Tokens and wall time are the clients' and the host's
// clock; the rest is what the prediction is made of, and what its miss is explained by.
struct WindowFigures {
  std::int64_t num_tokens = 0;
  std::int64_t num_answers = 0;
  double wall_ns = 0;
  // Sums over the window's steps: forward and sampling, and what the host's work (plan, launch,
  // commit, finalize) takes beyond them.
  double device_ns = 0;
  double host_excess_ns = 0;
  std::int64_t num_decode_steps = 0;
  double decode_device_ns = 0;  // of those
  double decode_host_ns = 0;

  // Of the wall time: what the device did not work.
  double idle_ns() const { return wall_ns - device_ns; }
  double tokens_per_s() const;
  double mean_decode_device_ns() const;
};
WindowFigures window_figures(const ClosedLoopWindow& window);

// What a dead row may cost of a live one: the engine promises that a step of done rows ends at once
// (docs/slots_and_streams.md, at most 5 % of a live step). A bound that is known before anything is
// measured, not a fit.
inline constexpr double kDeadRowShare = 0.05;

struct PredictionSettings {
  int depth = 2;
  int num_streams = 1;
  double growing_share = 1;  // s(B), of depth-1 windows too (overlap_model.h)
  double dead_row_share = kDeadRowShare;
};

// Time that the tokens of a depth-1 window would take pipelined, from that window alone: every step
// lasts as long as its device work or the host's work on it, whichever is longer, and every answer
// leaves depth - 1 dead rows.
struct PredictedWindow {
  double device_ns = 0;  // zombies included
  double host_excess_ns = 0;
  double zombie_ns = 0;

  double wall_ns() const { return device_ns + host_excess_ns; }
};
PredictedWindow predict_pipelined(const WindowFigures& blocking,
                                  const PredictionSettings& settings);

// One repeat: the gain in tokens per second that was predicted from its depth-1 window, the one
// that its deeper window shows, and where the difference comes from. Shares: 0.01 is a percent.
struct GainComparison {
  double predicted = 0;
  double observed = 0;
  double miss = 0;       // observed - predicted = by_device + by_idle
  double by_device = 0;  // the device worked less (more: negative) for a token than predicted
  double by_idle = 0;    // it idled less (more: negative) for a token than predicted
};
GainComparison compare_windows(const WindowFigures& blocking, const WindowFigures& pipelined,
                               const PredictionSettings& settings);

}  // namespace gapless
