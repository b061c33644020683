#include "tests/pipeline_sim/request_maker.h"

#include <algorithm>
#include <utility>

namespace gapless {
namespace {

int grammar_of(const SimRequest& request) {
  return static_cast<int>(request.seed % FakeGrammars::kNum);
}

std::unique_ptr<FakeConstraint> make_constraint(const Schedule& schedule,
                                                const SimRequest& request) {
  const std::uint64_t seed = request.kind == RowKind::kGrammar
                                 ? static_cast<std::uint64_t>(grammar_of(request))
                                 : request.seed * 31ull + 7;
  return std::make_unique<FakeConstraint>(schedule.model.vocab, seed);
}

}  // namespace

StatusOr<std::unique_ptr<RequestMaker>> RequestMaker::create(Device& device,
                                                             const Schedule& schedule) {
  std::unique_ptr<RequestMaker> maker(new RequestMaker(schedule));
  std::size_t num_crops = 0;
  for (const SimImage& image : schedule.images) {
    num_crops += static_cast<std::size_t>(image.num_crops());
  }
  const std::size_t crop_bytes = schedule.model.crop_bytes;
  // Every second place, for some: crops that are not neighbours are copied one by one.
  GAPLESS_ASSIGN_OR_RETURN(maker->crops_pinned_,
                           device.allocate_pinned(num_crops * 2 * crop_bytes));
  SimRandom random(schedule.seed + 1);
  auto* next = maker->crops_pinned_.as<std::uint8_t>();
  for (const SimImage& image : schedule.images) {
    const bool spread = random.chance(0.5);
    maker->crops_.emplace_back();
    for (int i = 0; i < image.num_crops(); ++i) {
      std::generate_n(next, crop_bytes, [&] { return static_cast<std::uint8_t>(random.next()); });
      maker->crops_.back().push_back(next);
      next += crop_bytes * (spread ? 2 : 1);
    }
  }
  return maker;
}

PreparedPrompt RequestMaker::prompt(const SimRequest& request) const {
  PreparedPrompt prompt;
  SimRandom random(request.seed);
  if (!request.images.empty()) prompt.inputs.push_back({.id = 3});  // BOS
  for (const int name : request.images) {
    const auto index = static_cast<std::size_t>(name);
    PreparedImage image;
    image.hash.fill(static_cast<std::uint8_t>(name + 1));
    image.prefix_hash = image.hash;
    if (!prompt.images.empty()) {
      image.prefix_hash = prompt.images.back().prefix_hash;
      image.prefix_hash[prompt.images.size()] = static_cast<std::uint8_t>(name + 1);
      image.prefix_hash.back() = static_cast<std::uint8_t>(100 + prompt.images.size());
    }
    image.tile_rows = schedule_.images[index].tile_rows;
    image.tile_cols = schedule_.images[index].tile_cols;
    image.crops_pinned = crops_[index];
    const int first = static_cast<int>(prompt.images.size()) * schedule_.model.image_tokens;
    for (int i = 0; i < schedule_.model.image_tokens; ++i) {
      prompt.inputs.push_back({.kind = InputKind::kImage, .id = first + i});
    }
    prompt.images.push_back(std::move(image));
    prompt.prefix_len = static_cast<int>(prompt.inputs.size());
  }
  for (int i = 0; i < request.num_text_tokens; ++i) {
    prompt.inputs.push_back({.id = random.between(3, schedule_.model.vocab - 1)});
  }
  prompt.row.max_generated = request.max_generated;
  prompt.row.sampling.seed = fake_seed(request.seed, request.stop_after);
  // Drawn last, so that the rest of a seed's schedule is what it was.
  if (random.chance(0.3)) prompt.row.sampling.num_top_logprobs = random.between(1, kMaxTopLogprobs);
  if (random.chance(0.3)) {
    prompt.row.flags |= kRowAdjustsLogits;
    const int num_notes = random.between(0, request.num_text_tokens);
    for (int token = 0; token < num_notes; ++token) {
      prompt.token_notes.push_back({token, random.between(0, 1), 0.5f * random.between(-9, 9)});
    }
  }
  prompt.row.num_stop_ids = 1;
  prompt.row.stop_ids[0] = kFakeStopId;
  if (request.kind == RowKind::kAutomaton) {
    prompt.row.automaton = request.seed % 2 == 0 ? 0 : 3;
    if (request.seed % 8 == 2) {
      prompt.row.automaton = 7;
      prompt.num_region_tokens = 3;
    }
    prompt.row.flags |= kRowDecodesRegions;
    if (request.seed % 3 == 0) prompt.row.flags |= kRowWantsConfidence;
    // Reasoning takes a token, and so do its end, the end once more and the answer.
    if (request.seed % 4 == 3 && request.max_generated >= 4) {
      prompt.row.automaton = 5;
      prompt.row.exit_at = (request.max_generated - 2) / 2;
      prompt.row.max_after_exit = request.max_generated - 1 - prompt.row.exit_at;
      prompt.row.denied_ids[prompt.row.num_denied_ids++] = 9;
    }
  } else if (request.kind == RowKind::kHostMask) {
    prompt.row.flags |= kRowHostMask;
    prompt.host_constraint = make_constraint(schedule_, request);
  } else if (request.kind == RowKind::kGrammar) {
    prompt.row.grammar = grammar_of(request);
    prompt.device_grammar = schedule_.model.grammars->hold(prompt.row.grammar);
  }
  return prompt;
}

FakeAnswer RequestMaker::expected(const SimRequest& request) const {
  const auto constraint = make_constraint(schedule_, request);
  const bool is_held = request.kind == RowKind::kHostMask || request.kind == RowKind::kGrammar;
  return fake_answer(schedule_.model, prompt(request), is_held ? constraint.get() : nullptr);
}

}  // namespace gapless
