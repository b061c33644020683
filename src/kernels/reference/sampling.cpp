// The contract is SampleParams' comment in kernels.h; this is its most literal form: sort
// everything.
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <vector>

#include "kernels/reference/reference_ops.h"
#include "kernels/row_mask.h"
#include "kernels/sampling_uniform.h"

namespace gapless::reference {
namespace {

struct Candidate {
  std::int32_t token = 0;
  double logit = 0;
  double p = 0;
};

bool is_stop_id_held_back(std::int32_t token, const RowState& row) {
  const std::int32_t* const stop_end = row.stop_ids + row.num_stop_ids;
  return row.num_generated < row.sampling.min_tokens &&
         std::find(row.stop_ids, stop_end, token) != stop_end;
}

bool is_allowed(std::int32_t token, const RowState& row, const Automata& automata,
                const std::uint32_t* mask) {
  if (is_stop_id_held_back(token, row)) return false;
  if (row.automaton != kNoAutomaton) {
    const AutomatonState& state = automata.states[row.automaton];
    const std::int32_t* const end = state.tokens + state.num_edges;
    const std::int32_t* const edge = std::find(state.tokens, end, token);
    if (state.is_open == 0) {
      if (edge != end || state.classes == 0) return edge != end;
      return (state.classes & (1u << automata.token_classes[token])) != 0;
    }
    const bool must_leave = row.max_after_exit > 0 && row.num_generated >= row.exit_at;
    if (must_leave) return token == state.tokens[0];
    return edge == end || state.next[edge - state.tokens] != kForbiddenEdge;
  }
  if (std::find(row.denied_ids, row.denied_ids + row.num_denied_ids, token) !=
      row.denied_ids + row.num_denied_ids) {
    return false;
  }
  return mask == nullptr || ((mask[token / 32] >> (token % 32)) & 1u) != 0;
}

// Biases and penalties, one after the other.
float adjust(float logit, std::int32_t token, const RowState& row, const RowMemory& memory) {
  if ((row.flags & kRowAdjustsLogits) == 0) return logit;
  const SamplingSettings& settings = row.sampling;
  const bool in_prompt = (memory.uses[token] & kTokenInPrompt) != 0;
  const int times_generated = memory.uses[token] & kMaxTokenUses;
  logit += memory.biases[token];
  if (in_prompt || times_generated > 0) {
    logit = logit > 0 ? logit / settings.repetition_penalty : logit * settings.repetition_penalty;
  }
  logit -= settings.frequency_penalty * static_cast<float>(times_generated);
  if (times_generated > 0) logit -= settings.presence_penalty;
  return logit;
}

// How many of the sorted candidates survive the filters: at least one.
std::size_t num_kept(const std::vector<Candidate>& sorted, const SamplingSettings& settings) {
  std::size_t kept = sorted.size();
  if (settings.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(settings.top_k));
  double before = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    const bool too_unlikely =
        settings.min_p > 0 && sorted[i].p < double{settings.min_p} * sorted[0].p;
    const bool past_nucleus = settings.top_p < 1 && before > settings.top_p;
    if (i > 0 && (too_unlikely || past_nucleus)) return i;
    before += sorted[i].p;
  }
  return kept;
}

std::int32_t choose(const float* logits, int vocab, const RowState& row, const Automata& automata,
                    const std::uint32_t* mask, double u, const RowMemory& memory) {
  std::vector<Candidate> candidates;
  bool all_finite = true;
  for (std::int32_t token = 0; token < vocab; ++token) {
    if (!is_allowed(token, row, automata, mask)) continue;
    if (std::isfinite(logits[token])) {
      candidates.push_back({.token = token, .logit = adjust(logits[token], token, row, memory)});
    } else {
      all_finite = false;
    }
  }
  if (candidates.empty()) return row.num_stop_ids > 0 ? row.stop_ids[0] : 0;
  // Stable: equal logits stay in the order of their ids.
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  if (!(row.sampling.temperature > 0) || !all_finite) return candidates[0].token;

  double sum = 0;
  for (Candidate& candidate : candidates) {
    candidate.p = std::exp((candidate.logit - candidates[0].logit) / row.sampling.temperature);
    sum += candidate.p;
  }
  for (Candidate& candidate : candidates) candidate.p /= sum;

  candidates.resize(num_kept(candidates, row.sampling));
  double kept_sum = 0, running = 0;
  for (const Candidate& candidate : candidates) kept_sum += candidate.p;
  for (const Candidate& candidate : candidates) {
    running += candidate.p;
    if (running > u * kept_sum) return candidate.token;
  }
  return candidates.back().token;
}

// What a picked token counts as.
std::int32_t in_automaton(std::int32_t token, const RowState& row, const Automata& automata) {
  if (row.automaton == kNoAutomaton) return token;
  const AutomatonState& state = automata.states[row.automaton];
  const std::int32_t* const end = state.tokens + state.num_edges;
  return state.otherwise < 0 || std::find(state.tokens, end, token) != end ? token
                                                                           : state.otherwise;
}

// Of what was picked among the candidates; `counts_as` is one of them, or none is.
float confidence_of(const SampleParams& params, const RowState& row, std::int64_t i,
                    std::int32_t counts_as) {
  const float* logits = params.logits + i * params.logits_stride;
  const Automata automata{params.automata, params.token_classes};
  const auto few = few_candidates(row, params.automata, params.vocab);
  if (few && few->size() == 1) return 1;
  const auto is_candidate = [&](std::int32_t token) {
    return is_allowed(token, row, automata, mask_of(params, row, i)) &&
           std::isfinite(logits[token]);
  };
  double largest = -INFINITY, sum = 0, own = 0;
  for (std::int32_t token = 0; token < params.vocab; ++token) {
    if (is_candidate(token)) largest = std::max<double>(largest, logits[token]);
  }
  for (std::int32_t token = 0; token < params.vocab; ++token) {
    if (!is_candidate(token)) continue;
    const double share = std::exp(logits[token] - largest);
    sum += share;
    if (in_automaton(token, row, automata) == counts_as) own += share;
  }
  return sum > 0 ? static_cast<float>(own / sum) : 0.0f;
}

}  // namespace

std::optional<std::set<std::int32_t>> few_candidates(const RowState& row,
                                                     const AutomatonState* automata, int vocab) {
  const bool tells_logprobs =
      (row.flags & kRowSkipsLogprob) == 0 || row.sampling.num_top_logprobs > 0;
  if (tells_logprobs || row.automaton == kNoAutomaton) return std::nullopt;
  const AutomatonState& state = automata[row.automaton];
  const bool must_leave =
      state.is_open != 0 && row.max_after_exit > 0 && row.num_generated >= row.exit_at;
  if (state.is_open != 0 ? !must_leave : state.classes != 0) return std::nullopt;
  std::set<std::int32_t> candidates;
  for (int edge = 0; edge < (must_leave ? 1 : state.num_edges); ++edge) {
    const std::int32_t token = state.tokens[edge];
    if (token >= 0 && token < vocab && !is_stop_id_held_back(token, row)) candidates.insert(token);
  }
  return candidates;
}

float logprob_of(const float* logits, int vocab, std::int32_t token) {
  if (!std::isfinite(logits[token])) return kImpossibleLogprob;
  double largest = -INFINITY, sum = 0;
  for (int i = 0; i < vocab; ++i) {
    if (std::isfinite(logits[i])) largest = std::max<double>(largest, logits[i]);
  }
  for (int i = 0; i < vocab; ++i) {
    if (std::isfinite(logits[i])) sum += std::exp(logits[i] - largest);
  }
  return static_cast<float>(logits[token] - largest - std::log(sum));
}

SampledToken sample_row(const float* logits, int vocab, const RowState& row,
                        const Automata& automata, const std::uint32_t* mask, double u,
                        const RowMemory& memory) {
  const auto few = few_candidates(row, automata.states, vocab);
  const std::int32_t token = few && few->size() == 1
                                 ? *few->begin()
                                 : choose(logits, vocab, row, automata, mask, u, memory);
  const bool skips_logprob = (row.flags & kRowSkipsLogprob) != 0;
  return {.token = in_automaton(token, row, automata),
          .logprob = skips_logprob ? 0.0f : logprob_of(logits, vocab, token)};
}

void sample(const SampleParams& params) {
  for (std::int64_t i = 0; i < params.num_rows; ++i) {
    if (params.rows[i] < 0 || params.row_states[params.rows[i]].done != 0) {
      params.tokens[i] = -1;
      params.logprobs[i] = 0;
      continue;
    }
    const RowState& row = params.row_states[params.rows[i]];
    const std::int64_t memory_at = params.rows[i] * params.token_memory.stride;
    const SampledToken sampled =
        sample_row(params.logits + i * params.logits_stride, params.vocab, row,
                   {params.automata, params.token_classes}, mask_of(params, row, i),
                   sampling_uniform(row.sampling.seed, row.num_generated),
                   {params.token_memory.uses + memory_at, params.token_memory.biases + memory_at});
    params.tokens[i] = sampled.token;
    params.logprobs[i] = sampled.logprob;
    if ((row.flags & kRowWantsConfidence) != 0) {
      params.confidences[i].token = confidence_of(params, row, i, sampled.token);
    }
  }
}

void top_logprobs(const TopLogprobsParams& params) {
  for (std::int64_t i = 0; i < params.num_rows; ++i) {
    if (params.rows[i] < 0) continue;
    const float* logits = params.logits + i * params.logits_stride;
    std::vector<std::int32_t> tokens;
    for (std::int32_t token = 0; token < params.vocab; ++token) {
      if (std::isfinite(logits[token])) tokens.push_back(token);
    }
    std::stable_sort(tokens.begin(), tokens.end(),
                     [logits](std::int32_t a, std::int32_t b) { return logits[a] > logits[b]; });
    const auto num_wanted =
        static_cast<std::size_t>(params.row_states[params.rows[i]].sampling.num_top_logprobs);
    TopLogprob* top = params.top + i * kMaxTopLogprobs;
    for (std::size_t place = 0; place < num_wanted; ++place) {
      top[place] = TopLogprob();
      if (place >= tokens.size()) continue;
      top[place] = {tokens[place], logprob_of(logits, params.vocab, tokens[place])};
    }
  }
}

}  // namespace gapless::reference
