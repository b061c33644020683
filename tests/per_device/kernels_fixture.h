// The suite of the op table, the same for every backend: each test runs one op on the device named
// by GAPLESS_TEST_DEVICE (cpu when unset; cpu-bf16) and compares it with the oracle in kernels/reference,
// which runs on host copies of the same values rounded to the backend's T. A device that is asked
// for and is not there fails every test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "device/device.h"
#include "kernels/kernels.h"
#include "kernels/reference/reference_ops.h"
#include "testing/tensor_compare.h"
#include "tests/per_device/kv_format_name.h"
#include "tests/per_device/test_device.h"

namespace gapless {

// Every byte of an output before its op runs: NaN as float32 and as bfloat16, -1 as an integer.
inline constexpr std::uint8_t kPoison = 0xFF;

// Values of type T on the device, and the same values as float32 on the host.
struct TestTensor {
  std::vector<float> host;
  Buffer device;

  const void* dev() const { return device.data(); }
  const float* ref() const { return host.data(); }
};

// What rows_to_fp8 makes of rows.
struct Fp8Buffers {
  Buffer values, scales;
};

class KernelsTest : public DeviceTest {
 protected:
  void SetUp() override;
  void TearDown() override;

  DType dtype() const { return kernels_->activation_dtype(); }
  bool is_f32() const { return dtype() == DType::kF32; }
  // Of one op, relative to the norm of an output row.
  double tolerance() const { return is_f32() ? 2e-5 : 1e-2; }

  // Rounds to T and uploads.
  TestTensor tensor(std::vector<float> values);
  // Nearly normal, cut at 3.5 standard deviations.
  TestTensor random_tensor(std::size_t size, float stddev = 1.0f, float mean = 0.0f);
  std::vector<float> random_values(std::size_t size, float stddev = 1.0f, float mean = 0.0f);

  // Plain structs and integers, byte for byte. An empty vector gives a small buffer, not nullptr.
  template <typename P>
  Buffer upload(const std::vector<P>& values) {
    return upload_bytes(values.data(), values.size() * sizeof(P));
  }
  template <typename P>
  std::vector<P> download(const Buffer& buffer) {
    const std::vector<std::uint8_t> bytes = download_bytes(buffer);
    std::vector<P> values(bytes.size() / sizeof(P));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(P));
    return values;
  }

  Buffer poisoned_bytes(std::size_t bytes);
  Buffer poisoned(std::size_t num_elements) {  // of T
    return poisoned_bytes(num_elements * dtype_bytes(dtype()));
  }
  // Elements of T as float32.
  std::vector<float> floats(const Buffer& buffer);

  // Of x: [*, dim].
  Fp8Buffers rows_to_fp8(const TestTensor& x, int dim);

  // A KV cache. For kFp8 `tensor`'s host values are those that the e4m3 numbers stand for.
  TestTensor kv_tensor(KvFormat format, std::vector<float> values);
  std::vector<float> kv_floats(KvFormat format, const Buffer& buffer);
  // What a reference kernel takes as a cache: the host values in float32, or their e4m3 numbers.
  static std::vector<std::uint8_t> kv_bytes(KvFormat format, std::span<const float> values);

  // Expects the op to have been enqueued, and waits for it.
  void run(const Status& status);

  // What `enqueue` enqueues gives each of `results` the same bits at once and in each of so many launches of its graph.
  void expect_same_in_a_graph(const std::function<Status()>& enqueue,
                              const std::vector<const Buffer*>& results, int num_launches);

  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Stream> stream_;
  std::mt19937_64 random_{20260817};

 private:
  Buffer upload_bytes(const void* data, std::size_t bytes);
  std::vector<std::uint8_t> download_bytes(const Buffer& buffer);
};

// Rows [begin, end) of a [*, row_size] array.
inline std::span<const float> rows_of(const std::vector<float>& values, std::size_t row_size,
                                      std::size_t begin, std::size_t end) {
  return std::span(values).subspan(begin * row_size, (end - begin) * row_size);
}

// Cosines and sines of any angles, as RopeAndCacheParams::rope_table lays them out.
std::vector<float> any_rope_table(int max_context, int rotary_dim);

// Whether every byte of the element still is kPoison (in float32, read back from T).
bool is_poison(float value);
bool all_poison(std::span<const float> values);
bool none_poison(std::span<const float> values);

}  // namespace gapless
