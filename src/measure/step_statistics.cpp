#include "measure/step_statistics.h"

#include <algorithm>

#include "measure/ratio.h"

namespace gapless {
namespace {

double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

double rate(std::int64_t count, double ns) {
  return ns > 0 ? static_cast<double>(count) * 1e9 / ns : 0;
}

void append(std::vector<double>& to, const std::vector<double>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

std::int64_t end_of(const StepRecord& record) {
  return std::max(record.forward_end_ns, record.sampling_end_ns);
}

void add_decode(StepStatistics& statistics, const StepRecord& record, const StepRecord& before,
                double period_ns) {
  ++statistics.num_decode_steps;
  statistics.decode_ns += period_ns;
  statistics.num_rows += record.num_rows;
  statistics.num_zombies += record.num_zombies;
  statistics.num_decode_tokens += record.num_rows - record.num_zombies;
  statistics.host_work_ns.push_back(host_work_ns(record));
  const bool follows_decode = before.kind == StepKind::kDecode;
  if (follows_decode) {
    statistics.steady_ns += period_ns;
    statistics.num_steady_tokens += record.num_rows - record.num_zombies;
  }
  if (record.num_zombies == record.num_rows) {
    if (follows_decode) statistics.dead_period_ns.push_back(period_ns);
    return;
  }
  if (record.num_rows != statistics.num_streams || record.num_zombies > 0) return;
  ++statistics.num_full_steps;
  statistics.num_cached_tokens += record.num_cached_tokens;
  const auto ns = [](std::int64_t begin, std::int64_t end) {
    return static_cast<double>(end - begin);
  };
  statistics.forward_ns.push_back(ns(record.forward_begin_ns, record.forward_end_ns));
  statistics.sampling_ns.push_back(ns(record.sampling_begin_ns, record.sampling_end_ns));
  statistics.step_ns.push_back(ns(record.forward_begin_ns, record.sampling_end_ns));
  auto& periods = follows_decode ? statistics.period_ns : statistics.after_fill_period_ns;
  periods.push_back(period_ns);
}

}  // namespace

double host_work_ns(const StepRecord& record) {
  return static_cast<double>((record.launch_end_ns - record.plan_begin_ns) +
                             (record.finalize_end_ns - record.finalize_begin_ns) +
                             (record.commit_end_ns - record.wait_end_ns));
}

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {quantile(values, 0.5), quantile(values, 0.1), quantile(values, 0.9),
          static_cast<std::int64_t>(values.size())};
}

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double StepStatistics::tokens_per_s() const {
  return rate(num_decode_tokens + num_first_tokens, elapsed_ns);
}

double StepStatistics::decode_tokens_per_s() const {
  return rate(num_steady_tokens, steady_ns);
}

double StepStatistics::mean_answer_tokens() const {
  return ratio(num_decode_tokens + num_first_tokens, num_first_tokens);
}

double StepStatistics::mean_context() const {
  return ratio(num_cached_tokens, num_full_steps * num_streams);
}

void StepStatistics::add(const StepStatistics& other) {
  num_streams = other.num_streams;
  append(forward_ns, other.forward_ns);
  append(sampling_ns, other.sampling_ns);
  append(step_ns, other.step_ns);
  append(period_ns, other.period_ns);
  append(dead_period_ns, other.dead_period_ns);
  append(after_fill_period_ns, other.after_fill_period_ns);
  append(host_work_ns, other.host_work_ns);
  steady_ns += other.steady_ns;
  num_steady_tokens += other.num_steady_tokens;
  elapsed_ns += other.elapsed_ns;
  decode_ns += other.decode_ns;
  fill_ns += other.fill_ns;
  num_decode_steps += other.num_decode_steps;
  num_fill_steps += other.num_fill_steps;
  num_rows += other.num_rows;
  num_zombies += other.num_zombies;
  num_decode_tokens += other.num_decode_tokens;
  num_first_tokens += other.num_first_tokens;
  num_cached_tokens += other.num_cached_tokens;
  num_full_steps += other.num_full_steps;
}

StepStatistics step_statistics(std::span<const StepRecord> records, int num_streams) {
  StepStatistics statistics;
  statistics.num_streams = num_streams;
  for (std::size_t i = 1; i < records.size(); ++i) {
    const StepRecord& record = records[i];
    const auto period_ns = static_cast<double>(end_of(record) - end_of(records[i - 1]));
    statistics.elapsed_ns += period_ns;
    if (record.kind == StepKind::kDecode) {
      add_decode(statistics, record, records[i - 1], period_ns);
      continue;
    }
    ++statistics.num_fill_steps;
    statistics.fill_ns += period_ns;
    if (record.kind == StepKind::kPrefill) {
      statistics.num_first_tokens += record.num_rows - record.num_zombies;
    }
  }
  return statistics;
}

}  // namespace gapless
