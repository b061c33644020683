#include "measure/overlap_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/object.hpp>

#include "measure/result_file.h"

namespace gapless {
namespace {

constexpr std::array kWorkPhases{HostPhaseKind::kPlan, HostPhaseKind::kLaunch,
                                 HostPhaseKind::kCommit, HostPhaseKind::kFinalize,
                                 HostPhaseKind::kOther};

std::string run_name(std::string_view workload, double host_delay_us, int num_streams, int depth) {
  const std::string delay = host_delay_us > 0 ? fmt::format(" +{:.0f}us", host_delay_us) : "";
  return fmt::format("{:<26} {:>7} {:>5}", fmt::format("{}{}", workload, delay), num_streams,
                     depth);
}

std::string run_name(const MeasuredRun& run) {
  return run_name(run.workload, run.host_delay_us, run.num_streams, run.depth);
}

std::string percent(double share, int decimals = 1) {
  return fmt::format("{:+.{}f}%", 100 * share, decimals);
}

std::string percent(const RepeatRange& range) {
  return fmt::format("{} ({} .. {})", percent(range.median), percent(range.min),
                     percent(range.max));
}

boost::json::object range_json(const RepeatRange& range) {
  return {{"median", rounded(range.median, 5)},
          {"min", rounded(range.min, 5)},
          {"max", rounded(range.max, 5)}};
}

std::string us_per_step(const MeasuredRun& run, HostPhaseKind kind) {
  return fmt::format(" {:>8.1f}", run.accounts.host_us_per_step(kind));
}

// Of a time in ms; "-" where nothing was measured: short answers may leave no full step.
std::string time_or_dash(double ms, bool measured) {
  return measured ? fmt::format("{:.4f}", ms) : "-";
}

boost::json::object spread_json(const std::vector<double>& values_ns) {
  const Spread spread = spread_of(values_ns);
  return {{"median", rounded(spread.median / 1e6, 5)},
          {"p10", rounded(spread.p10 / 1e6, 5)},
          {"p90", rounded(spread.p90 / 1e6, 5)},
          {"steps", spread.count}};
}

boost::json::array rounded_list(const std::vector<double>& values, int decimals) {
  boost::json::array list;
  for (const double value : values) list.push_back(rounded(value, decimals));
  return list;
}

boost::json::object host_json(const MeasuredRun& run) {
  boost::json::object host;
  for (const HostPhaseKind kind : kWorkPhases) {
    host[host_phase_name(kind)] = rounded(run.accounts.host_us_per_step(kind), 2);
  }
  host["work"] = rounded(run.accounts.host_work_us_per_step(), 2);
  const Spread decode = spread_of(run.steps.host_work_ns);
  host["work_of_a_decode_step"] = boost::json::object{{"median", rounded(decode.median / 1e3, 2)},
                                                      {"p10", rounded(decode.p10 / 1e3, 2)},
                                                      {"p90", rounded(decode.p90 / 1e3, 2)}};
  host["wait"] = rounded(run.accounts.host_us_per_step(HostPhaseKind::kWait), 2);
  return host;
}

boost::json::object bubble_json(const StepAccounts& accounts) {
  boost::json::object bubble;
  for (int i = 0; i < kNumHostPhaseKinds; ++i) {
    const std::int64_t ns = accounts.bubble_by_phase_ns[static_cast<std::size_t>(i)];
    if (ns == 0 || accounts.num_steps == 0) continue;
    const double us = static_cast<double>(ns) / 1e3 / static_cast<double>(accounts.num_steps);
    bubble[host_phase_name(static_cast<HostPhaseKind>(i))] = rounded(us, 3);
  }
  return bubble;
}

}  // namespace

std::string step_table(std::span<const MeasuredRun> runs) {
  std::string out = fmt::format(
      "{:<26} {:>7} {:>5} | {:>8} {:>8} {:>8} {:>18} | {:>7} {:>9} {:<8} | {:>6} | {:>7} {:>9} "
      "{:>10}\n",
      "times in ms", "streams", "depth", "forward", "sampling", "period", "p10 .. p90", "busy",
      "bubble us", "guilty", "GB/s", "zombies", "forbidden", "tokens/s");
  for (const MeasuredRun& run : runs) {
    const Spread period = spread_of(run.steps.period_ns);
    const StepAccounts& accounts = run.accounts;
    out += fmt::format(
        "{} | {:>8} {:>8} {:>8} {:>8} .. {:>6} | {:>6.2f}% {:>9.2f} {:<8} | {:>6.0f} | "
        "{:>6.2f}% {:>9} {:>10.1f}\n",
        run_name(run), time_or_dash(run.forward_ms(), !run.steps.forward_ns.empty()),
        time_or_dash(run.sampling_ms(), !run.steps.sampling_ns.empty()),
        time_or_dash(period.median / 1e6, period.count > 0),
        time_or_dash(period.p10 / 1e6, period.count > 0),
        time_or_dash(period.p90 / 1e6, period.count > 0), 100 * accounts.busy_share(),
        accounts.bubble_us_per_step(),
        accounts.bubble_ns > 0 ? host_phase_name(accounts.guilty_phase()) : "",
        accounts.decode_gb_per_s(), 100 * run.zombie_share(), accounts.forbidden_calls,
        run.steps.tokens_per_s());
  }
  return out;
}

std::string host_table(std::span<const MeasuredRun> runs) {
  std::string out =
      fmt::format("{:<26} {:>7} {:>5} |", "engine thread, us per step", "streams", "depth");
  for (const HostPhaseKind kind : kWorkPhases) {
    out += fmt::format(" {:>8}", host_phase_name(kind));
  }
  out +=
      fmt::format(" | {:>8} | {:>8} | {:>11} | {:>6}\n", "all work", "wait", "decode step", "core");
  for (const MeasuredRun& run : runs) {
    out += run_name(run) + " |";
    for (const HostPhaseKind kind : kWorkPhases) out += us_per_step(run, kind);
    out += fmt::format(" | {:>8.1f} |", run.accounts.host_work_us_per_step());
    out += us_per_step(run, HostPhaseKind::kWait);
    out += fmt::format(" | {:>11.1f} | {:>5.1f}%\n", spread_of(run.steps.host_work_ns).median / 1e3,
                       100 * range_of_repeats(run.core_shares).median);
  }
  return out;
}

std::string gain_table(std::span<const OverlapGain> gains) {
  std::string out = fmt::format(
      "{:<26} {:>7} {:>5} | {:>8} {:>8} {:>8} {:>6} {:>6} | {:>9} {:>9} | {:>24} {:>24} {:>24} | "
      "{:>8} {:>8}\n",
      "depth 1 predicts depth d", "streams", "depth", "forward", "sampling", "host us", "L", "z",
      "blocking", "pipelined", "predicted (least..most)", "observed", "observed - predicted",
      "device", "idle");
  for (const OverlapGain& gain : gains) {
    out += fmt::format(
        "{} | {:>8.4f} {:>8.4f} {:>8.1f} {:>6.1f} {:>5.2f}% | {:>9.4f} {:>9.4f} | {:>24} {:>24} "
        "{:>24} | {:>8} {:>8}\n",
        run_name(gain.workload, gain.host_delay_us, gain.num_streams, gain.depth), gain.forward_ms,
        gain.sampling_ms, gain.host_us, gain.mean_tokens, 100 * gain.zombie_tax, gain.blocking_ms,
        gain.pipelined_ms, percent(gain.predicted), percent(gain.observed), percent(gain.miss),
        percent(gain.by_device.median), percent(gain.by_idle.median));
  }
  return out;
}

std::string against_plain_table(std::span<const MeasuredRun> runs) {
  std::string out;
  for (const PeriodAgainstPlain& entry : periods_against_plain(runs)) {
    if (out.empty())
      out =
          fmt::format("\n{:<26} {:>7} {:>5} | period\n", "against plain rows", "streams", "depth");
    out += fmt::format(
        "{} | {}\n", run_name(entry.workload, entry.host_delay_us, entry.num_streams, entry.depth),
        percent(entry.longer));
  }
  return out;
}

boost::json::array to_json(std::span<const PeriodAgainstPlain> periods) {
  boost::json::array list;
  for (const PeriodAgainstPlain& entry : periods) {
    list.push_back(boost::json::object{{"workload", entry.workload},
                                       {"host_delay_us", entry.host_delay_us},
                                       {"streams", entry.num_streams},
                                       {"depth", entry.depth},
                                       {"period_longer", range_json(entry.longer)}});
  }
  return list;
}

boost::json::array to_json(std::span<const MeasuredRun> runs) {
  boost::json::array list;
  for (const MeasuredRun& run : runs) {
    const StepStatistics& steps = run.steps;
    const StepAccounts& accounts = run.accounts;
    list.push_back(boost::json::object{
        {"workload", run.workload},
        {"host_delay_us", run.host_delay_us},
        {"streams", run.num_streams},
        {"depth", run.depth},
        {"forward_ms", spread_json(steps.forward_ns)},
        {"sampling_ms", spread_json(steps.sampling_ns)},
        {"period_ms", spread_json(steps.period_ns)},
        {"mean_period_ms", rounded(run.mean_period_ms(), 5)},
        {"dead_step_period_ms", spread_json(steps.dead_period_ns)},
        {"period_ms_of_each_repeat", rounded_list(run.periods_ms, 5)},
        {"tokens_per_s_of_each_repeat", rounded_list(run.tokens_per_s, 2)},
        {"core_share_of_each_repeat", rounded_list(run.core_shares, 4)},
        {"tokens_per_s", rounded(steps.tokens_per_s(), 2)},
        {"decode_tokens_per_s", rounded(steps.decode_tokens_per_s(), 2)},
        {"mean_answer_tokens", rounded(steps.mean_answer_tokens(), 2)},
        {"mean_context", rounded(steps.mean_context(), 1)},
        {"decode_steps", steps.num_decode_steps},
        {"fill_steps", steps.num_fill_steps},
        {"fill_share_of_time",
         rounded(steps.elapsed_ns > 0 ? steps.fill_ns / steps.elapsed_ns : 0, 4)},
        {"device_busy_share", rounded(accounts.busy_share(), 6)},
        {"bubble_us_per_step", rounded(accounts.bubble_us_per_step(), 3)},
        {"bubble_us_per_step_by_phase", bubble_json(accounts)},
        {"decode_gb_per_s", rounded(accounts.decode_gb_per_s(), 1)},
        {"zombie_share", rounded(run.zombie_share(), 5)},
        {"new_masks_per_token", rounded(run.new_masks_per_token(), 4)},
        {"forbidden_calls", accounts.forbidden_calls},
        {"engine_thread_us_per_step", host_json(run)}});
  }
  return list;
}

boost::json::array to_json(std::span<const OverlapGain> gains) {
  boost::json::array list;
  for (const OverlapGain& gain : gains) {
    list.push_back(boost::json::object{
        {"workload", gain.workload},
        {"host_delay_us", gain.host_delay_us},
        {"streams", gain.num_streams},
        {"depth", gain.depth},
        {"from_depth_1", boost::json::object{{"forward_ms", rounded(gain.forward_ms, 5)},
                                             {"sampling_ms", rounded(gain.sampling_ms, 5)},
                                             {"host_us", rounded(gain.host_us, 2)},
                                             {"L", rounded(gain.mean_tokens, 2)},
                                             {"s", rounded(gain.growing_share, 4)},
                                             {"z", rounded(gain.zombie_tax, 6)}}},
        {"blocking_ms", rounded(gain.blocking_ms, 5)},
        {"pipelined_ms", rounded(gain.pipelined_ms, 5)},
        {"predicted", range_json(gain.predicted)},
        {"observed", range_json(gain.observed)},
        {"observed_minus_predicted", range_json(gain.miss)},
        {"of_it_device_work", range_json(gain.by_device)},
        {"of_it_device_idle", range_json(gain.by_idle)}});
  }
  return list;
}

}  // namespace gapless
