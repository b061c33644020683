// How large pages are and how many fit, by the format of the cache.
#include <gtest/gtest.h>

#include "base/limits.h"
#include "device/device.h"
#include "model/device_state.h"
#include "model/model_shape.h"
#include "model/step_limits.h"
#include "model/workspace.h"

namespace gapless {
namespace {

TEST(KvPages, BytesOfAPage) {
  const TextShape shape = text_shape(moondream2_config());
  // Keys and values, 24 layers, 16 tokens, width 2048.
  constexpr std::size_t kElements = 2 * 24 * 16 * 2048;
  EXPECT_EQ(kv_page_bytes(shape, DType::kBF16, KvFormat::kNative), 2 * kElements);
  EXPECT_EQ(kv_page_bytes(shape, DType::kF32, KvFormat::kNative), 4 * kElements);
  EXPECT_EQ(kv_page_bytes(shape, DType::kBF16, KvFormat::kFp8), kElements);
  EXPECT_EQ(kv_page_bytes(shape, DType::kF32, KvFormat::kFp8), kElements);
}

TEST(KvPages, SmallerPagesAreMoreOfThem) {
  auto device = open_device("cpu");
  ASSERT_TRUE(device.ok());
  auto kernels = make_kernels(**device);
  ASSERT_TRUE(kernels.ok());
  // Of a width at which the memory is the bound, not the rows' contexts.
  ModelConfig config = moondream2_config();
  config.text.dim = 512;
  config.text.n_heads = config.text.n_kv_heads = 8;
  config.text.n_layers = 6;
  const auto pages = [&](KvFormat format) {
    const auto limits = choose_step_limits(**device, **kernels, model_shape(config), format,
                                           {.kv_cache_bytes = std::size_t{96} << 20});
    EXPECT_TRUE(limits.ok()) << limits.status().to_string();
    return limits.ok() ? limits->num_pages : 0;
  };
  const int native = pages(KvFormat::kNative);
  EXPECT_GT(native, 0);
  EXPECT_EQ(pages(KvFormat::kFp8), 4 * native);  // T is float32 here
}

// One more than the pages of a row: page 0 holds nothing.
TEST(KvPages, ALargeModelOnTheCpuStillHasOneContext) {
  auto device = open_device("cpu");
  ASSERT_TRUE(device.ok());
  auto kernels = make_kernels(**device);
  ASSERT_TRUE(kernels.ok());
  const auto limits =
      choose_step_limits(**device, **kernels, model_shape(moondream2_config()), KvFormat::kNative);
  ASSERT_TRUE(limits.ok()) << limits.status().to_string();
  EXPECT_EQ(limits->max_pages_per_row, 2048 / 16);
  EXPECT_EQ(limits->num_pages, 1 + 2048 / 16);
}

TEST(KvPages, ACacheIsAsLargeAsAskedForOrRefused) {
  auto device = open_device("cpu");
  ASSERT_TRUE(device.ok());
  auto kernels = make_kernels(**device, Compute::kBFloat16);
  ASSERT_TRUE(kernels.ok());
  const ModelShape model = model_shape(moondream2_config());
  const std::size_t page = kv_page_bytes(model.text, DType::kBF16, KvFormat::kNative);
  const auto limits = choose_step_limits(**device, **kernels, model, KvFormat::kNative,
                                         {.kv_cache_bytes = 200 * page + 1});
  ASSERT_TRUE(limits.ok()) << limits.status().to_string();
  EXPECT_EQ(limits->num_pages, 200);
  // One context takes 129 pages.
  const auto small = choose_step_limits(**device, **kernels, model, KvFormat::kNative,
                                        {.kv_cache_bytes = 128 * page});
  EXPECT_EQ(small.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(small.status().message().find("--max-context"), std::string::npos);
  const auto large = choose_step_limits(**device, **kernels, model, KvFormat::kNative,
                                        {.kv_cache_bytes = std::size_t{1} << 60});
  EXPECT_EQ(large.status().code(), StatusCode::kResourceExhausted);
}

TEST(KvPages, RowsAreAsManyAsAskedForAndFewWhereThereIsLittleRoom) {
  auto device = open_device("cpu");
  ASSERT_TRUE(device.ok());
  auto kernels = make_kernels(**device);
  ASSERT_TRUE(kernels.ok());
  const ModelShape model = model_shape(moondream2_config());
  const auto choose = [&](const LimitWishes& wishes) {
    return choose_step_limits(**device, **kernels, model, KvFormat::kNative, wishes);
  };
  const StepLimits usual = choose({}).value();
  const StepLimits one = choose({.max_rows = 1}).value();
  EXPECT_EQ(one.max_seats, 1);
  EXPECT_EQ(one.max_prefill_sequences, static_cast<int>(kMaxImagesPerPrompt));
  EXPECT_EQ(one.max_step_rows(), one.max_prefill_sequences);
  const StepLimits small = choose({.sizing = StepSizing::kSmall}).value();
  EXPECT_LT(small.max_seats, usual.max_seats);
  EXPECT_LT(small.num_image_slots, usual.num_image_slots);
  EXPECT_LT(workspace_bytes(**kernels, model, one), workspace_bytes(**kernels, model, usual));
  EXPECT_EQ(choose({.max_rows = 3, .sizing = StepSizing::kSmall}).value().max_seats, 3);
  EXPECT_EQ(choose({.max_rows = 0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(choose({.max_rows = kMaxSeats + 1}).status().code(), StatusCode::kInvalidArgument);
}

// What does not fit is refused with a context that does.
TEST(KvPages, AContextLongerThanMemoryAllowsIsRefusedWithOneThatFits) {
  auto device = open_device("cpu");
  ASSERT_TRUE(device.ok());
  auto kernels = make_kernels(**device);
  ASSERT_TRUE(kernels.ok());
  // A context of a million positions takes 2 TB of keys and values, whatever machine this is.
  ModelShape model{.text = {.dim = 4096,
                            .num_layers = 128,
                            .heads = {.num_heads = 32, .num_kv_heads = 16, .head_dim = 128},
                            .rotary_dim = 128,
                            .ff_dim = 128,
                            .up_dim = 256,
                            .vocab = 1000,
                            .max_context = kMaxContext},
                   .vision = {},
                   .region = {}};
  const auto refused = choose_step_limits(**device, **kernels, model, KvFormat::kNative);
  ASSERT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  const std::string& message = refused.status().message();
  constexpr std::string_view kOption = "; --max-context ";
  const std::size_t at = message.find(kOption);
  ASSERT_NE(at, message.npos) << message;
  const int fits = std::stoi(message.substr(at + kOption.size()));
  EXPECT_GT(fits, 0);
  model.text.max_context = fits;
  EXPECT_TRUE(choose_step_limits(**device, **kernels, model, KvFormat::kNative).ok());
  model.text.max_context = fits + kPageTokens;
  EXPECT_FALSE(choose_step_limits(**device, **kernels, model, KvFormat::kNative).ok());
  const auto limits = choose_step_limits(
      **device, **kernels,
      {.text = {.dim = 16, .num_layers = 1, .heads = {1, 1, 16}, .max_context = 64}},
      KvFormat::kNative);
  ASSERT_TRUE(limits.ok());
  EXPECT_EQ(limits->num_image_slots, 1) << "a text model has no pictures to hold";
}

TEST(KvPages, TheStateHasPagesOfItsFormat) {
  auto device = open_device("cpu");
  ASSERT_TRUE(device.ok());
  auto stream = (*device)->create_stream("test");
  ASSERT_TRUE(stream.ok());
  const TextShape shape{.dim = 192,  // not that of the keys
                        .num_layers = 3,
                        .heads = {.num_heads = 6, .num_kv_heads = 2, .head_dim = 64},
                        .max_context = 64};
  StepLimits limits;
  limits.max_seats = 2;
  limits.num_pages = 5;
  limits.max_pages_per_row = 4;
  limits.num_image_slots = 1;
  for (const KvFormat format : {KvFormat::kNative, KvFormat::kFp8}) {
    const auto state =
        DeviceState::create(**device, **stream, shape, 1, DType::kF32, format, limits, {});
    ASSERT_TRUE(state.ok()) << state.status().to_string();
    const std::int64_t element = format == KvFormat::kFp8 ? 1 : 4;
    EXPECT_EQ(state->layer_page_bytes(), 2 * 128 * 16 * element);
    const KvLayer last = state->kv_layer(2);
    EXPECT_EQ(last.format, format);
    const auto* base = static_cast<const std::byte*>(state->kv_base());
    EXPECT_EQ(static_cast<const std::byte*>(last.pages) - base, 2 * 5 * 2 * 128 * 16 * element);
    // On the CPU device memory can be looked at.
    for (int row = 0; row < limits.num_rows(); ++row) {
      EXPECT_EQ(state->row_states()[row].done, 1) << "a row that was never installed";
      EXPECT_EQ(state->row_states()[row].num_generated, 0);
    }
  }
}

}  // namespace
}  // namespace gapless
