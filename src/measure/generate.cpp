#include "measure/generate.h"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

namespace gapless {
namespace {

// The benchmark that this follows draws below it, so that any tokenizer's plain words are meant.
constexpr int kRandomIdsBelow = 16000;

struct Progress {
  int num_started = 0;
  int num_finished = 0;
  std::int64_t num_tokens = 0;
  std::int64_t all_started_ns = 0;
  Status status;
};

class Answer final : public TokenSink {
 public:
  Answer(Progress& progress, HostClock& clock, int num_prompts)
      : progress_(progress), clock_(clock), num_prompts_(num_prompts) {}
  void on_token(const CommittedToken&) override {
    ++progress_.num_tokens;
    if (has_token_) return;
    has_token_ = true;
    if (++progress_.num_started == num_prompts_) progress_.all_started_ns = clock_.now_ns();
  }
  void on_finished(FinishReason, const Status& status, const SequenceTimes&) override {
    ++progress_.num_finished;
    if (progress_.status.ok()) progress_.status = status;
  }

 private:
  Progress& progress_;
  HostClock& clock_;
  const int num_prompts_;
  bool has_token_ = false;
};

PreparedPrompt random_prompt(const GenerateWorkload& workload, int vocab, std::mt19937_64& random) {
  const auto below = static_cast<std::uint64_t>(std::min(vocab, kRandomIdsBelow));
  PreparedPrompt prompt;
  for (int i = 0; i < workload.prompt_tokens; ++i) {
    prompt.inputs.push_back({InputKind::kText, static_cast<std::int32_t>(random() % below), 0, 0});
  }
  prompt.row.max_generated = workload.new_tokens;
  return prompt;
}

}  // namespace

double GenerateRun::tokens_per_s() const {
  return host_ns == 0 ? 0 : static_cast<double>(num_tokens) * 1e9 / static_cast<double>(host_ns);
}

double GenerateRun::device_busy_share() const {
  return host_ns == 0 ? 0 : static_cast<double>(totals.busy_ns) / static_cast<double>(host_ns);
}

StatusOr<GenerateRun> run_generate(Loop& loop, HostClock& clock, const StepModelInfo& info,
                                   const GenerateWorkload& workload) {
  if (workload.prompt_tokens + workload.new_tokens > info.max_context) {
    return invalid_argument(
        "{} tokens of a prompt and {} of an answer are more than the context of {}",
        workload.prompt_tokens, workload.new_tokens, info.max_context);
  }
  std::mt19937_64 random(workload.seed);
  std::vector<PreparedPrompt> prompts;
  for (int i = 0; i < workload.num_prompts; ++i) {
    prompts.push_back(random_prompt(workload, info.vocab, random));
  }
  Progress progress;
  GenerateRun run;
  loop.ledger().restart();
  const std::int64_t begin_ns = clock.now_ns();
  for (PreparedPrompt& prompt : prompts) {
    const auto id = loop.submit(std::move(prompt),
                                std::make_shared<Answer>(progress, clock, workload.num_prompts));
    if (!id.ok() && progress.status.ok()) progress.status = id.status();
  }
  // Without prompts that were refused: those that were not are answered all the same.
  while (loop.tick() == Loop::Tick::kWorked) {
  }
  run.host_ns = clock.now_ns() - begin_ns;
  GAPLESS_RETURN_IF_ERROR(progress.status);
  run.first_token_ns = progress.all_started_ns - begin_ns;
  run.num_tokens = progress.num_tokens;
  run.totals = loop.ledger().totals();
  return run;
}

}  // namespace gapless
