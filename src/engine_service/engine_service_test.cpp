// The engine as the server sees it, with the model that ships.
#include "engine_service/engine_service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "image/write_png.h"

namespace gapless {
namespace {

struct EndSink final : ResponseSink {
  void on_text(std::string_view, int) override {}
  void on_done(const SkillResult&) override { ended.set_value(); }
  void on_error(const Status&) override { ended.set_value(); }
  std::promise<void> ended;
};

std::unique_ptr<EngineService> make_service(const std::string& model, const std::string& name) {
  auto loaded = load_model(open_device("cpu").value(), model);
  GAPLESS_CHECK_MSG(loaded.ok(), loaded.status().to_string());
  return std::make_unique<EngineService>(Engine::start(std::move(loaded).value(), {}).value(),
                                         name);
}

class EngineServiceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    service_ = make_service(GAPLESS_SOURCE_DIR "/models/tiny/model.safetensors", "").release();
  }
  static void TearDownTestSuite() { delete service_; }

  static EngineService* service_;
};

EngineService* EngineServiceTest::service_ = nullptr;

TEST_F(EngineServiceTest, TheModelIsCalledAsItsFolder) {
  EXPECT_EQ(service_->info().model, "tiny");
  EXPECT_EQ(service_->info().max_context, 2048);
  EXPECT_EQ(make_service(GAPLESS_SOURCE_DIR "/models/tiny/", "")->info().model, "tiny");
  EXPECT_EQ(make_service("", "mine")->info().model, "mine");
}

TEST_F(EngineServiceTest, ARequestRunsOrWaitsAndItsPrefixStays) {
  ASSERT_TRUE(service_->warm_up().ok());
  SkillRequest request;
  request.text = "why?";
  request.settings.max_tokens = 1500;
  request.settings.ignore_eos = true;
  auto sink = std::make_shared<EndSink>();
  const auto id = service_->submit(std::move(request), sink);
  ASSERT_TRUE(id.ok()) << id.status().to_string();
  while (service_->metrics().num_running == 0) std::this_thread::yield();
  EXPECT_GT(service_->metrics().kv_usage, 0);
  EXPECT_LT(service_->metrics().kv_usage, 1);
  EXPECT_EQ(service_->metrics().num_waiting, 0);
  service_->cancel(*id);
  sink->ended.get_future().wait();
  while (service_->metrics().num_running > 0) std::this_thread::yield();
  // Its pages may come back a step later. Those of the warm-up's picture are cached and count for nobody.
  while (service_->metrics().kv_usage > 0) std::this_thread::yield();
  const ServiceMetrics idle = service_->metrics();
  EXPECT_GT(idle.num_encode_steps, 0);
  EXPECT_GT(idle.num_decode_steps, 0);
  EXPECT_EQ(idle.num_forbidden_calls, 0) << "I7";
}

// 48 MB of raster, while they are decoded.
TEST_F(EngineServiceTest, PicturesThatAreDecodedShowTheirMemory) {
  EXPECT_EQ(service_->metrics().picture_memory_bytes, 0);
  constexpr int kSide = 4000;
  std::int64_t most = 0;
  // We may look too late, but not every time.
  for (std::uint8_t shade = 0; shade < 20 && most == 0; ++shade) {
    const Image image{kSide, kSide,
                      std::vector<std::uint8_t>(std::size_t{3} * kSide * kSide, shade)};
    const std::vector<std::byte> png = encode_png(image).value();
    SkillRequest request;
    request.text = "why?";
    request.images = {
        std::make_shared<const std::string>(reinterpret_cast<const char*>(png.data()), png.size())};
    auto sink = std::make_shared<EndSink>();
    auto ended = sink->ended.get_future();
    const auto id = service_->submit(std::move(request), sink);
    ASSERT_TRUE(id.ok()) << id.status().to_string();
    while (most == 0 && ended.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      most = service_->metrics().picture_memory_bytes;
    }
    service_->cancel(*id);
    ended.wait();
  }
  EXPECT_GE(most, std::int64_t{3} * kSide * kSide);
  while (service_->metrics().picture_memory_bytes > 0) std::this_thread::yield();
  EXPECT_EQ(service_->metrics().num_pictures_waiting, 0);
}

TEST_F(EngineServiceTest, TheModelIsDescribed) {
  const ServiceInfo info = service_->info();
  EXPECT_EQ(info.weight_type, "F32");
  EXPECT_GT(info.num_parameters, 1'000'000);
  EXPECT_GE(info.weight_bytes, 4 * info.num_parameters) << "padding and copies come on top";
  EXPECT_FALSE(info.on_gpu);
  EXPECT_GT(info.max_running, 0);
  EXPECT_EQ(info.digest.size(), 64u);
  EXPECT_NE(make_service("", "mine")->info().digest, info.digest);
}

TEST_F(EngineServiceTest, TheDepthMayBeWhatItWasStartedFor) {
  const int max_depth = service_->timeline(1)->max_depth;
  EXPECT_TRUE(service_->set_depth(1).ok());
  EXPECT_EQ(service_->timeline(1)->depth, 1);
  EXPECT_TRUE(service_->set_depth(max_depth).ok());
  EXPECT_EQ(service_->set_depth(max_depth + 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(service_->set_depth(0).code(), StatusCode::kInvalidArgument);
}

TEST_F(EngineServiceTest, IdsThatAreNoTokensAreRefused) {
  const auto ids = service_->tokenize("a star");
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(service_->detokenize(*ids).value(), "a star");
  for (const int id : {-1, 1 << 20}) {
    EXPECT_EQ(service_->detokenize({TokenId(id)}).status().code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace gapless
