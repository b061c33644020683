#include "measure/window_figures.h"

#include <algorithm>

#include "measure/ratio.h"
#include "measure/step_statistics.h"

namespace gapless {

double WindowFigures::tokens_per_s() const {
  return ratio(static_cast<double>(num_tokens) * 1e9, wall_ns);
}

double WindowFigures::mean_decode_device_ns() const {
  return ratio(decode_device_ns, static_cast<double>(num_decode_steps));
}

WindowFigures window_figures(const ClosedLoopWindow& window) {
  WindowFigures figures;
  figures.num_tokens = window.num_tokens;
  figures.num_answers = window.num_answers;
  figures.wall_ns = static_cast<double>(window.host_ns);
  for (const StepRecord& record : window.records) {
    const auto device_ns = static_cast<double>((record.forward_end_ns - record.forward_begin_ns) +
                                               (record.sampling_end_ns - record.sampling_begin_ns));
    const double host_ns = host_work_ns(record);
    figures.device_ns += device_ns;
    figures.host_excess_ns += std::max(0.0, host_ns - device_ns);
    if (record.kind != StepKind::kDecode) continue;
    ++figures.num_decode_steps;
    figures.decode_device_ns += device_ns;
    figures.decode_host_ns += host_ns;
  }
  return figures;
}

PredictedWindow predict_pipelined(const WindowFigures& blocking,
                                  const PredictionSettings& settings) {
  PredictedWindow predicted;
  const double row_ns = settings.growing_share * blocking.mean_decode_device_ns() /
                        static_cast<double>(settings.num_streams);
  predicted.zombie_ns = static_cast<double>(blocking.num_answers) * (settings.depth - 1) *
                        settings.dead_row_share * row_ns;
  predicted.device_ns = blocking.device_ns + predicted.zombie_ns;
  predicted.host_excess_ns = blocking.host_excess_ns;
  return predicted;
}

GainComparison compare_windows(const WindowFigures& blocking, const WindowFigures& pipelined,
                               const PredictionSettings& settings) {
  const PredictedWindow predicted = predict_pipelined(blocking, settings);
  const auto tokens = static_cast<double>(blocking.num_tokens);
  const auto pipelined_tokens = static_cast<double>(pipelined.num_tokens);
  GainComparison comparison;
  if (tokens == 0 || pipelined_tokens == 0) return comparison;
  // Times for one token.
  const double blocking_ns = blocking.wall_ns / tokens;
  const double predicted_ns = predicted.wall_ns() / tokens;
  const double pipelined_ns = pipelined.wall_ns / pipelined_tokens;
  comparison.predicted = blocking_ns / predicted_ns - 1;
  comparison.observed = blocking_ns / pipelined_ns - 1;
  comparison.miss = comparison.observed - comparison.predicted;
  // b / o - b / p = b (p - o) / (o p), and p - o is a sum.
  const double points_of_ns = blocking_ns / (pipelined_ns * predicted_ns);
  comparison.by_device =
      (predicted.device_ns / tokens - pipelined.device_ns / pipelined_tokens) * points_of_ns;
  comparison.by_idle =
      (predicted.host_excess_ns / tokens - pipelined.idle_ns() / pipelined_tokens) * points_of_ns;
  return comparison;
}

}  // namespace gapless
