// A small model of random weights with Moondream's 729 image positions, for the properties that
// hold for any weights. Its widths are awkward on purpose: MLP widths that need padding, an odd
// vocabulary.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "model/moondream/tensors.h"
#include "model/moondream/vision_language_model.h"
#include "model/prepared_weights.h"
#include "model/step_driver.h"
#include "model/weight_loading.h"
#include "testing/tensor_compare.h"
#include "tests/per_device/test_device.h"

namespace gapless {

inline ModelConfig small_random_config() {
  ModelConfig config;
  config.text = {.dim = 128,
                 .ff_dim = 200,
                 .n_layers = 3,
                 .vocab_size = 1001,
                 .max_context = 1024,
                 .n_heads = 2,
                 .n_kv_heads = 2};
  config.vision = {.enc_dim = 144,
                   .enc_n_layers = 2,
                   .enc_ff_dim = 90,
                   .enc_n_heads = 2,
                   .proj_inner_dim = 160,
                   .proj_out_dim = 128};
  config.region = {.dim = 128, .coord_feat_dim = 64, .size_feat_dim = 64, .inner_dim = 96};
  return config;
}

inline StepLimits small_limits(const ModelConfig& config) {
  StepLimits limits;
  limits.max_seats = 4;
  limits.max_prefill_tokens = 2048;
  limits.max_prefill_sequences = 4;
  limits.max_crops_per_encode = 2;
  limits.max_pages_per_row = config.text.max_context / kPageTokens;
  limits.num_pages = 1 + limits.max_seats * limits.max_pages_per_row;
  limits.num_image_slots = 3;
  limits.max_page_deltas = limits.max_seats * limits.max_pages_per_row;
  return limits;
}

class RandomModelTest : public DeviceTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(DeviceTest::SetUp());
    auto kernels = make_kernels(*device_, test_compute());
    ASSERT_TRUE(kernels.ok()) << kernels.status().to_string();
    kernels_ = std::move(kernels).value();
    GAPLESS_ASSERT_OK(make_model(config()));
  }
  void TearDown() override {
    driver_.reset();
    model_.reset();
    kernels_.reset();
  }

  virtual ModelConfig config() const { return small_random_config(); }
  virtual KvFormat kv_format() const { return KvFormat::kNative; }

  bool is_f32() const { return kernels_->activation_dtype() == DType::kF32; }
  int image_tokens() const { return model_->info().image_tokens; }
  int prefix_len() const { return 1 + image_tokens(); }

  // Random rows of slot 0 of the image pool, as if an image had been encoded there.
  Status fill_image_slot(std::uint64_t seed, float stddev = 1.0f) {
    const std::int64_t dim = model_->info().hidden_dim;
    return fill_rows(model_->state().image_slot(0), image_tokens() * dim, seed, stddev);
  }
  // Other values in one row of slot 0.
  Status change_image_row(int row) {
    const std::int64_t dim = model_->info().hidden_dim;
    auto* slot = static_cast<std::byte*>(model_->state().image_slot(0));
    return fill_rows(slot + static_cast<std::size_t>(row) * model_->info().hidden_bytes, dim, 99,
                     1.0f);
  }

  // BOS and the image in slot 0.
  std::vector<TokenInput> image_prefix() const {
    std::vector<TokenInput> inputs{{.kind = InputKind::kText, .id = 0}};
    for (int i = 0; i < image_tokens(); ++i) inputs.push_back({.kind = InputKind::kImage, .id = i});
    return inputs;
  }
  static void append_ids(std::vector<TokenInput>& inputs, std::initializer_list<int> ids) {
    for (const int id : ids) inputs.push_back({.kind = InputKind::kText, .id = id});
  }
  DriverPrompt image_prompt(int row, std::initializer_list<int> ids, int max_generated = 1) const {
    DriverPrompt prompt{.row = row, .inputs = image_prefix(), .prefix_len = prefix_len()};
    append_ids(prompt.inputs, ids);
    prompt.state.max_generated = max_generated;
    return prompt;
  }

  void prefill(const DriverPrompt& prompt) {
    const auto outputs = driver_->prefill({&prompt, 1});
    ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
  }
  std::vector<float> logits(int num_rows = 1) {
    auto values = driver_->logits(num_rows);
    EXPECT_TRUE(values.ok());
    return values.ok() ? std::move(values).value() : std::vector<float>();
  }

  // Keys and values of one layer at positions [begin, end) of a row that owns its pages.
  std::vector<std::byte> keys_and_values(int row, int layer, int begin, int end) {
    const DeviceState& state = model_->state();
    const std::int64_t all = state.layer_page_bytes() * state.num_pages();
    const auto bytes = driver_->read(state.kv_layer(layer).pages, static_cast<std::size_t>(all));
    EXPECT_TRUE(bytes.ok());
    std::vector<std::byte> result;
    for (const KvPart part : {KvPart::kKeys, KvPart::kValues}) {
      for (int position = begin; position < end && bytes.ok(); ++position) {
        const std::int64_t page = driver_->page_of(row, position);
        append_token(*bytes, part, page * kPageTokens + position % kPageTokens, result);
      }
    }
    return result;
  }

  // The same numbers: bit for bit in float32. In bfloat16 a backend may use another algorithm for
  // few rows than for many, each row-invariant.
  void expect_same(const std::vector<float>& actual, const std::vector<float>& expected,
                   int row_size) const {
    if (is_f32()) {
      EXPECT_TRUE(bits_equal(actual, expected));
    } else {
      EXPECT_TRUE(rows_close(actual, expected, row_size, 2e-2));
    }
  }

  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<VisionLanguageModel> model_;
  std::unique_ptr<StepDriver> driver_;

  // prepares_regions: the region heads' matrices as the model's loader leaves them.
  Status make_model(const ModelConfig& config, bool prepares_regions = false) {
    GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device_->create_stream("test"));
    GAPLESS_ASSIGN_OR_RETURN(ModelWeights weights, allocate_weights(*device_, *stream, config,
                                                                    kernels_->activation_dtype()));
    GAPLESS_RETURN_IF_ERROR(fill_random_weights(*kernels_, *stream, weight_specs(config), 5,
                                                weights.layout, weights.buffer.data()));
    GAPLESS_RETURN_IF_ERROR(prepare_decode_weights(*device_, *kernels_, *stream, text_shape(config),
                                                   PreparedFormat::kNative, weights));
    if (prepares_regions) {
      GAPLESS_RETURN_IF_ERROR(
          prepare_in_place(*device_, *kernels_, *stream, region_matrices(weights)));
    }
    GAPLESS_RETURN_IF_ERROR(stream->synchronize());
    GAPLESS_ASSIGN_OR_RETURN(
        model_, VisionLanguageModel::create(*device_, *kernels_, config, std::move(weights),
                                            small_limits(config), kv_format()));
    GAPLESS_ASSIGN_OR_RETURN(driver_, StepDriver::create(*device_, *model_));
    return ok_status();
  }

 private:
  Status fill_rows(void* rows, std::int64_t count, std::uint64_t seed, float stddev) {
    GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device_->create_stream("test"));
    FillRandomParams params;
    params.out = rows;
    params.num_rows = 1;
    params.row_size = count;
    params.row_stride = count;
    params.seed = seed;
    params.stddev = stddev;
    GAPLESS_RETURN_IF_ERROR(kernels_->fill_random(*stream, params));
    return stream->synchronize();
  }

  void append_token(const std::vector<std::byte>& cache, KvPart part, std::int64_t slot,
                    std::vector<std::byte>& result) const {
    const TextConfig& text = model_->config().text;
    const KvLayout layout{.num_heads = text.n_kv_heads, .head_dim = text.head_dim()};
    const auto element_bytes =
        static_cast<std::ptrdiff_t>(kv_element_bytes(kv_format(), kernels_->activation_dtype()));
    for (int head = 0; head < layout.num_heads; ++head) {
      const auto first = cache.begin() + layout.at(part, slot, head) * element_bytes;
      result.insert(result.end(), first, first + layout.head_dim * element_bytes);
    }
  }
};

}  // namespace gapless
