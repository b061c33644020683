// Many clients on one thread: sends requests to a server in a closed or an open loop and notes what
// came back when.
//
// Closed loop: `concurrency` clients, each with a connection of its own, ask again as soon as their
// answer has ended. Open loop: requests arrive at `rate` per second as a Poisson process,
// whether or not earlier ones have been answered, each on an idle connection or a new one; times
// count from the *intended* arrival, so that a server (or client) that falls behind cannot hide it.
//
// Clients go away on purpose (`abandon_share`): before the first event or in the middle of the
// stream, half of them with a reset, half by closing.
//
// One thread: the caller's. No timing is corrected afterwards.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "load/load_target.h"

namespace gapless {

struct LoadOptions {
  int concurrency = 1;
  double rate = 0;         // requests per second; 0: closed loop
  std::uint64_t seed = 1;  // of arrivals and of who goes away
  // The load is measured in a window that begins when it has run for so long. It goes on into the
  // window: clients that all begin there would have no answer for as long as one takes, and rates
  // would be too low by that.
  double warm_up_s = 0;
  // The load ends (no request is sent any more) after whichever comes first in the window; 0: no
  // bound.
  std::int64_t max_requests = 0;
  double duration_s = 10;
  double abandon_share = 0;
  // Requests go round from this one on: where the load before it stopped, so that a server's caches
  // do not know them.
  std::int64_t first_request = 0;
  double request_timeout_s = 300;
  // One per request, from requests sent alone; empty: answers are not compared.
  std::vector<std::string> expected_answers;
  // Called when the window begins, and every second; for progress and gauges. Must be quick.
  std::function<void()> window_begins;
  std::function<void()> every_second;
};

enum class LoadOutcome : std::uint8_t {
  kAnswered,
  kAbandoned,    // this client went away, as planned
  kRefused,      // 429 or 503
  kHttpError,    // any other status than 200
  kStreamError,  // an error inside of a stream, or a body that is not whole
  kWrongAnswer,  // not the expected one
  kConnection,   // could not connect, or the connection broke
  kTimeout,
};
inline constexpr int kNumLoadOutcomes = 8;
const char* load_outcome_name(LoadOutcome outcome);

// Of one answered request; nanoseconds since the load began, warm-up included.
struct LoadAnswer {
  std::int64_t intended_ns = 0;
  std::int64_t first_text_ns = 0;  // its first bytes of text; of what is not streamed, the answer
  std::int64_t end_ns = 0;
  int num_tokens = 0;
};

struct LoadRun {
  std::array<std::int64_t, kNumLoadOutcomes> outcomes{};  // of the warm-up too
  std::string first_error;          // of the first request that was neither answered nor abandoned
  std::vector<LoadAnswer> answers;  // of the warm-up too
  // Between two arrivals of text in one stream, divided by the tokens of the later one: one value
  // for each token. Nanoseconds. Of requests of the window.
  std::vector<float> inter_token_ns;
  std::int64_t elapsed_ns = 0;  // until the last one ended
  std::int64_t window_begin_ns = 0;
  // The duration asked for, or until the last one ended if that is shorter.
  std::int64_t window_ns = 0;
  int max_in_flight = 0;
  std::int64_t num_sent = 0;

  std::int64_t count(LoadOutcome outcome) const {
    return outcomes[static_cast<std::size_t>(outcome)];
  }
  // Neither answered nor abandoned.
  std::int64_t num_errors() const;
};

// Unavailable: the address cannot be resolved. Errors of single requests are counted, not returned.
StatusOr<LoadRun> run_load(const ServerUrl& url, const LoadRequests& requests,
                           const LoadOptions& options);

// Asks for each request's answer, one after the other, nothing else running. An error names the
// first request that was not answered.
StatusOr<std::vector<std::string>> ask_alone(const ServerUrl& url, const LoadRequests& requests);

// The body of a 200. Unavailable: no answer, or another status.
StatusOr<std::string> http_get(const ServerUrl& url, std::string_view path,
                               std::string_view api_key);

}  // namespace gapless
