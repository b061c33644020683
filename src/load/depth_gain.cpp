#include "load/depth_gain.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/object.hpp>
#include <cmath>

namespace gapless {
namespace {

bool is_same_load(const LoadSummary& a, const LoadSummary& b) {
  return a.concurrency == b.concurrency && a.rate == b.rate && a.max_tokens == b.max_tokens;
}

// The pairs of one load and depth, one for each repeat.
struct Pairs {
  std::vector<double> tokens_per_s, ttft, latency, host_us_at_1, host_us;

  void add(const LoadSummary& blocking, const LoadSummary& pipelined) {
    const auto gain = [](double before, double after) {
      return before > 0 ? after / before - 1 : 0;
    };
    tokens_per_s.push_back(gain(blocking.tokens_per_s, pipelined.tokens_per_s));
    ttft.push_back(gain(blocking.ttft_ms.p50, pipelined.ttft_ms.p50));
    latency.push_back(gain(blocking.latency_ms.p50, pipelined.latency_ms.p50));
    if (blocking.host_us_per_step) host_us_at_1.push_back(*blocking.host_us_per_step);
    if (pipelined.host_us_per_step) host_us.push_back(*pipelined.host_us_per_step);
  }
};

double rounded(double value, int decimals) {
  const double scale = std::pow(10.0, decimals);
  return std::round(value * scale) / scale;
}

boost::json::object to_json(const Range& range, int decimals) {
  return {{"median", rounded(range.median, decimals)},
          {"min", rounded(range.min, decimals)},
          {"max", rounded(range.max, decimals)}};
}

std::string percent(const Range& range) {
  return fmt::format("{:+.1f}% ({:+.1f} .. {:+.1f})", 100 * range.median, 100 * range.min,
                     100 * range.max);
}

}  // namespace

Range range_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {median, values.front(), values.back()};
}

std::vector<DepthGain> depth_gains(std::span<const DepthPoint> points) {
  std::vector<DepthGain> gains;
  for (const DepthPoint& first : points) {
    if (first.depth == 1) continue;
    const bool is_known = std::any_of(gains.begin(), gains.end(), [&](const DepthGain& gain) {
      return gain.depth == first.depth && gain.concurrency == first.summary.concurrency &&
             gain.rate == first.summary.rate && gain.max_tokens == first.summary.max_tokens;
    });
    if (is_known) continue;
    Pairs pairs;
    for (const DepthPoint& point : points) {
      if (point.depth != first.depth || !is_same_load(point.summary, first.summary)) continue;
      const auto blocking =
          std::find_if(points.begin(), points.end(), [&](const DepthPoint& other) {
            return other.depth == 1 && other.repeat == point.repeat &&
                   is_same_load(other.summary, point.summary);
          });
      if (blocking != points.end()) pairs.add(blocking->summary, point.summary);
    }
    if (pairs.tokens_per_s.empty()) continue;
    gains.push_back({first.summary.concurrency, first.summary.rate, first.summary.max_tokens,
                     first.depth, range_of(pairs.tokens_per_s), range_of(pairs.ttft),
                     range_of(pairs.latency), range_of(pairs.host_us_at_1),
                     range_of(pairs.host_us)});
  }
  return gains;
}

std::string depth_gain_table(std::span<const DepthGain> gains) {
  if (gains.empty()) return {};
  std::string table = fmt::format(
      "\nagainst depth 1, median (least .. most) of the repeats\n{:>7} {:>6} {:>5} | "
      "{:>24} | {:>24} | {:>24} | {:>22}\n",
      "clients", "tokens", "depth", "tokens/s", "first token", "latency", "host us/step, depth 1");
  for (const DepthGain& gain : gains) {
    table += fmt::format(
        "{:>7} {:>6} {:>5} | {:>24} | {:>24} | {:>24} | {:>8.1f} {:>13.1f}\n",
        gain.rate > 0 ? fmt::format("{}/s", gain.rate) : std::to_string(gain.concurrency),
        gain.max_tokens, gain.depth, percent(gain.tokens_per_s), percent(gain.ttft),
        percent(gain.latency), gain.host_us.median, gain.host_us_at_1.median);
  }
  return table;
}

boost::json::array depth_gain_json(std::span<const DepthGain> gains) {
  boost::json::array list;
  for (const DepthGain& gain : gains) {
    boost::json::object entry;
    if (gain.rate > 0) {
      entry["rate_per_s"] = gain.rate;
    } else {
      entry["concurrency"] = gain.concurrency;
    }
    entry["max_tokens"] = gain.max_tokens;
    entry["depth"] = gain.depth;
    entry["tokens_per_s_gain"] = to_json(gain.tokens_per_s, 5);
    entry["ttft_p50_change"] = to_json(gain.ttft, 5);
    entry["latency_p50_change"] = to_json(gain.latency, 5);
    entry["engine_thread_us_per_step_at_depth_1"] = to_json(gain.host_us_at_1, 2);
    entry["engine_thread_us_per_step"] = to_json(gain.host_us, 2);
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace gapless
