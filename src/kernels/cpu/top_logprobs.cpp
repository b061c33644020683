// The contract is TopLogprobsParams' comment in kernels.h. One pass keeps the best so far in order:
// a token seldom gets among them.
#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/logprob.h"

namespace gapless::cpu {
namespace {

// The tokens of the num_wanted largest finite logits, to `best`; how many there are. Tokens come in
// order of their ids, so one never overtakes its equal.
int find_largest(const float* logits, int vocab, int num_wanted, std::int32_t* best) {
  int num_found = 0;
  for (std::int32_t token = 0; token < vocab; ++token) {
    const float logit = logits[token];
    if (!std::isfinite(logit)) continue;
    if (num_found == num_wanted && !(logit > logits[best[num_found - 1]])) continue;
    if (num_found < num_wanted) ++num_found;
    int place = num_found - 1;
    for (; place > 0 && logit > logits[best[place - 1]]; --place) best[place] = best[place - 1];
    best[place] = token;
  }
  return num_found;
}

void top_of_row(const float* logits, int vocab, int num_wanted, TopLogprob* top) {
  std::int32_t best[kMaxTopLogprobs];
  const int num_found = find_largest(logits, vocab, num_wanted, best);
  const Logprobs logprobs(logits, vocab);
  for (int place = 0; place < num_wanted; ++place) {
    top[place] =
        place < num_found ? TopLogprob{best[place], logprobs.of(best[place])} : TopLogprob();
  }
}

}  // namespace

void top_logprobs(const TopLogprobsParams& params) {
  ThreadPool::shared().parallel_for(params.num_rows, [&](std::int64_t i) {
    if (params.rows[i] < 0) return;
    const int num_wanted = params.row_states[params.rows[i]].sampling.num_top_logprobs;
    if (num_wanted <= 0) return;
    top_of_row(params.logits + i * params.logits_stride, params.vocab, num_wanted,
               params.top + i * kMaxTopLogprobs);
  });
}

}  // namespace gapless::cpu
