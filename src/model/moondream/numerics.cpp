#include "model/moondream/numerics.h"

#include <fmt/format.h>

#include <string>

namespace gapless {
namespace {

template <auto kMember>
NumericsOption option(std::string_view name, std::string_view about,
                      std::vector<NumericsChoice> choices) {
  return {.name = name,
          .about = about,
          .choices = std::move(choices),
          .get = [](const Numerics& numerics) { return static_cast<int>(numerics.*kMember); },
          .set =
              [](Numerics& numerics, int choice) {
                auto& member = numerics.*kMember;
                member = static_cast<std::remove_reference_t<decltype(member)>>(choice);
              }};
}

std::vector<NumericsOption> make_options() {
  return {option<&Numerics::tau_gelu>("tau_gelu", "GELU of what tau looks at",
                                      {{"tanh", "the tanh form; Photon since August 2026"},
                                       {"erf", "the exact form; the preview's code, vLLM, MLX"}}),
          option<&Numerics::tau_position>(
              "tau_position", "tau's factor by position, computed in higher precision",
              {{"bf16", "rounded to bfloat16; Photon"}, {"f32", "rounded to float32"}}),
          option<&Numerics::coord_divisor>(
              "coord_divisor", "what a coordinate's bin is divided by",
              {{"last_bin", "1023, so that the last bin is 1; Photon, the training labels"},
               {"num_bins", "1024; vLLM, the June 2025 code"}}),
          option<&Numerics::region_input>(
              "region_input", "what region heads with a norm read",
              {{"norm", "the last hidden state through the region's norm; Photon"},
               {"post_norm", "the same behind the text's last norm; vLLM"},
               {"hidden", "the last hidden state as it is; the draft in transformers"}}),
          option<&Numerics::answer_feed>(
              "answer_feed", "how often an answer reads the token that ended its reasoning",
              {{"once", "the June 2025 code; Photon with Moondream 3"},
               {"twice", "Photon with Moondream 2"}})};
}

std::string names_of(const auto& list) {
  std::string names;
  for (const auto& one : list) names += fmt::format("{}{}", names.empty() ? "" : ", ", one.name);
  return names;
}

}  // namespace

std::span<const NumericsOption> numerics_options() {
  static const std::vector<NumericsOption> options = make_options();
  return options;
}

Status set_numerics(std::string_view name, std::string_view choice, Numerics& numerics) {
  for (const NumericsOption& one : numerics_options()) {
    if (one.name != name) continue;
    for (std::size_t i = 0; i < one.choices.size(); ++i) {
      if (one.choices[i].name != choice) continue;
      one.set(numerics, static_cast<int>(i));
      return ok_status();
    }
    return invalid_argument("{} is {}; it may be {}", name, choice, names_of(one.choices));
  }
  return invalid_argument("there is no option of numerics '{}'; there are {}", name,
                          names_of(numerics_options()));
}

}  // namespace gapless
