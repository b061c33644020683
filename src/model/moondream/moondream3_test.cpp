// Moondream 3: its tensors, what the decoder is told of them, sizes and traffic, and the options of numerics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file_bytes.h"
#include "model/model_source.h"
#include "model/model_summary.h"
#include "model/moondream/model_weights.h"
#include "model/moondream/tensors.h"
#include "weights/float_conversion.h"
#include "weights/test_files.h"

namespace gapless {
namespace {

using ::testing::HasSubstr;
using testing_files::TemporaryFolder;

// As published: 9.27 billion, 20 layers with 402.65 million in experts each.
TEST(Moondream3, PublishedParameterCounts) {
  const ModelSize size = model_size(moondream3_config());
  EXPECT_EQ(size.text, 8'812'101'632);
  EXPECT_EQ(size.vision, 448'649'072);
  EXPECT_EQ(size.region, 7'876'224);
  EXPECT_EQ(size.total(), 9'268'626'928);
}

TEST(Moondream3, TheFullShapeIsARandomModelToo) {
  const auto source = find_model("random:moondream3:5");
  ASSERT_TRUE(source.ok()) << source.status().to_string();
  EXPECT_EQ(source->config, moondream3_config());
  EXPECT_EQ(source->config.tokenizer.query.suffix, TokenizerConfig::ids({3}));
  const TensorLayout layout = lay_out_weights(source->config, DType::kBF16);
  EXPECT_GT(layout.total_bytes, 18'530'000'000u);
  EXPECT_LT(layout.total_bytes, 18'700'000'000u);  // padding
}

// Worked out by hand in bfloat16 with 1000 cached tokens; 8, 42.0 and 63.1 experts of 64.
TEST(Moondream3, DecodeStepTraffic) {
  const ModelConfig config = moondream3_config();
  const TextWeights text = describe_text_weights(config);
  const auto megabytes = [&](int rows) {
    const auto step = decode_step_traffic(text_shape(config), text, DType::kBF16,
                                          PreparedFormat::kNative, KvFormat::kNative, rows, 1000);
    return (total_bytes(step) + 500'000) / 1'000'000;
  };
  EXPECT_EQ(megabytes(1), 3518);
  EXPECT_EQ(megabytes(8), 13455);
  EXPECT_EQ(megabytes(32), 23488);
  const auto bytes = [&](PreparedFormat weights, KvFormat kv_format) {
    return total_bytes(
        decode_step_traffic(text_shape(config), text, DType::kBF16, weights, kv_format, 1, 1000));
  };
  EXPECT_EQ(bytes(PreparedFormat::kFp8, KvFormat::kNative) / 1'000'000, 1870);
  // With an 8-bit cache steps are composed: single ops read matrices that were rounded to 8 bits as they read others.
  EXPECT_EQ(bytes(PreparedFormat::kFp8, KvFormat::kFp8),
            bytes(PreparedFormat::kNative, KvFormat::kFp8));
  const std::string about =
      describe_model(config, PreparedFormat::kNative, KvFormat::kNative, 8, 1000);
  EXPECT_THAT(about, HasSubstr("from layer 4 on 64 experts of 1024, 8 for each token"));
  EXPECT_THAT(about, HasSubstr("experts (42.0 of 64)"));
  EXPECT_THAT(about, HasSubstr("one product each"));
  EXPECT_THAT(about, HasSubstr("decode steps on a GPU: one launch each"));
  EXPECT_THAT(describe_model(config, PreparedFormat::kNative, KvFormat::kFp8, 8, 1000),
              HasSubstr("composed of single ops, because it has experts and an 8-bit cache"));
}

TEST(Moondream3, TheDecoderIsDescribed) {
  const ModelConfig config = moondream3_config();
  const TextWeights text = describe_text_weights(config);
  ASSERT_EQ(text.blocks.size(), 24u);
  for (std::size_t i = 0; i < text.blocks.size(); ++i) {
    SCOPED_TRACE(i);
    const DecoderBlock& block = text.blocks[i];
    EXPECT_NE(block.head_scales.alpha, nullptr);
    EXPECT_EQ(block.head_scales.products.in, 6144);
    EXPECT_EQ(block.head_scales.products.out, 64);
    EXPECT_EQ(block.residual, Residual::kParallel);
    const FeedForward& ff = block.ff;
    if (i < 4) {
      EXPECT_EQ(ff.kind, FeedForwardKind::kDense);
      EXPECT_EQ(ff.up.out, 8192);
      continue;
    }
    EXPECT_EQ(ff.kind, FeedForwardKind::kExperts);
    EXPECT_EQ(ff.activation, Activation::kGeluErf);
    EXPECT_EQ(ff.up_offset, 1);
    EXPECT_EQ(ff.num_experts, 64);
    EXPECT_EQ(ff.experts_per_token, 8);
    EXPECT_EQ(ff.router.out, 64);
    EXPECT_NE(ff.router.bias, nullptr);
    EXPECT_EQ(ff.up.out, 2048);
    EXPECT_EQ(ff.inner(), 1024);
    EXPECT_EQ(ff.up.bias, nullptr);
  }
}

// Each option reaches what it is about, and nothing else.
TEST(Moondream3, OptionsOfNumericsReachTheirPlaces) {
  const std::unique_ptr<Device> device = open_cpu_device();
  const auto stream = device->create_stream("test").value();
  struct Seen {
    Activation gelu;
    bool bf16_positions;
    int num_norms;
    bool operator==(const Seen&) const = default;
  };
  const auto seen = [&](std::string_view option, std::string_view choice) {
    ModelConfig config = published_architecture("moondream3-small").value();
    if (!option.empty()) {
      EXPECT_TRUE(set_numerics(option, choice, config.numerics).ok());
    }
    const ModelWeights weights = allocate_weights(*device, *stream, config, DType::kF32).value();
    EXPECT_TRUE(stream->synchronize().ok());
    const HeadScales& scales = weights.text.blocks.back().head_scales;
    int num_norms = 0;
    for (const NormWeights& norm : weights.region.decoder.norms) {
      num_norms += norm.gamma != nullptr ? 1 : 0;
    }
    if (num_norms == 2) {
      EXPECT_EQ(weights.region.decoder.norms[0].gamma, weights.text.post_ln.gamma);
    }
    return Seen{scales.activation, scales.bf16_positions, num_norms};
  };
  const Seen usual{Activation::kGeluTanh, true, 1};
  EXPECT_EQ(seen("", ""), usual);
  EXPECT_EQ(seen("tau_gelu", "erf"), (Seen{Activation::kGeluErf, true, 1}));
  EXPECT_EQ(seen("tau_position", "f32"), (Seen{Activation::kGeluTanh, false, 1}));
  EXPECT_EQ(seen("region_input", "post_norm"), (Seen{Activation::kGeluTanh, true, 2}));
  EXPECT_EQ(seen("region_input", "hidden"), (Seen{Activation::kGeluTanh, true, 0}));
  // RegionsTest and ParityTest see what it does.
  EXPECT_EQ(seen("coord_divisor", "num_bins"), usual);
}

TEST(Moondream3, TheTableOfNumericsIsInThePage) {
  const auto page = read_file(GAPLESS_SOURCE_DIR "/docs/published_weights.md", 1u << 20).value();
  for (const NumericsOption& option : numerics_options()) {
    EXPECT_EQ(option.get(Numerics()), 0) << option.name;
    std::string line = fmt::format("\n| `{}`: {} |", option.name, option.about);
    for (const NumericsChoice& choice : option.choices) {
      line += fmt::format(" {}`{}`: {}", &choice == option.choices.data() ? "" : "<br>",
                          choice.name, choice.meaning);
    }
    EXPECT_THAT(page, HasSubstr(line + " |\n"));
  }
}

// Two experts of two rows in 8 bits, and two heads' products of tau in one tensor.
TEST(Moondream3, ExpertsIn8BitsAndTauInOneTensor) {
  const TemporaryFolder folder;
  std::string data;
  const auto append = [&](const auto& value) {
    data.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  for (const int code : {0x38, 0xB8, 0x40, 0x01, 0x7E, 0x00, 0x30, 0xC0})
    append(static_cast<char>(code));
  for (const float scale : {2.0f, 0.5f, 0.25f, 3.0f}) append(scale);
  for (const float value : {1.0f, 2.0f, 3.0f, 4.0f}) append(bf16_from_f32(value));
  folder.write(
      "model.safetensors",
      testing_files::safetensors_bytes(
          R"({"h.0.experts": {"dtype": "F8_E4M3", "shape": [2, 2, 2], "data_offsets": [0, 8]},
                       "h.0.up_scale": {"dtype": "F32", "shape": [2, 2], "data_offsets": [8, 24]},
                       "h.0.tau_wqwv": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [24, 32]}})",
          data));
  const auto tau = [](const char* name, int row) {
    return WeightSpec{.name = name,
                      .legacy_name = std::string("h.0.") + name,
                      .shape = {1, 2},
                      .legacy_whole = "h.0.tau_wqwv",
                      .legacy_whole_rows = 2,
                      .legacy_first_row = row};
  };
  const std::vector<WeightSpec> specs = {{.name = "experts",
                                          .legacy_name = "h.0.experts",
                                          .shape = {2, 2, 2},
                                          .legacy_row_scales = "h.0.up_scale"},
                                         tau("wq", 0),
                                         tau("wv", 1)};
  const auto source = WeightSource::open(folder.path(), specs);
  ASSERT_TRUE(source.ok()) << source.status().to_string();
  std::vector<float> experts(8), part(3), wq(2), wv(2);
  ASSERT_TRUE(source->read_as_f32("experts", experts).ok());
  EXPECT_THAT(experts, ::testing::ElementsAre(2, -2, 1, 0.5f / 512, 112, 0, 1.5f, -6));
  ASSERT_TRUE(source->read_as_f32("experts", part, 3).ok());
  EXPECT_THAT(part, ::testing::ElementsAre(0.5f / 512, 112, 0));
  std::vector<std::uint16_t> bits(8);
  ASSERT_TRUE(source->read_as_bf16("experts", bits).ok());
  EXPECT_EQ(f32_from_bf16(bits[4]), 112);
  ASSERT_TRUE(source->read_as_f32("wq", wq).ok());
  ASSERT_TRUE(source->read_as_f32("wv", wv).ok());
  EXPECT_THAT(wq, ::testing::ElementsAre(1, 2));
  EXPECT_THAT(wv, ::testing::ElementsAre(3, 4));
  EXPECT_EQ(source->stored_bytes().at(TensorDType::kF8E4M3), 8 + 16);
  EXPECT_EQ(source->stored_bytes().at(TensorDType::kBF16), 8);
}

TEST(Moondream3, WhatTheKernelsCannotRunIsRefused) {
  ModelConfig config = moondream3_config();
  EXPECT_TRUE(check_model_shape(config).ok());
  config.text.moe.expert_inner_dim = 1000;
  EXPECT_THAT(check_model_shape(config).message(), HasSubstr("text.moe.expert_inner_dim = 1000"));
}

}  // namespace
}  // namespace gapless
