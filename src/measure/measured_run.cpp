#include "measure/measured_run.h"

#include <algorithm>

#include "measure/overlap_model.h"
#include "measure/ratio.h"

namespace gapless {
namespace {

constexpr std::size_t at(HostPhaseKind kind) {
  return static_cast<std::size_t>(kind);
}

bool same_but_depth(const MeasuredRun& a, const MeasuredRun& b) {
  return a.workload == b.workload && a.host_delay_us == b.host_delay_us &&
         a.num_streams == b.num_streams;
}

// s of a depth-1 window, from its own decode steps and those of the same workload and repeat at
// other numbers of streams.
double growing_share_of(const MeasuredRun& blocking, std::size_t repeat,
                        std::span<const MeasuredRun> runs) {
  std::vector<PeriodPoint> points;
  for (const MeasuredRun& other : runs) {
    if (other.workload == blocking.workload && other.host_delay_us == blocking.host_delay_us &&
        other.depth == 1 && repeat < other.windows.size()) {
      points.push_back({other.num_streams, other.windows[repeat].mean_decode_device_ns()});
    }
  }
  std::sort(points.begin(), points.end(), [](const PeriodPoint& a, const PeriodPoint& b) {
    return a.num_streams < b.num_streams;
  });
  return std::max(0.0, growing_share(points, blocking.num_streams));
}

OverlapGain compare(const MeasuredRun& blocking, const MeasuredRun& run,
                    std::span<const MeasuredRun> runs, double dead_row_share) {
  OverlapGain gain;
  gain.workload = run.workload;
  gain.host_delay_us = run.host_delay_us;
  gain.num_streams = run.num_streams;
  gain.depth = run.depth;
  gain.forward_ms = blocking.forward_ms();
  gain.sampling_ms = blocking.sampling_ms();
  gain.host_us = spread_of(blocking.steps.host_work_ns).median / 1e3;
  gain.mean_tokens = blocking.steps.mean_answer_tokens();
  gain.growing_share = growing_share_of(blocking, 0, runs);
  gain.zombie_tax = zombie_tax(run.depth, gain.mean_tokens, gain.growing_share) * dead_row_share;
  gain.blocking_ms = blocking.mean_period_ms();
  gain.pipelined_ms = run.mean_period_ms();
  std::vector<double> predicted, observed, miss, by_device, by_idle;
  const std::size_t num_repeats = std::min(blocking.windows.size(), run.windows.size());
  for (std::size_t repeat = 0; repeat < num_repeats; ++repeat) {
    const GainComparison comparison =
        compare_windows(blocking.windows[repeat], run.windows[repeat],
                        {.depth = run.depth,
                         .num_streams = run.num_streams,
                         .growing_share = growing_share_of(blocking, repeat, runs),
                         .dead_row_share = dead_row_share});
    predicted.push_back(comparison.predicted);
    observed.push_back(comparison.observed);
    miss.push_back(comparison.miss);
    by_device.push_back(comparison.by_device);
    by_idle.push_back(comparison.by_idle);
  }
  gain.predicted = range_of_repeats(std::move(predicted));
  gain.observed = range_of_repeats(std::move(observed));
  gain.miss = range_of_repeats(std::move(miss));
  gain.by_device = range_of_repeats(std::move(by_device));
  gain.by_idle = range_of_repeats(std::move(by_idle));
  return gain;
}

}  // namespace

void StepAccounts::add(const ClosedLoopWindow& window) {
  const LedgerTotals& totals = window.totals;
  num_steps += totals.steps();
  busy_ns += totals.busy_ns;
  starved_ns += totals.starved_ns;
  bubble_ns += totals.bubble_ns;
  std::int64_t unaccounted_ns = window.host_ns;
  for (std::size_t i = 0; i < totals.host_ns.size(); ++i) {
    bubble_by_phase_ns[i] += totals.bubble_by_phase_ns[i];
    host_by_phase_ns[i] += totals.host_ns[i];
    unaccounted_ns -= totals.host_ns[i];
  }
  host_by_phase_ns[at(HostPhaseKind::kOther)] += std::max<std::int64_t>(0, unaccounted_ns);
  forbidden_calls += window.forbidden_calls;
  constexpr auto kDecode = static_cast<std::size_t>(StepKind::kDecode);
  decode_bytes += totals.decode_bytes;
  decode_ns += totals.forward_ns[kDecode] + totals.sampling_ns[kDecode];
}

double StepAccounts::decode_gb_per_s() const {
  return ratio(static_cast<double>(decode_bytes), static_cast<double>(decode_ns));
}

double StepAccounts::busy_share() const {
  return ratio(static_cast<double>(busy_ns), static_cast<double>(busy_ns + starved_ns + bubble_ns));
}

double StepAccounts::bubble_us_per_step() const {
  return ratio(static_cast<double>(bubble_ns) / 1e3, num_steps);
}

double StepAccounts::host_us_per_step(HostPhaseKind kind) const {
  return ratio(static_cast<double>(host_by_phase_ns[at(kind)]) / 1e3, num_steps);
}

double StepAccounts::host_work_us_per_step() const {
  double sum_us = 0;
  for (const HostPhaseKind kind :
       {HostPhaseKind::kPlan, HostPhaseKind::kLaunch, HostPhaseKind::kCommit,
        HostPhaseKind::kFinalize, HostPhaseKind::kOther}) {
    sum_us += host_us_per_step(kind);
  }
  return sum_us;
}

HostPhaseKind StepAccounts::guilty_phase() const {
  const auto most = std::max_element(bubble_by_phase_ns.begin(), bubble_by_phase_ns.end());
  return static_cast<HostPhaseKind>(most - bubble_by_phase_ns.begin());
}

void MeasuredRun::add(const ClosedLoopWindow& window) {
  const StepStatistics statistics = step_statistics(window.records, num_streams);
  steps.add(statistics);
  accounts.add(window);
  periods_ms.push_back(spread_of(statistics.period_ns).median / 1e6);
  core_shares.push_back(
      ratio(static_cast<double>(window.awake_ns), static_cast<double>(window.host_ns)));
  windows.push_back(window_figures(window));
  tokens_per_s.push_back(windows.back().tokens_per_s());
  num_all_tokens += window.num_all_tokens;
}

double MeasuredRun::zombie_share() const {
  return ratio(static_cast<double>(steps.num_zombies), steps.num_rows);
}

double MeasuredRun::new_masks_per_token() const {
  return ratio(static_cast<double>(num_found_masks), num_all_tokens);
}

RepeatRange range_of_repeats(std::vector<double> values) {
  if (values.empty()) return {};
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  return {spread_of(values).median, *min, *max};
}

std::vector<PeriodAgainstPlain> periods_against_plain(std::span<const MeasuredRun> runs) {
  std::vector<PeriodAgainstPlain> list;
  for (const MeasuredRun& run : runs) {
    const auto plain = std::find_if(runs.begin(), runs.end(), [&](const MeasuredRun& other) {
      return other.workload == "plain" && other.depth == run.depth &&
             other.num_streams == run.num_streams && other.host_delay_us == run.host_delay_us;
    });
    if (plain == runs.end() || run.workload == "plain") continue;
    std::vector<double> longer;
    const std::size_t num_repeats = std::min(run.periods_ms.size(), plain->periods_ms.size());
    for (std::size_t repeat = 0; repeat < num_repeats; ++repeat) {
      // 0: a window without a full decode step.
      if (plain->periods_ms[repeat] <= 0 || run.periods_ms[repeat] <= 0) continue;
      longer.push_back(run.periods_ms[repeat] / plain->periods_ms[repeat] - 1);
    }
    list.push_back({run.workload, run.host_delay_us, run.num_streams, run.depth,
                    range_of_repeats(std::move(longer))});
  }
  return list;
}

std::vector<OverlapGain> overlap_gains(std::span<const MeasuredRun> runs, double dead_row_share) {
  std::vector<OverlapGain> gains;
  for (const MeasuredRun& run : runs) {
    const auto blocking = std::find_if(runs.begin(), runs.end(), [&](const MeasuredRun& other) {
      return other.depth == 1 && same_but_depth(run, other);
    });
    if (run.depth == 1 || blocking == runs.end()) continue;
    gains.push_back(compare(*blocking, run, runs, dead_row_share));
  }
  return gains;
}

}  // namespace gapless
