#include "measure/measured_run.h"

#include <algorithm>

#include "measure/overlap_model.h"

namespace gapless {
namespace {

constexpr std::size_t at(HostPhaseKind kind) {
  return static_cast<std::size_t>(kind);
}

double per(double value, std::int64_t count) {
  return count > 0 ? value / static_cast<double>(count) : 0;
}

bool same_but_depth(const MeasuredRun& a, const MeasuredRun& b) {
  return a.workload == b.workload && a.host_delay_us == b.host_delay_us &&
         a.num_streams == b.num_streams;
}

// s of a pipelined run, from its own periods and those of the same workload at other numbers of
// streams.
double growing_share_of(const MeasuredRun& run, std::span<const MeasuredRun> runs) {
  std::vector<PeriodPoint> points;
  for (const MeasuredRun& other : runs) {
    if (other.workload == run.workload && other.host_delay_us == run.host_delay_us &&
        other.depth == run.depth) {
      points.push_back({other.num_streams, other.mean_period_ms()});
    }
  }
  std::sort(points.begin(), points.end(), [](const PeriodPoint& a, const PeriodPoint& b) {
    return a.num_streams < b.num_streams;
  });
  const double dead_ms = mean_of(run.steps.dead_period_ns) / 1e6;
  const double dead_share = dead_ms > 0 ? dead_ms / run.mean_period_ms() : 1;
  return std::max(0.0, growing_share(points, run.num_streams, dead_share));
}

// F: what a fill step takes, and what the decode step behind it takes more or less than others.
double fill_period_ns(const StepStatistics& steps) {
  const double after_ns = mean_of(steps.after_fill_period_ns);
  const double behind_ns = after_ns > 0 ? after_ns - mean_of(steps.period_ns) : 0;
  return per(steps.fill_ns, steps.num_fill_steps) + behind_ns;
}

double answer_time_of(const MeasuredRun& run, double growing_share) {
  const StepStatistics& steps = run.steps;
  return answer_time(
      {.depth = run.depth,
       .mean_tokens = steps.mean_answer_tokens(),
       .fills_per_answer = per(static_cast<double>(steps.num_fill_steps), steps.num_first_tokens),
       .fill_period = fill_period_ns(steps),
       .decode_period = mean_of(steps.period_ns),
       .num_streams = run.num_streams,
       .growing_share = growing_share});
}

OverlapGain compare(const MeasuredRun& blocking, const MeasuredRun& run,
                    std::span<const MeasuredRun> runs) {
  OverlapGain gain;
  gain.workload = run.workload;
  gain.host_delay_us = run.host_delay_us;
  gain.num_streams = run.num_streams;
  gain.depth = run.depth;
  gain.blocking_ms = blocking.mean_period_ms();
  gain.pipelined_ms = run.mean_period_ms();
  gain.mean_tokens = run.steps.mean_answer_tokens();
  gain.growing_share = growing_share_of(run, runs);
  gain.zombie_tax = zombie_tax(run.depth, gain.mean_tokens, gain.growing_share);
  gain.predicted = predicted_gain(gain.blocking_ms, gain.pipelined_ms, gain.zombie_tax);
  gain.observed_decode = run.steps.decode_tokens_per_s() / blocking.steps.decode_tokens_per_s() - 1;
  // Tokens per second: each run's answers have the length that they happened to have.
  const double blocking_token = answer_time_of(blocking, 0) / blocking.steps.mean_answer_tokens();
  const double token = answer_time_of(run, gain.growing_share) / gain.mean_tokens;
  gain.predicted_with_fills = blocking_token / token - 1;
  gain.observed = run.steps.tokens_per_s() / blocking.steps.tokens_per_s() - 1;
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
  return per(static_cast<double>(decode_bytes), decode_ns);
}

double StepAccounts::busy_share() const {
  return per(static_cast<double>(busy_ns), busy_ns + starved_ns + bubble_ns);
}

double StepAccounts::bubble_us_per_step() const {
  return per(static_cast<double>(bubble_ns) / 1e3, num_steps);
}

double StepAccounts::host_us_per_step(HostPhaseKind kind) const {
  return per(static_cast<double>(host_by_phase_ns[at(kind)]) / 1e3, num_steps);
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
  tokens_per_s.push_back(statistics.tokens_per_s());
}

double MeasuredRun::zombie_share() const {
  return per(static_cast<double>(steps.num_zombies), steps.num_rows);
}

std::vector<OverlapGain> overlap_gains(std::span<const MeasuredRun> runs) {
  std::vector<OverlapGain> gains;
  for (const MeasuredRun& run : runs) {
    const auto blocking = std::find_if(runs.begin(), runs.end(), [&](const MeasuredRun& other) {
      return other.depth == 1 && same_but_depth(run, other);
    });
    if (run.depth == 1 || blocking == runs.end()) continue;
    if (run.steps.period_ns.empty() || blocking->steps.period_ns.empty()) continue;
    gains.push_back(compare(*blocking, run, runs));
  }
  return gains;
}

}  // namespace gapless
