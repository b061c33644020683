#include "tests/per_device/kernels_fixture.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/random_weights.h"
#include "kernels/kv_index.h"

namespace gapless {

void KernelsTest::SetUp() {
  ASSERT_NO_FATAL_FAILURE(DeviceTest::SetUp());
  auto kernels = make_kernels(*device_, test_compute());
  ASSERT_TRUE(kernels.ok()) << kernels.status().to_string();
  kernels_ = std::move(kernels).value();
  auto stream = device_->create_stream("compute");
  ASSERT_TRUE(stream.ok()) << stream.status().to_string();
  stream_ = std::move(stream).value();
}

void KernelsTest::TearDown() {
  stream_.reset();
  kernels_.reset();
}

std::vector<float> KernelsTest::random_values(std::size_t size, float stddev, float mean) {
  std::vector<float> values(size + 1);
  for (std::size_t i = 0; i < size; i += 2) {
    const std::uint64_t bits = random_();
    values[i] = mean + stddev * unit_noise(static_cast<std::uint32_t>(bits));
    values[i + 1] = mean + stddev * unit_noise(static_cast<std::uint32_t>(bits >> 32));
  }
  values.resize(size);
  return values;
}

TestTensor KernelsTest::tensor(std::vector<float> values) {
  for (float& value : values) value = round_to(dtype(), value);
  TestTensor result;
  if (is_f32()) {
    result.device = upload(values);
  } else {
    std::vector<std::uint16_t> halves(values.size());
    std::transform(values.begin(), values.end(), halves.begin(), f32_to_bf16);
    result.device = upload(halves);
  }
  result.host = std::move(values);
  return result;
}

TestTensor KernelsTest::random_tensor(std::size_t size, float stddev, float mean) {
  return tensor(random_values(size, stddev, mean));
}

Buffer KernelsTest::upload_bytes(const void* data, std::size_t bytes) {
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  auto buffer = device_->allocate(size);
  auto pinned = device_->allocate_pinned(size);
  EXPECT_TRUE(buffer.ok() && pinned.ok());
  if (bytes > 0) {
    std::memcpy(pinned->data(), data, bytes);
    EXPECT_TRUE(stream_->copy_to_device(buffer->data(), pinned->data(), bytes).ok());
    EXPECT_TRUE(stream_->synchronize().ok());
  }
  return std::move(buffer).value();
}

Buffer KernelsTest::poisoned_bytes(std::size_t bytes) {
  auto buffer = device_->allocate(std::max<std::size_t>(bytes, 1));
  EXPECT_TRUE(buffer.ok());
  EXPECT_TRUE(stream_->fill_bytes(buffer->data(), kPoison, buffer->size_bytes()).ok());
  return std::move(buffer).value();
}

std::vector<std::uint8_t> KernelsTest::download_bytes(const Buffer& buffer) {
  auto pinned = device_->allocate_pinned(buffer.size_bytes());
  EXPECT_TRUE(pinned.ok());
  EXPECT_TRUE(stream_->copy_to_host(pinned->data(), buffer.data(), buffer.size_bytes()).ok());
  EXPECT_TRUE(stream_->synchronize().ok());
  const auto* bytes = pinned->as<std::uint8_t>();
  return {bytes, bytes + buffer.size_bytes()};
}

std::vector<float> KernelsTest::floats(const Buffer& buffer) {
  if (is_f32()) return download<float>(buffer);
  const std::vector<std::uint16_t> halves = download<std::uint16_t>(buffer);
  std::vector<float> values(halves.size());
  std::transform(halves.begin(), halves.end(), values.begin(), bf16_to_f32);
  return values;
}

Fp8Buffers KernelsTest::rows_to_fp8(const TestTensor& x, int dim) {
  const auto num_rows = x.host.size() / static_cast<std::size_t>(dim);
  Fp8Buffers rows{.values = poisoned_bytes(x.host.size() * kernels_->fp8_element_bytes()),
                  .scales = poisoned_bytes(num_rows * sizeof(float))};
  run(kernels_->rows_to_fp8(*stream_, {.x = x.dev(),
                                       .x_stride = dim,
                                       .y = rows.values.data(),
                                       .y_stride = dim,
                                       .scales = rows.scales.as<float>(),
                                       .num_rows = static_cast<int>(num_rows),
                                       .dim = dim}));
  return rows;
}

TestTensor KernelsTest::kv_tensor(KvFormat format, std::vector<float> values) {
  if (format == KvFormat::kNative) return tensor(std::move(values));
  for (float& value : values) value = float_from_e4m3(e4m3_from_float(value));
  TestTensor result;
  result.device = upload(kv_bytes(format, values));
  result.host = std::move(values);
  return result;
}

std::vector<float> KernelsTest::kv_floats(KvFormat format, const Buffer& buffer) {
  if (format == KvFormat::kNative) return floats(buffer);
  const std::vector<std::uint8_t> codes = download<std::uint8_t>(buffer);
  std::vector<float> values(codes.size());
  load_kv(format, codes.data(), 0, values.data(), static_cast<int>(values.size()));
  return values;
}

std::vector<std::uint8_t> KernelsTest::kv_bytes(KvFormat format, std::span<const float> values) {
  std::vector<std::uint8_t> bytes(values.size() * kv_element_bytes(format, DType::kF32));
  store_kv(format, bytes.data(), 0, values.data(), static_cast<int>(values.size()));
  return bytes;
}

void KernelsTest::run(const Status& status) {
  ASSERT_TRUE(status.ok()) << status.to_string();
  const Status done = stream_->synchronize();
  ASSERT_TRUE(done.ok()) << done.to_string();
}

void KernelsTest::expect_same_in_a_graph(const std::function<Status()>& enqueue,
                                         const std::vector<const Buffer*>& results,
                                         int num_launches) {
  run(enqueue());
  std::vector<std::vector<float>> expected;
  for (const Buffer* result : results) expected.push_back(floats(*result));
  GAPLESS_ASSERT_OK(stream_->begin_capture());
  const Status captured = enqueue();
  const StatusOr<std::unique_ptr<Graph>> graph = stream_->end_capture();
  GAPLESS_ASSERT_OK(captured);
  GAPLESS_ASSERT_OK(graph.status());
  for (int launch = 0; launch < num_launches; ++launch) {
    for (const Buffer* result : results) {
      GAPLESS_ASSERT_OK(stream_->fill_bytes(result->data(), kPoison, result->size_bytes()));
    }
    run(stream_->launch(**graph));
    for (std::size_t i = 0; i < results.size(); ++i) {
      ASSERT_TRUE(bits_equal(floats(*results[i]), expected[i]))
          << "result " << i << ", launch " << launch;
    }
  }
}

std::vector<float> any_rope_table(int max_context, int rotary_dim) {
  std::vector<float> table;
  for (int i = 0; i < max_context * rotary_dim / 2; ++i) {
    const float angle = 0.37f * static_cast<float>(i % 1000);
    table.push_back(std::cos(angle));
    table.push_back(std::sin(angle));
  }
  return table;
}

bool is_poison(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return bits == 0xFFFFFFFFu || bits == 0xFFFF0000u;  // float32; bfloat16 widened
}

bool all_poison(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), is_poison);
}

bool none_poison(std::span<const float> values) {
  return std::none_of(values.begin(), values.end(), is_poison);
}

}  // namespace gapless
