// Many replicas behind a router, in virtual time: what a choice of the router costs and saves when
// pictures are asked about more than once.
//
// A replica works on one request after the other, in the order of arrival: `new_ms` for a picture that
// it does not know, `known_ms` for one of the last `kept_pictures` that it was asked about. Requests
// arrive as a Poisson process. The same seed gives the same arrivals for every policy, and the same
// result every time.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace gapless {

enum class RoutingPolicy : std::uint8_t {
  kTwoChoices,  // of two replicas drawn at random the one with fewer requests (Envoy's LEAST_REQUEST)
  kLeastWork,         // the one that will be free first: knows what no router knows
  kByPicture,         // by a hash of the picture
  kByPictureBounded,  // the same, but past replicas with over 1.5 times the mean number of requests
                      // (Envoy's hash_balance_factor 150)
  kDeviceChooser,     // what one process does with its devices (engine/device_chooser.h)
};
std::string_view policy_name(RoutingPolicy policy);

enum class PicturePattern : std::uint8_t {
  kNew,       // every request about a picture of its own
  kSessions,  // four questions about a picture on average, 1 s apart on average
  kPopular,   // of 100,000 pictures, the n-th as often as 1/n (Zipf)
  kOneHot,    // every second request about one picture, the others as kSessions
};
std::string_view pattern_name(PicturePattern pattern);

struct ReplicaCase {
  RoutingPolicy policy = RoutingPolicy::kTwoChoices;
  PicturePattern pattern = PicturePattern::kNew;
  int num_replicas = 1000;
  double rate_per_replica = 50;  // requests a second, on average
  double new_ms = 14.93;
  double known_ms = 0.67;
  int kept_pictures = 512;
  int picture_worth = 4;  // kDeviceChooser: DeviceChooser::Options::picture_worth
  double warm_up_s = 20;  // at least as long as a session
  double seconds = 20;    // that are measured
  std::uint64_t seed = 1;
};

struct ReplicaResult {
  std::int64_t num_requests = 0;
  double known_share = 0;     // of the requests
  double mean_ms = 0;         // of work for a request
  double capacity_per_s = 0;  // of a replica, were they all equally busy: 1000 / mean_ms
  double busy_share = 0;  // of the replicas' time, were there no end to it: 1 and more is overload
  double busiest_share = 0;                   // of the replica with the most work
  double p50_ms = 0, p90_ms = 0, p99_ms = 0;  // from arrival to answer
};

ReplicaResult simulate_replicas(const ReplicaCase& given);

// What simulate_replicas() lets arrive: in order of time, over warm-up and measurement.
struct PictureArrival {
  double at_s = 0;
  std::uint64_t picture = 0;
};
std::vector<PictureArrival> picture_arrivals(const ReplicaCase& given);

}  // namespace gapless
