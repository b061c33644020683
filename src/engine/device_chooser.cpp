#include "engine/device_chooser.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <tuple>

#include "base/check.h"
#include "base/limits.h"

namespace gapless {
namespace {

// Of one picture: so many pieces of so many bytes, evenly spread. Compressed pictures differ
// everywhere behind their first difference.
constexpr std::size_t kPieces = 64;
constexpr std::size_t kPieceBytes = 1024;
// Of English text; prompts are short beside a picture's 729 positions.
constexpr int kBytesPerToken = 4;
// What an answer is taken for before there has been one, and how much a new one counts.
constexpr double kFirstMean = 32;
constexpr double kNewShare = 1.0 / 16;

std::uint64_t mix(std::uint64_t seed, std::string_view bytes) {
  return (seed ^ std::hash<std::string_view>{}(bytes)) * 0x9E3779B97F4A7C15u;
}

std::uint64_t fingerprint(std::uint64_t seed, std::string_view picture) {
  std::uint64_t hash = seed ^ picture.size();
  if (picture.size() <= kPieces * kPieceBytes) return mix(hash, picture);
  const std::size_t last = picture.size() - kPieceBytes;
  for (std::size_t i = 0; i < kPieces; ++i) {
    hash = mix(hash, picture.substr(last / (kPieces - 1) * i, kPieceBytes));
  }
  return mix(hash, picture.substr(last));
}

}  // namespace

RequestOutline outline_of(const SkillRequest& request, int num_answers) {
  RequestOutline outline;
  outline.skill = request.skill;
  outline.text_tokens = static_cast<int>(request.text.size()) / kBytesPerToken;
  // Nobody has judged the request yet.
  outline.most_answer_tokens =
      std::clamp(request.settings.max_tokens.value_or(kDefaultMaxTokens), 0, kMaxContext);
  outline.answers_in_full = request.settings.ignore_eos;
  outline.num_answers = num_answers;
  std::uint64_t prefix = (request.apply_exif_orientation ? 1 : 2) + (request.mirrored ? 2 : 0);
  for (const auto& image : request.images) {
    prefix = fingerprint(prefix, *image);
    outline.prefixes.push_back(prefix);
  }
  return outline;
}

DeviceChooser::DeviceChooser(const Options& options)
    : options_(options), states_(static_cast<std::size_t>(options.num_devices)) {
  GAPLESS_CHECK(options.num_devices >= 1);
  mean_answer_.fill(kFirstMean);
}

std::int64_t DeviceChooser::num_unknown(const State& state,
                                        std::span<const std::uint64_t> prefixes) {
  for (std::size_t count = prefixes.size(); count > 0; --count) {
    if (state.known.contains(prefixes[count - 1])) {
      return static_cast<std::int64_t>(prefixes.size() - count);
    }
  }
  return std::ssize(prefixes);
}

std::int64_t DeviceChooser::answer_tokens(const RequestOutline& request) const {
  const auto most = static_cast<double>(request.most_answer_tokens);
  const double mean = mean_answer_[static_cast<std::size_t>(request.skill)];
  const double each = request.answers_in_full ? most : std::min(most, mean);
  return static_cast<std::int64_t>(each * request.num_answers);
}

std::optional<DeviceChooser::Choice> DeviceChooser::choose(const RequestOutline& request,
                                                           const std::vector<bool>& refused) {
  std::optional<std::tuple<std::int64_t, std::int64_t, int>> best;  // wait, chosen_at, device
  for (int i = 0; i < options_.num_devices; ++i) {
    if (refused[static_cast<std::size_t>(i)]) continue;
    const State& state = of(i);
    const std::int64_t unknown =
        num_unknown(state, request.prefixes) * options_.picture_tokens * options_.picture_worth;
    const std::tuple candidate{state.tokens + unknown, state.chosen_at, i};
    if (!best || candidate < *best) best = candidate;
  }
  if (!best) return std::nullopt;
  const int device = std::get<2>(*best);
  State& state = of(device);
  state.chosen_at = ++num_choices_;
  const Choice choice{device, request.text_tokens +
                                  num_unknown(state, request.prefixes) * options_.picture_tokens +
                                  answer_tokens(request)};
  state.tokens += choice.tokens;
  return choice;
}

void DeviceChooser::accepted(const Choice& choice, const RequestOutline& request) {
  for (const std::uint64_t prefix : request.prefixes) remember(of(choice.device), prefix);
}

void DeviceChooser::remember(State& state, std::uint64_t prefix) {
  if (options_.max_known_pictures == 0) return;
  state.known[prefix] = ++num_uses_;
  if (std::ssize(state.known) <= options_.max_known_pictures) return;
  state.known.erase(
      std::min_element(state.known.begin(), state.known.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; }));
}

void DeviceChooser::end(const Choice& choice) {
  State& state = of(choice.device);
  GAPLESS_CHECK(state.tokens >= choice.tokens);
  state.tokens -= choice.tokens;
}

void DeviceChooser::learn(Skill skill, int answer_tokens) {
  double& mean = mean_answer_[static_cast<std::size_t>(skill)];
  mean += (answer_tokens - mean) * kNewShare;
}

}  // namespace gapless
