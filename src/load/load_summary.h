// What a load run comes to, for a table and for a result file.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "load/load_client.h"
#include "load/server_metrics.h"

namespace gapless {

// Nearest rank; all 0 for an empty series.
struct Percentiles {
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
};
Percentiles percentiles_of(std::vector<double> values);

struct LoadSummary {
  int concurrency = 0;  // closed loop
  double rate = 0;      // open loop
  int max_tokens = 0;
  double seconds = 0;            // LoadRun::window_ns; the rates are of what ended within
  std::int64_t num_answers = 0;  // to requests of the window; so are the times
  double requests_per_s = 0;
  double tokens_per_s = 0;
  Percentiles ttft_ms;         // from the intended start
  Percentiles inter_token_ms;  // of streams
  Percentiles latency_ms;      // from the intended start to the end
  LoadRun run;                 // its counts; the series are dropped
  // Of all that ended after the window began, whenever they were asked: those whose stages the
  // server counts between the window's begin and the run's end.
  double mean_ttft_ms = 0;
  std::optional<DeviceShares> shares;
  std::optional<double> host_us_per_step;  // the engine thread's work
  std::vector<NamedMean> stages;           // of the way to the first text, on the server
  std::vector<NamedMean> steps;            // device time of a step by kind
  std::optional<double> rss_begin_mb, rss_end_mb, rss_peak_mb;
};

LoadSummary summarise_load(LoadRun run);

// What the server says about the time between two readings of its metrics.
void add_server_figures(const ServerGauges& before, const ServerGauges& after,
                        LoadSummary& summary);

// A mean request on its way to its first text, one line for each stage, and what is left of the
// time that the client saw: its own, the network's and the socket's. Empty where the server does
// not say.
std::string stage_table(const LoadSummary& summary);

std::string load_table_header();
std::string load_table_row(const LoadSummary& summary);
boost::json::object load_json(const LoadSummary& summary);

}  // namespace gapless
