#include "kernels/one_launch_decoder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace gapless {
namespace {

// Moondream 2's decoder. Addresses are not looked at.
struct Described {
  Described() {
    static const char kThere = 0;
    auto product = [&](int in, int out) {
      return LinearWeights{.weight = &kThere, .bias = &kThere, .in = in, .out = out};
    };
    const NormWeights norm{.gamma = &kThere, .beta = &kThere};
    for (int i = 0; i < 24; ++i) {
      blocks.push_back({.norm = norm,
                        .qkv = product(2048, 6144),
                        .proj = product(2048, 2048),
                        .ff = {.up = product(2048, 8192), .down = product(8192, 2048)}});
    }
    head = {.norm = norm, .linear = product(2048, 51200)};
    params.heads = {.num_heads = 32, .num_kv_heads = 32, .head_dim = 64};
    params.rotary_dim = 32;
    params.max_context = 2048;
    params.decode = true;
  }
  Status check() {
    params.blocks = blocks.data();
    params.num_blocks = static_cast<int>(blocks.size());
    params.head = &head;
    return check_one_launch_decoder(params);
  }

  std::vector<DecoderBlock> blocks;
  DecoderHead head;
  DecoderBlocksParams params;
};

TEST(OneLaunchDecoderTest, TakesMoondream2) {
  EXPECT_TRUE(Described().check().ok()) << Described().check().message();
}

// Llama 3's 8B, and with its heads normalised Qwen3's.
struct DescribedLlama : Described {
  DescribedLlama() {
    static const char kThere = 0;
    auto product = [&](int in, int out) {
      return LinearWeights{.weight = &kThere, .in = in, .out = out};
    };
    const NormWeights norm{.kind = NormKind::kRms, .gamma = &kThere};
    blocks.assign(32, {.residual = Residual::kSequential,
                       .norm = norm,
                       .ff_norm = norm,
                       .qkv = product(4096, 6144),
                       .proj = product(4096, 4096),
                       .ff = {.kind = FeedForwardKind::kGated,
                              .activation = Activation::kSilu,
                              .up = product(4096, 28672),
                              .down = product(14336, 4096)}});
    head = {.norm = norm, .linear = product(4096, 128256)};
    params.heads = {.num_heads = 32, .num_kv_heads = 8, .head_dim = 128};
    params.rotary_dim = 128;
    params.max_context = 32768;
  }
};

TEST(OneLaunchDecoderTest, TakesLlama3AndQwen3) {
  DescribedLlama llama;
  EXPECT_TRUE(llama.check().ok()) << llama.check().message();
  for (DecoderBlock& block : llama.blocks) block.q_norm = block.k_norm = block.norm;
  EXPECT_TRUE(llama.check().ok()) << llama.check().message();
}

struct Difference {
  std::string reason;
  std::function<void(Described&)> make;
};

template <typename Model>
void expect_reasons(const std::vector<Difference>& differences) {
  for (const Difference& difference : differences) {
    Model described;
    difference.make(described);
    const Status status = described.check();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << difference.reason;
    EXPECT_NE(status.message().find(difference.reason), std::string::npos)
        << difference.reason << " in: " << status.message();
  }
}

// One difference at a time, in the last block where it is a block's.
TEST(OneLaunchDecoderTest, SaysWhatItDoesNotTake) {
  static const float kGamma = 1;
  const std::vector<Difference> differences = {
      {"some of its blocks are sequential",
       [](Described& d) { d.blocks.back().residual = Residual::kSequential; }},
      {"RMS", [](Described& d) { d.blocks.back().norm.kind = NormKind::kRms; }},
      {"normalised", [](Described& d) { d.blocks.back().q_norm.gamma = &kGamma; }},
      {"normalised", [](Described& d) { d.blocks.back().k_norm.gamma = &kGamma; }},
      {"heads are scaled", [](Described& d) { d.blocks.back().head_scales.alpha = &kGamma; }},
      {"heads that are not scaled",
       [](Described& d) { d.blocks.back().ff.kind = FeedForwardKind::kExperts; }},
      {"its feed-forward has experts",
       [](Described& d) { d.blocks[5].ff.kind = FeedForwardKind::kExperts; }},
      {"gated", [](Described& d) { d.blocks.back().ff.kind = FeedForwardKind::kGated; }},
      {"not GELU", [](Described& d) { d.blocks.back().ff.activation = Activation::kSilu; }},
      {"no bias", [](Described& d) { d.blocks.back().qkv.bias = nullptr; }},
      {"no bias", [](Described& d) { d.blocks.back().ff.down.bias = nullptr; }},
      {"differ in eps", [](Described& d) { d.blocks.back().norm.eps = 1e-6f; }},
      {"KV cache", [](Described& d) { d.blocks.back().kv.format = KvFormat::kFp8; }},
      {"last norm", [](Described& d) { d.head.norm.kind = NormKind::kRms; }},
      {"last norm", [](Described& d) { d.head.norm.eps = 1e-6f; }},
      {"logits has no bias", [](Described& d) { d.head.linear.bias = nullptr; }},
      {"65 layers", [](Described& d) { d.blocks.resize(65, d.blocks.front()); }},
      {"128 dims", [](Described& d) { d.params.heads.head_dim = 128; }},
      {"32 query heads share 8 key heads", [](Described& d) { d.params.heads.num_kv_heads = 8; }},
      {"odd number of heads",
       [](Described& d) {
         d.params.heads = {.num_heads = 31, .num_kv_heads = 31, .head_dim = 64};
       }},
      {"1920 wide together, the model 2048",
       [](Described& d) {
         d.params.heads = {.num_heads = 30, .num_kv_heads = 30, .head_dim = 64};
       }},
      {"4096 wide, more than 2048",
       [](Described& d) {
         for (DecoderBlock& block : d.blocks) block.qkv.in = 4096;
         d.params.heads = {.num_heads = 64, .num_kv_heads = 64, .head_dim = 64};
       }},
      {"8200 is no multiple of 128",
       [](Described& d) {
         for (DecoderBlock& block : d.blocks) block.ff.down.in = 8200;
       }},
      {"40 rotary dims", [](Described& d) { d.params.rotary_dim = 40; }},
      {"2049 tokens, more than 2048", [](Described& d) { d.params.max_context = 2049; }},
  };
  expect_reasons<Described>(differences);
}

TEST(OneLaunchDecoderTest, SaysWhatItDoesNotTakeOfSequentialBlocks) {
  static const float kGamma = 1;
  expect_reasons<DescribedLlama>({
      {"other norms", [](Described& d) { d.blocks.back().norm.kind = NormKind::kLayer; }},
      {"other norms", [](Described& d) { d.blocks.back().ff_norm.kind = NormKind::kLayer; }},
      {"norms differ in eps", [](Described& d) { d.blocks.back().ff_norm.eps = 1e-3f; }},
      {"only its query", [](Described& d) { d.blocks.back().q_norm.gamma = &kGamma; }},
      {"another norm than its rows",
       [](Described& d) {
         DecoderBlock& block = d.blocks.back();
         block.q_norm = block.k_norm = block.norm;
         block.k_norm.eps = 1e-3f;
       }},
      {"not gated", [](Described& d) { d.blocks.back().ff.kind = FeedForwardKind::kDense; }},
      {"gate is not SiLU", [](Described& d) { d.blocks.back().ff.up_offset = 1; }},
      {"gate is not SiLU",
       [](Described& d) { d.blocks.back().ff.activation = Activation::kGeluTanh; }},
      {"sequential blocks has a bias", [](Described& d) { d.blocks.back().qkv.bias = &kGamma; }},
      {"logits has a bias", [](Described& d) { d.head.linear.bias = &kGamma; }},
      {"last norm", [](Described& d) { d.head.norm.kind = NormKind::kLayer; }},
      {"heads have 64 dims", [](Described& d) { d.params.heads.head_dim = 64; }},
      {"8 of its query heads share a key head",
       [](Described& d) { d.params.heads.num_kv_heads = 4; }},
      {"5120 wide, more than 4096",
       [](Described& d) {
         for (DecoderBlock& block : d.blocks) block.qkv.in = 5120;
       }},
      {"14340 is no multiple",
       [](Described& d) {
         for (DecoderBlock& block : d.blocks) block.ff.down.in = 14340;
       }},
      {"only 64 dims of its heads of 128", [](Described& d) { d.params.rotary_dim = 64; }},
      {"32769 tokens, more than 32768", [](Described& d) { d.params.max_context = 32769; }},
  });
}

// Moondream 3: of 24 layers the first four are dense.
struct DescribedMoondream3 : Described {
  DescribedMoondream3() {
    static const char kThere = 0;
    for (DecoderBlock& block : blocks) {
      block.head_scales = {.products = {.weight = &kThere, .in = 6144, .out = 64},
                           .alpha = &kThere};
    }
    for (std::size_t i = 4; i < blocks.size(); ++i) {
      blocks[i].ff = {.kind = FeedForwardKind::kExperts,
                      .activation = Activation::kGeluErf,
                      .up_offset = 1,
                      .up = {.weight = &kThere, .in = 2048, .out = 2048},
                      .down = {.weight = &kThere, .in = 1024, .out = 2048},
                      .num_experts = 64,
                      .experts_per_token = 8,
                      .router = {.weight = &kThere, .bias = &kThere, .in = 2048, .out = 64}};
    }
    params.max_context = 8192;
  }
};

TEST(OneLaunchDecoderTest, TakesMoondream3) {
  DescribedMoondream3 moondream;
  EXPECT_TRUE(moondream.check().ok()) << moondream.check().message();
  moondream.params.max_context = 32768;
  EXPECT_TRUE(moondream.check().ok()) << moondream.check().message();
}

TEST(OneLaunchDecoderTest, SaysWhatItDoesNotTakeOfBlocksWithExperts) {
  static const float kThere = 1;
  const auto of_experts = [](Described& d, const std::function<void(FeedForward&)>& change) {
    for (std::size_t i = 4; i < d.blocks.size(); ++i) change(d.blocks[i].ff);
  };
  expect_reasons<DescribedMoondream3>({
      {"experts and an 8-bit cache",
       [](Described& d) {
         for (DecoderBlock& block : d.blocks) block.kv.format = KvFormat::kFp8;
       }},
      {"heads that are not scaled",
       [](Described& d) { d.blocks.front().head_scales.alpha = nullptr; }},
      {"scaled in another way",
       [](Described& d) { d.blocks.back().head_scales.activation = Activation::kGeluErf; }},
      {"scaled in another way",
       [](Described& d) { d.blocks.front().head_scales.bf16_positions = false; }},
      {"not GELU(a) * (b + 1)", [](Described& d) { d.blocks.back().ff.up_offset = 0; }},
      {"not GELU(a) * (b + 1)",
       [](Described& d) { d.blocks.back().ff.activation = Activation::kGeluTanh; }},
      {"experts have biases", [](Described& d) { d.blocks.back().ff.up.bias = &kThere; }},
      {"80 experts",
       [&](Described& d) { of_experts(d, [](FeedForward& ff) { ff.num_experts = 80; }); }},
      {"60 experts",
       [&](Described& d) { of_experts(d, [](FeedForward& ff) { ff.num_experts = 60; }); }},
      {"a token has 16 experts",
       [&](Described& d) {
         of_experts(d, [](FeedForward& ff) { ff.experts_per_token = 16, ff.down.in = 512; });
       }},
      {"an expert's width of 1000",
       [&](Described& d) {
         of_experts(d, [](FeedForward& ff) { ff.down.in = 1000; });
         for (std::size_t i = 0; i < 4; ++i) d.blocks[i].ff.down.in = 8000;
       }},
      {"an expert's width of 4096",
       [&](Described& d) {
         of_experts(d, [](FeedForward& ff) { ff.down.in = 4096, ff.experts_per_token = 4; });
         for (std::size_t i = 0; i < 4; ++i) d.blocks[i].ff.down.in = 16384;
       }},
      {"its dense layers are 4096 wide, a token's experts 8192",
       [](Described& d) { d.blocks.front().ff.down.in = 4096; }},
      {"differ in their experts", [](Described& d) { d.blocks[7].ff.num_experts = 48; }},
      {"first layer has experts", [](Described& d) { d.blocks.front().ff = d.blocks.back().ff; }},
      {"a dense layer follows one with experts",
       [](Described& d) { std::swap(d.blocks[3], d.blocks[4]); }},
      {"29 layers, more than 28", [](Described& d) { d.blocks.resize(29, d.blocks.back()); }},
      {"32769 tokens, more than 32768", [](Described& d) { d.params.max_context = 32769; }},
  });
}

}  // namespace
}  // namespace gapless
