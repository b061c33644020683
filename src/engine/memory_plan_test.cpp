#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "base/host_clock.h"
#include "device/dry_device.h"
#include "device/limited_device.h"
#include "kernels/dry_kernels.h"
#include "kernels/reference/reference_kernels.h"
#include "model/moondream/model_weights.h"

namespace gapless {
namespace {

constexpr std::size_t kGibibyte = std::size_t{1} << 30;

DeviceInfo cpu_info() {
  return open_device("cpu").value()->info().value();
}

ModelSource shipped_model() {
  return find_model("").value();
}

std::size_t bytes_of_part(const MemoryPlan& plan, const std::string& name) {
  for (const MemoryPart& part : plan.parts) {
    if (part.name == name) return part.bytes;
  }
  return 0;
}

TEST(MemoryPlanTest, IsWhatAStartTakes) {
  const ModelOptions options{.kv_cache_bytes = std::size_t{64} << 20, .max_rows = 3};
  const LoopOptions loop_options{.depth = 3};
  constexpr std::size_t kEnough = kGibibyte;
  auto limited = limit_device_memory(open_device("cpu").value(), kEnough);
  Device& device = *limited;
  const auto loaded = load_model(std::move(limited), shipped_model(), options).value();
  RealHostClock clock;
  const auto loop = Loop::create(device, *loaded->model, clock, loop_options).value();
  const MemoryPlan real = memory_of(*loaded->model, *loop);
  const std::size_t taken = kEnough - device.info()->free_memory_bytes;

  const MemoryPlan plan = plan_memory(cpu_info(), shipped_model(), options, loop_options).value();
  ASSERT_EQ(plan.parts.size(), real.parts.size() + 1) << "and the rest";
  for (std::size_t i = 0; i < real.parts.size(); ++i) {
    EXPECT_EQ(plan.parts[i].name, real.parts[i].name);
    EXPECT_EQ(plan.parts[i].bytes, real.parts[i].bytes) << real.parts[i].name;
  }
  EXPECT_EQ(plan.max_rows, 3);
  EXPECT_EQ(plan.cache_tokens, real.cache_tokens);
  // Rounded up to whole lines for each allocation.
  EXPECT_GE(plan.total_bytes(), taken);
  EXPECT_LT(plan.total_bytes(), taken + (std::size_t{64} << 10));
}

TEST(MemoryPlanTest, APlanTakesNoMemoryAndReadsNoWeights) {
  const ModelSource source = find_model("random:moondream3").value();
  DeviceInfo info = cpu_info();
  info.total_memory_bytes = info.free_memory_bytes = 1000 * kGibibyte;
  const MemoryPlan plan = plan_memory(info, source, {}, {}).value();
  EXPECT_GT(bytes_of_part(plan, "weights"), 30 * kGibibyte) << "9 billion in float32";
}

// A bound is kept: with the usual room for steps, with little, or the model is refused with options that do.
TEST(MemoryPlanTest, WhatFitsIsChosenAndWhatDoesNotIsRefusedWithWhatWould) {
  const ModelSource source = find_model("random:moondream2").value();
  const DeviceInfo info = cpu_info();
  const auto fit = [&](std::size_t bytes, const ModelOptions& options) {
    return fit_model(info, bytes, source, options, {});
  };
  const FittedModel roomy = fit(100 * kGibibyte, {}).value();
  EXPECT_FALSE(roomy.plan.is_small);
  EXPECT_LE(roomy.plan.total_bytes() + kDriverBytes, 100 * kGibibyte);
  const std::size_t weights = bytes_of_part(roomy.plan, "weights");

  int num_usual = 0, num_small = 0, num_refused = 0;
  for (std::size_t bytes = weights + 4 * kGibibyte; bytes > weights; bytes -= kGibibyte / 16) {
    const StatusOr<FittedModel> fitted = fit(bytes, {});
    if (!fitted.ok()) {
      ++num_refused;
      EXPECT_EQ(fitted.status().code(), StatusCode::kResourceExhausted);
      continue;
    }
    EXPECT_EQ(num_refused, 0) << "more fits than less";
    EXPECT_LE(fitted->plan.total_bytes() + kDriverBytes, bytes);
    EXPECT_GE(fitted->plan.cache_tokens, fitted->plan.max_context) << "one whole context";
    ++(fitted->plan.is_small ? num_small : num_usual);
    if (fitted->plan.is_small) {
      EXPECT_LT(fitted->plan.max_rows, roomy.plan.max_rows);
    } else {
      EXPECT_EQ(num_small, 0);
    }
  }
  EXPECT_GT(num_usual, 0);
  EXPECT_GT(num_small, 0);
  EXPECT_GT(num_refused, 0);
}

TEST(MemoryPlanTest, ARefusalNamesOptionsThatDo) {
  const ModelSource source = find_model("random:moondream2").value();
  const DeviceInfo info = cpu_info();
  const auto least_of = [&](const ModelOptions& options) {
    ModelOptions small = options;
    small.sizing = StepSizing::kSmall;
    DeviceInfo plenty = info;
    plenty.total_memory_bytes = plenty.free_memory_bytes = 1000 * kGibibyte;
    const MemoryPlan plan = plan_memory(plenty, source, small, {}).value();
    const std::size_t cache = bytes_of_part(plan, "keys and values");
    const auto pages = static_cast<std::size_t>(plan.cache_tokens / kPageTokens + 1);
    const auto context_pages = static_cast<std::size_t>(plan.max_context / kPageTokens + 1);
    return plan.total_bytes() - cache + cache / pages * context_pages + kDriverBytes;
  };
  const auto fit = [&](std::size_t bytes, const ModelOptions& options) {
    return fit_model(info, bytes, source, options, {});
  };
  const std::size_t native = least_of({});
  EXPECT_TRUE(fit(native, {}).ok());
  const Status refused = fit(native - 1, {}).status();
  EXPECT_NE(refused.message().find("what would do: --max-rows 1\n"), std::string::npos)
      << refused.message();
  EXPECT_TRUE(fit(native - 1, {.max_rows = 1}).ok());

  ModelOptions with_fp8_cache{.kv_cache = KvFormat::kFp8, .max_rows = 1};
  const std::size_t tighter = least_of({.max_rows = 1}) - 1;
  EXPECT_NE(
      fit(tighter, {}).status().message().find("what would do: --max-rows 1 --kv-cache fp8\n"),
      std::string::npos);
  EXPECT_TRUE(fit(tighter, with_fp8_cache).ok());

  const Status hopeless = fit(kDriverBytes, {}).status();
  EXPECT_NE(hopeless.message().find("no option makes it fit"), std::string::npos);
  EXPECT_NE(hopeless.message().find("weights"), std::string::npos) << "the table";
}

// What is large of a GPU's kernels: bfloat16, prepared matrices in T or in 8 bits, and a workspace.
class GpuSizes final : public ReferenceKernels {
 public:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;

  explicit GpuSizes(Buffer workspace, bool multiplies_fp8_experts = true)
      : workspace_(std::move(workspace)), multiplies_fp8_experts_(multiplies_fp8_experts) {}
  DType activation_dtype() const override { return DType::kBF16; }
  std::size_t fp8_element_bytes() const override { return 1; }
  bool multiplies_fp8_experts() const override { return multiplies_fp8_experts_; }
  std::size_t prepared_linear_bytes(int total_in, int total_out,
                                    PreparedFormat format) const override {
    const std::size_t elements =
        static_cast<std::size_t>(total_in) * static_cast<std::size_t>(total_out);
    return format == PreparedFormat::kFp8 ? elements + elements / 128 : 2 * elements;
  }
  std::size_t decoder_blocks_scratch_bytes(int, int, int, const AttentionHeads&, int,
                                           const ExpertSizes&) const override {
    return std::size_t{1} << 20;
  }

 private:
  const Buffer workspace_;
  const bool multiplies_fp8_experts_;
};

// A path without products of experts in 8 bits.
StatusOr<std::unique_ptr<Kernels>> make_lower_gpu_sizes(Device& device) {
  GAPLESS_ASSIGN_OR_RETURN(Buffer workspace, device.allocate(GpuSizes::kWorkspaceBytes));
  return make_dry_kernels(std::make_unique<GpuSizes>(std::move(workspace), false));
}

// The kernels of a GPU where this build has them, else such as take what those do.
StatusOr<std::unique_ptr<Kernels>> make_gpu_sizes(Device& device) {
  if (StatusOr<std::unique_ptr<Kernels>> real = make_dry_cuda_kernels(device); real.ok()) {
    return make_dry_kernels(std::move(real).value());
  }
  GAPLESS_ASSIGN_OR_RETURN(Buffer workspace, device.allocate(GpuSizes::kWorkspaceBytes));
  return make_dry_kernels(std::make_unique<GpuSizes>(std::move(workspace)));
}

// The two small cards (bench/small_cards.py): one row and the full context of Moondream 2 fit, with room to spare, and matrices
// take little more than those of the checkpoint.
TEST(MemoryPlanTest, MoondreamFitsASmallCard) {
  constexpr std::size_t kSpare = std::size_t{32} << 20;
  struct Card {
    WeightFormat weights;
    KvFormat kv_cache;
    std::size_t bytes;       // 5.5 GB and 3.6 GB
    double bytes_per_value;  // of the checkpoint's matrices
  };
  const ModelSource source = find_model("random:moondream2").value();
  const DeviceInfo gpu{.kind = DeviceKind::kCuda, .name = "a GPU", .num_multiprocessors = 132};
  for (const Card& card : {Card{WeightFormat::kNative, KvFormat::kNative, 5'500'000'000, 2},
                           Card{WeightFormat::kFp8, KvFormat::kFp8, 3'600'000'000, 1}}) {
    SCOPED_TRACE(card.bytes);
    ModelOptions options{.weights = card.weights, .kv_cache = card.kv_cache, .max_rows = 1};
    options.make_kernels = make_gpu_sizes;
    const StatusOr<FittedModel> fitted = fit_model(gpu, card.bytes, source, options, {});
    ASSERT_TRUE(fitted.ok()) << fitted.status().to_string();
    const MemoryPlan& plan = fitted->plan;
    EXPECT_LE(plan.total_bytes() + kDriverBytes, card.bytes);
    EXPECT_EQ(plan.max_context, 2048);
    EXPECT_TRUE(fit_model(gpu, card.bytes - kSpare, source, options, {}).ok());

    // What the checkpoint takes in this format: only matrices that are rounded to 8 bits are smaller in it.
    double stored = 0;
    for (const TensorPlacement& tensor : lay_out_weights(source.config, DType::kBF16).tensors) {
      const bool is_rounded = tensor.fp8 != Fp8Use::kNone;
      stored +=
          static_cast<double>(tensor.num_parameters()) * (is_rounded ? card.bytes_per_value : 2);
    }
    const auto held = static_cast<double>(bytes_of_part(plan, "weights") +
                                          bytes_of_part(plan, "prepared matrices"));
    EXPECT_LT(held, 1.15 * stored);
  }
}

// The rows of Moondream 3 and what its one launch reads take 36 GB: they lie beside each other on a GPU of 80 GiB. On a smaller one, and
// with a cache that the launch does not take, the head alone is prepared.
TEST(MemoryPlanTest, ExpertsAreCopiedWhereMemoryIsPlentyAndALaunchReadsThem) {
  const ModelSource source = find_model("random:moondream3").value();
  const auto held = [&](std::size_t gibibytes, ModelOptions options, const char* part) {
    DeviceInfo gpu{.kind = DeviceKind::kCuda,
                   .name = "a GPU",
                   .total_memory_bytes = gibibytes * kGibibyte,
                   .free_memory_bytes = gibibytes * kGibibyte,
                   .num_multiprocessors = 132};
    if (options.make_kernels == nullptr) options.make_kernels = make_gpu_sizes;
    return bytes_of_part(plan_memory(gpu, source, options, {}).value(), part);
  };
  const auto prepared = [&](std::size_t gibibytes, const ModelOptions& options) {
    return held(gibibytes, options, "prepared matrices");
  };
  EXPECT_GT(prepared(80, {}), 16 * kGibibyte);
  EXPECT_GT(prepared(80, {.weights = WeightFormat::kFp8}), 8 * kGibibyte);
  EXPECT_LT(prepared(64, {}), kGibibyte);
  EXPECT_LT(prepared(80, {.kv_cache = KvFormat::kFp8}), kGibibyte);
  // Experts' products in 8 bits have copies of their own, as large as those that the launch reads.
  const ModelOptions w8a8{.weights = WeightFormat::kW8A8};
  const std::unique_ptr<Device> device = open_cpu_device();
  const bool has_copies = make_gpu_sizes(*device).value()->multiplies_fp8_experts();
  EXPECT_EQ(held(80, w8a8, "their copy for 8-bit products") > 8 * kGibibyte, has_copies);
  EXPECT_GT(prepared(80, w8a8), 8 * kGibibyte);
  EXPECT_EQ(prepared(64, w8a8) < kGibibyte, has_copies);
  // No memory is taken for copies that nobody would read.
  const ModelOptions on_a_lower_path{.weights = WeightFormat::kW8A8,
                                     .make_kernels = make_lower_gpu_sizes};
  EXPECT_LT(held(80, on_a_lower_path, "their copy for 8-bit products"), kGibibyte);
  EXPECT_GT(prepared(64, on_a_lower_path), 8 * kGibibyte);
}

}  // namespace
}  // namespace gapless
