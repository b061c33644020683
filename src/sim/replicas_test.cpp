#include "sim/replicas.h"

#include <gmock/gmock.h>

#include <map>

namespace gapless {
namespace {

ReplicaCase small(RoutingPolicy policy, PicturePattern pattern) {
  return {.policy = policy,
          .pattern = pattern,
          .num_replicas = 20,
          .rate_per_replica = 50,
          .warm_up_s = 15,
          .seconds = 15};
}

constexpr RoutingPolicy kAll[] = {RoutingPolicy::kTwoChoices, RoutingPolicy::kLeastWork,
                                  RoutingPolicy::kByPicture, RoutingPolicy::kByPictureBounded,
                                  RoutingPolicy::kDeviceChooser};

// Requests that find one replica busy wait for each other: M/D/1, mean wait rho / (1 - rho) / 2 works.
TEST(Replicas, OneReplicaIsAQueue) {
  ReplicaCase given = small(RoutingPolicy::kTwoChoices, PicturePattern::kNew);
  given.num_replicas = 1;
  given.new_ms = 10;
  given.rate_per_replica = 50;
  given.seconds = 2000;
  const ReplicaResult result = simulate_replicas(given);
  EXPECT_NEAR(static_cast<double>(result.num_requests), 100'000, 1'500);
  EXPECT_NEAR(result.busy_share, 0.5, 0.01);
  EXPECT_DOUBLE_EQ(result.known_share, 0);
  EXPECT_NEAR(result.mean_ms, 10, 1e-9);
  EXPECT_NEAR(result.capacity_per_s, 100, 1e-6);
  // Half of them find it free; of M/D/1 at a load of 0.5, 99 % wait less than 3.2 works.
  EXPECT_NEAR(result.p50_ms, 10, 0.5);
  EXPECT_NEAR(result.p99_ms, 42, 3);
}

TEST(Replicas, TheSameSeedGivesTheSameResult) {
  for (const RoutingPolicy policy : kAll) {
    const ReplicaCase given = small(policy, PicturePattern::kOneHot);
    const ReplicaResult one = simulate_replicas(given), again = simulate_replicas(given);
    EXPECT_EQ(one.num_requests, again.num_requests);
    EXPECT_EQ(one.p99_ms, again.p99_ms) << policy_name(policy);
    EXPECT_EQ(one.known_share, again.known_share);
  }
}

TEST(Replicas, ArrivalsAreOfThePattern) {
  ReplicaCase given = small(RoutingPolicy::kTwoChoices, PicturePattern::kSessions);
  given.warm_up_s = 100;
  given.seconds = 100;
  const auto counted = [&](PicturePattern pattern) {
    given.pattern = pattern;
    std::map<std::uint64_t, int> counts;
    double last_s = 0;
    std::int64_t all = 0;
    for (const PictureArrival& arrival : picture_arrivals(given)) {
      EXPECT_GE(arrival.at_s, last_s);
      last_s = arrival.at_s;
      ++counts[arrival.picture];
      ++all;
    }
    return std::pair(counts, static_cast<double>(all));
  };
  const auto [new_ones, num_new] = counted(PicturePattern::kNew);
  EXPECT_EQ(static_cast<double>(new_ones.size()), num_new);
  EXPECT_NEAR(num_new, 200'000, 2'500) << "200 s of 50 requests a second and replica";
  const auto [sessions, num_asked] = counted(PicturePattern::kSessions);
  // Those that begin in the last seconds are cut short.
  EXPECT_NEAR(num_asked / static_cast<double>(sessions.size()), 3.95, 0.15);
  const auto [popular, num_popular] = counted(PicturePattern::kPopular);
  EXPECT_NEAR(popular.at(0), 2.0 * popular.at(1), 0.1 * popular.at(0));
  EXPECT_NEAR(popular.at(0) / num_popular, 0.0827, 0.005) << "1 / H(100,000)";
  const auto [hot, num_hot] = counted(PicturePattern::kOneHot);
  EXPECT_NEAR(hot.rbegin()->second / num_hot, 0.5, 0.02);
}

TEST(Replicas, WhoGoesByThePictureFindsItThereAndNobodyElseDoes) {
  const auto share = [](RoutingPolicy policy) {
    return simulate_replicas(small(policy, PicturePattern::kSessions)).known_share;
  };
  // Three of four questions are not the first.
  EXPECT_NEAR(share(RoutingPolicy::kByPicture), 0.75, 0.02);
  EXPECT_GT(share(RoutingPolicy::kByPictureBounded), 0.4) << "where others are less busy it is not";
  EXPECT_NEAR(share(RoutingPolicy::kDeviceChooser), 0.75, 0.02);
  EXPECT_LT(share(RoutingPolicy::kTwoChoices), 0.2) << "of 20 replicas some know it by chance";
  EXPECT_LT(share(RoutingPolicy::kLeastWork), 0.2);
}

TEST(Replicas, WithoutRoomForPicturesNobodyKnowsOne) {
  for (const RoutingPolicy policy : kAll) {
    ReplicaCase given = small(policy, PicturePattern::kSessions);
    given.kept_pictures = 0;
    EXPECT_EQ(simulate_replicas(given).known_share, 0) << policy_name(policy);
  }
}

TEST(Replicas, OneHotPictureOverloadsItsReplicaUnlessTheLoadIsBounded) {
  const auto result = [](RoutingPolicy policy) {
    ReplicaCase given = small(policy, PicturePattern::kOneHot);
    given.rate_per_replica = 200;
    return simulate_replicas(given);
  };
  EXPECT_GT(result(RoutingPolicy::kByPicture).busiest_share, 1.3) << "2,000 of them a second";
  for (const RoutingPolicy policy :
       {RoutingPolicy::kByPictureBounded, RoutingPolicy::kDeviceChooser}) {
    EXPECT_LT(result(policy).busiest_share, 1.2) << policy_name(policy);
    EXPECT_LT(result(policy).p99_ms, 500) << policy_name(policy);
  }
}

TEST(Replicas, ForNewPicturesTheLeastWorkIsTheShortestWait) {
  ReplicaCase given = small(RoutingPolicy::kLeastWork, PicturePattern::kNew);
  given.rate_per_replica = 60;
  const double least = simulate_replicas(given).p99_ms;
  for (const RoutingPolicy policy :
       {RoutingPolicy::kTwoChoices, RoutingPolicy::kByPicture, RoutingPolicy::kByPictureBounded}) {
    given.policy = policy;
    EXPECT_GT(simulate_replicas(given).p99_ms, least) << policy_name(policy);
  }
}

}  // namespace
}  // namespace gapless
