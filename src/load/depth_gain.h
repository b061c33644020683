// What users gain by pipelining: servers of different depth under the same load, in turns.
#pragma once

#include <boost/json/array.hpp>
#include <span>
#include <string>
#include <vector>

#include "load/load_summary.h"

namespace gapless {

// One window of one server.
struct DepthPoint {
  int depth = 1;
  int repeat = 0;
  LoadSummary summary;
};

// Of the repeats.
struct Range {
  double median = 0;
  double min = 0;
  double max = 0;
};
Range range_of(std::vector<double> values);  // all 0 for an empty one

// A depth against depth 1 at one load. Shares: 0.01 is one percent more at this depth.
struct DepthGain {
  int concurrency = 0;
  double rate = 0;
  int max_tokens = 0;
  int depth = 2;
  Range tokens_per_s;  // more is better
  Range ttft;          // of the medians of the requests; less is better, as the next one
  Range latency;
  // The engine thread's work in microseconds per step; 0 where the server does not say.
  Range host_us_at_1, host_us;
};

// For every load and depth above 1 that was measured beside depth 1; a repeat is compared with the
// same repeat.
std::vector<DepthGain> depth_gains(std::span<const DepthPoint> points);

std::string depth_gain_table(std::span<const DepthGain> gains);
boost::json::array depth_gain_json(std::span<const DepthGain> gains);

}  // namespace gapless
