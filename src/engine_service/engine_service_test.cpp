// The engine as the server sees it, with the model that ships.
#include "engine_service/engine_service.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "image/decode_image.h"
#include "image/write_png.h"

namespace gapless {
namespace {

struct EndSink final : ResponseSink {
  void on_text(std::string_view, int) override {}
  void on_done(const SkillResult&) override { ended.set_value(); }
  void on_error(const Status&) override { ended.set_value(); }
  std::promise<void> ended;
};

bool has_name(const ModelConfig& config, std::string_view name) {
  const std::vector<std::string> names = published_names(config);
  return std::find(names.begin(), names.end(), name) != names.end();
}

TEST(PublishedNamesTest, AModelKeepsItsNamesWhateverContextIsServed) {
  for (const int context : {1024, 8192}) {
    ModelConfig moondream2 = moondream2_config();
    moondream2.text.max_context = context;
    EXPECT_TRUE(has_name(moondream2, "moondream2"));
    EXPECT_FALSE(has_name(moondream2, "moondream3-preview"));
    ModelConfig moondream3 = moondream3_config();
    moondream3.text.max_context = context;
    EXPECT_TRUE(has_name(moondream3, "moondream3-preview"));
    EXPECT_FALSE(has_name(moondream3, "moondream2"));
    moondream3.text.n_layers -= 1;
    EXPECT_TRUE(published_names(moondream3).empty());
  }
}

// A request that runs long, submitted again where it ended before the test saw what it waits for.
class LongRequest {
 public:
  explicit LongRequest(EngineService& service) : service_(service) {}

  void wait_until(const std::function<bool()>& seen) {
    for (int attempt = 0; attempt < 20; ++attempt) {
      submit();
      while (!has_ended()) {
        if (seen()) return;
        std::this_thread::yield();
      }
    }
    FAIL() << "the machine is too busy to see a request run";
  }
  bool has_ended() const {
    return ended_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  void cancel() {
    service_.cancel(id_);
    ended_.wait();
  }

 private:
  void submit() {
    SkillRequest request;
    request.text = "why?";
    request.settings.max_tokens = 1500;
    request.settings.ignore_eos = true;
    const auto sink = std::make_shared<EndSink>();
    ended_ = sink->ended.get_future();
    const auto id = service_.submit(std::move(request), sink);
    ASSERT_TRUE(id.ok()) << id.status().to_string();
    id_ = *id;
  }

  EngineService& service_;
  std::future<void> ended_;
  RequestId id_;
};

double tokens_held(const ServiceMetrics& device) {
  return device.kv_usage * device.num_pages * device.page_tokens;
}

std::unique_ptr<EngineService> make_service(const std::string& model, const std::string& name,
                                            std::vector<std::string> devices = {"cpu"}) {
  auto engines = EngineGroup::start(
      std::move(devices),
      [&](std::size_t) { return load_model(open_device("cpu").value(), model); }, {});
  GAPLESS_CHECK_MSG(engines.ok(), engines.status().to_string());
  return std::make_unique<EngineService>(std::move(engines).value(), name);
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
  LongRequest request(*service_);
  ServiceMetrics running;
  ASSERT_NO_FATAL_FAILURE(request.wait_until([&] {
    running = service_->metrics();
    // All that it may ever need. One that has just ended waits until its last event is out.
    return running.num_running > 0 && tokens_held(running) >= 1500 && running.num_waiting == 0;
  }));
  EXPECT_LT(running.kv_usage, 1);
  request.cancel();
  while (service_->metrics().num_running > 0) std::this_thread::yield();
  // Its pages may come back a step later. Those of the warm-up's picture are cached and count for nobody.
  while (service_->metrics().kv_usage > 0) std::this_thread::yield();
  const ServiceMetrics idle = service_->metrics();
  EXPECT_GT(idle.num_encode_steps, 0);
  EXPECT_GT(idle.num_decode_steps, 0);
  EXPECT_EQ(idle.num_forbidden_calls, 0) << "I7";
}

// Of 48 MB of raster the rows that are there at a time, while it is decoded.
TEST_F(EngineServiceTest, PicturesThatAreDecodedShowTheirMemory) {
  EXPECT_EQ(service_->metrics().picture_memory_bytes, 0);
  constexpr int kSide = 4000;
  std::int64_t most = 0;
  // We may look too late, but not every time.
  for (std::uint8_t shade = 0; shade < 20 && most == 0; ++shade) {
    const Image image{kSide, kSide, Pixels(std::size_t{3} * kSide * kSide, shade)};
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
  EXPECT_GE(most, std::int64_t{3} * kSide * kRowsKept);
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

TEST_F(EngineServiceTest, OneDeviceIsToldFromAnother) {
  const std::unique_ptr<EngineService> service = make_service("", "two", {"cpu:0", "cpu:1"});
  ASSERT_TRUE(service->warm_up().ok());
  const int max_running = service_->info().max_running;
  EXPECT_EQ(service->info().max_running, 2 * max_running);
  EXPECT_EQ(service->info().device.substr(0, 4), "2 x ");
  const std::vector<ServiceMetrics> devices = service->device_metrics();
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0].device, "cpu:0");
  EXPECT_EQ(devices[1].device, "cpu:1");
  for (const ServiceMetrics& device : devices) {
    EXPECT_GT(device.num_encode_steps, 0) << "warm";
    EXPECT_FALSE(device.lost);
    EXPECT_EQ(device.num_pages, service_->metrics().num_pages);
  }
  const ServiceMetrics all = service->metrics();
  EXPECT_EQ(all.num_pages, 2 * devices[0].num_pages);
  EXPECT_EQ(all.num_decode_steps, devices[0].num_decode_steps + devices[1].num_decode_steps);

  // A request is seen where it runs, and in the sum. Known by its pages: read-ahead of the warm-up's
  // answers may still count as running.
  LongRequest request(*service);
  std::size_t busy = 0;
  ASSERT_NO_FATAL_FAILURE(request.wait_until([&] {
    const std::vector<ServiceMetrics> now = service->device_metrics();
    busy = tokens_held(now[0]) >= 1500 ? 0 : 1;
    return tokens_held(now[busy]) >= 1500 && now[busy].num_running == 1 &&
           tokens_held(now[1 - busy]) == 0;
  }));
  EXPECT_NEAR(service->metrics().kv_usage, service->device_metrics()[busy].kv_usage / 2, 1e-9);
  // Each timeline is its own device's: only one of them goes on.
  const auto last_step = [&](std::size_t device) {
    return service->timeline(1, devices[device].device)->steps.back().number;
  };
  const std::int64_t idle_step = last_step(1 - busy);
  const std::int64_t busy_step = last_step(busy);
  while (last_step(busy) < busy_step + 100 && !request.has_ended()) std::this_thread::yield();
  EXPECT_GE(last_step(busy), busy_step + 100);
  EXPECT_LT(last_step(1 - busy), idle_step + 50);
  request.cancel();

  const auto timeline = service->timeline(50, "cpu:1");
  ASSERT_TRUE(timeline.ok());
  EXPECT_EQ(timeline->device, "cpu:1");
  EXPECT_EQ(timeline->devices, (std::vector<std::string>{"cpu:0", "cpu:1"}));
  EXPECT_EQ(service->timeline(50)->device, "cpu:0");
  EXPECT_EQ(service->timeline(50, "cpu").status().code(), StatusCode::kInvalidArgument);
  const std::string trace = service->trace(10).value();
  EXPECT_NE(trace.find("cpu:0"), std::string::npos);
  EXPECT_NE(trace.find("cpu:1"), std::string::npos);
  ASSERT_TRUE(service->set_depth(1).ok());
  EXPECT_EQ(service->timeline(1, "cpu:0")->depth, 1);
  EXPECT_EQ(service->timeline(1, "cpu:1")->depth, 1);
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
