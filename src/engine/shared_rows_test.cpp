// Weights whose rows are restored for each product (ModelOptions::shares_rows) give the same answers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file_bytes.h"
#include "base/limits.h"
#include "engine/engine.h"
#include "kernels/enqueue_on_cpu.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/restored_linear.h"

namespace gapless {
namespace {

// The oracle with a layout of its own for decode steps: rows of the whole, one behind the other. Its decode steps are
// composed of ops that read rows, so that they restore them as well, but for what is prepared in T for itself.
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

  Status linear(Stream& stream, const LinearParams& params) override {
    LinearParams own = params;
    const LinearWeights& weights = params.weights;
    if (params.decode && weights.prepared != nullptr &&
        weights.prepared_format == PreparedFormat::kNative) {
      own.weights.weight = weights.prepared;
    }
    return fast_->linear(stream, own);
  }
  // The oracle's take minutes for a picture.
  Status vision_attention(Stream& stream, const VisionAttentionParams& params) override {
    return fast_->vision_attention(stream, params);
  }
  Status paged_attention(Stream& stream, const PagedAttentionParams& params) override {
    return fast_->paged_attention(stream, params);
  }

 private:
  static std::size_t row_bytes(int in) { return sizeof(float) * static_cast<std::size_t>(in); }
  template <typename Params>
  static float* place(const Params& p, void* prepared, int row) {
    return static_cast<float*>(prepared) + std::int64_t{p.first_out + row} * p.total_in +
           p.first_in;
  }

  const std::unique_ptr<Kernels> fast_ = make_cpu_kernels(DType::kF32);
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

std::string describe(Engine& engine, const std::string& picture) {
  SkillRequest request;
  request.skill = Skill::kCaption;
  request.settings.max_tokens = 16;
  request.settings.ignore_eos = true;
  request.images = {std::make_shared<const std::string>(
      read_file(GAPLESS_SOURCE_DIR "/models/tiny/examples/" + picture, kMaxImageBytes).value())};
  const StatusOr<SkillResult> result = engine.run(request);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? result->text : "";
}

bool is_restored(const LinearWeights& weights) {
  return weights.restore.prepared != nullptr;
}

std::size_t row_bytes(const LinearWeights& weights) {
  return sizeof(float) * static_cast<std::size_t>(weights.in) *
         static_cast<std::size_t>(weights.out);
}

// The bytes of all, and of the largest of them.
struct MatrixBytes {
  std::size_t total = 0, largest = 0;

  void add(const LinearWeights& weights) {
    total += row_bytes(weights);
    largest = std::max(largest, row_bytes(weights));
  }
};

MatrixBytes bytes_of_matrices(const ModelWeights& weights, WeightFormat format) {
  MatrixBytes bytes;
  for (const DecoderBlock& block : weights.text.blocks) {
    for (const LinearWeights* one : {&block.qkv, &block.proj, &block.ff.up, &block.ff.down}) {
      bytes.add(*one);
    }
  }
  if (format == WeightFormat::kNative) return bytes;
  for (const VisionBlockWeights& block : weights.vision.blocks) {
    for (const LinearWeights* one : {&block.qkv, &block.proj, &block.fc1, &block.fc2}) {
      bytes.add(*one);
    }
  }
  bytes.add(weights.projector.fc1);
  bytes.add(weights.projector.fc2);
  return bytes;
}

TEST(SharedRowsTest, AnswersAreTheSameInLessMemory) {
  for (const WeightFormat format : {WeightFormat::kNative, WeightFormat::kFp8}) {
    SCOPED_TRACE(static_cast<int>(format));
    auto kept_model = load_preparing(false, format);
    auto shared_model = load_preparing(true, format);
    const auto& own = static_cast<const ModelWeights&>(shared_model->model->weights());
    const auto& whole = static_cast<const ModelWeights&>(kept_model->model->weights());
    const auto& blocks = own.text.blocks;
    ASSERT_GT(blocks.size(), 1u);
    EXPECT_TRUE(is_restored(blocks[0].qkv));
    EXPECT_EQ(blocks[0].qkv.weight, blocks[1].qkv.weight);
    EXPECT_EQ(blocks[0].qkv.weight, blocks[0].proj.weight);
    EXPECT_FALSE(is_restored(whole.text.blocks[0].qkv));
    // What is rounded to 8 bits is kept in 8 bits; the rest of the encoder is read as it is stored.
    const bool in_8_bits = format == WeightFormat::kFp8;
    EXPECT_EQ(is_restored(own.vision.blocks[0].fc2), in_8_bits);
    EXPECT_EQ(is_restored(own.projector.fc1), in_8_bits);
    EXPECT_FALSE(is_restored(own.vision.patch_emb));
    // The head's rows are nowhere: read from where they are prepared, or restored.
    EXPECT_EQ(is_restored(own.text.lm_head), in_8_bits);
    EXPECT_EQ(own.text.lm_head.weight == nullptr, !in_8_bits);
    const MatrixBytes matrices = bytes_of_matrices(own, format);
    EXPECT_EQ(whole.buffer.size_bytes() - own.buffer.size_bytes(),
              matrices.total - matrices.largest + row_bytes(own.text.lm_head));

    const auto kept = Engine::start(std::move(kept_model), {}).value();
    const auto shared = Engine::start(std::move(shared_model), {}).value();
    for (const char* question : {"How many circles are there?", "What is it?"}) {
      EXPECT_EQ(answer(*shared, question), answer(*kept, question));
    }
    for (const char* picture : {"small.png", "shapes.png"}) {
      const std::string expected = describe(*kept, picture);
      EXPECT_FALSE(expected.empty());
      EXPECT_EQ(describe(*shared, picture), expected);
    }
  }
}

// A text model of random weights whose decode steps a GPU runs as one launch, in small.
ModelSource small_text_model(bool tied_embeddings) {
  ModelSource source = find_model("random:qwen3-1.7b").value();
  LlamaConfig& config = *source.llama;
  config.hidden_size = 128;
  config.intermediate_size = 256;
  config.num_layers = 3;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.max_context = 256;
  config.tied_embeddings = tied_embeddings;
  return source;
}

TEST(SharedRowsTest, TextModelsAnswerTheSameInLessMemory) {
  struct Case {
    bool tied_embeddings;
    WeightFormat format;
  };
  for (const Case& c : {Case{true, WeightFormat::kNative}, Case{false, WeightFormat::kNative},
                        Case{false, WeightFormat::kFp8}}) {
    SCOPED_TRACE(c.tied_embeddings);
    SCOPED_TRACE(static_cast<int>(c.format));
    const auto load = [&c](bool shares_rows) {
      ModelOptions options = preparing_options();
      options.shares_rows = shares_rows;
      options.weights = c.format;
      return load_model(open_device("cpu").value(), small_text_model(c.tied_embeddings), options)
          .value();
    };
    auto kept_model = load(false), shared_model = load(true);
    const TextWeights& own = shared_model->model->weights().text;
    EXPECT_TRUE(is_restored(own.blocks[0].qkv));
    EXPECT_EQ(own.blocks[0].qkv.weight, own.blocks[1].qkv.weight);
    EXPECT_EQ(own.blocks[0].ff.up.weight, own.blocks[2].ff.down.weight);
    EXPECT_FALSE(is_restored(kept_model->model->weights().text.blocks[0].qkv));
    // Embeddings are read by row, so a head that is the same matrix stays.
    const bool is_cut = !c.tied_embeddings && c.format == WeightFormat::kFp8;
    EXPECT_EQ(own.lm_head.weight == nullptr,
              !c.tied_embeddings && c.format == WeightFormat::kNative);
    ASSERT_EQ(is_restored(own.lm_head), is_cut);
    if (is_cut) {
      EXPECT_LT(own.lm_head.restore.out, own.lm_head.out / 2) << "in many parts";
    }
    EXPECT_LT(shared_model->model->weights().buffer.size_bytes(),
              kept_model->model->weights().buffer.size_bytes());

    const auto kept = Engine::start(std::move(kept_model), {}).value();
    const auto shared = Engine::start(std::move(shared_model), {}).value();
    const std::string expected = answer(*kept, "The sky is", QueryForm::kCompletion);
    EXPECT_FALSE(expected.empty());
    EXPECT_EQ(answer(*shared, "The sky is", QueryForm::kCompletion), expected);
  }
}

// The product of a matrix in parts, and of one that is a part of a larger whole, has the bits of that with rows that are there.
TEST(SharedRowsTest, ProductsOfRestoredRowsAreThoseOfRowsThatAreThere) {
  constexpr int kIn = 24, kOut = 100, kNumRows = 3, kRowsInFront = 32, kColumnsInFront = 8;
  constexpr int kTotalIn = kColumnsInFront + kIn, kTotalOut = kRowsInFront + kOut;
  PreparingKernels kernels;
  const auto device = open_device("cpu").value();
  const auto stream = device->create_stream("test").value();
  std::vector<float> weight(kOut * kIn), bias(kOut), x(kNumRows * kIn);
  float next = 0;
  for (std::vector<float>* values : {&weight, &bias, &x}) {
    for (float& value : *values) value = std::sin(next += 1);
  }
  std::vector<float> whole(kTotalIn * kTotalOut, -1e9f);
  const LinearWeights there{.weight = weight.data(), .bias = bias.data(), .in = kIn, .out = kOut};
  ASSERT_TRUE(kernels
                  .prepare_linear(*stream, {.weights = there,
                                            .prepared = whole.data(),
                                            .total_in = kTotalIn,
                                            .total_out = kTotalOut,
                                            .first_out = kRowsInFront,
                                            .first_in = kColumnsInFront})
                  .ok());
  LinearParams params{.x = x.data(),
                      .x_stride = kIn,
                      .weights = there,
                      .y_stride = kOut,
                      .y_dtype = DType::kF32,
                      .num_rows = kNumRows,
                      .activation = Activation::kGeluTanh};
  std::vector<float> expected(kNumRows * kOut);
  params.y = expected.data();
  ASSERT_TRUE(kernels.linear(*stream, params).ok());
  for (const int rows_at_once : {kOut, 48, 16}) {
    std::vector<float> shared(static_cast<std::size_t>(rows_at_once) * kIn + 1, 7.0f);
    std::vector<float> actual(expected.size(), 1e9f);
    params.y = actual.data();
    params.weights.weight = shared.data();
    params.weights.restore = {.prepared = whole.data(),
                              .total_in = kTotalIn,
                              .total_out = kTotalOut,
                              .first_out = kRowsInFront,
                              .first_in = kColumnsInFront,
                              .weight = shared.data(),
                              .in = kIn,
                              .out = rows_at_once};
    ASSERT_TRUE(restored_linear(kernels, *stream, params).ok());
    ASSERT_TRUE(stream->synchronize().ok());
    EXPECT_EQ(actual, expected) << rows_at_once;
    EXPECT_EQ(shared.back(), 7.0f) << "no row more than there is room for";
  }
}

// Nothing to share where no launch would read the copy, or where 8-bit products have copies of their own.
TEST(SharedRowsTest, ABackendWithoutALayoutKeepsItsRows) {
  ModelOptions options;
  options.shares_rows = true;
  const auto plain = load_model(open_device("cpu").value(), "", options).value();
  EXPECT_FALSE(is_restored(plain->model->weights().text.blocks[0].qkv));
  const auto in_8_bits = load_preparing(true, WeightFormat::kW8A8);
  EXPECT_FALSE(is_restored(in_8_bits->model->weights().text.blocks[0].qkv));
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
    EXPECT_FALSE(is_restored(to.qkv));
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
