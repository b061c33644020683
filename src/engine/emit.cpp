#include "engine/emit.h"

#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread_priority.h"

namespace gapless {
namespace {

double ms_between(std::int64_t from_ns, std::int64_t to_ns) {
  return from_ns > 0 && to_ns > from_ns ? static_cast<double>(to_ns - from_ns) * 1e-6 : 0.0;
}

TokenLogprob describe_logprobs(const CommittedToken& token, const Tokenizer& tokenizer) {
  TokenLogprob described{score_token(tokenizer, token.token, token.logprob), {}};
  for (const TopLogprob& one : token.top_logprobs) {
    described.top.push_back(score_token(tokenizer, TokenId(one.token), one.logprob));
  }
  return described;
}

Status cancelled() {
  return Status(StatusCode::kCancelled, "the request was cancelled");
}

}  // namespace

void ActiveRequest::fail(const Status& status) {
  emit_.post_end(
      shared_from_this(),
      status.code() == StatusCode::kCancelled ? FinishReason::kCancelled : FinishReason::kError,
      status, SequenceTimes());
}

void ActiveRequest::on_token(const CommittedToken& token) {
  emit_.post_token(shared_from_this(), token);
}

void ActiveRequest::on_finished(FinishReason reason, const Status& status,
                                const SequenceTimes& times) {
  emit_.post_end(shared_from_this(), reason, status, times);
}

void ActiveRequest::emit_token(const CommittedToken& token) {
  if (ended_early_) return;  // sampled before the engine heard of the stop string
  ++num_output_tokens_;
  const int num_reasoning_tokens = setup_.decoder->num_reasoning_tokens();
  const std::string chunk = setup_.decoder->push({token.token, token.x, token.y, token.confidence});
  const bool is_reasoning = setup_.decoder->num_reasoning_tokens() > num_reasoning_tokens;
  hand_on_reasoning();
  if (setup_.tokenizer != nullptr && !is_reasoning) {
    pending_logprobs_.push_back(describe_logprobs(token, *setup_.tokenizer));
    hand_on_logprobs();
  }
  if (const std::optional<Box> box = setup_.decoder->take_box()) {
    setup_.sink->on_box(*box, num_output_tokens_);
    if (first_text_ns_ == 0) first_text_ns_ = host_now_ns();
  }
  if (!chunk.empty()) {
    setup_.sink->on_text(chunk, num_output_tokens_);
    if (first_text_ns_ == 0) first_text_ns_ = host_now_ns();
  }
  if (setup_.decoder->stopped()) {
    ended_early_ = true;
    setup_.end_early();
  }
}

void ActiveRequest::hand_on_reasoning() {
  const std::string reasoning = setup_.decoder->take_reasoning();
  if (reasoning.empty()) return;
  setup_.sink->on_reasoning(reasoning, num_output_tokens_);
  if (first_text_ns_ == 0) first_text_ns_ = host_now_ns();
}

void ActiveRequest::hand_on_logprobs() {
  std::vector<TokenLogprob> tokens;
  for (; num_logprobs_handed_on_ < setup_.decoder->num_final_tokens(); ++num_logprobs_handed_on_) {
    tokens.push_back(std::move(pending_logprobs_.front()));
    pending_logprobs_.pop_front();
  }
  if (!tokens.empty()) setup_.sink->on_logprobs(std::move(tokens));
}

void ActiveRequest::emit_end(FinishReason reason, const Status& status,
                             const SequenceTimes& times) {
  // Nothing that came behind the stop string is part of the answer: no token, no limit, no error.
  if (setup_.decoder->stopped()) reason = FinishReason::kStop;
  if (reason == FinishReason::kError || reason == FinishReason::kCancelled) {
    end_with(status.ok() ? cancelled() : status);
  } else {
    const std::string tail = setup_.decoder->finish();
    hand_on_reasoning();
    if (setup_.tokenizer != nullptr) hand_on_logprobs();
    // The text that was held back may end in a stop string as well.
    if (setup_.decoder->stopped()) reason = FinishReason::kStop;
    if (!tail.empty()) setup_.sink->on_text(tail, num_output_tokens_);
    SkillResult result;
    result.request_id = setup_.public_id;
    result.skill = setup_.skill;
    result.finish_reason = reason;
    result.metrics.input_tokens = num_input_tokens_.load();
    result.metrics.output_tokens = num_output_tokens_;
    result.metrics.prefill_time_ms = ms_between(times.prefill_launched_ns, times.first_token_ns);
    result.metrics.decode_time_ms = ms_between(times.first_token_ns, times.finished_ns);
    result.metrics.ttft_ms = ms_between(times.submitted_ns, times.first_token_ns);
    result.metrics.stages = stages_until_first_text(times);
    result.metrics.cached_tokens = times.num_cached_tokens;
    setup_.decoder->fill(result);
    hand_on_result(result);
  }
}

void ActiveRequest::end_with(const SkillResult& result) {
  setup_.on_ending();
  setup_.sink->on_done(result);
  setup_.on_retired();
}

void ActiveRequest::end_with(const Status& error) {
  setup_.on_ending();
  setup_.sink->on_error(error);
  setup_.on_retired();
}

void ActiveRequest::hand_on_result(const SkillResult& result) {
  if (setup_.refiner != nullptr && !result.boxes.empty() && !result.text.empty()) {
    const Box& box = result.boxes.front();
    const auto self = shared_from_this();
    RefineWorker::Work work{.picture = setup_.picture,
                            .exif = setup_.exif,
                            .path = result.text,
                            .box = {box.x_min, box.y_min, box.x_max, box.y_max},
                            .stop = [self] { return self->cancel_requested(); },
                            .done =
                                [self, result](const StatusOr<std::optional<Outline>>& refined) {
                                  self->hand_on_refined(result, refined);
                                }};
    if (setup_.refiner->try_post(work)) return;
  }
  end_with(result);
}

void ActiveRequest::hand_on_refined(SkillResult result,
                                    const StatusOr<std::optional<Outline>>& refined) {
  if (refined.status().code() == StatusCode::kCancelled) return end_with(cancelled());
  if (!refined.ok()) {
    log_warning("{}: its segment stays coarse: {}", setup_.public_id, refined.status().to_string());
  } else if (refined->has_value()) {
    const auto& [path, box] = **refined;
    result.text = path;
    result.boxes = {{box.x_min, box.y_min, box.x_max, box.y_max}};
    result.is_refined = true;
  }
  end_with(result);
}

StageTimes ActiveRequest::stages_until_first_text(const SequenceTimes& times) const {
  StageTimes stages = stages_;
  const std::int64_t first_text_ns = first_text_ns_ != 0 ? first_text_ns_ : host_now_ns();
  stages[RequestStage::kPrepare] = times.queued_ns - prepare_begin_ns_;
  stages[RequestStage::kAdmit] = times.first_launched_ns - times.queued_ns;
  // An answer without a token ends where its first token would be.
  const std::int64_t token_ns =
      times.first_token_ns != 0 ? times.first_token_ns : times.finished_ns;
  stages[RequestStage::kDevice] = token_ns - times.first_launched_ns;
  stages[RequestStage::kEmit] = first_text_ns - token_ns;
  return stages;
}

EmitPool::EmitPool(int num_workers) {
  GAPLESS_CHECK(num_workers >= 1);
  for (int i = 0; i < num_workers; ++i) {
    workers_.push_back(std::make_unique<Worker>());
    Worker& worker = *workers_.back();
    worker.thread = std::thread([&worker] {
      come_soon();
      run(worker);
    });
  }
}

EmitPool::~EmitPool() {
  for (const auto& worker : workers_) {
    {
      MutexLock lock(worker->mutex);
      worker->stopping = true;
    }
    worker->wake.notify_one();
  }
  for (const auto& worker : workers_) worker->thread.join();
}

void EmitPool::post_token(std::shared_ptr<ActiveRequest> request, const CommittedToken& token) {
  post({std::move(request), token, nullptr});
}

void EmitPool::post_end(std::shared_ptr<ActiveRequest> request, FinishReason reason, Status status,
                        const SequenceTimes& times) {
  post({std::move(request), {}, std::make_unique<End>(End{reason, std::move(status), times})});
}

void EmitPool::post(Item item) {
  const auto index = static_cast<std::size_t>(item.request->id().value) % workers_.size();
  Worker& worker = *workers_[index];
  bool was_empty = false;
  {
    MutexLock lock(worker.mutex);
    was_empty = worker.queue.empty();
    worker.queue.push_back(std::move(item));
  }
  if (was_empty) worker.wake.notify_one();
}

void EmitPool::run(Worker& worker) {
  std::vector<Item> batch;
  while (true) {
    {
      MutexLock lock(worker.mutex);
      while (!worker.stopping && worker.queue.empty()) worker.wake.wait(lock);
      if (worker.queue.empty()) return;  // stopping, and everything was emitted
      batch.swap(worker.queue);
    }
    for (Item& item : batch) {
      if (item.end) {
        item.request->emit_end(item.end->reason, item.end->status, item.end->times);
      } else {
        item.request->emit_token(item.token);
      }
    }
    batch.clear();
  }
}

}  // namespace gapless
