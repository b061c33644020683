// Safetensors files for tests.
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
#include "weights/safetensors.h"

namespace gapless::testing_files {

// An empty folder of its own for each test, removed at its end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string name =
        fmt::format("gapless-{}-{}.{}", ::getpid(), test->test_suite_name(), test->name());
    std::ranges::replace(name, '/', '-');  // of a test with parameters
    path_ = std::filesystem::temp_directory_path() / name;
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

struct StoredTensor {
  std::string name;
  TensorDType dtype;
  std::vector<std::int64_t> shape;
};
using Tensors = std::vector<StoredTensor>;

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
