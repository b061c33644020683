#include "load/load_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/request_stages.h"

namespace gapless {
namespace {

double rank(const std::vector<double>& sorted, double share) {
  const auto at = static_cast<std::size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::max<std::size_t>(at, 1) - 1];
}

double to_decimals(double value, int decimals) {
  const double scale = std::pow(10.0, decimals);
  return std::round(value * scale) / scale;
}

boost::json::object to_json(const Percentiles& percentiles) {
  return {{"p50", to_decimals(percentiles.p50, 3)},
          {"p90", to_decimals(percentiles.p90, 3)},
          {"p99", to_decimals(percentiles.p99, 3)}};
}

// What the client saw beyond the server's stages.
double outside_ms(const LoadSummary& summary) {
  double outside = summary.mean_ttft_ms;
  for (std::size_t i = 0; i < std::min(kNumStagesInARow, summary.stages.size()); ++i) {
    outside -= summary.stages[i].ms;
  }
  return outside;
}

boost::json::object to_json(const std::vector<NamedMean>& means) {
  boost::json::object object;
  for (const NamedMean& mean : means) object[mean.name] = to_decimals(mean.ms, 3);
  return object;
}

std::string cell(const Percentiles& percentiles) {
  return fmt::format("{:>7.1f} {:>7.1f} {:>7.1f}", percentiles.p50, percentiles.p90,
                     percentiles.p99);
}

}  // namespace

Percentiles percentiles_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {rank(values, 0.5), rank(values, 0.9), rank(values, 0.99)};
}

LoadSummary summarise_load(LoadRun run) {
  LoadSummary summary;
  std::vector<double> ttft, latency;
  std::vector<double> ttft_as_server_counts;
  std::int64_t num_ended = 0;
  std::int64_t num_tokens = 0;
  for (const LoadAnswer& answer : run.answers) {
    if (answer.intended_ns >= run.window_begin_ns) {
      ttft.push_back(static_cast<double>(answer.first_text_ns - answer.intended_ns) / 1e6);
      latency.push_back(static_cast<double>(answer.end_ns - answer.intended_ns) / 1e6);
    }
    const std::int64_t end_ns = answer.end_ns - run.window_begin_ns;
    if (end_ns < 0) continue;
    ttft_as_server_counts.push_back(static_cast<double>(answer.first_text_ns - answer.intended_ns) /
                                    1e6);
    if (end_ns > run.window_ns) continue;
    ++num_ended;
    num_tokens += answer.num_tokens;
  }
  summary.seconds = static_cast<double>(run.window_ns) / 1e9;
  summary.num_answers = static_cast<std::int64_t>(latency.size());
  if (summary.seconds > 0) {
    summary.requests_per_s = static_cast<double>(num_ended) / summary.seconds;
    summary.tokens_per_s = static_cast<double>(num_tokens) / summary.seconds;
  }
  if (!ttft_as_server_counts.empty()) {
    summary.mean_ttft_ms =
        std::accumulate(ttft_as_server_counts.begin(), ttft_as_server_counts.end(), 0.0) /
        static_cast<double>(ttft_as_server_counts.size());
  }
  summary.ttft_ms = percentiles_of(std::move(ttft));
  summary.latency_ms = percentiles_of(std::move(latency));
  std::vector<double> gaps;
  for (const float gap_ns : run.inter_token_ns) gaps.push_back(gap_ns / 1e6);
  summary.inter_token_ms = percentiles_of(std::move(gaps));
  run.answers = {};
  run.inter_token_ns = {};
  summary.run = std::move(run);
  return summary;
}

void add_server_figures(const ServerGauges& before, const ServerGauges& after,
                        LoadSummary& summary) {
  summary.shares = device_shares(before, after);
  summary.host_us_per_step = host_us_per_step(before, after);
  summary.stages = mean_stages(before, after);
  summary.steps = mean_steps(before, after);
  const auto megabytes = [](std::optional<double> bytes) {
    if (bytes) *bytes /= 1e6;
    return bytes;
  };
  summary.rss_begin_mb = megabytes(before.resident_bytes);
  summary.rss_end_mb = megabytes(after.resident_bytes);
}

std::string stage_table(const LoadSummary& summary) {
  if (summary.stages.empty() || summary.num_answers == 0) return {};
  std::string table =
      fmt::format("        to the first text, mean ms: {:.2f} =", summary.mean_ttft_ms);
  for (std::size_t i = 0; i < summary.stages.size(); ++i) {
    if (i == kNumStagesInARow) {
      table += fmt::format(" + outside {:.2f}\n        within prepare:", outside_ms(summary));
    }
    table += fmt::format("{}{} {:.2f}",
                         i == 0 || i == kNumStagesInARow ? " "
                         : i < kNumStagesInARow          ? " + "
                                                         : ", ",
                         summary.stages[i].name, summary.stages[i].ms);
  }
  table += "\n        on the device:";
  for (const NamedMean& step : summary.steps)
    table += fmt::format(" {} {:.2f}", step.name, step.ms);
  return table + "\n";
}

std::string load_table_header() {
  return fmt::format(
      "{:>7} {:>6} | {:>8} {:>9} {:>10} | {:^23} | {:^23} | {:^23} | {:>6} {:>6} {:>6} {:>7}\n",
      "clients", "tokens", "answers", "answers/s", "tokens/s", "ttft ms p50 p90 p99",
      "token ms p50 p90 p99", "latency ms p50 p90 p99", "busy", "prep", "bubble", "errors");
}

std::string load_table_row(const LoadSummary& summary) {
  const std::string clients =
      summary.rate > 0 ? fmt::format("{}/s", summary.rate) : std::to_string(summary.concurrency);
  const auto share = [&](double DeviceShares::*which) {
    return summary.shares ? fmt::format("{:.1f}%", 100 * (*summary.shares).*which) : "-";
  };
  return fmt::format(
      "{:>7} {:>6} | {:>8} {:>9.2f} {:>10.1f} | {} | {} | {} | {:>6} {:>6} {:>6} {:>7}\n", clients,
      summary.max_tokens, summary.num_answers, summary.requests_per_s, summary.tokens_per_s,
      cell(summary.ttft_ms), cell(summary.inter_token_ms), cell(summary.latency_ms),
      share(&DeviceShares::busy), share(&DeviceShares::preparing), share(&DeviceShares::bubble),
      summary.run.num_errors());
}

boost::json::object load_json(const LoadSummary& summary) {
  boost::json::object json;
  if (summary.rate > 0) {
    json["rate_per_s"] = summary.rate;
  } else {
    json["concurrency"] = summary.concurrency;
  }
  json["max_tokens"] = summary.max_tokens;
  json["seconds"] = to_decimals(summary.seconds, 2);
  json["answers"] = summary.num_answers;
  json["requests_per_s"] = to_decimals(summary.requests_per_s, 3);
  json["output_tokens_per_s"] = to_decimals(summary.tokens_per_s, 2);
  json["ttft_ms"] = to_json(summary.ttft_ms);
  json["inter_token_ms"] = to_json(summary.inter_token_ms);
  json["latency_ms"] = to_json(summary.latency_ms);
  json["max_in_flight"] = summary.run.max_in_flight;
  boost::json::object errors;
  for (int i = 0; i < kNumLoadOutcomes; ++i) {
    const auto outcome = static_cast<LoadOutcome>(i);
    const std::int64_t count = summary.run.count(outcome);
    if (outcome == LoadOutcome::kAbandoned && count > 0) json["abandoned"] = count;
    if (outcome == LoadOutcome::kAnswered || outcome == LoadOutcome::kAbandoned) continue;
    if (count > 0) errors[load_outcome_name(outcome)] = count;
  }
  json["errors"] = std::move(errors);
  if (!summary.run.first_error.empty()) json["first_error"] = summary.run.first_error;
  if (summary.shares) {
    json["device_busy_share"] = to_decimals(summary.shares->busy, 4);
    json["device_preparing_share"] = to_decimals(summary.shares->preparing, 4);
    json["device_starved_share"] = to_decimals(summary.shares->starved, 4);
    json["device_bubble_share"] = to_decimals(summary.shares->bubble, 4);
  }
  if (summary.host_us_per_step) {
    json["engine_thread_us_per_step"] = to_decimals(*summary.host_us_per_step, 2);
  }
  if (!summary.stages.empty() && summary.num_answers > 0) {
    boost::json::object stages = to_json(summary.stages);
    stages["outside"] = to_decimals(outside_ms(summary), 3);
    json["mean_ttft_ms"] = to_decimals(summary.mean_ttft_ms, 3);
    json["mean_stage_ms"] = std::move(stages);
    json["mean_device_step_ms"] = to_json(summary.steps);
  }
  if (summary.rss_begin_mb) json["server_rss_begin_mb"] = to_decimals(*summary.rss_begin_mb, 1);
  if (summary.rss_end_mb) json["server_rss_end_mb"] = to_decimals(*summary.rss_end_mb, 1);
  if (summary.rss_peak_mb) json["server_rss_peak_mb"] = to_decimals(*summary.rss_peak_mb, 1);
  return json;
}

}  // namespace gapless
