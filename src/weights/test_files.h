// Safetensors files and small configurations for the tests of this folder.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_bytes.h"
#include "weights/model_config.h"
#include "weights/safetensors.h"
#include "weights/weight_map.h"

namespace gapless::testing_files {

// An empty folder of its own for each test, removed at its end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("gapless-{}-{}.{}", ::getpid(), test->test_suite_name(), test->name());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    const auto file = path_ / name;
    EXPECT_TRUE(write_file(file, std::as_bytes(std::span(bytes))).ok());
    return file;
  }

 private:
  std::filesystem::path path_;
};

// The bytes of a file with this header and data; the length in front can be forced.
inline std::string safetensors_bytes(std::string_view header, std::string_view data,
                                     std::uint64_t header_bytes) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header_bytes >> (8 * i));
  bytes += header;
  bytes += data;
  return bytes;
}
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  return safetensors_bytes(header, data, header.size());
}

// Moondream's shape in very small: about 50 thousand parameters.
inline ModelConfig very_small_config() {
  ModelConfig config;
  config.text = {.dim = 32,
                 .ff_dim = 64,
                 .n_layers = 2,
                 .vocab_size = 96,
                 .max_context = 64,
                 .n_heads = 4,
                 .n_kv_heads = 4};
  config.vision = {.enc_dim = 24,
                   .enc_patch_size = 4,
                   .enc_n_layers = 2,
                   .enc_ff_dim = 40,
                   .enc_n_heads = 2,
                   .proj_inner_dim = 48,
                   .proj_out_dim = 32,
                   .crop_size = 20,
                   .overlap_margin = 1};
  config.region = {.dim = 32,
                   .coord_feat_dim = 16,
                   .coord_out_dim = 64,
                   .size_feat_dim = 32,
                   .size_out_dim = 128,
                   .inner_dim = 48};
  TokenizerConfig& tokenizer = config.tokenizer;
  tokenizer.caption_short = TokenizerConfig::ids({1, 10, 2, 11, 3});
  tokenizer.caption_normal = TokenizerConfig::ids({1, 10, 2, 12, 3});
  tokenizer.caption_long = {};
  tokenizer.query = {TokenizerConfig::ids({1, 13, 2}), TokenizerConfig::ids({3, 3})};
  tokenizer.detect = {TokenizerConfig::ids({1, 14, 2}), TokenizerConfig::ids({3})};
  tokenizer.point = {TokenizerConfig::ids({1, 15, 2}), TokenizerConfig::ids({3})};
  return config;
}

struct StoredTensor {
  std::string name;
  TensorDType dtype;
  std::vector<std::int64_t> shape;
};
using Tensors = std::vector<StoredTensor>;

inline Tensors tensors_of(const ModelConfig& config, TensorDType dtype, bool legacy = false) {
  Tensors tensors;
  for (const WeightSpec& spec : weight_specs(config)) {
    tensors.push_back({legacy ? spec.legacy_name : spec.name, dtype, spec.shape});
    if (legacy && spec.legacy_transposed) std::ranges::reverse(tensors.back().shape);
  }
  return tensors;
}

// All tensors at their full size in a sparse file.
inline void write_weights(const std::filesystem::path& path, const Tensors& tensors) {
  boost::json::object header;
  std::size_t end = 0;
  for (const StoredTensor& tensor : tensors) {
    std::size_t bytes = tensor_dtype_bytes(tensor.dtype);
    boost::json::array shape;
    for (const std::int64_t side : tensor.shape) {
      bytes *= static_cast<std::size_t>(side);
      shape.emplace_back(side);
    }
    header[tensor.name] = {{"dtype", tensor_dtype_name(tensor.dtype)},
                           {"shape", shape},
                           {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  const std::string head = safetensors_bytes(boost::json::serialize(header), "");
  ASSERT_TRUE(write_file(path, std::as_bytes(std::span(head))).ok());
  std::filesystem::resize_file(path, head.size() + end);
}

}  // namespace gapless::testing_files
