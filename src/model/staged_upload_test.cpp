#include "model/staged_upload.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

#include "device/cpu/cpu_stream.h"
#include "device/device.h"

namespace gapless {
namespace {

class StagedUploadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = open_device("cpu").value();
    stream_ = device_->create_stream("upload").value();
    std::iota(bytes_.begin(), bytes_.end(), std::uint8_t{1});
    to_ = device_->allocate(bytes_.size()).value();
    upload_.emplace(StagedUpload::create(*device_, *stream_, kPieceBytes).value());
  }
  bool arrived() { return std::memcmp(to_.data(), bytes_.data(), bytes_.size()) == 0; }

  static constexpr std::size_t kPieceBytes = 16;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::uint8_t> bytes_ = std::vector<std::uint8_t>(3 * kPieceBytes + 5);
  Buffer to_;
  std::optional<StagedUpload> upload_;
};

TEST_F(StagedUploadTest, PiecesFollowEachOther) {
  ASSERT_TRUE(upload_->copy(to_.data(), std::as_bytes(std::span(bytes_))).ok());
  ASSERT_TRUE(upload_->finish().ok());
  EXPECT_TRUE(arrived());
}

// While the stream is busy the pieces wait to be copied, and must not be filled again.
TEST_F(StagedUploadTest, APieceIsFilledAgainWhenItWasCopied) {
  std::promise<void> go_on;
  auto& cpu_stream = *static_cast<CpuStream*>(stream_->native_handle());
  ASSERT_TRUE(cpu_stream
                  .enqueue([busy = go_on.get_future().share()] {
                    busy.wait();
                    return ok_status();
                  })
                  .ok());
  std::thread ends_it([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    go_on.set_value();
  });
  EXPECT_TRUE(upload_->copy(to_.data(), std::as_bytes(std::span(bytes_))).ok());
  EXPECT_TRUE(upload_->finish().ok());
  ends_it.join();
  EXPECT_TRUE(arrived());
}

}  // namespace
}  // namespace gapless
