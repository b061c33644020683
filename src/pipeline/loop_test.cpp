// What the loop promises, on the simulated device in virtual time. Random schedules are in
// tests/pipeline_sim.
#include "pipeline/loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "pipeline/loop_test_kit.h"

namespace gapless {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class NothingAllowed : public TokenConstraint {
 public:
  void allowed(std::span<std::uint32_t>) const override {}
  void advance(TokenId) override {}
};

// ---- admission

TEST_F(LoopTest, RefusesOptionsAndLimitsOutOfRange) {
  device_ = std::make_unique<SimDevice>(device_config_);
  const auto refused = [&](int depth, int max_rows, int max_page_deltas) {
    FakeModelConfig config = model_config_;
    config.limits.max_seats = max_rows;
    config.limits.max_page_deltas = max_page_deltas;
    auto model = FakeModel::create(*device_, config).value();
    LoopOptions options;
    options.depth = depth;
    return Loop::create(*device_, *model, device_->host_clock(), options).status().code();
  };
  EXPECT_EQ(refused(0, 4, 16), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(kMaxDepth + 1, 4, 16), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(2, kMaxSeats + 1, 16), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(2, 4, 1), StatusCode::kInvalidArgument) << "a row's pages do not fit a step";
}

TEST_F(LoopTest, RefusesPromptsThatMakeNoSense) {
  make_loop();
  EXPECT_EQ(refusal(text(0, 1)).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refusal(text(1, 0)).message(), HasSubstr("max_tokens"));
  PreparedPrompt token = text(2, 1);
  token.inputs[1].id = model_config_.vocab;
  EXPECT_THAT(refusal(std::move(token)).message(), HasSubstr("vocabulary"));
  PreparedPrompt prefix = text(2, 1);
  prefix.prefix_len = 3;
  EXPECT_THAT(refusal(std::move(prefix)).message(), HasSubstr("prefix"));
  PreparedPrompt no_image = about_image(1, 1, 1);
  no_image.images.clear();
  EXPECT_THAT(refusal(std::move(no_image)).message(), HasSubstr("image position"));
  PreparedPrompt crops = about_image(1, 1, 1);
  crops.images[0].tile_cols = 2;
  EXPECT_THAT(refusal(std::move(crops)).message(), HasSubstr("crops"));
  PreparedPrompt position = about_image(1, 1, 1);
  position.inputs[3].id = model_config_.image_tokens;
  EXPECT_THAT(refusal(std::move(position)).message(), HasSubstr("image position"));
  PreparedPrompt masked = text(1, 1);
  masked.row.flags |= kRowHostMask;
  EXPECT_THAT(refusal(std::move(masked)).message(), HasSubstr("host_constraint"));
  PreparedPrompt stops = text(1, 1);
  stops.row.num_stop_ids = kMaxStopIds + 1;
  EXPECT_THAT(refusal(std::move(stops)).message(), HasSubstr("stop ids"));
}

TEST_F(LoopTest, RefusesWhatCanNeverFit) {
  model_config_.limits.num_pages = 3;
  make_loop();
  EXPECT_THAT(refusal(text(50, 60)).message(), HasSubstr("context"));
  EXPECT_THAT(refusal(text(30, 4)).message(), HasSubstr("pages"));
  EXPECT_TRUE(refusal(text(30, 3)).ok()) << "the last token needs no place in the cache";
  model_config_.limits.num_pages = 49;
  model_config_.limits.max_pages_per_row = 2;
  make_loop();
  EXPECT_THAT(refusal(text(30, 4)).message(), HasSubstr("more than the 2 there are"));
  EXPECT_TRUE(refusal(text(30, 3)).ok());
}

TEST_F(LoopTest, RefusesWhenTooManyWait) {
  options_.max_waiting = 2;
  make_loop();
  submit(text(1, 1));
  submit(text(1, 1));
  EXPECT_EQ(refusal(text(1, 1)).code(), StatusCode::kResourceExhausted);
  run();
  EXPECT_TRUE(refusal(text(1, 1)).ok()) << "seats were taken, so places are free again";
}

TEST_F(LoopTest, TimesCountFromWhenTheRequestCameIn) {
  make_loop();
  submit(text(5, 2));
  run();
  const std::int64_t now = device_->host_clock().now_ns();
  ASSERT_GT(now, 7);
  PreparedPrompt prompt = text(5, 2);
  prompt.submitted_ns = 7;
  const auto preprocessed = submit(std::move(prompt));
  const auto bare = submit(text(5, 2));
  run();
  EXPECT_EQ(preprocessed->times.submitted_ns, 7);
  EXPECT_EQ(bare->times.submitted_ns, now);
}

TEST_F(LoopTest, IdleTimeIsToldToTheLedgerOnce) {
  make_loop();
  EXPECT_EQ(loop_->tick(), Loop::Tick::kIdle);
  device_->host_busy(3'000);
  EXPECT_EQ(loop_->tick(), Loop::Tick::kIdle);
  device_->host_busy(2'000);
  submit(text(5, 4));
  run();
  const auto idle = static_cast<std::size_t>(HostPhaseKind::kIdle);
  EXPECT_EQ(loop_->ledger().totals().host_ns[idle], 5'000);
}

TEST_F(LoopTest, ADecodeStepReadsThePromptAndTheTokensBeforeIt) {
  make_loop();
  submit(text(5, 4));
  run();
  std::vector<std::int64_t> cached;
  for (const StepRecord& record : records_of(StepKind::kDecode)) {
    cached.push_back(record.num_cached_tokens);
  }
  EXPECT_EQ(cached, (std::vector<std::int64_t>{5, 6, 7}));
}

// ---- zombies (I6)

TEST_F(LoopTest, AStoppedAnswerLeavesAZombieInEveryStepAhead) {
  for (int depth = 1; depth <= kMaxDepth; ++depth) {
    options_.depth = depth;
    make_loop();
    const auto answer = submit(text(3, 50, 10));
    run();
    EXPECT_EQ(answer->reason, FinishReason::kStop);
    EXPECT_EQ(answer->tokens.size(), 10u);
    EXPECT_EQ(loop_->ledger().totals().num_zombie_rows, depth - 1);
  }
}

TEST_F(LoopTest, AnAnswerAtItsLengthLeavesNoZombie) {
  options_.depth = 4;
  make_loop();
  const auto answer = submit(text(3, 12));
  run();
  EXPECT_EQ(answer->reason, FinishReason::kLength);
  EXPECT_EQ(answer->tokens.size(), 12u);
  EXPECT_EQ(loop_->ledger().totals().num_zombie_rows, 0);
}

// With one seat: who waits is seated at the commit that finalizes the one before, while steps in
// flight still refer to that one's row.
TEST_F(LoopTest, AZombieKeepsItsRowAndNotTheSeat) {
  model_config_.limits.max_seats = 1;
  model_config_.limits.max_prefill_sequences = 1;
  for (int depth = 2; depth <= kMaxDepth; ++depth) {
    SCOPED_TRACE(depth);
    options_.depth = depth;
    make_loop();
    const auto first = submit(text(3, 50, 10));
    const auto second = submit(text(3, 50, 10));
    while (first->num_finished == 0) (void)loop_->tick();
    EXPECT_EQ(loop_->counts().running, 0);
    EXPECT_EQ(loop_->counts().seats.rows_in_use, 1) << "a zombie";
    (void)loop_->tick();
    EXPECT_EQ(loop_->counts().running, 1);
    EXPECT_EQ(loop_->counts().seats.rows_in_use, depth == 2 ? 1 : 2)
        << "at depth 2 the same tick has committed the zombie's last step";
    run();
    EXPECT_EQ(second->tokens.size(), 10u);
    // The second one's prefill is behind the first one's zombies, and was launched before the first
    // of them was committed.
    const std::vector<StepRecord> prefills = records_of(StepKind::kPrefill);
    ASSERT_EQ(prefills.size(), 2u);
    const std::vector<StepRecord> all = loop_->ledger().records();
    const StepRecord& zombies = all[static_cast<std::size_t>(prefills[1].number - depth + 1)];
    EXPECT_EQ(zombies.num_zombies, 1);
    EXPECT_LT(prefills[1].launch_begin_ns, zombies.commit_end_ns);
    for (const StepRecord& record : all) EXPECT_EQ(record.num_rows, 1) << "no more than the seats";
  }
}

// The seat is free at the commit that finalizes, the pages when nothing in flight refers to them.
TEST_F(LoopTest, WhoWaitsForAZombiesPagesIsSeatedWhenTheyComeBack) {
  model_config_.limits.num_pages = 7;
  for (int depth = 1; depth <= kMaxDepth; ++depth) {
    SCOPED_TRACE(depth);
    options_.depth = depth;
    make_loop();
    const auto first = submit(text(40, 40, 10));  // 5 of 6 pages
    const auto second = submit(text(40, 40, 10));
    for (int i = 0; i < 1000 && second->num_finished == 0; ++i) (void)loop_->tick();
    EXPECT_EQ(first->tokens.size(), 10u);
    EXPECT_EQ(second->tokens.size(), 10u);
  }
}

// ---- running ahead

// Where rows end in every other step it does not pay (run_ahead.h).
TEST_F(LoopTest, RunsAheadOfDecodeStepsOnlyWhileThatPays) {
  device_config_.times = SimTimes();
  options_.foresees_limits = false;
  for (const int num_tokens : {3, 60}) {
    SCOPED_TRACE(num_tokens);
    make_loop();
    for (int i = 0; i < 1000; ++i) submit(text(3, num_tokens - i % 2));
    for (int i = 0; i < 550; ++i) (void)loop_->tick();
    const std::vector<StepRecord> records = loop_->ledger().records(100);
    int behind_decode = 0, ahead = 0;
    for (std::size_t i = 1; i < records.size(); ++i) {
      const StepRecord &before = records[i - 1], &step = records[i];
      if (before.kind != StepKind::kDecode) continue;
      ++behind_decode;
      ahead += step.launch_begin_ns < before.commit_end_ns ? 1 : 0;
    }
    if (num_tokens == 3) {
      EXPECT_EQ(ahead, 0);
      EXPECT_EQ(records.back().num_zombies, 0);
    } else {
      EXPECT_GT(behind_decode, 50);
      EXPECT_GE(ahead, behind_decode - 1) << "but for the last one, perhaps";
    }
    loop_->stop();
  }
}

TEST_F(LoopTest, PipeliningHidesTheHostAndBlockingDoesNot) {
  options_.host_delay_ns = 60'000;
  for (const int depth : {1, 2, 3}) {
    options_.depth = depth;
    make_loop();
    submit(text(3, 60));
    for (int i = 0; i < 10; ++i) (void)loop_->tick();
    loop_->ledger().restart();
    for (int i = 0; i < 40; ++i) (void)loop_->tick();
    const LedgerTotals totals = loop_->ledger().totals();
    if (depth == 1) {
      EXPECT_NEAR(totals.bubble_share(), 60.0 / 170.0, 0.01);
      EXPECT_EQ(totals.bubble_by_phase_ns[static_cast<std::size_t>(HostPhaseKind::kCommit)],
                totals.bubble_ns);
    } else {
      EXPECT_EQ(totals.bubble_ns, 0);
      EXPECT_EQ(totals.starved_ns, 0);
    }
    EXPECT_EQ(loop_->forbidden_calls(), 0) << "I7";
  }
}

TEST_F(LoopTest, HostMaskedRowsHideTheHostToo) {
  options_.host_delay_ns = 60'000;
  make_loop();
  submit(host_masked(text(3, 60)));
  for (int i = 0; i < 10; ++i) (void)loop_->tick();
  loop_->ledger().restart();
  for (int i = 0; i < 30; ++i) (void)loop_->tick();
  EXPECT_EQ(loop_->ledger().totals().bubble_ns, 0)
      << "the mask is built and uploaded while the forward runs";
}

TEST_F(LoopTest, HostMaskedRowsNeverGetAheadOfTheirCommit) {
  options_.depth = 4;
  make_loop();
  submit(host_masked(text(3, 30)));
  int most = 0;
  while (loop_->tick() == Loop::Tick::kWorked) {
    most = std::max(most, loop_->state().num_in_flight());
  }
  EXPECT_LE(most, 2);
}

TEST_F(LoopTest, NoMoreStepsAreInFlightThanTheActiveDepthAllows) {
  options_.depth = 4;
  make_loop();
  loop_->set_active_depth(2);
  submit(text(3, 30));
  submit(text(4, 30));
  int most = 0;
  while (loop_->tick() == Loop::Tick::kWorked) {
    most = std::max(most, loop_->state().num_in_flight());
  }
  EXPECT_LE(most, 1) << "two, less the step that the tick has committed";
}

TEST_F(LoopTest, AutomatonRowsRunAheadLikePlainOnes) {
  options_.depth = 4;
  make_loop();
  PreparedPrompt prompt = text(3, 30);
  prompt.row.automaton = 0;
  const auto answer = submit(std::move(prompt));
  int most = 0;
  while (loop_->tick() == Loop::Tick::kWorked) {
    most = std::max(most, loop_->state().num_in_flight());
  }
  EXPECT_EQ(most, 3) << "depth 4 less the step that the tick has committed";
  for (const CommittedToken& token : answer->tokens) {
    EXPECT_TRUE(token.token == TokenId(5) || token.token == TokenId(6));
  }
}

TEST_F(LoopTest, GrammarRowsRunAheadLikePlainOnes) {
  options_.depth = 4;
  make_loop();
  PreparedPrompt prompt = text(3, 30);
  prompt.row.grammar = 17;
  prompt.device_grammar = model_config_.grammars->hold(17);
  FakeConstraint constraint(model_config_.vocab, 17);
  const FakeAnswer expected = fake_answer(model_config_, prompt, &constraint);
  const auto answer = submit(std::move(prompt));
  int most = 0;
  while (loop_->tick() == Loop::Tick::kWorked) {
    most = std::max(most, loop_->state().num_in_flight());
  }
  EXPECT_EQ(most, 3) << "depth 4 less the step that the tick has committed";
  ASSERT_EQ(answer->tokens.size(), expected.tokens.size());
  for (std::size_t i = 0; i < expected.tokens.size(); ++i) {
    EXPECT_EQ(answer->tokens[i].token, expected.tokens[i].token);
  }
  EXPECT_EQ(model_->num_faults(), 0);
  EXPECT_FALSE(model_config_.grammars->is_held(17)) << "given back with its row";
}

// A cancelled row is in steps in flight, which the device walks on: the grammar stays until they are committed.
TEST_F(LoopTest, AGrammarIsHeldUntilNoStepRefersToItsRow) {
  options_.depth = 3;
  make_loop();
  PreparedPrompt prompt = text(3, 60);
  prompt.row.grammar = 5;
  prompt.device_grammar = model_config_.grammars->hold(5);
  const auto answer = std::make_shared<Answer>();
  const SequenceId id = loop_->submit(std::move(prompt), answer).value();
  for (int i = 0; i < 8; ++i) (void)loop_->tick();
  ASSERT_GT(loop_->state().num_in_flight(), 0);
  loop_->cancel(id);
  run();
  EXPECT_EQ(answer->reason, FinishReason::kCancelled);
  EXPECT_EQ(model_->num_faults(), 0);
  EXPECT_FALSE(model_config_.grammars->is_held(5));
}

// A constraint that somebody else works on, for a while behind each token.
class SlowConstraint final : public TokenConstraint {
 public:
  SlowConstraint(int vocab, std::shared_ptr<bool> is_ready)
      : inner_(vocab, 9), is_ready_(std::move(is_ready)) {}
  bool is_ready() const override { return *is_ready_; }
  void allowed(std::span<std::uint32_t> mask) const override {
    EXPECT_TRUE(*is_ready_) << "the engine thread would wait, and plain rows with it";
    inner_.allowed(mask);
  }
  void advance(TokenId token) override {
    inner_.advance(token);
    *is_ready_ = false;
  }

 private:
  FakeConstraint inner_;
  const std::shared_ptr<bool> is_ready_;
};

TEST_F(LoopTest, PlainRowsDoNotWaitForMasks) {
  for (int depth = 1; depth <= kMaxDepth; ++depth) {
    SCOPED_TRACE(depth);
    options_.depth = depth;
    make_loop();
    const auto is_ready = std::make_shared<bool>(true);
    PreparedPrompt prompt = text(4, 8);
    prompt.row.flags |= kRowHostMask;
    prompt.host_constraint = std::make_unique<SlowConstraint>(model_config_.vocab, is_ready);
    PreparedPrompt same = text(4, 8);
    same.row.flags |= kRowHostMask;
    FakeConstraint constraint(model_config_.vocab, 9);
    const FakeAnswer expected = fake_answer(model_config_, same, &constraint);
    const auto plain = submit(text(3, 60));
    const auto masked = submit(std::move(prompt));
    std::size_t with_mask = 0;
    for (int tick = 0; plain->num_finished == 0; ++tick) {
      if (tick % 5 == 4) {
        EXPECT_LE(masked->tokens.size(), with_mask + 1);
        with_mask = masked->tokens.size();
        *is_ready = true;
      }
      (void)loop_->tick();
      EXPECT_FALSE(loop_->state().awaiting_finalize().has_value())
          << "a step that plain rows are in samples at once";
      ASSERT_LT(tick, 500);
    }
    EXPECT_EQ(plain->tokens.size(), 60u);
    ASSERT_EQ(masked->tokens.size(), expected.tokens.size());
    for (std::size_t i = 0; i < expected.tokens.size(); ++i) {
      EXPECT_EQ(masked->tokens[i].token, expected.tokens[i].token);
    }
    run();
  }
}

// One that joins later has its first mask when the others' tokens are on their way. If it went alone, it
// would go alone for ever.
TEST_F(LoopTest, HostMaskedRowsShareTheirStepsWheneverTheyJoin) {
  constexpr int kNumTokens = 40;
  for (int depth = 1; depth <= kMaxDepth; ++depth) {
    SCOPED_TRACE(depth);
    options_.depth = depth;
    make_loop();
    const auto first = submit(host_masked(text(4, kNumTokens)));
    for (int tick = 0; tick < 6; ++tick) (void)loop_->tick();
    const auto second = submit(host_masked(text(5, kNumTokens)));
    run();
    EXPECT_EQ(first->tokens.size(), std::size_t{kNumTokens});
    EXPECT_EQ(second->tokens.size(), std::size_t{kNumTokens});
    int num_decodes = 0;
    for (const StepRecord& record : loop_->ledger().records()) {
      num_decodes += record.kind == StepKind::kDecode ? 1 : 0;
    }
    EXPECT_LE(num_decodes, kNumTokens + 15);
  }
}

// ---- alternatives

TEST_F(LoopTest, AlternativesAreThoseOfTheirTokenAtEveryDepth) {
  const auto prompt_of = [&](int i) {
    PreparedPrompt prompt = text(3 + i, 12 + i, i % 2 == 0 ? 9 : -1);
    prompt.row.sampling.num_top_logprobs = i == 0 ? kMaxTopLogprobs : i == 1 ? 0 : i;
    if (i == 3) prompt = host_masked(std::move(prompt));
    return prompt;
  };
  for (int depth = 1; depth <= kMaxDepth; ++depth) {
    SCOPED_TRACE(depth);
    options_.depth = depth;
    make_loop();
    std::vector<std::shared_ptr<Answer>> answers;
    for (int i = 0; i < 5; ++i) {
      answers.push_back(submit(prompt_of(i)));
      (void)loop_->tick();
    }
    run();
    EXPECT_EQ(loop_->forbidden_calls(), 0) << "I7";
    for (int i = 0; i < 5; ++i) {
      FakeConstraint constraint(model_config_.vocab, 9);
      const FakeAnswer expected =
          fake_answer(model_config_, prompt_of(i), i == 3 ? &constraint : nullptr);
      const auto& tokens = answers[static_cast<std::size_t>(i)]->tokens;
      ASSERT_EQ(tokens.size(), expected.tokens.size());
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        EXPECT_EQ(tokens[t].top_logprobs, expected.tokens[t].top_logprobs)
            << "token " << t << " of request " << i;
      }
    }
  }
}

TEST_F(LoopTest, AlternativesAreComputedInTheStepsOfThoseWhoAskOnly) {
  make_loop();
  submit(text(3, 20));
  run();
  EXPECT_EQ(model_->num_top_logprobs_calls(), 0);
  PreparedPrompt asking = text(3, 4);
  asking.row.sampling.num_top_logprobs = 2;
  submit(text(3, 20));
  submit(std::move(asking));
  run();
  EXPECT_EQ(model_->num_top_logprobs_calls(), 4) << "its prefill and three decode steps";
}

TEST_F(LoopTest, RefusesMoreAlternativesThanThereIsRoomFor) {
  make_loop();
  PreparedPrompt prompt = text(3, 4);
  prompt.row.sampling.num_top_logprobs = kMaxTopLogprobs + 1;
  EXPECT_THAT(refusal(std::move(prompt)).message(), HasSubstr("top_logprobs"));
}

// ---- token notes

// They come with the row that they belong to, whatever else the prefill installs.
TEST_F(LoopTest, EveryRowGetsItsOwnNotes) {
  const auto prompt_of = [&](int i) {
    PreparedPrompt prompt = i % 2 == 0 ? text(3 + i, 9) : about_image(7, 5, 9);
    if (i == 2) return prompt;
    prompt.row.flags |= kRowAdjustsLogits;
    for (int n = 0; n < 2 * i; ++n) prompt.token_notes.push_back({n, n % 2, 0.5f * n - i});
    return prompt;
  };
  for (int depth = 1; depth <= kMaxDepth; ++depth) {
    SCOPED_TRACE(depth);
    options_.depth = depth;
    make_loop();
    std::vector<std::shared_ptr<Answer>> answers;
    for (int i = 0; i < 6; ++i) answers.push_back(submit(prompt_of(i)));
    run();
    for (int i = 0; i < 6; ++i) {
      const FakeAnswer expected = fake_answer(model_config_, prompt_of(i), nullptr);
      const auto& tokens = answers[static_cast<std::size_t>(i)]->tokens;
      ASSERT_EQ(tokens.size(), expected.tokens.size());
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        EXPECT_EQ(tokens[t].token, expected.tokens[t].token) << "request " << i;
      }
    }
    EXPECT_EQ(loop_->forbidden_calls(), 0) << "I7";
  }
}

TEST_F(LoopTest, RefusesNotesThatMakeNoSense) {
  make_loop();
  PreparedPrompt prompt = text(3, 4);
  prompt.token_notes = {{1, 1, 0}};
  EXPECT_THAT(refusal(std::move(prompt)).message(), HasSubstr("kRowAdjustsLogits"));
  prompt = text(3, 4);
  prompt.row.flags |= kRowAdjustsLogits;
  prompt.token_notes = {{model_config_.vocab, 1, 0}};
  EXPECT_THAT(refusal(std::move(prompt)).message(), HasSubstr("a note of token 64"));
  prompt = about_image(7, 3, 4);
  prompt.row.flags |= kRowAdjustsLogits;
  prompt.token_notes.resize(3 + 1 + kMaxLogitBiases);
  EXPECT_TRUE(refusal(std::move(prompt)).ok()) << "as many as there is room for";
  prompt = about_image(7, 3, 4);
  prompt.row.flags |= kRowAdjustsLogits;
  prompt.token_notes.resize(3 + 2 + kMaxLogitBiases);
  EXPECT_THAT(refusal(std::move(prompt)).message(), HasSubstr("token notes for 3 tokens"));
  run();
}

// ---- times

TEST_F(LoopTest, AnAnswerWithoutTokensHasAFirstTokenTime) {
  make_loop();
  const auto nothing = submit(text(3, 9, /*stop_after=*/0));
  run();
  EXPECT_EQ(nothing->reason, FinishReason::kStop);
  EXPECT_TRUE(nothing->tokens.empty());
  EXPECT_GE(nothing->times.first_token_ns, nothing->times.prefill_launched_ns + 110'000)
      << "a forward and a sampling later";
  EXPECT_LE(nothing->times.first_token_ns, nothing->times.finished_ns);
  const auto some = submit(text(3, 9));
  run();
  EXPECT_LT(some->times.first_token_ns, some->times.finished_ns);
}

// ---- images

TEST_F(LoopTest, ASecondPromptAboutAnImageComputesItsSuffixOnly) {
  make_loop();
  const auto first = submit(about_image(7, 5, 3));
  run();
  EXPECT_EQ(loop_->counts().seats.pages_held, 0) << "the cache's are nobody's";
  EXPECT_GT(loop_->counts().seats.pages_in_use, 0);
  const auto second = submit(about_image(7, 5, 3));
  run();
  EXPECT_EQ(records_of(StepKind::kEncode).size(), 1u);
  const auto prefills = records_of(StepKind::kPrefill);
  ASSERT_EQ(prefills.size(), 2u);
  EXPECT_EQ(prefills[0].num_tokens, 26);
  EXPECT_EQ(prefills[1].num_tokens, 5);
  EXPECT_EQ(prefills[1].num_cached_tokens, 21);
  EXPECT_EQ(first->times.num_cached_tokens, 0);
  EXPECT_EQ(second->times.num_cached_tokens, 21);
  const FakeAnswer expected = fake_answer(model_config_, about_image(7, 5, 3), nullptr);
  ASSERT_EQ(second->tokens.size(), expected.tokens.size());
  EXPECT_EQ(second->tokens.back().token, expected.tokens.back().token) << "I8";
}

TEST_F(LoopTest, PromptsAboutAnImageThatArriveTogetherShareItsEncodeAndItsPrefix) {
  make_loop();
  for (int i = 0; i < 3; ++i) submit(about_image(7, 5, 3));
  run();
  EXPECT_EQ(records_of(StepKind::kEncode).size(), 1u);
  const auto prefills = records_of(StepKind::kPrefill);
  ASSERT_EQ(prefills.size(), 2u);
  EXPECT_EQ(prefills[0].num_tokens, 26);
  EXPECT_EQ(prefills[1].num_tokens, 10);
}

// Its prefill's launch is enough: whatever reads the prefix is launched later.
TEST_F(LoopTest, WhoCanShareAPrefixIsSeatedBeforeItsPrefillIsCommitted) {
  options_.depth = 3;
  model_config_.limits.num_pages = 4;  // 3 usable; a prompt takes 2, and 1 with the prefix shared
  make_loop();
  const auto first = submit(about_image(7, 5, 3));
  const auto second = submit(about_image(7, 5, 3));
  (void)loop_->tick();
  EXPECT_EQ(loop_->counts().waiting, 1);
  while (loop_->counts().waiting > 0) (void)loop_->tick();
  EXPECT_TRUE(first->tokens.empty());
  run();
  EXPECT_EQ(second->tokens.size(), 3u);
}

TEST_F(LoopTest, APromptThatEndsWithItsImageIsNeverAllCached) {
  make_loop();
  const FakeAnswer expected = fake_answer(model_config_, about_image(1, 0, 3), nullptr);
  for (int i = 0; i < 2; ++i) {
    const auto answer = submit(about_image(1, 0, 3));
    run();
    ASSERT_EQ(answer->tokens.size(), expected.tokens.size());
    for (std::size_t t = 0; t < expected.tokens.size(); ++t) {
      EXPECT_EQ(answer->tokens[t].token, expected.tokens[t].token) << "request " << i;
    }
  }
}

TEST_F(LoopTest, WithoutThePrefixCacheTheImageIsStillEncodedOnce) {
  options_.max_cached_prefixes = 0;
  make_loop();
  submit(about_image(7, 5, 3));
  run();
  submit(about_image(7, 5, 3));
  run();
  EXPECT_EQ(records_of(StepKind::kEncode).size(), 1u);
  EXPECT_EQ(records_of(StepKind::kPrefill)[1].num_tokens, 26);
  EXPECT_EQ(loop_->counts().seats.pages_in_use, 0);
}

// ---- several images

void expect_tokens(const Answer& answer, const FakeAnswer& expected) {
  ASSERT_EQ(answer.tokens.size(), expected.tokens.size());
  for (std::size_t t = 0; t < expected.tokens.size(); ++t) {
    EXPECT_EQ(answer.tokens[t].token, expected.tokens[t].token) << "token " << t;
  }
}

TEST_F(LoopTest, SeveralImagesAreEncodedAndPrefilledTogether) {
  for (int depth = 1; depth <= kMaxDepth; ++depth) {
    options_.depth = depth;
    make_loop();
    const auto answer = submit(about_images({1, 2, 3}, 5, 4));
    run();
    EXPECT_EQ(records_of(StepKind::kEncode).size(), 2u) << "two images fit a step";
    const auto prefills = records_of(StepKind::kPrefill);
    ASSERT_EQ(prefills.size(), 1u);
    EXPECT_EQ(prefills[0].num_tokens, 66);
    expect_tokens(*answer, fake_answer(model_config_, about_images({1, 2, 3}, 5, 4), nullptr));
    EXPECT_EQ(loop_->counts().seats.image_slots_in_use, 0);
    EXPECT_EQ(loop_->counts().seats.pages_in_use, loop_->num_cached_pages());
    EXPECT_EQ(loop_->forbidden_calls(), 0);
  }
}

TEST_F(LoopTest, TheOrderOfImagesMatters) {
  make_loop();
  const auto forth = submit(about_images({1, 2}, 5, 4));
  const auto back = submit(about_images({2, 1}, 5, 4));
  run();
  EXPECT_NE(forth->tokens[0].token, back->tokens[0].token);
  expect_tokens(*back, fake_answer(model_config_, about_images({2, 1}, 5, 4), nullptr));
}

TEST_F(LoopTest, ASharedFirstImageIsFoundInThePrefixCache) {
  make_loop();
  submit(about_image(1, 5, 3));
  run();
  const auto two = submit(about_images({1, 2}, 5, 3));
  run();
  const auto other = submit(about_images({1, 3}, 5, 3));
  run();
  const auto again = submit(about_images({1, 2}, 7, 3));
  run();
  EXPECT_EQ(records_of(StepKind::kEncode).size(), 3u);
  const auto prefills = records_of(StepKind::kPrefill);
  ASSERT_EQ(prefills.size(), 4u);
  EXPECT_EQ(prefills[1].num_tokens, 25);
  EXPECT_EQ(prefills[1].num_cached_tokens, 21);
  EXPECT_EQ(prefills[2].num_tokens, 25);
  EXPECT_EQ(prefills[3].num_tokens, 7);
  EXPECT_EQ(prefills[3].num_cached_tokens, 41);
  expect_tokens(*two, fake_answer(model_config_, about_images({1, 2}, 5, 3), nullptr));
  expect_tokens(*other, fake_answer(model_config_, about_images({1, 3}, 5, 3), nullptr));
  expect_tokens(*again, fake_answer(model_config_, about_images({1, 2}, 7, 3), nullptr));
}

TEST_F(LoopTest, AnImageBehindAnotherOneIsAnotherPrefix) {
  make_loop();
  submit(about_images({1, 2}, 5, 3));
  run();
  const auto other = submit(about_images({3, 2}, 5, 3));
  run();
  expect_tokens(*other, fake_answer(model_config_, about_images({3, 2}, 5, 3), nullptr));
}

// The other way round: one image after two.
TEST_F(LoopTest, TheFirstOfSeveralImagesIsFoundAlone) {
  make_loop();
  submit(about_images({1, 2}, 5, 3));
  run();
  const auto first = submit(about_image(1, 5, 3));
  const auto second = submit(about_image(2, 5, 3));
  run();
  EXPECT_EQ(records_of(StepKind::kEncode).size(), 1u)
      << "of both images; the second is in the image pool";
  const auto prefills = records_of(StepKind::kPrefill);
  ASSERT_EQ(prefills.size(), 2u);
  EXPECT_EQ(prefills[1].num_tokens, 5 + 26);
  expect_tokens(*first, fake_answer(model_config_, about_image(1, 5, 3), nullptr));
  expect_tokens(*second, fake_answer(model_config_, about_image(2, 5, 3), nullptr));
}

TEST_F(LoopTest, PromptsWithCommonImagesThatArriveTogetherComputeThemOnce) {
  make_loop();
  std::vector<std::shared_ptr<Answer>> answers;
  const std::vector<std::vector<std::uint8_t>> asked = {{1, 2}, {1, 2}, {1}, {1, 3}};
  for (const auto& names : asked) answers.push_back(submit(about_images(names, 5, 3)));
  run();
  EXPECT_EQ(records_of(StepKind::kEncode).size(), 2u) << "two images, then the third";
  int num_tokens = 0;
  for (const StepRecord& record : records_of(StepKind::kPrefill)) num_tokens += record.num_tokens;
  EXPECT_EQ(num_tokens, 21 + 20 + 20 + 4 * 5);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    expect_tokens(*answers[i], fake_answer(model_config_, about_images(asked[i], 5, 3), nullptr));
  }
}

TEST_F(LoopTest, CachedPrefixesThatShareTheirPagesAreGivenUpForSomebodyElse) {
  model_config_.limits.num_pages = 1 + 5;
  make_loop();
  submit(about_images({1, 2, 3}, 5, 3));  // 68 places: all five pages
  run();
  EXPECT_EQ(loop_->num_cached_pages(), 4);
  const auto other = submit(text(75, 5));
  run();
  expect_tokens(*other, fake_answer(model_config_, text(75, 5), nullptr));
  EXPECT_EQ(loop_->num_cached_pages(), 0);
}

TEST_F(LoopTest, TheSameImageTwiceTakesOnePlace) {
  model_config_.limits.num_image_slots = 2;
  make_loop();
  const auto answer = submit(about_images({4, 4}, 5, 4));
  run();
  EXPECT_EQ(records_of(StepKind::kEncode).size(), 1u);
  expect_tokens(*answer, fake_answer(model_config_, about_images({4, 4}, 5, 4), nullptr));
}

TEST_F(LoopTest, PlacesForSeveralImagesAreTakenTogetherOrNotAtAll) {
  model_config_.limits.num_image_slots = 3;
  make_loop();
  std::vector<std::shared_ptr<Answer>> answers;
  for (const std::uint8_t first : {1, 3, 5}) {
    answers.push_back(submit(about_images({first, static_cast<std::uint8_t>(first + 1)}, 5, 3)));
  }
  run();
  for (const auto& answer : answers) EXPECT_EQ(answer->tokens.size(), 3u);
  EXPECT_EQ(loop_->counts().seats.image_slots_in_use, 0);
}

TEST_F(LoopTest, SeveralImagesByGraphs) {
  model_config_.limits.max_graph_tokens = model_config_.limits.max_prefill_tokens;
  model_config_.limits.max_graph_crops = model_config_.limits.max_crops_per_encode;
  make_loop();
  const auto both = submit(about_images({1, 2}, 5, 4));
  const auto one = submit(about_image(3, 5, 4));
  const auto none = submit(text(9, 4));
  run();
  expect_tokens(*both, fake_answer(model_config_, about_images({1, 2}, 5, 4), nullptr));
  expect_tokens(*one, fake_answer(model_config_, about_image(3, 5, 4), nullptr));
  expect_tokens(*none, fake_answer(model_config_, text(9, 4), nullptr));
  EXPECT_EQ(model_->num_faults(), 0);
}

// While it waits, between its encodes, behind its prefill, while it decodes.
TEST_F(LoopTest, CancelledAtAnyTickImagesLeaveNothingBehind) {
  for (int depth = 1; depth <= kMaxDepth; ++depth) {
    options_.depth = depth;
    int num_cancelled = 0;
    for (int ticks = 0; ticks < 16; ++ticks) {
      make_loop();
      submit(about_image(1, 5, 3));  // with which the other one begins
      auto owner = std::make_shared<int>(0);
      PreparedPrompt prompt = about_images({1, 2, 3}, 5, 6);
      for (PreparedImage& image : prompt.images) image.crops_owner = owner;
      auto answer = std::make_shared<Answer>();
      const auto id = loop_->submit(std::move(prompt), answer);
      ASSERT_TRUE(id.ok());
      EXPECT_EQ(owner.use_count(), 4);
      for (int tick = 0; tick < ticks; ++tick) (void)loop_->tick();
      loop_->cancel(*id);
      run();
      EXPECT_EQ(owner.use_count(), 1) << "depth " << depth << ", after " << ticks << " ticks";
      EXPECT_EQ(loop_->counts().seats.rows_in_use, 0);
      EXPECT_EQ(loop_->counts().seats.image_slots_in_use, 0);
      EXPECT_EQ(loop_->counts().seats.pages_in_use, loop_->num_cached_pages());
      num_cancelled += answer->tokens.size() < 6 ? 1 : 0;
    }
    EXPECT_GT(num_cancelled, 4);
  }
}

TEST_F(LoopTest, RefusesMoreImagesThanFitAStep) {
  make_loop();
  EXPECT_THAT(refusal(about_images({1, 2, 3, 4}, 1, 1)).message(),
              HasSubstr("4 images, at most 3"));
  PreparedPrompt prefix = about_images({1, 2}, 1, 1);
  prefix.prefix_len = 30;
  EXPECT_THAT(refusal(std::move(prefix)).message(), HasSubstr("too short for 2 images"));
}

TEST_F(LoopTest, WhoWaitsForAnImagesPlaceIsSeatedWhenOneIsFree) {
  model_config_.limits.num_image_slots = 1;
  make_loop();
  const auto first = submit(about_image(1, 2, 40));
  const auto second = submit(about_image(2, 2, 3));
  run();
  EXPECT_EQ(first->tokens.size(), 40u);
  const auto prefills = records_of(StepKind::kPrefill);
  ASSERT_EQ(prefills.size(), 2u);
  EXPECT_LT(prefills[1].number, 10) << "at the first one's prefill, not at its end";
}

TEST_F(LoopTest, WhoWaitsForAnImagesPlaceHoldsNoPages) {
  model_config_.limits.num_image_slots = 1;
  make_loop();
  submit(about_image(1, 2, 40));  // 62 places: 4 pages
  submit(about_image(2, 2, 3));
  (void)loop_->tick();
  EXPECT_EQ(loop_->counts().waiting, 1);
  EXPECT_EQ(loop_->counts().seats.pages_in_use, 4);
}

TEST_F(LoopTest, CropsGoBackToTheirPoolWhenThePrefillIsCommitted) {
  make_loop();
  auto owner = std::make_shared<int>(0);
  PreparedPrompt prompt = about_images({7, 6}, 5, 40);
  for (PreparedImage& image : prompt.images) image.crops_owner = owner;
  const auto answer = submit(std::move(prompt));
  while (answer->tokens.empty()) (void)loop_->tick();
  EXPECT_EQ(owner.use_count(), 1);
}

// ---- fairness

// Answers go on and on while prompts with images keep coming: what plan.h promises.
TEST_F(LoopTest, NeitherRunningSequencesNorWaitingPromptsStarve) {
  model_config_.limits.max_prefill_sequences = 1;
  model_config_.limits.max_images_per_encode = 1;
  make_loop();
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 30; ++i) {
    answers.push_back(submit(about_image(static_cast<std::uint8_t>(i + 1), 4, 4 + i % 5)));
  }
  run();
  int fills_in_a_row = 0;
  bool any_running = false;
  for (const StepRecord& record : loop_->ledger().records()) {
    if (record.kind == StepKind::kDecode) {
      fills_in_a_row = 0;
      any_running = true;
    } else if (any_running) {
      ++fills_in_a_row;
      EXPECT_LE(fills_in_a_row, kMaxFillsInARow + 1)
          << "at the end of all answers there may be one";
    }
  }
  for (const auto& answer : answers) EXPECT_EQ(answer->reason, FinishReason::kLength);
}

TEST_F(LoopTest, TheFirstInLineIsNotOvertakenBySmallerOnes) {
  model_config_.limits.num_pages = 7;
  make_loop();
  submit(text(40, 20));                     // 4 of 6 pages
  const auto large = submit(text(60, 20));  // 5 pages: waits
  const auto small = submit(text(2, 2));    // 1 page: would fit
  for (int i = 0; i < 5; ++i) (void)loop_->tick();
  EXPECT_EQ(loop_->counts().waiting, 2);
  while (small->tokens.empty()) (void)loop_->tick();
  EXPECT_FALSE(large->tokens.empty());
  run();
  EXPECT_EQ(large->num_finished, 1);
}

TEST_F(LoopTest, WhenTheFirstInLineIsCancelledTheNextOnesAreSeated) {
  model_config_.limits.num_pages = 7;
  make_loop();
  const auto running = submit(text(40, 20));                                   // 4 of 6 pages
  const auto large = loop_->submit(text(60, 20), std::make_shared<Answer>());  // 5 pages: waits
  ASSERT_TRUE(large.ok());
  const auto small = submit(text(2, 2));  // 1 page: would fit
  while (running->tokens.size() < 4) (void)loop_->tick();
  EXPECT_EQ(loop_->counts().waiting, 2);
  loop_->cancel(*large);
  (void)loop_->tick();
  EXPECT_EQ(loop_->counts().waiting, 0);
  run();
  EXPECT_EQ(small->tokens.size(), 2u);
}

// ---- ends

TEST_F(LoopTest, WhoeverLearnsThatItsWaitIsCancelledMayAskAgainAtOnce) {
  struct Asking final : TokenSink {
    void on_token(const CommittedToken&) override {}
    void on_finished(FinishReason, const Status&, const SequenceTimes&) override { asked = ask(); }
    std::function<Status()> ask;
    Status asked{StatusCode::kInternal, "did not ask"};
  };
  options_.max_waiting = 1;
  make_loop();
  const auto next = std::make_shared<Answer>();
  const auto asking = std::make_shared<Asking>();
  asking->ask = [&] { return loop_->submit(text(2, 3), next).status(); };
  const auto id = loop_->submit(text(2, 2), asking);
  ASSERT_TRUE(id.ok());
  loop_->cancel(*id);
  (void)loop_->tick();
  EXPECT_TRUE(asking->asked.ok()) << asking->asked.message();
  run();
  EXPECT_EQ(next->tokens.size(), 3u);
}

TEST_F(LoopTest, ACancelledSequenceEndsAtTheNextTick) {
  make_loop();
  const auto other = submit(text(3, 30));
  auto answer = std::make_shared<Answer>();
  const auto id = loop_->submit(text(3, 30), answer);
  for (int i = 0; i < 8; ++i) (void)loop_->tick();
  loop_->cancel(*id);
  (void)loop_->tick();
  EXPECT_EQ(answer->reason, FinishReason::kCancelled);
  EXPECT_EQ(answer->status.code(), StatusCode::kCancelled);
  run();
  EXPECT_EQ(other->tokens.size(), 30u);
  EXPECT_EQ(answer->num_finished, 1);
  EXPECT_EQ(loop_->counts().seats.pages_in_use, 0);
  loop_->cancel(*id);  // too late: nothing happens
  EXPECT_EQ(loop_->tick(), Loop::Tick::kIdle);
}

TEST_F(LoopTest, StoppingALoopWithoutAThreadEndsWhatItAccepted) {
  options_.max_waiting = 2;
  make_loop();
  const auto seated = submit(text(3, 30));
  for (int i = 0; i < 4; ++i) (void)loop_->tick();
  const auto unseen = submit(text(3, 30));
  loop_->stop();
  for (const auto& answer : {seated, unseen}) {
    EXPECT_EQ(answer->num_finished, 1);
    EXPECT_EQ(answer->reason, FinishReason::kCancelled);
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(refusal(text(1, 1)).code(), StatusCode::kUnavailable) << "and takes no place in line";
  }
}

TEST_F(LoopTest, AConstraintThatAllowsNothingFailsItsSequenceOnly) {
  make_loop();
  PreparedPrompt prompt = text(3, 30);
  prompt.row.flags |= kRowHostMask;
  prompt.host_constraint = std::make_unique<NothingAllowed>();
  const auto stuck = submit(std::move(prompt));
  const auto other = submit(host_masked(text(3, 10)));
  run();
  EXPECT_EQ(stuck->reason, FinishReason::kError);
  EXPECT_THAT(stuck->status.message(), HasSubstr("allows no token"));
  EXPECT_NE(other->reason, FinishReason::kError);
}

TEST_F(LoopTest, AFailingLaunchFailsItsStepOnlyAndSaysWhichCall) {
  model_config_.limits.max_prefill_sequences = 1;
  device_config_.faults.failing_calls = {{SimCall::kCopyToDevice, 2}};  // the second prefill's
  make_loop();
  const auto first = submit(text(3, 10));
  const auto second = submit(text(4, 10));
  run();
  EXPECT_EQ(first->tokens.size(), 10u);
  EXPECT_EQ(second->reason, FinishReason::kError);
  EXPECT_EQ(second->status.code(), StatusCode::kDeviceError);
  EXPECT_THAT(second->status.message(), HasSubstr("launching a prefill step"));
  EXPECT_THAT(second->status.message(), HasSubstr("copy_to_device"));
  EXPECT_EQ(loop_->counts().seats.pages_in_use, 0);
}

TEST_F(LoopTest, ALostDeviceKeepsNoCachedPrefix) {
  const auto ask_about_an_image = [&] {
    make_loop();
    submit(about_image(1, 5, 3));
    run();
    EXPECT_GT(loop_->num_cached_pages(), 0);
  };
  ask_about_an_image();
  device_config_.faults.failing_ops = {device_->faults().num_ops() + 5};
  ask_about_an_image();
  const auto lost = submit(text(3, 40));
  run();
  EXPECT_EQ(lost->status.code(), StatusCode::kDeviceError);
  EXPECT_EQ(loop_->num_cached_pages(), 0);
  EXPECT_EQ(loop_->counts().seats.pages_in_use, 0);
}

TEST_F(LoopTest, ALostDeviceFailsEverybodyAndEveryLaterSubmit) {
  device_config_.faults.failing_ops = {30};
  make_loop();
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 10; ++i) answers.push_back(submit(text(3, 40)));
  run();
  for (const auto& answer : answers) {
    EXPECT_EQ(answer->num_finished, 1);
    EXPECT_EQ(answer->status.code(), StatusCode::kDeviceError);
    EXPECT_THAT(answer->status.message(), HasSubstr("the device is lost"));
  }
  EXPECT_EQ(refusal(text(1, 1)).code(), StatusCode::kDeviceError);
  EXPECT_EQ(loop_->counts().seats.rows_in_use, 0);
  EXPECT_EQ(loop_->counts().seats.pages_in_use, 0);
}

// Whoever watches over the engine hears of it first, and once.
TEST_F(LoopTest, ALostDeviceIsToldBeforeAnybodyEndsAndNamesStepAndCall) {
  device_config_.faults.failing_ops = {30};
  std::vector<Status> told;
  std::vector<std::shared_ptr<Answer>> answers;
  options_.on_device_lost = [&](const Status& status) {
    told.push_back(status);
    EXPECT_EQ(loop_->device_status().to_string(), status.to_string());
    for (const auto& answer : answers) EXPECT_EQ(answer->num_finished, 0);
  };
  make_loop();
  EXPECT_TRUE(loop_->device_status().ok());
  for (int i = 0; i < 3; ++i) answers.push_back(submit(text(3, 40)));
  run();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(told[0].message(), MatchesRegex("the device is lost: decode step [0-9]+ of 3 rows: "
                                              "simulated fault: op 30 .*"));
  for (const auto& answer : answers) EXPECT_EQ(answer->status.message(), told[0].message());
  EXPECT_FALSE(loop_->device_status().ok());
}

// ---- long fills

// A dozen images wait, each half a second of encoding: a short text waits for the one that runs, not
// for one with each of its tokens.
TEST_F(LoopTest, AShortTextWaitsForOneLongFill) {
  constexpr std::int64_t kEncodeNs = 500'000'000;
  model_config_.forward_ns = [](const StepShape& shape) {
    return shape.kind == StepKind::kEncode ? kEncodeNs : std::int64_t{100'000};
  };
  model_config_.limits.max_images_per_encode = 1;
  for (const int depth : {1, 2, 3}) {
    options_.depth = depth;
    make_loop();
    std::vector<std::shared_ptr<Answer>> about;
    for (std::uint8_t name = 1; name <= 3; ++name) about.push_back(submit(about_image(name, 1, 2)));
    while (about[0]->tokens.empty()) (void)loop_->tick();
    const auto answer = submit(text(3, 20));
    const std::int64_t submitted_ns = device_->now_ns();
    run();
    EXPECT_EQ(answer->tokens.size(), 20u);
    EXPECT_LT(answer->times.finished_ns - submitted_ns, kEncodeNs + kEncodeNs / 10)
        << "depth " << depth;
    for (const auto& one : about) EXPECT_EQ(one->tokens.size(), 2u);
  }
}

// ---- a step that never ends

// Ops of a run without faults; a number in the middle of them hangs one.
TEST_F(LoopTest, AStepThatNeverEndsLosesTheDeviceAndIsNamed) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  options_.step_timeout_ns = 3 * kSecond;
  device_config_.faults.hanging_ops = {30};
  make_loop();
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 3; ++i) answers.push_back(submit(text(3, 40)));
  run();
  for (const auto& answer : answers) {
    EXPECT_EQ(answer->num_finished, 1);
    EXPECT_EQ(answer->reason, FinishReason::kError);
    EXPECT_THAT(answer->status.message(),
                MatchesRegex("the device is lost: decode step [0-9]+ of 3 rows did not end within "
                             "3 s"));
  }
  EXPECT_LT(device_->now_ns(), 4 * kSecond) << "one wait, no longer than the bound";
  EXPECT_EQ(refusal(text(1, 1)).code(), StatusCode::kDeviceError);
  EXPECT_EQ(loop_->counts().seats.rows_in_use, 0);
}

TEST_F(LoopTest, ALongStepIsNoHangAndTheBoundIsOfEachStep) {
  // 40 steps that take longer than the bound together, not one by one.
  make_loop();
  const auto measured = submit(text(3, 40));
  run();
  const std::int64_t all_ns = device_->now_ns();
  options_.step_timeout_ns = all_ns / 4;
  make_loop();
  const auto answer = submit(text(3, 40));
  run();
  EXPECT_EQ(answer->tokens.size(), measured->tokens.size());
  EXPECT_TRUE(loop_->device_status().ok());
  EXPECT_EQ(loop_->forbidden_calls(), 0) << "I7";
}

// A launch fails while the step before it hangs: the drain is bounded too.
TEST_F(LoopTest, AHangBehindAFailedLaunchIsNoEndlessDrain) {
  options_.step_timeout_ns = 1'000'000'000;
  device_config_.faults.hanging_ops = {30};
  int num_drains = 0;
  for (std::int64_t number = 1; number <= 30; ++number) {
    device_config_.faults.failing_calls = {{SimCall::kCopyToDevice, number}};
    make_loop();
    const auto answer = submit(text(3, 40));
    const auto other = submit(text(3, 40));
    run();
    EXPECT_EQ(answer->num_finished, 1);
    EXPECT_EQ(other->num_finished, 1);
    EXPECT_LT(device_->now_ns(), 10'000'000'000) << "call " << number;
    const std::string& what = answer->status.message();
    num_drains += what.find("; then stream") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(num_drains, 0);
}

}  // namespace
}  // namespace gapless
