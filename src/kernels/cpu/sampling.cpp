// The contract is SampleParams' comment in kernels.h. Nothing is sorted that need not be:
// candidates come in order of falling logit in growing pieces, and a row seldom needs more than the
// first.
#include <algorithm>
#include <cmath>
#include <span>

#include "base/thread_pool.h"
#include "kernels/adjusted_logit.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/logprob.h"
#include "kernels/needed_logits.h"
#include "kernels/row_mask.h"
#include "kernels/sampling_uniform.h"
#include "step/automaton_walk.h"

namespace gapless::cpu {
namespace {

struct Candidate {
  float logit = 0;
  std::int32_t token = 0;
};

bool comes_before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// Candidates sorted on demand, from the front.
class Ranking {
 public:
  Ranking(Candidate* candidates, std::int64_t count) : candidates_(candidates), count_(count) {}

  std::int64_t size() const { return count_; }
  // Each candidate once, in no order.
  std::span<const Candidate> all() const { return {candidates_, static_cast<std::size_t>(count_)}; }
  const Candidate& operator[](std::int64_t i) {
    while (i >= num_sorted_) sort_more();
    return candidates_[i];
  }

 private:
  void sort_more() {
    const std::int64_t end = std::min(count_, std::max(kFirstPiece, num_sorted_ * 8));
    Candidate* const from = candidates_ + num_sorted_;
    Candidate* const to = candidates_ + end;
    if (end < count_) std::nth_element(from, to - 1, candidates_ + count_, comes_before);
    std::sort(from, to, comes_before);
    num_sorted_ = end;
  }

  static constexpr std::int64_t kFirstPiece = 64;
  Candidate* candidates_;
  std::int64_t count_;
  std::int64_t num_sorted_ = 0;
};

// The tokens that a row may take, with the logits that it picks them by.
class Candidates {
 public:
  Candidates(const SampleParams& params, const RowState& row, std::int64_t i, Candidate* to)
      : row_(row), logits_(params.logits + i * params.logits_stride), to_(to) {
    if ((row.flags & kRowAdjustsLogits) == 0) return;
    const std::int64_t begin = params.rows[i] * params.token_memory.stride;
    uses_ = params.token_memory.uses + begin;
    biases_ = params.token_memory.biases + begin;
  }

  void add(std::int32_t token) {
    float logit = logits_[token];
    if (is_held_back(row_, token)) return;
    if (!std::isfinite(logit)) {
      all_finite_ = false;
      return;
    }
    if (uses_ != nullptr)
      logit = adjusted_logit(logit, row_.sampling, uses_[token], biases_[token]);
    to_[count_++] = {logit, token};
  }

  std::int64_t count() const { return count_; }
  bool all_finite() const { return all_finite_; }

 private:
  const RowState& row_;
  const float* logits_;
  Candidate* to_;
  const std::uint16_t* uses_ = nullptr;  // nullptr: the row has no token memory
  const float* biases_ = nullptr;
  std::int64_t count_ = 0;
  bool all_finite_ = true;
};

Candidates collect(const SampleParams& params, const RowState& row, std::int64_t i, Candidate* to) {
  Candidates found(params, row, i, to);
  if (row.automaton != kNoAutomaton) {
    const ListedTokens listed =
        listed_tokens(params.automata[row.automaton], row, params.token_classes);
    if (!listed.only || listed.classes != 0) {
      for (std::int32_t token = 0; token < params.vocab; ++token) {
        if (listed.allows(token)) found.add(token);
      }
      return found;
    }
    for (int n = 0; n < listed.num_tokens; ++n) {
      const std::int32_t token = listed.tokens[n];
      const bool repeated = std::find(listed.tokens, listed.tokens + n, token) != listed.tokens + n;
      if (token >= 0 && token < params.vocab && !repeated) found.add(token);
    }
    return found;
  }
  const std::uint32_t* const mask = mask_of(params, row, i);
  const std::int32_t* const denied_end = row.denied_ids + row.num_denied_ids;
  for (std::int32_t token = 0; token < params.vocab; ++token) {
    if (mask != nullptr && ((mask[token / 32] >> (token % 32)) & 1u) == 0) continue;
    if (std::find(row.denied_ids, denied_end, token) != denied_end) continue;
    found.add(token);
  }
  return found;
}

// The token at u of the filtered distribution. Weights are relative to the first candidate's.
std::int32_t draw(Ranking& ranking, const SamplingSettings& settings, double u) {
  const double largest = ranking[0].logit;
  auto weight = [&](const Candidate& c) {
    return std::exp((c.logit - largest) / settings.temperature);
  };
  double total = 0;
  for (const Candidate& candidate : ranking.all()) total += weight(candidate);

  std::int64_t kept = ranking.size();
  double kept_sum = total;
  if (settings.top_k > 0 || settings.min_p > 0 || settings.top_p < 1) {
    const std::int64_t limit =
        settings.top_k > 0 ? std::min<std::int64_t>(kept, settings.top_k) : kept;
    kept_sum = 0;
    for (kept = 0; kept < limit; ++kept) {
      const double next = weight(ranking[kept]);
      const bool too_unlikely = settings.min_p > 0 && next < settings.min_p;
      const bool past_nucleus = settings.top_p < 1 && kept_sum > settings.top_p * total;
      if (kept > 0 && (too_unlikely || past_nucleus)) break;
      kept_sum += next;
    }
  }
  double running = 0;
  for (std::int64_t i = 0; i < kept; ++i) {
    running += weight(ranking[i]);
    if (running > u * kept_sum) return ranking[i].token;
  }
  return ranking[kept - 1].token;
}

std::int32_t choose(const RowState& row, const Candidates& found, Candidate* scratch) {
  if (found.count() == 0) return row.num_stop_ids > 0 ? row.stop_ids[0] : 0;
  if (!(row.sampling.temperature > 0) || !found.all_finite()) {
    return std::min_element(scratch, scratch + found.count(), comes_before)->token;
  }
  Ranking ranking(scratch, found.count());
  return draw(ranking, row.sampling, sampling_uniform(row.sampling.seed, row.num_generated));
}

// Of a token among the candidates, by the model's own logits; together with those that count as the
// same.
float confidence_of(std::int32_t token, std::span<const Candidate> candidates, const float* logits,
                    const AutomatonState* state) {
  double sum = 0, own = 0;
  for (const Candidate& one : candidates) {
    const double share = std::exp(double{logits[one.token]} - logits[token]);
    sum += share;
    if (counted_as(state, one.token) == counted_as(state, token)) own += share;
  }
  return sum > 0 ? static_cast<float>(own / sum) : 0.0f;
}

}  // namespace

std::size_t sample_scratch_bytes(int max_rows, int vocab) {
  return static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(vocab) * sizeof(Candidate);
}

void sample(const SampleParams& params) {
  ThreadPool::shared().parallel_for(params.num_rows, [&](std::int64_t i) {
    params.tokens[i] = -1;
    params.logprobs[i] = 0;
    if (params.rows[i] < 0) return;
    const RowState& row = params.row_states[params.rows[i]];
    if (row.done != 0) return;
    const ShortList list = short_list(params.automata, row, params.vocab);
    if (list.exists && list.num_tokens == 1) {
      params.tokens[i] = list.tokens[0];
      if ((row.flags & kRowWantsConfidence) != 0) params.confidences[i].token = 1;
      return;
    }
    auto* scratch = static_cast<Candidate*>(params.scratch) + i * params.vocab;
    const float* logits = params.logits + i * params.logits_stride;
    const Candidates found = collect(params, row, i, scratch);
    const std::int32_t token = choose(row, found, scratch);
    const AutomatonState* const state = automaton_state(params.automata, row);
    params.tokens[i] = counted_as(state, token);
    if ((row.flags & kRowSkipsLogprob) == 0) {
      params.logprobs[i] = Logprobs(logits, params.vocab).of(token);
    }
    if ((row.flags & kRowWantsConfidence) != 0) {
      params.confidences[i].token =
          confidence_of(token, {scratch, static_cast<std::size_t>(found.count())}, logits, state);
    }
  });
}

}  // namespace gapless::cpu
