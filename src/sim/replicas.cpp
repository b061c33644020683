#include "sim/replicas.h"

#include <algorithm>
#include <cmath>
#include <list>
#include <optional>
#include <queue>
#include <random>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "engine/device_chooser.h"

namespace gapless {
namespace {

constexpr double kQuestionsPerSession = 4;
constexpr double kThinkSeconds = 1;
constexpr std::size_t kPopularPictures = 100'000;
constexpr std::uint64_t kHotPicture = std::uint64_t{1} << 63;
constexpr double kBalanceFactor = 1.5;

// Of the standard's distributions only the generators are the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : bits_(seed) {}
  // In [0, 1).
  double uniform() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }
  double exponential(double mean) { return -mean * std::log1p(-uniform()); }
  std::uint64_t below(std::uint64_t count) { return bits_() % count; }

 private:
  std::mt19937_64 bits_;
};

std::uint64_t hash_of(std::uint64_t value) {
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
  value = (value ^ value >> 27) * 0x94D049BB133111EBu;
  return value ^ value >> 31;
}

// Sessions start at rate / questions; their questions follow each other.
void add_sessions(double rate, double until_s, Random& random,
                  std::vector<PictureArrival>& arrivals) {
  std::uint64_t session = 0;
  for (double at_s = random.exponential(kQuestionsPerSession / rate); at_s < until_s;
       at_s += random.exponential(kQuestionsPerSession / rate)) {
    const std::uint64_t picture = ++session;
    // A geometric number of questions.
    double asked_s = at_s;
    while (asked_s < until_s) {
      arrivals.push_back({asked_s, picture});
      if (random.uniform() < 1 / kQuestionsPerSession) break;
      asked_s += random.exponential(kThinkSeconds);
    }
  }
}

class PopularPictures {
 public:
  PopularPictures() {
    double sum = 0;
    for (std::size_t i = 1; i <= kPopularPictures; ++i) {
      sums_.push_back(sum += 1 / static_cast<double>(i));
    }
  }
  std::uint64_t draw(Random& random) const {
    const auto found =
        std::upper_bound(sums_.begin(), sums_.end(), random.uniform() * sums_.back());
    return static_cast<std::uint64_t>(found - sums_.begin());
  }

 private:
  std::vector<double> sums_;
};

// The pictures that a replica was asked about last.
class KeptPictures {
 public:
  explicit KeptPictures(int capacity) : capacity_(static_cast<std::size_t>(capacity)) {}
  // Whether it is here; it is from now on.
  bool use(std::uint64_t picture) {
    const auto found = places_.find(picture);
    if (found != places_.end()) {
      order_.splice(order_.begin(), order_, found->second);
      return true;
    }
    if (capacity_ == 0) return false;
    if (order_.size() == capacity_) {
      places_.erase(order_.back());
      order_.pop_back();
    }
    order_.push_front(picture);
    places_[picture] = order_.begin();
    return false;
  }

 private:
  std::size_t capacity_;
  std::list<std::uint64_t> order_;  // used last first
  std::unordered_map<std::uint64_t, std::list<std::uint64_t>::iterator> places_;
};

class Replicas {
 public:
  explicit Replicas(const ReplicaCase& given)
      : given_(given),
        count_(static_cast<std::size_t>(given.num_replicas)),
        random_(given.seed + 1),
        free_at_s_(count_),
        num_requests_(count_),
        kept_(count_, KeptPictures(given.kept_pictures)) {
    for (std::size_t i = 0; i < count_; ++i) first_free_.emplace(0.0, i);
    if (given.policy == RoutingPolicy::kDeviceChooser) {
      chooser_.emplace(DeviceChooser::Options{.num_devices = given.num_replicas,
                                              .picture_tokens = 730,
                                              .max_known_pictures = given.kept_pictures,
                                              .picture_worth = given.picture_worth});
      refused_.resize(count_);
    }
  }

  struct Served {
    std::size_t replica = 0;
    bool known = false;
    double work_s = 0;
    double latency_s = 0;
  };
  Served serve(const PictureArrival& arrival) {
    end_requests(arrival.at_s);
    Served served;
    Running running;
    served.replica = running.replica = choose(arrival, running);
    served.known = kept_[served.replica].use(arrival.picture);
    served.work_s = (served.known ? given_.known_ms : given_.new_ms) * 1e-3;
    double& free_at_s = free_at_s_[served.replica];
    free_at_s = std::max(free_at_s, arrival.at_s) + served.work_s;
    served.latency_s = free_at_s - arrival.at_s;
    if (given_.policy == RoutingPolicy::kLeastWork) first_free_.emplace(free_at_s, served.replica);
    running.ends_at_s = free_at_s;
    running_.push(running);
    ++num_requests_[served.replica];
    return served;
  }

 private:
  struct Running {
    double ends_at_s = 0;
    std::size_t replica = 0;
    DeviceChooser::Choice choice;
    bool operator<(const Running& other) const { return ends_at_s > other.ends_at_s; }
  };

  void end_requests(double until_s) {
    while (!running_.empty() && running_.top().ends_at_s <= until_s) {
      --num_requests_[running_.top().replica];
      if (chooser_) chooser_->end(running_.top().choice);
      running_.pop();
    }
  }

  std::size_t choose(const PictureArrival& arrival, Running& running) {
    switch (given_.policy) {
      case RoutingPolicy::kTwoChoices: {
        const std::size_t one = random_.below(count_), other = random_.below(count_);
        return num_requests_[other] < num_requests_[one] ? other : one;
      }
      case RoutingPolicy::kLeastWork: {
        const std::size_t first = first_free_.top().second;
        first_free_.pop();
        return first;
      }
      case RoutingPolicy::kByPicture:
        return hash_of(arrival.picture) % count_;
      case RoutingPolicy::kByPictureBounded:
        return bounded(arrival.picture);
      case RoutingPolicy::kDeviceChooser:
        return chosen(arrival, running);
    }
    GAPLESS_CHECK_MSG(false, "no such policy");
  }

  std::size_t bounded(std::uint64_t picture) const {
    const double mean = static_cast<double>(running_.size() + 1) / static_cast<double>(count_);
    const auto most = static_cast<int>(std::ceil(kBalanceFactor * mean));
    std::uint64_t hash = hash_of(picture);
    while (num_requests_[hash % count_] >= most) hash = hash_of(hash + 1);
    return hash % count_;
  }

  std::size_t chosen(const PictureArrival& arrival, Running& running) {
    RequestOutline outline;
    outline.prefixes = {arrival.picture};
    outline.text_tokens = 10;
    outline.most_answer_tokens = 3;
    outline.answers_in_full = true;
    running.choice = *chooser_->choose(outline, refused_);
    chooser_->accepted(running.choice, outline);
    return static_cast<std::size_t>(running.choice.device);
  }

  const ReplicaCase given_;
  const std::size_t count_;
  Random random_;
  std::vector<double> free_at_s_;
  std::vector<int> num_requests_;  // that have not ended
  std::vector<KeptPictures> kept_;
  std::priority_queue<Running> running_;  // the one that ends first on top
  // kLeastWork: when each replica is free.
  std::priority_queue<std::pair<double, std::size_t>, std::vector<std::pair<double, std::size_t>>,
                      std::greater<>>
      first_free_;
  std::optional<DeviceChooser> chooser_;
  std::vector<bool> refused_;
};

double quantile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

}  // namespace

std::string_view policy_name(RoutingPolicy policy) {
  switch (policy) {
    case RoutingPolicy::kTwoChoices:
      return "least requests of two";
    case RoutingPolicy::kLeastWork:
      return "least work of all";
    case RoutingPolicy::kByPicture:
      return "by picture";
    case RoutingPolicy::kByPictureBounded:
      return "by picture, bounded";
    case RoutingPolicy::kDeviceChooser:
      return "device chooser";
  }
  return "";
}

std::string_view pattern_name(PicturePattern pattern) {
  switch (pattern) {
    case PicturePattern::kNew:
      return "new";
    case PicturePattern::kSessions:
      return "sessions";
    case PicturePattern::kPopular:
      return "popular";
    case PicturePattern::kOneHot:
      return "one hot";
  }
  return "";
}

std::vector<PictureArrival> picture_arrivals(const ReplicaCase& given) {
  const double rate = given.rate_per_replica * given.num_replicas;
  const double until_s = given.warm_up_s + given.seconds;
  Random random(given.seed);
  std::vector<PictureArrival> arrivals;
  const auto each = [&](double of_rate, auto picture) {
    for (double at_s = random.exponential(1 / of_rate); at_s < until_s;
         at_s += random.exponential(1 / of_rate)) {
      arrivals.push_back({at_s, picture()});
    }
  };
  switch (given.pattern) {
    case PicturePattern::kNew:
      each(rate, [next = std::uint64_t{0}]() mutable { return ++next; });
      break;
    case PicturePattern::kSessions:
      add_sessions(rate, until_s, random, arrivals);
      break;
    case PicturePattern::kPopular: {
      const PopularPictures pictures;
      each(rate, [&] { return pictures.draw(random); });
      break;
    }
    case PicturePattern::kOneHot:
      add_sessions(rate / 2, until_s, random, arrivals);
      each(rate / 2, [] { return kHotPicture; });
      break;
  }
  std::sort(arrivals.begin(), arrivals.end(),
            [](const PictureArrival& a, const PictureArrival& b) { return a.at_s < b.at_s; });
  return arrivals;
}

ReplicaResult simulate_replicas(const ReplicaCase& given) {
  GAPLESS_CHECK(given.num_replicas >= 1 && given.rate_per_replica > 0 && given.seconds > 0);
  Replicas replicas(given);
  ReplicaResult result;
  std::vector<double> latencies_s;
  std::vector<double> work_s(static_cast<std::size_t>(given.num_replicas));
  double all_work_s = 0;
  std::int64_t num_known = 0;
  for (const PictureArrival& arrival : picture_arrivals(given)) {
    const auto served = replicas.serve(arrival);
    if (arrival.at_s < given.warm_up_s) continue;
    latencies_s.push_back(served.latency_s);
    work_s[served.replica] += served.work_s;
    all_work_s += served.work_s;
    if (served.known) ++num_known;
  }
  const auto count = static_cast<double>(latencies_s.size());
  result.num_requests = std::ssize(latencies_s);
  if (result.num_requests == 0) return result;
  result.known_share = static_cast<double>(num_known) / count;
  result.mean_ms = all_work_s / count * 1e3;
  result.capacity_per_s = 1e3 / result.mean_ms;
  result.busy_share = all_work_s / given.num_replicas / given.seconds;
  result.busiest_share = *std::max_element(work_s.begin(), work_s.end()) / given.seconds;
  result.p50_ms = quantile(latencies_s, 0.5) * 1e3;
  result.p90_ms = quantile(latencies_s, 0.9) * 1e3;
  result.p99_ms = quantile(latencies_s, 0.99) * 1e3;
  return result;
}

}  // namespace gapless
