// Tests of the loop on the simulated device, in virtual time.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "pipeline/loop.h"
#include "sim/fake_model.h"
#include "sim/sim_device.h"

namespace gapless {

struct Answer : TokenSink {
  void on_token(const CommittedToken& token) override { tokens.push_back(token); }
  void on_finished(FinishReason why, const Status& what, const SequenceTimes& when) override {
    ++num_finished;
    reason = why;
    status = what;
    times = when;
  }
  std::vector<CommittedToken> tokens;
  int num_finished = 0;
  FinishReason reason = FinishReason::kError;
  Status status;
  SequenceTimes times;
};

class LoopTest : public ::testing::Test {
 protected:
  LoopTest() {
    model_config_ = FakeModelConfig::small();
    model_config_.limits.num_pages = 49;
    model_config_.automata = {{2, {5, 6, 0, 0}, {0, 0, 0, 0}}};
    model_config_.forward_ns = [](const StepShape&) { return std::int64_t{100'000}; };
    model_config_.sampling_ns = [](const StepShape&) { return std::int64_t{10'000}; };
    device_config_.times = SimTimes::free();
    options_.depth = 2;
  }

  void make_loop() {
    loop_.reset();
    crops_pinned_ = PinnedBuffer();
    model_.reset();
    device_ = std::make_unique<SimDevice>(device_config_);
    model_ = FakeModel::create(*device_, model_config_).value();
    crops_pinned_ = device_->allocate_pinned(8 * model_config_.crop_bytes).value();
    for (std::size_t i = 0; i < crops_pinned_.size_bytes(); ++i) {
      crops_pinned_.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i);
    }
    auto loop = Loop::create(*device_, *model_, device_->host_clock(), options_);
    ASSERT_TRUE(loop.ok()) << loop.status().to_string();
    loop_ = std::move(loop).value();
  }
  PreparedPrompt text(int num_tokens, int max_generated, int stop_after = -1) {
    PreparedPrompt prompt;
    for (int i = 0; i < num_tokens; ++i) prompt.inputs.push_back({.id = 3 + i % 50});
    prompt.row.max_generated = max_generated;
    prompt.row.sampling.seed = fake_seed(1, stop_after);
    prompt.row.num_stop_ids = 1;
    prompt.row.stop_ids[0] = kFakeStopId;
    return prompt;
  }

  // BOS, the images in order, the text.
  PreparedPrompt about_images(const std::vector<std::uint8_t>& names, int num_text_tokens,
                              int max_generated) {
    PreparedPrompt prompt = text(num_text_tokens, max_generated);
    std::vector<TokenInput> prefix = {{.id = 3}};
    for (const std::uint8_t name : names) {
      PreparedImage image;
      image.hash.fill(name);
      image.prefix_hash = image.hash;
      if (!prompt.images.empty()) {
        image.prefix_hash = prompt.images.back().prefix_hash;
        image.prefix_hash[prompt.images.size() - 1] = name;
      }
      image.crops_pinned = {crops_pinned_.as<std::uint8_t>() + name % 8 * model_config_.crop_bytes};
      prompt.images.push_back(std::move(image));
    }
    const int num_image_tokens = static_cast<int>(names.size()) * model_config_.image_tokens;
    for (int i = 0; i < num_image_tokens; ++i) {
      prefix.push_back({.kind = InputKind::kImage, .id = i});
    }
    prompt.prefix_len = static_cast<int>(prefix.size());
    prompt.inputs.insert(prompt.inputs.begin(), prefix.begin(), prefix.end());
    return prompt;
  }
  PreparedPrompt about_image(std::uint8_t name, int num_text_tokens, int max_generated) {
    return about_images({name}, num_text_tokens, max_generated);
  }

  PreparedPrompt host_masked(PreparedPrompt prompt) {
    prompt.row.flags |= kRowHostMask;
    prompt.host_constraint = std::make_unique<FakeConstraint>(model_config_.vocab, 9);
    return prompt;
  }

  std::shared_ptr<Answer> submit(PreparedPrompt prompt) {
    auto answer = std::make_shared<Answer>();
    const auto id = loop_->submit(std::move(prompt), answer);
    EXPECT_TRUE(id.ok()) << id.status().to_string();
    return answer;
  }
  Status refusal(PreparedPrompt prompt) {
    const auto id = loop_->submit(std::move(prompt), std::make_shared<Answer>());
    return id.ok() ? ok_status() : id.status();
  }
  void run() {
    while (loop_->tick() == Loop::Tick::kWorked) {
    }
  }
  std::vector<StepRecord> records_of(StepKind kind) {
    std::vector<StepRecord> records;
    for (const StepRecord& record : loop_->ledger().records()) {
      if (record.kind == kind) records.push_back(record);
    }
    return records;
  }

  FakeModelConfig model_config_;
  SimConfig device_config_;
  LoopOptions options_;
  std::unique_ptr<SimDevice> device_;
  std::unique_ptr<FakeModel> model_;
  PinnedBuffer crops_pinned_;
  std::unique_ptr<Loop> loop_;
};

}  // namespace gapless
