// Parity of the Llama family with transformers in float32 (tools/llama_goldens.py), stage by stage, on the device named by
// GAPLESS_TEST_DEVICE: grouped queries, query and key norms, biases, tied embeddings, shards, every kind of rope
// scaling, and low-rank terms as PEFT adds them. float32: within 1e-4 of each row and the same greedy tokens. bfloat16: within 8e-2, and
// the same choice wherever the oracle's margin is larger than four times the error of the logits.
//
// GAPLESS_LLAMA_GOLDENS is a folder of other models with their golden.safetensors (llama_goldens.py --checkpoint).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/file_bytes.h"
#include "base/json.h"
#include "model/load_source.h"
#include "model/model_loader.h"
#include "model/step_driver.h"
#include "testing/recorded_stages.h"
#include "testing/tensor_compare.h"
#include "tests/per_device/test_device.h"
#include "weights/safetensors.h"

namespace gapless {
namespace {

namespace fs = std::filesystem;

const char* const kOther = std::getenv("GAPLESS_LLAMA_GOLDENS");
const fs::path kFolder = kOther != nullptr ? kOther : GAPLESS_SOURCE_DIR "/tests/golden/llama";
constexpr int kRowStride = 6;    // of the stages of a prompt
constexpr int kLogitStride = 5;  // of the steps whose logits are kept

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFolder))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

class LlamaParityTest : public DeviceTest, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(DeviceTest::SetUp());
    auto source = find_model((kFolder / GetParam()).string());
    ASSERT_TRUE(source.ok()) << source.status().to_string();
    const fs::path adapter = kFolder / GetParam() / "adapter";
    if (fs::exists(adapter)) {
      ASSERT_TRUE(set_adapter(*source, adapter).ok());
    }
    auto loaded = load_model(std::move(device_), *source,
                             {.compute = test_compute(), .adjust_limits = nullptr});
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    loaded_ = std::move(loaded).value();
    auto golden = Checkpoint::open(kFolder / GetParam() / "golden.safetensors");
    ASSERT_TRUE(golden.ok()) << golden.status().to_string();
    golden_ = std::move(golden).value();
    auto driver = StepDriver::create(*loaded_->device, *loaded_->model);
    ASSERT_TRUE(driver.ok()) << driver.status().to_string();
    driver_ = std::move(driver).value();
    stages_ = std::make_unique<RecordedStages>(*loaded_->device);
  }
  void TearDown() override {
    driver_.reset();
    stages_.reset();
    loaded_.reset();
  }

  bool is_f32() const { return loaded_->kernels->activation_dtype() == DType::kF32; }

  template <typename T>
  std::vector<T> golden(const std::string& name) const {
    const CheckpointTensor& tensor = golden_.tensors().at(name);
    std::vector<T> values(tensor.data.size() / sizeof(T));
    std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
    return values;
  }

  // Every `stride`-th row of what was recorded last.
  void expect_stage(const std::string& name, int stride) {
    SCOPED_TRACE(name);
    const RecordedStage& stage = stages_->last(name);
    std::vector<float> kept;
    for (std::int64_t row = 0; row < stage.num_rows; row += stride) {
      kept.insert(kept.end(), stage.row(row), stage.row(row) + stage.num_columns);
    }
    EXPECT_TRUE(rows_close(kept, golden<float>(name), static_cast<int>(stage.num_columns),
                           is_f32() ? 1e-4 : 8e-2));
  }

  DriverPrompt prompt() const {
    DriverPrompt prompt{.row = 0};
    for (const std::int32_t id : golden<std::int32_t>("prompt"))
      prompt.inputs.push_back({.id = id});
    prompt.state.max_generated = static_cast<int>(golden<std::int32_t>("tokens").size());
    return prompt;
  }

  std::unique_ptr<LoadedModel> loaded_;
  Checkpoint golden_;
  std::unique_ptr<StepDriver> driver_;
  std::unique_ptr<RecordedStages> stages_;
};

TEST_P(LlamaParityTest, EveryStageOfAPrompt) {
  loaded_->model->set_stage_recorder(stages_.get());
  const DriverPrompt all = prompt();
  const auto outputs = driver_->prefill({&all, 1});
  ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
  expect_stage("text.input", kRowStride);
  int num_blocks = 0;
  for (const auto& [name, tensor] : golden_.tensors()) {
    if (!name.starts_with("text.block.")) continue;
    expect_stage(name, kRowStride);
    ++num_blocks;
  }
  EXPECT_EQ(num_blocks, loaded_->model->shape().text.num_layers - 1);
  expect_stage("text.post_ln", 1);
}

// The decode path, and of every fifth step the logits.
TEST_P(LlamaParityTest, TheGreedyContinuation) {
  const auto tokens = golden<std::int32_t>("tokens");
  const auto margins = golden<float>("margins");
  const auto logits = golden<float>("logits");
  const DriverPrompt all = prompt();
  auto outputs = driver_->prefill({&all, 1});
  const auto vocab = static_cast<std::size_t>(loaded_->model->info().vocab);
  double error = 0;
  for (std::size_t step = 0; step < tokens.size(); ++step) {
    ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
    SCOPED_TRACE("step " + std::to_string(step));
    if (step % kLogitStride == 0) {
      const auto found = driver_->logits(1);
      ASSERT_TRUE(found.ok()) << found.status().to_string();
      const std::span expected = std::span(logits).subspan(step / kLogitStride * vocab, vocab);
      EXPECT_TRUE(rows_close(*found, expected, static_cast<int>(vocab), is_f32() ? 1e-4 : 8e-2));
      for (std::size_t i = 0; i < vocab; ++i) {
        error = std::max(error, std::abs(double{(*found)[i]} - double{expected[i]}));
      }
    }
    if (outputs->front().token != tokens[step]) {
      EXPECT_FALSE(is_f32()) << outputs->front().token << " is not " << tokens[step];
      EXPECT_LT(margins[step], 4 * error);
      return;  // what follows another token is not comparable
    }
    const std::int32_t row = 0;
    if (step + 1 < tokens.size()) outputs = driver_->decode({&row, 1});
  }
}

TEST_P(LlamaParityTest, AConversationBecomesTheTokensThatTransformersMakes) {
  const fs::path file = kFolder / GetParam() / "chat.json";
  if (!fs::exists(file)) {
    EXPECT_FALSE(loaded_->prompts.config().chat);
    return;
  }
  const auto text = read_file(file, 1u << 20);
  ASSERT_TRUE(text.ok());
  const auto cases = parse_json(*text, file.string());
  ASSERT_TRUE(cases.ok()) << cases.status().to_string();
  for (const boost::json::value& one : cases->as_array()) {
    std::vector<ChatMessage> messages;
    for (const boost::json::value& message : one.at("messages").as_array()) {
      const std::string_view role = message.at("role").as_string();
      messages.push_back({role == "system" ? ChatRole::kSystem
                          : role == "user" ? ChatRole::kUser
                                           : ChatRole::kAssistant,
                          std::string(message.at("content").as_string())});
    }
    const auto prompt = loaded_->prompts.chat(messages, {});
    ASSERT_TRUE(prompt.ok()) << prompt.status().to_string();
    std::vector<int> ids, expected;
    for (const PromptToken& token : prompt->tokens) ids.push_back(token.id.value);
    for (const boost::json::value& id : one.at("ids").as_array()) {
      expected.push_back(id.to_number<int>());
    }
    EXPECT_EQ(ids, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LlamaParityTest, testing::ValuesIn(case_names()),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(LlamaGoldens, AreThere) {
  EXPECT_GE(case_names().size(), kOther != nullptr ? 1u : 7u);
}

}  // namespace
}  // namespace gapless
