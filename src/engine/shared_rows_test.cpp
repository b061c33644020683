// Weights whose rows are restored for each product (ModelOptions::shares_rows) give the same answers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file_bytes.h"
#include "base/limits.h"
#include "engine/engine.h"
#include "kernels/enqueue_on_cpu.h"
#include "kernels/fp8.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/restored_linear.h"
#include "model/load_source.h"

namespace gapless {
namespace {

// A number in 8 bits, with its row's scale.
struct CodedNumber {
  std::uint8_t e4m3;
  std::int8_t exponent;
};

// The oracle with a layout of its own for decode steps: rows of the whole, one behind the other, as they are or in 8 bits. Its
// decode steps are composed of ops that read rows, so that they restore them as well, but for what is prepared in T for itself.
class PreparingKernels final : public ReferenceKernels {
 public:
  std::size_t prepared_linear_bytes(int total_in, int total_out,
                                    PreparedFormat format) const override {
    return (format == PreparedFormat::kFp8 ? sizeof(CodedNumber) : sizeof(float)) *
           static_cast<std::size_t>(total_in) * static_cast<std::size_t>(total_out);
  }
  Status prepare_linear(Stream& stream, const PrepareLinearParams& params) override {
    return enqueue_on_cpu(
        stream,
        [](const PrepareLinearParams& p) {
          for (int row = 0; row < p.weights.out; ++row) {
            const auto from =
                row_of(static_cast<const float*>(p.weights.weight), row, p.weights.in);
            if (p.format == PreparedFormat::kFp8) {
              encode(from, place<CodedNumber>(p, p.prepared, row));
            } else {
              std::ranges::copy(from, place<float>(p, p.prepared, row));
            }
          }
        },
        params);
  }
  Status restore_linear(Stream& stream, const RestoreLinearParams& params) override {
    return enqueue_on_cpu(
        stream,
        [](const RestoreLinearParams& p) {
          void* const prepared = const_cast<void*>(p.prepared);
          for (int row = 0; row < p.out; ++row) {
            const auto to = row_of(static_cast<float*>(p.weight), row, p.in);
            if (p.format == PreparedFormat::kFp8) {
              std::ranges::transform(
                  std::span(place<CodedNumber>(p, prepared, row), to.size()), to.begin(),
                  [](CodedNumber n) { return std::ldexp(float_from_e4m3(n.e4m3), n.exponent); });
            } else {
              std::copy_n(place<float>(p, prepared, row), to.size(), to.begin());
            }
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
  Status decode_regions(Stream& stream, const DecodeRegionsParams& params) override {
    DecodeRegionsParams own = params;
    RegionDecoderWeights& heads = own.weights;
    for (LinearWeights* one :
         {&heads.coord_fc1, &heads.coord_fc2, &heads.size_fc1, &heads.size_fc2}) {
      if (one->prepared != nullptr) one->weight = one->prepared;
    }
    return ReferenceKernels::decode_regions(stream, own);
  }
  // The oracle's take minutes for a picture.
  Status vision_attention(Stream& stream, const VisionAttentionParams& params) override {
    return fast_->vision_attention(stream, params);
  }
  Status paged_attention(Stream& stream, const PagedAttentionParams& params) override {
    return fast_->paged_attention(stream, params);
  }

 private:
  template <typename Number>
  static std::span<Number> row_of(Number* matrix, int row, int in) {
    return {matrix + std::int64_t{row} * in, static_cast<std::size_t>(in)};
  }
  template <typename Number, typename Params>
  static Number* place(const Params& p, void* prepared, int row) {
    return static_cast<Number*>(prepared) + std::int64_t{p.first_out + row} * p.total_in +
           p.first_in;
  }
  static void encode(std::span<const float> row, CodedNumber* to) {
    float largest = 0;
    for (const float value : row) largest = std::max(largest, std::abs(value));
    const int exponent = fp8_row_exponent(largest);
    for (const float value : row) {
      *to++ = {e4m3_from_float(std::ldexp(value, -exponent)), static_cast<std::int8_t>(exponent)};
    }
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

using Matrices = std::vector<const LinearWeights*>;

// Those whose rows share memory but for the head.
Matrices shared_matrices(const ModelWeights& weights, WeightFormat format) {
  Matrices all;
  for (const DecoderBlock& block : weights.text.blocks) {
    all.insert(all.end(), {&block.qkv, &block.proj, &block.ff.up, &block.ff.down});
  }
  if (format == WeightFormat::kNative) return all;
  for (const VisionBlockWeights& block : weights.vision.blocks) {
    all.insert(all.end(), {&block.qkv, &block.proj, &block.fc1, &block.fc2});
  }
  all.insert(all.end(), {&weights.projector.fc1, &weights.projector.fc2});
  return all;
}

// Their rows are, once they are restored, those of the matrices that are there.
void expect_restored(LoadedModel& model, const Matrices& restored, const Matrices& there) {
  const auto stream = model.device->create_stream("test").value();
  ASSERT_EQ(restored.size(), there.size());
  for (std::size_t i = 0; i < there.size(); ++i) {
    ASSERT_TRUE(is_restored(*restored[i])) << i;
    ASSERT_EQ(restored[i]->restore.out, there[i]->out) << i;
    ASSERT_TRUE(model.kernels->restore_linear(*stream, restored[i]->restore).ok());
    ASSERT_TRUE(stream->synchronize().ok());
    EXPECT_EQ(std::memcmp(restored[i]->weight, there[i]->weight, row_bytes(*there[i])), 0) << i;
  }
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
    const Matrices matrices = shared_matrices(own, format);
    std::size_t total = row_bytes(own.text.lm_head), largest = 0;
    for (const LinearWeights* one : matrices) {
      total += row_bytes(*one);
      largest = std::max(largest, row_bytes(*one));
    }
    EXPECT_EQ(whole.buffer.size_bytes() - own.buffer.size_bytes(), total - largest);
    expect_restored(*shared_model, matrices, shared_matrices(whole, format));
    if (in_8_bits) expect_restored(*shared_model, {&own.text.lm_head}, {&whole.text.lm_head});

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
