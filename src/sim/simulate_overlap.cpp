#include "sim/simulate_overlap.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <utility>

#include "pipeline/loop.h"
#include "sim/fake_model.h"
#include "sim/sim_device.h"

namespace gapless {
namespace {

// Answers are between half and one and a half times the mean.
constexpr double kLengthSpread = 0.5;
constexpr int kMaxAnswer = 256;

std::int64_t to_ns(double ms) {
  return std::llround(ms * 1e6);
}

FakeModelConfig model_config(const OverlapCase& overlap_case) {
  FakeModelConfig config;
  const int seats = overlap_case.streams;
  // A zombie keeps its pages, and its stream's next request needs others.
  const int num_sequences = seats * kRowsPerSeat;
  config.max_context = kMaxAnswer + 2 * kPageTokens;
  const int pages_per_row = config.max_context / kPageTokens;
  config.limits = {.max_seats = seats,
                   .max_prefill_tokens = config.max_context,
                   .max_prefill_sequences = seats,
                   .max_crops_per_encode = 1,
                   .max_images_per_encode = 1,
                   .num_pages = num_sequences * pages_per_row + 1,
                   .max_pages_per_row = pages_per_row,
                   .num_image_slots = 1,
                   .max_page_copies = 1,
                   .max_page_deltas = seats * pages_per_row};
  const std::int64_t forward_ns = to_ns(overlap_case.forward_ms);
  // Long enough to hide the host's work on the step before it.
  const std::int64_t prefill_ns = to_ns(overlap_case.block_ms);
  config.forward_ns = [=](const StepShape& shape) {
    return shape.kind == StepKind::kDecode ? forward_ns : prefill_ns;
  };
  const std::int64_t sampling_ns = to_ns(overlap_case.sampling_ms);
  config.sampling_ns = [=](const StepShape& shape) {
    return shape.kind == StepKind::kDecode ? sampling_ns : 0;
  };
  return config;
}

// B streams, each with one request at a time.
class Streams {
 public:
  Streams(Loop& loop, const OverlapCase& overlap_case, const OverlapOptions& options)
      : loop_(loop),
        random_(options.seed),
        length_(overlap_case.mean_tokens * (1 - kLengthSpread),
                overlap_case.mean_tokens * (1 + kLengthSpread)),
        num_to_submit_(overlap_case.streams * options.requests_per_stream) {}

  void submit_next() {
    if (num_to_submit_ == 0) return;
    --num_to_submit_;
    const int length = std::max(1, static_cast<int>(std::lround(length_(random_))));
    PreparedPrompt prompt;
    prompt.inputs.resize(1, TokenInput{.id = 3});
    prompt.row.max_generated = kMaxAnswer;
    // The stop token is the last of the tokens that the answer's length counts.
    prompt.row.sampling.seed = fake_seed(static_cast<std::uint32_t>(random_()), length - 1);
    prompt.row.num_stop_ids = 1;
    prompt.row.stop_ids[0] = kFakeStopId;
    const auto id = loop_.submit(std::move(prompt), std::make_shared<Sink>(*this));
    GAPLESS_CHECK_MSG(id.ok(), id.status().to_string());
  }

  bool all_streams_busy() const { return num_to_submit_ > 0; }
  std::int64_t num_tokens() const { return num_tokens_; }
  const Status& status() const { return status_; }

 private:
  struct Sink : TokenSink {
    explicit Sink(Streams& streams) : streams_(streams) {}
    void on_token(const CommittedToken&) override { ++streams_.num_tokens_; }
    void on_finished(FinishReason reason, const Status& status, const SequenceTimes&) override {
      if (reason == FinishReason::kStop) ++streams_.num_tokens_;
      if (!status.ok()) streams_.status_ = status;
      streams_.submit_next();
    }
    Streams& streams_;
  };

  Loop& loop_;
  std::mt19937_64 random_;
  std::uniform_real_distribution<double> length_;
  int num_to_submit_;
  std::int64_t num_tokens_ = 0;
  Status status_;
};

StatusOr<OverlapRun> run(const OverlapCase& overlap_case, const OverlapOptions& options,
                         int depth) {
  SimConfig device_config;
  device_config.times = SimTimes::free();
  device_config.record_timeline = false;
  SimDevice device(device_config);
  GAPLESS_ASSIGN_OR_RETURN(auto model, FakeModel::create(device, model_config(overlap_case)));
  LoopOptions loop_options;
  loop_options.depth = depth;
  loop_options.max_cached_prefixes = 0;
  loop_options.host_delay_ns = to_ns(overlap_case.host_ms());
  GAPLESS_ASSIGN_OR_RETURN(auto loop,
                           Loop::create(device, *model, device.host_clock(), loop_options));
  Streams streams(*loop, overlap_case, options);
  for (int i = 0; i < overlap_case.streams; ++i) streams.submit_next();

  // From the first decode steps until the streams run out of requests.
  for (int i = 0; i < 8; ++i) (void)loop->tick();
  loop->ledger().restart();
  const std::int64_t begin_ns = device.now_ns();
  const std::int64_t tokens_before = streams.num_tokens();
  while (streams.all_streams_busy() && loop->tick() == Loop::Tick::kWorked) {
  }
  const LedgerTotals totals = loop->ledger().totals();
  const std::int64_t elapsed_ns = device.now_ns() - begin_ns;
  const std::int64_t num_tokens = streams.num_tokens() - tokens_before;
  GAPLESS_RETURN_IF_ERROR(streams.status());

  const auto prefill = static_cast<std::size_t>(StepKind::kPrefill);
  const auto decode = static_cast<std::size_t>(StepKind::kDecode);
  const auto decode_ns = static_cast<double>(elapsed_ns - totals.forward_ns[prefill]);
  OverlapRun result;
  result.period_ms = decode_ns / static_cast<double>(totals.num_steps[decode]) * 1e-6;
  result.tokens_per_s = static_cast<double>(num_tokens) / decode_ns * 1e9;
  result.zombie_share = totals.zombie_share();
  result.busy_share = totals.busy_share();
  return result;
}

}  // namespace

std::vector<OverlapCase> article_cases() {
  std::vector<OverlapCase> cases = {
      {"RTX 3090", 1, 4.87, 0.20, 5.10, 5.44, 104, 1, 5.7, 6.5},
      {"RTX 3090", 8, 6.66, 0.27, 6.97, 7.52, 113, 1, 7.6, 7.8},
      {"RTX 3090", 32, 10.24, 0.26, 10.52, 11.74, 113, 1, 11.1, 11.6},
      {"B200", 1, 2.45, 0.14, 2.63, 3.11, 115, 1, 17.2, 17.6},
      {"B200", 8, 3.12, 0.14, 3.30, 4.04, 115, 1, 22.2, 21.9},
      {"B200", 32, 3.80, 0.14, 3.98, 5.55, 104, 1, 39.1, 35.4},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (cases[i].streams == 1) continue;
    const OverlapCase& fewer = cases[i - 1];
    const double slope =
        (cases[i].period_ms - fewer.period_ms) / (cases[i].streams - fewer.streams);
    cases[i].row_share = cases[i].streams * slope / cases[i].period_ms;
  }
  return cases;
}

double predicted_gain(const OverlapCase& overlap_case) {
  const double zombie_tax = overlap_case.row_share / overlap_case.mean_tokens;
  return (overlap_case.block_ms / overlap_case.period_ms * (1 - zombie_tax) - 1) * 100;
}

OverlapMiss miss_of(const OverlapCase& overlap_case, const OverlapResult& result) {
  return {result.blocking.period_ms - overlap_case.block_ms,
          result.pipelined.period_ms - overlap_case.period_ms,
          result.gain_percent - overlap_case.article_predicted,
          result.gain_percent - overlap_case.article_observed};
}

StatusOr<OverlapResult> simulate_overlap(const OverlapCase& overlap_case,
                                         const OverlapOptions& options) {
  OverlapResult result;
  GAPLESS_ASSIGN_OR_RETURN(result.blocking, run(overlap_case, options, 1));
  GAPLESS_ASSIGN_OR_RETURN(result.pipelined, run(overlap_case, options, options.depth));
  result.gain_percent = (result.pipelined.tokens_per_s / result.blocking.tokens_per_s - 1) * 100;
  return result;
}

}  // namespace gapless
