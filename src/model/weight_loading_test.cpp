#include "model/weight_loading.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "model/moondream/model_weights.h"
#include "model/moondream/tensors.h"
#include "model/moondream/test_config.h"
#include "model/random_model.h"
#include "weights/float_conversion.h"
#include "weights/test_files.h"

namespace gapless {
namespace {

constexpr std::uint64_t kWeightsSeed = 3;

class WeightLoadingTest : public testing::Test {
 protected:
  WeightLoadingTest() {
    config_ = testing_config::very_small_config();
    config_.vision.enc_ff_dim = 42;  // padded to 48, as the patch length 48 is not
    stream_ = device_->create_stream("test").value();
    kernels_ = make_kernels(*device_).value();
  }

  std::vector<float> contents(const ModelWeights& weights) {
    EXPECT_TRUE(stream_->synchronize().ok());
    std::vector<float> values(weights.buffer.size_bytes() / sizeof(float));
    std::memcpy(values.data(), weights.buffer.data(), weights.buffer.size_bytes());
    return values;
  }

  std::vector<float> random_contents() {
    const auto weights = allocate_weights(*device_, *stream_, config_, DType::kF32);
    EXPECT_TRUE(weights.ok());
    EXPECT_TRUE(fill_random_weights(*kernels_, *stream_, weight_specs(config_), kWeightsSeed,
                                    weights->layout, weights->buffer.data())
                    .ok());
    return contents(*weights);
  }

  std::vector<float> loaded_contents(const std::filesystem::path& folder, std::size_t piece_bytes) {
    const auto source = WeightSource::open(folder, weight_specs(config_));
    EXPECT_TRUE(source.ok()) << source.status().to_string();
    const auto weights = allocate_weights(*device_, *stream_, config_, DType::kF32);
    EXPECT_TRUE(weights.ok());
    EXPECT_TRUE(load_weights(*device_, *stream_, *source, weights->layout, DType::kF32,
                             weights->buffer.data(), piece_bytes)
                    .ok());
    return contents(*weights);
  }

  ModelConfig config_;
  std::unique_ptr<Device> device_ = open_cpu_device();
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Kernels> kernels_;
};

// What is made on the device is what is written to disk, up to the file's rounding to bfloat16,
// padding included: every byte of the allocation is compared.
TEST_F(WeightLoadingTest, RandomWeightsAreTheSameOnDiskAndOnTheDevice) {
  const testing_files::TemporaryFolder folder;
  ASSERT_TRUE(
      write_random_model({.config = config_, .random_seed = kWeightsSeed}, folder.path()).ok());
  const std::vector<float> made = random_contents();
  // In one piece, and in pieces that cut tensors.
  for (const std::size_t piece_bytes : {kWeightPieceBytes, std::size_t{1024}}) {
    const std::vector<float> loaded = loaded_contents(folder.path(), piece_bytes);
    ASSERT_EQ(loaded.size(), made.size());
    std::size_t num_different = 0;
    std::size_t num_zero = 0;
    for (std::size_t i = 0; i < made.size(); ++i) {
      num_different += loaded[i] != f32_from_bf16(bf16_from_f32(made[i])) ? 1 : 0;
      num_zero += made[i] == 0 ? 1 : 0;
    }
    EXPECT_EQ(num_different, 0u) << "pieces of " << piece_bytes;
    EXPECT_LT(num_zero, made.size() / 2);
  }
}

// Tensors that share memory come one group after the other, and one that has no room in parts: each has the values that it has
// where all are there, from a file and made on the device.
TEST_F(WeightLoadingTest, GroupsAndPartsHaveTheValuesOfTheWhole) {
  config_.text.vocab_size = 200;
  const testing_files::TemporaryFolder folder;
  ASSERT_TRUE(
      write_random_model({.config = config_, .random_seed = kWeightsSeed}, folder.path()).ok());
  const auto source = WeightSource::open(folder.path(), weight_specs(config_));
  ASSERT_TRUE(source.ok()) << source.status().to_string();
  const TensorLayout plain = lay_out_weights(config_, DType::kF32);
  const std::vector<float> loaded = loaded_contents(folder.path(), kWeightPieceBytes);
  const std::vector<float> made = random_contents();
  const auto weights =
      allocate_weights(*device_, *stream_, config_, DType::kF32, [this](const std::string& name) {
        return shared_group_of(config_, PreparedFormat::kFp8, name);
      });
  const TensorLayout& shared = weights->layout;
  const auto expect_values_of = [&](const TensorLayout& part, const std::vector<float>& whole) {
    const std::vector<float> actual = contents(*weights);
    for (const TensorPlacement& tensor : part.tensors) {
      const auto from = std::ranges::find(plain.tensors, tensor.name, &TensorPlacement::name);
      for (std::int64_t row = 0; row < tensor.num_rows; ++row) {
        const auto at = [&](const TensorPlacement& place, std::int64_t r) {
          return place.offset_bytes / sizeof(float) +
                 static_cast<std::size_t>(r * place.row_stride);
        };
        ASSERT_EQ(std::memcmp(&actual[at(tensor, row)], &whole[at(*from, tensor.first_row + row)],
                              static_cast<std::size_t>(tensor.row_size) * sizeof(float)),
                  0)
            << tensor.name << " row " << tensor.first_row + row;
      }
    }
  };
  int num_groups = 0;
  const auto expect_values = [&](const TensorLayout& part) {
    ASSERT_FALSE(part.tensors.empty());
    ++num_groups;
    ASSERT_TRUE(
        load_weights(*device_, *stream_, *source, part, DType::kF32, weights->buffer.data()).ok());
    expect_values_of(part, loaded);
    ASSERT_TRUE(fill_random_weights(*kernels_, *stream_, weight_specs(config_), kWeightsSeed, part,
                                    weights->buffer.data())
                    .ok());
    expect_values_of(part, made);
  };
  for (const TensorPlacement& tensor : shared.tensors) {
    if (tensor.group >= 0) expect_values(tensors_of_group(shared, tensor.group));
  }
  EXPECT_EQ(num_groups, 4 * 2 + 4 * 2 + 2) << "text, vision, projector";
  const std::int64_t rows = max_rows_in_parts(shared, DType::kF32);
  ASSERT_LT(rows, config_.text.vocab_size);
  for (std::int64_t first = 0; first < config_.text.vocab_size; first += rows) {
    expect_values(rows_in_parts(shared, first, rows));
  }
}

// Loading reads every value, so it is where one that is no number is found: in a dense tensor and in
// one whose rows are padded.
TEST_F(WeightLoadingTest, ValuesThatAreNotFiniteAreRefused) {
  for (const char* victim : {"model.text.wte", "model.vision.blocks.1.mlp.fc2.weight"}) {
    const testing_files::TemporaryFolder folder;
    ASSERT_TRUE(
        write_random_model({.config = config_, .random_seed = kWeightsSeed}, folder.path()).ok());
    const auto file = folder.path() / "model.safetensors";
    const auto bytes = read_file(file, 1u << 24).value();
    for (const TensorEntry& entry :
         parse_safetensors(std::as_bytes(std::span(bytes)), "file").value()) {
      if (entry.name != victim) continue;
      std::string changed = bytes;
      changed[entry.end - 1] = '\x7F';  // the last value: NaN
      changed[entry.end - 2] = '\xC0';
      folder.write("model.safetensors", changed);
    }
    const auto source = WeightSource::open(folder.path(), weight_specs(config_));
    ASSERT_TRUE(source.ok());
    const auto weights = allocate_weights(*device_, *stream_, config_, DType::kF32);
    const Status status = load_weights(*device_, *stream_, *source, weights->layout, DType::kF32,
                                       weights->buffer.data());
    EXPECT_NE(status.message().find(fmt::format("tensor '{}' is nan at [", victim)),
              std::string::npos)
        << status.to_string();
  }
}

TEST_F(WeightLoadingTest, PaddingIsZero) {
  const std::vector<float> made = random_contents();
  std::size_t num_padded = 0;
  for (const TensorPlacement& tensor : lay_out_weights(config_, DType::kF32).tensors) {
    const std::size_t first = tensor.offset_bytes / sizeof(float);
    for (std::int64_t row = 0; row < tensor.num_rows; ++row) {
      for (std::int64_t i = tensor.row_size; i < tensor.row_stride; ++i, ++num_padded) {
        EXPECT_EQ(made[first + static_cast<std::size_t>(row * tensor.row_stride + i)], 0.0f)
            << tensor.name;
      }
    }
  }
  EXPECT_GT(num_padded, 0u);
}

}  // namespace
}  // namespace gapless
