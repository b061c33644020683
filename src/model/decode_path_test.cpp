// A model tells at load that its decode steps are not the fastest, and why.
#include "model/decode_path.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "kernels/one_launch_decoder.h"
#include "kernels/reference/reference_kernels.h"
#include "model/moondream/vision_language_model.h"
#include "model/step_limits.h"

namespace gapless {
namespace {

// Takes as its fastest way what the kernel of a whole decode step does.
class OneLaunchKernels final : public ReferenceKernels {
 public:
  Status check_fast_decoder(const DecoderBlocksParams& params) const override {
    if (params.num_tokens > 8) return Status(StatusCode::kUnavailable, "more than 8 rows");
    return check_one_launch_decoder(params);
  }
};

ModelConfig small_config() {
  ModelConfig config;
  config.text = {.dim = 128,
                 .ff_dim = 256,
                 .n_layers = 1,
                 .vocab_size = 64,
                 .max_context = 1024,
                 .n_heads = 2,
                 .n_kv_heads = 2};
  config.vision = {.enc_dim = 16,
                   .enc_n_layers = 1,
                   .enc_ff_dim = 16,
                   .enc_n_heads = 1,
                   .proj_inner_dim = 16,
                   .proj_out_dim = 128};
  config.region = {.dim = 128, .coord_feat_dim = 16, .size_feat_dim = 16, .inner_dim = 16};
  return config;
}

// The log of making a model with so many seats.
std::string log_of(const ModelConfig& config, int max_seats) {
  const std::unique_ptr<Device> device = open_device("cpu").value();
  OneLaunchKernels kernels;
  const auto stream = device->create_stream("test").value();
  ModelWeights weights = allocate_weights(*device, *stream, config, DType::kF32).value();
  EXPECT_TRUE(stream->synchronize().ok());
  StepLimits limits =
      choose_step_limits(*device, kernels, model_shape(config), KvFormat::kNative).value();
  limits.max_seats = max_seats;
  limits.num_pages = 1 + limits.max_pages_per_row;
  testing::internal::CaptureStderr();
  const auto model = VisionLanguageModel::create(*device, kernels, config, std::move(weights),
                                                 limits, KvFormat::kNative);
  std::string log = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  return log;
}

TEST(DecodePathTest, TheLogSaysWhyDecodeStepsAreComposed) {
  ModelConfig config = small_config();
  EXPECT_EQ(log_of(config, 8), "");
  EXPECT_NE(log_of(config, 9).find("the largest decode steps are composed of single ops, because "
                                   "more than 8 rows"),
            std::string::npos);
  config.text.ff_dim = 200;  // padded to 208
  EXPECT_NE(log_of(config, 8).find("decode steps are composed of single ops, because a width of "
                                   "208 is no multiple of 128"),
            std::string::npos);
  config = small_config();
  config.text.tau_attn = true;
  EXPECT_NE(log_of(config, 8).find("decode steps are composed of single ops, because its query and "
                                   "value heads are scaled (tau)"),
            std::string::npos);
  config = small_config();
  config.text.moe = {.num_experts = 4, .experts_per_token = 2, .expert_inner_dim = 16};
  EXPECT_NE(log_of(config, 8).find("composed of single ops, because its first layer has experts"),
            std::string::npos);
}

}  // namespace
}  // namespace gapless
