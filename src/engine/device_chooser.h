// Which of several devices a request goes to: the one on which it waits the least, counted in tokens.
//
//   wait of a device = tokens that it has to do already
//                    + kPictureWorth x the positions of the request's pictures that it does not know
//
// So a request goes to the device that knows its picture, because computing a picture twice is lost
// for everybody, until that device has so much more to do than another that nobody should wait for it:
// one picture that all ask about cannot keep one device busy and the others idle. Requests without a
// picture, or with a new one, go to the device with the fewest tokens to do; of equal ones, to the one
// that was chosen the longest time ago.
//
// Tokens to do: of each request that has not ended, the prompt without what is known, and what its
// answer may be expected to have: its length limit, or the mean of its skill's answers so far where
// that is less.
//
// What a device knows is a guess: the pictures that it was asked about last, as many as its prefix
// cache can hold. A wrong guess costs a picture that is computed again, never an answer.
//
// Threads: one at a time (EngineGroup has the lock).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "skill/skill_request.h"

namespace gapless {

// What is known of a request before it is prepared.
struct RequestOutline {
  // Of its first picture, its first two, ...: a prompt's prefix is found by all of its pictures.
  std::vector<std::uint64_t> prefixes;
  Skill skill = Skill::kQuery;
  int text_tokens = 0;
  int most_answer_tokens = 0;
  bool answers_in_full = false;  // up to most_answer_tokens, whatever it says
  int num_answers = 1;
};

// Reads some 64 KiB of each picture at most: microseconds, so that submit() may call it.
RequestOutline outline_of(const SkillRequest& request, int num_answers);

class DeviceChooser {
 public:
  // A picture that has to be computed again weighs so many times its positions in the choice.
  // Less sends known pictures elsewhere while devices are about equally busy, more makes them wait;
  // `gapless bench replicas` simulates other values.
  static constexpr int kPictureWorth = 4;

  struct Options {
    int num_devices = 1;
    int picture_tokens = 0;      // positions of a picture
    int max_known_pictures = 0;  // of a device; 0: no prefix is kept
    int picture_worth = kPictureWorth;
  };

  explicit DeviceChooser(const Options& options);

  struct Choice {
    int device = 0;
    std::int64_t tokens = 0;  // to be given back by end()
  };
  // Takes the device and counts the request's tokens to it. None of those in `refused`, of size
  // num_devices: they are lost or full. Nothing when there is no other.
  std::optional<Choice> choose(const RequestOutline& request, const std::vector<bool>& refused);
  // The device has accepted the request: from now on it knows the pictures.
  void accepted(const Choice& choice, const RequestOutline& request);
  // All of the request's answers have ended, or it was not accepted.
  void end(const Choice& choice);
  // An answer that ended by itself had so many tokens.
  void learn(Skill skill, int answer_tokens);

  std::int64_t tokens_to_do(int device) const { return of(device).tokens; }

 private:
  struct State {
    std::int64_t tokens = 0;
    std::int64_t chosen_at = 0;                             // 0: never
    std::unordered_map<std::uint64_t, std::int64_t> known;  // by prefix: when it was used last
  };
  const State& of(int device) const { return states_[static_cast<std::size_t>(device)]; }
  State& of(int device) { return states_[static_cast<std::size_t>(device)]; }
  // Pictures behind the longest prefix that the device knows.
  static std::int64_t num_unknown(const State& state, std::span<const std::uint64_t> prefixes);
  std::int64_t answer_tokens(const RequestOutline& request) const;
  void remember(State& state, std::uint64_t prefix);

  const Options options_;
  std::vector<State> states_;
  std::array<double, kSkills.size()> mean_answer_;  // by Skill
  std::int64_t num_choices_ = 0;
  std::int64_t num_uses_ = 0;
};

}  // namespace gapless
