// gapless bench replicas: replicas behind a router, simulated: what the router's choice costs and saves.
#include <boost/json/array.hpp>
#include <memory>
#include <string>
#include <vector>

#include "bench_options.h"
#include "engine_options.h"
#include "sim/replicas.h"

namespace gapless {
namespace {

struct ReplicaOptions {
  ReplicaCase given;
  int num_devices = 8;
  std::vector<double> rates{50, 150};
  std::string json, commit;
};

struct SimulatedReplicas {
  ReplicaCase given;
  ReplicaResult result;
};

SimulatedReplicas simulate(const ReplicaCase& given) {
  const SimulatedReplicas one{given, simulate_replicas(given)};
  const ReplicaResult& result = one.result;
  fmt::print(
      "{:>9} {:>9} {:>8.0f} {:<22} {:>6} | {:>7.1f}% {:>8.2f} {:>10.0f} {:>8.2f} {:>8.2f} | "
      "{:>9.1f} {:>9.1f} {:>9.1f}\n",
      pattern_name(given.pattern), given.num_replicas, given.rate_per_replica,
      policy_name(given.policy),
      given.policy == RoutingPolicy::kDeviceChooser ? std::to_string(given.picture_worth) : "",
      100 * result.known_share, result.mean_ms, result.capacity_per_s, result.busy_share,
      result.busiest_share, result.p50_ms, result.p90_ms, result.p99_ms);
  std::fflush(stdout);
  return one;
}

boost::json::object to_json(const SimulatedReplicas& one) {
  const ReplicaResult& result = one.result;
  boost::json::object entry{{"pictures", pattern_name(one.given.pattern)},
                            {"replicas", one.given.num_replicas},
                            {"requests_per_s_and_replica", one.given.rate_per_replica},
                            {"policy", policy_name(one.given.policy)}};
  if (one.given.policy == RoutingPolicy::kDeviceChooser) {
    entry["picture_worth"] = one.given.picture_worth;
  }
  entry["requests"] = result.num_requests;
  entry["known_share"] = rounded(result.known_share, 4);
  entry["work_ms"] = rounded(result.mean_ms, 3);
  entry["capacity_per_s_and_replica"] = rounded(result.capacity_per_s, 1);
  entry["busy_share"] = rounded(result.busy_share, 4);
  entry["busiest_share"] = rounded(result.busiest_share, 4);
  entry["latency_ms"] = boost::json::object{{"p50", rounded(result.p50_ms, 2)},
                                            {"p90", rounded(result.p90_ms, 2)},
                                            {"p99", rounded(result.p99_ms, 2)}};
  return entry;
}

// Routers in front of many replicas.
boost::json::array simulate_routers(const ReplicaOptions& options) {
  boost::json::array rows;
  for (const PicturePattern pattern : {PicturePattern::kNew, PicturePattern::kSessions,
                                       PicturePattern::kPopular, PicturePattern::kOneHot}) {
    for (const double rate : options.rates) {
      for (const RoutingPolicy policy :
           {RoutingPolicy::kTwoChoices, RoutingPolicy::kLeastWork, RoutingPolicy::kByPicture,
            RoutingPolicy::kByPictureBounded}) {
        ReplicaCase given = options.given;
        given.pattern = pattern;
        given.rate_per_replica = rate;
        given.policy = policy;
        rows.push_back(to_json(simulate(given)));
      }
    }
  }
  return rows;
}

// What a process does with its devices, by what it takes a known picture to be worth.
boost::json::array simulate_devices(const ReplicaOptions& options) {
  boost::json::array rows;
  for (const PicturePattern pattern :
       {PicturePattern::kSessions, PicturePattern::kPopular, PicturePattern::kOneHot}) {
    for (const double rate : options.rates) {
      ReplicaCase given = options.given;
      given.num_replicas = options.num_devices;
      given.pattern = pattern;
      given.rate_per_replica = rate;
      given.policy = RoutingPolicy::kLeastWork;
      rows.push_back(to_json(simulate(given)));
      given.policy = RoutingPolicy::kDeviceChooser;
      for (const int worth : {0, 1, 2, 4, 8, 16}) {
        given.picture_worth = worth;
        rows.push_back(to_json(simulate(given)));
      }
    }
  }
  return rows;
}

Status run_replicas(const ReplicaOptions& options) {
  fmt::print(
      "{:>9} {:>9} {:>8} {:<22} {:>6} | {:>8} {:>8} {:>10} {:>8} {:>8} | {:>9} {:>9} {:>9}\n",
      "pictures", "replicas", "requests", "policy", "worth", "known", "work ms", "capacity/s",
      "busy", "busiest", "p50 ms", "p90 ms", "p99 ms");
  const boost::json::array routers = simulate_routers(options);
  const boost::json::array devices = simulate_devices(options);
  if (options.json.empty()) return ok_status();
  ResultHeader header;
  header.commit = options.commit;
  header.device = "simulated";
  header.model = "times of Moondream 2's shape on an H200";
  header.ceiling = "none";
  return write_result(options.json, header,
                      {{"benchmark", "scaling"},
                       {"spread", "none: virtual time, one seed"},
                       {"seed", options.given.seed},
                       {"new_ms", options.given.new_ms},
                       {"known_ms", options.given.known_ms},
                       {"kept_pictures", options.given.kept_pictures},
                       {"warm_up_s", options.given.warm_up_s},
                       {"seconds", options.given.seconds},
                       {"routers", routers},
                       {"devices", devices}});
}

}  // namespace

void add_bench_replicas_command(CLI::App& bench, Command& chosen) {
  auto options = std::make_shared<ReplicaOptions>();
  CLI::App* command = bench.add_subcommand(
      "replicas", "Replicas behind a router, simulated: least loaded against by picture");
  ReplicaCase& given = options->given;
  command->add_option("--replicas", given.num_replicas, "Behind a router")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  command->add_option("--devices", options->num_devices, "Of one process")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command
      ->add_option("--rate", options->rates,
                   "Requests a second for each replica, on average; several with commas")
      ->delimiter(',')
      ->check(CLI::Range(0.1, 10'000.0))
      ->capture_default_str();
  command
      ->add_option("--new-ms", given.new_ms,
                   "Work for a picture that a replica does not know: 67 answers a second, "
                   "serve-h200.json")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--known-ms", given.known_ms,
                   "And for one that it knows: 1,496 a second, known-picture-h200.json")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--kept", given.kept_pictures, "Pictures that a replica keeps")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  command->add_option("--seconds", given.seconds, "Of virtual time that are measured")
      ->check(CLI::Range(1.0, 3600.0))
      ->capture_default_str();
  command->add_option("--warm-up", given.warm_up_s, "And before that")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command->add_option("--seed", given.seed, "Of arrivals")->capture_default_str();
  add_result_options(*command, options->json, options->commit);
  command->callback(
      [options, &chosen] { chosen = [options] { return report(run_replicas(*options)); }; });
}

}  // namespace gapless
