// Weights whose rows are restored block by block (ModelOptions::shares_rows) give the same answers.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kernels/enqueue_on_cpu.h"
#include "kernels/reference/reference_kernels.h"

namespace gapless {
namespace {

// The oracle with a layout of its own for decode steps: rows of the whole, one behind the other. Its decode steps are
// composed of ops that read rows, so that they restore them as well.
class PreparingKernels final : public ReferenceKernels {
 public:
  std::size_t prepared_linear_bytes(int total_in, int total_out, PreparedFormat) const override {
    return sizeof(float) * static_cast<std::size_t>(total_in) * static_cast<std::size_t>(total_out);
  }
  Status prepare_linear(Stream& stream, const PrepareLinearParams& params) override {
    return enqueue_on_cpu(
        stream,
        [](const PrepareLinearParams& p) {
          const auto* from = static_cast<const float*>(p.weights.weight);
          for (int row = 0; row < p.weights.out; ++row, from += p.weights.in) {
            std::memcpy(place(p, p.prepared, row), from, row_bytes(p.weights.in));
          }
        },
        params);
  }
  Status restore_linear(Stream& stream, const RestoreLinearParams& params) override {
    return enqueue_on_cpu(
        stream,
        [](const RestoreLinearParams& p) {
          auto* to = static_cast<float*>(p.weight);
          for (int row = 0; row < p.out; ++row, to += p.in) {
            std::memcpy(to, place(p, const_cast<void*>(p.prepared), row), row_bytes(p.in));
          }
        },
        params);
  }

 private:
  static std::size_t row_bytes(int in) { return sizeof(float) * static_cast<std::size_t>(in); }
  template <typename Params>
  static float* place(const Params& p, void* prepared, int row) {
    return static_cast<float*>(prepared) + std::int64_t{p.first_out + row} * p.total_in +
           p.first_in;
  }
};

ModelOptions preparing_options() {
  ModelOptions options;
  options.make_kernels = [](Device&) -> StatusOr<std::unique_ptr<Kernels>> {
    return std::unique_ptr<Kernels>(std::make_unique<PreparingKernels>());
  };
  return options;
}

std::unique_ptr<LoadedModel> load_preparing(bool shares_rows, WeightFormat weights) {
  ModelOptions options = preparing_options();
  options.weights = weights;
  options.shares_rows = shares_rows;
  return load_model(open_device("cpu").value(), "", options).value();
}

std::string answer(Engine& engine, const std::string& question,
                   QueryForm form = QueryForm::kQuestion) {
  SkillRequest request;
  request.text = question;
  request.form = form;
  request.settings.max_tokens = 6;
  request.settings.ignore_eos = true;
  const StatusOr<SkillResult> result = engine.run(request);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? result->text : "";
}

TEST(SharedRowsTest, AnswersAreTheSameInLessMemory) {
  for (const WeightFormat format : {WeightFormat::kNative, WeightFormat::kFp8}) {
    auto kept_model = load_preparing(false, format);
    auto shared_model = load_preparing(true, format);
    const auto blocks = shared_model->model->weights().text.blocks;
    ASSERT_GT(blocks.size(), 1u);
    EXPECT_TRUE(blocks[0].shares_rows);
    EXPECT_EQ(blocks[0].qkv.weight, blocks[1].qkv.weight);
    EXPECT_NE(blocks[0].qkv.weight, blocks[0].proj.weight);
    EXPECT_FALSE(kept_model->model->weights().text.blocks[0].shares_rows);
    std::size_t rows = 0;
    for (const LinearWeights* part :
         {&blocks[0].qkv, &blocks[0].proj, &blocks[0].ff.up, &blocks[0].ff.down}) {
      rows +=
          sizeof(float) * static_cast<std::size_t>(part->in) * static_cast<std::size_t>(part->out);
    }
    EXPECT_EQ(kept_model->model->weights().buffer.size_bytes() -
                  shared_model->model->weights().buffer.size_bytes(),
              rows * (blocks.size() - 1));

    const auto kept = Engine::start(std::move(kept_model), {}).value();
    const auto shared = Engine::start(std::move(shared_model), {}).value();
    for (const char* question : {"How many circles are there?", "What is it?"}) {
      EXPECT_EQ(answer(*shared, question), answer(*kept, question));
    }
  }
}

// A text model of random weights whose decode steps a GPU runs as one launch, in small.
ModelSource small_text_model() {
  ModelSource source = find_model("random:qwen3-1.7b").value();
  LlamaConfig& config = *source.llama;
  config.hidden_size = 128;
  config.intermediate_size = 256;
  config.num_layers = 3;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.max_context = 256;
  return source;
}

TEST(SharedRowsTest, TextModelsAnswerTheSameInLessMemory) {
  const auto load = [](bool shares_rows) {
    ModelOptions options = preparing_options();
    options.shares_rows = shares_rows;
    return load_model(open_device("cpu").value(), small_text_model(), options).value();
  };
  auto kept_model = load(false), shared_model = load(true);
  const auto blocks = shared_model->model->weights().text.blocks;
  EXPECT_TRUE(blocks[0].shares_rows);
  EXPECT_EQ(blocks[0].qkv.weight, blocks[1].qkv.weight);
  EXPECT_EQ(blocks[0].ff.up.weight, blocks[2].ff.up.weight);
  EXPECT_NE(blocks[0].qkv.weight, blocks[0].ff.up.weight);
  EXPECT_FALSE(kept_model->model->weights().text.blocks[0].shares_rows);
  EXPECT_LT(shared_model->model->weights().buffer.size_bytes(),
            kept_model->model->weights().buffer.size_bytes());

  const auto kept = Engine::start(std::move(kept_model), {}).value();
  const auto shared = Engine::start(std::move(shared_model), {}).value();
  const std::string expected = answer(*kept, "The sky is", QueryForm::kCompletion);
  EXPECT_FALSE(expected.empty());
  EXPECT_EQ(answer(*shared, "The sky is", QueryForm::kCompletion), expected);
}

// Nothing to share where no launch would read the copy, or where 8-bit products have copies of their own.
TEST(SharedRowsTest, ABackendWithoutALayoutKeepsItsRows) {
  ModelOptions options;
  options.shares_rows = true;
  const auto plain = load_model(open_device("cpu").value(), "", options).value();
  EXPECT_FALSE(plain->model->weights().text.blocks[0].shares_rows);
  const auto in_8_bits = load_preparing(true, WeightFormat::kW8A8);
  EXPECT_FALSE(in_8_bits->model->weights().text.blocks[0].shares_rows);
}

// Of matrices in 8-bit whole numbers nobody reads the rows again, so those of all blocks share memory. Each is packed from its own.
TEST(SharedRowsTest, WholeNumbersOf8BitsAreThoseOfEveryBlocksOwnRows) {
  // Its vision encoder has padding, where other blocks' numbers have lain.
  const std::string name = "random:moondream2-march-small";
  ModelOptions options;
  const auto native_model = load_model(open_device("cpu").value(), name, options).value();
  options.weights = WeightFormat::kInt8;
  const auto int8_model = load_model(open_device("cpu").value(), name, options).value();
  const auto& native = static_cast<const ModelWeights&>(native_model->model->weights());
  const auto& packed = static_cast<const ModelWeights&>(int8_model->model->weights());
  EXPECT_LT(packed.buffer.size_bytes(), native.buffer.size_bytes());
  EXPECT_EQ(packed.text.blocks[0].qkv.weight, packed.text.blocks[1].qkv.weight);
  const auto stream = native_model->device->create_stream("test").value();
  const auto expect_packed = [&](const LinearWeights& from, const LinearWeights& actual) {
    std::vector<std::byte> expected(native_model->kernels->int8_bytes(from.in, from.out));
    ASSERT_TRUE(
        native_model->kernels->pack_int8(*stream, {.weights = from, .packed = expected.data()})
            .ok());
    ASSERT_TRUE(stream->synchronize().ok());
    ASSERT_NE(actual.int8, nullptr);
    EXPECT_EQ(std::memcmp(actual.int8, expected.data(), expected.size()), 0);
  };
  for (std::size_t i = 0; i < native.text.blocks.size(); ++i) {
    SCOPED_TRACE(i);
    const DecoderBlock &from = native.text.blocks[i], &to = packed.text.blocks[i];
    EXPECT_FALSE(to.shares_rows);
    expect_packed(from.qkv, to.qkv);
    expect_packed(from.proj, to.proj);
    expect_packed(from.ff.up, to.ff.up);
    expect_packed(from.ff.down, to.ff.down);
  }
  expect_packed(native.text.lm_head, packed.text.lm_head);
  EXPECT_NE(native.vision.blocks[0].fc1.out, native_model->config.vision.enc_ff_dim);
  for (std::size_t i = 0; i < native.vision.blocks.size(); ++i) {
    SCOPED_TRACE(i);
    const VisionBlockWeights &from = native.vision.blocks[i], &to = packed.vision.blocks[i];
    expect_packed(from.qkv, to.qkv);
    expect_packed(from.proj, to.proj);
    expect_packed(from.fc1, to.fc1);
    expect_packed(from.fc2, to.fc2);
  }
  expect_packed(native.projector.fc1, packed.projector.fc1);
  expect_packed(native.projector.fc2, packed.projector.fc2);
}

TEST(SharedRowsTest, WholeNumbersOf8BitsAreRefusedWhereThereAreNone) {
  ModelOptions options;
  options.weights = WeightFormat::kInt8;
  options.make_kernels = [](Device&) -> StatusOr<std::unique_ptr<Kernels>> {
    return make_reference_kernels();
  };
  const auto refused = load_model(open_device("cpu").value(), "", options);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("--weights int8 is for the CPU"), std::string::npos)
      << refused.status().message();
}

}  // namespace
}  // namespace gapless
