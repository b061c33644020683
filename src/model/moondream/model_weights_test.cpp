#include "model/moondream/model_weights.h"

#include <gtest/gtest.h>

#include <map>

#include "model/model_shape.h"
#include "model/model_source.h"
#include "model/moondream/tensors.h"

namespace gapless {
namespace {

std::int64_t total_parameters(const ModelConfig& config) {
  std::int64_t total = 0;
  for (const TensorPlacement& tensor : lay_out_weights(config, DType::kBF16).tensors) {
    total += tensor.num_parameters();
  }
  return total;
}

TEST(ModelWeights, PublishedParameterCounts) {
  EXPECT_EQ(total_parameters(moondream2_config()), 1'927'237'104);
  EXPECT_EQ(total_parameters(published_architecture("moondream-0.5b").value()), 631'889'382);
}

TEST(ModelWeights, EveryPublishedTensorHasOnePlace) {
  const ModelConfig config = published_architecture("moondream-0.5b").value();
  std::map<std::string, TensorPlacement> places;
  for (const TensorPlacement& tensor : lay_out_weights(config, DType::kBF16).tensors) {
    EXPECT_TRUE(places.emplace(tensor.name, tensor).second) << tensor.name;
  }
  const std::vector<WeightSpec> specs = weight_specs(config);
  EXPECT_EQ(places.size(), specs.size());
  for (const WeightSpec& spec : specs) {
    ASSERT_TRUE(places.contains(spec.name)) << spec.name;
    EXPECT_EQ(places[spec.name].row_size, spec.shape.back()) << spec.name;
    EXPECT_EQ(places[spec.name].num_parameters(), spec.num_elements()) << spec.name;
  }
}

TEST(ModelWeights, PlacesDoNotOverlapAndRowsAreAligned) {
  const ModelConfig config = published_architecture("moondream-0.5b").value();
  const TensorLayout layout = lay_out_weights(config, DType::kBF16);
  std::size_t end = 0;
  for (const TensorPlacement& tensor : layout.tensors) {
    EXPECT_GE(tensor.offset_bytes, end) << tensor.name;
    EXPECT_EQ(tensor.offset_bytes % 256, 0u) << tensor.name;
    if (tensor.num_rows > 1) {
      EXPECT_EQ(tensor.row_stride % kRowPadding, 0) << tensor.name;
    }
    end = tensor.offset_bytes + static_cast<std::size_t>(tensor.num_rows * tensor.row_stride) * 2;
  }
  EXPECT_LE(end, layout.total_bytes);
}

TEST(ModelWeights, AwkwardWidthsArePadded) {
  const std::unique_ptr<Device> device = open_cpu_device();
  const auto stream = device->create_stream("test");
  ASSERT_TRUE(stream.ok());
  ModelConfig config = published_architecture("moondream-0.5b").value();
  config.text.n_layers = 1;
  config.text.vocab_size = 64;
  config.vision.enc_n_layers = 1;
  const auto weights = allocate_weights(*device, **stream, config, DType::kBF16);
  ASSERT_TRUE(weights.ok()) << weights.status().to_string();
  EXPECT_EQ(weights->vision.patch_emb.in, 592);
  EXPECT_EQ(config.vision.enc_ff_dim, 2690);
  EXPECT_EQ(weights->vision.blocks[0].fc1.out, 2816);  // whole tiles of 128
  EXPECT_EQ(weights->vision.blocks[0].fc2.in, 2816);
  EXPECT_EQ(weights->vision.blocks[0].fc2.out, 720);
  EXPECT_EQ(weights->text.lm_head.out, 64);
  // A stretch of fc1's weights and its bias reach to their padded ends.
  const auto* weight = static_cast<const std::byte*>(weights->vision.blocks[0].fc1.weight);
  const auto* bias = static_cast<const std::byte*>(weights->vision.blocks[0].fc1.bias);
  EXPECT_GE(bias - weight, std::ptrdiff_t{2816} * 720 * 2);
  ASSERT_TRUE((*stream)->synchronize().ok());
}

TEST(ModelWeights, WhatTheKernelsCannotRunIsRefused) {
  EXPECT_TRUE(check_model_shape(moondream2_config()).ok());
  ModelConfig heads = moondream2_config();
  heads.text.n_heads = 16;
  EXPECT_NE(check_model_shape(heads).message().find("text.dim / text.n_heads = 128"),
            std::string::npos);
  ModelConfig width = moondream2_config();
  width.vision.enc_dim = 1160;
  EXPECT_NE(check_model_shape(width).message().find("vision.enc_dim = 1160"), std::string::npos);
}

}  // namespace
}  // namespace gapless
