// The CPU kernels at the shapes of the shipped model and of Moondream 2, per instruction set and element type.
// GAPLESS_CPU_THREADS=1 measures one core; FLOP/s stand beside each time. A core's ceiling is
// 2 (multiply, add) x lanes x fused multiply-adds per cycle x clock.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/element.h"

namespace gapless::cpu {
namespace {

std::vector<float> random_values(std::size_t size) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(size);
  for (float& value : values) value = uniform(generator);
  return values;
}

// Numbers of the type that `ops` takes.
std::vector<std::byte> random_tensor(const VectorOps& ops, std::size_t size) {
  const std::vector<float> values = random_values(size);
  std::vector<std::byte> bytes(size * dtype_bytes(ops.dtype));
  with_element(ops.dtype, [&]<typename T>() {
    for (std::size_t i = 0; i < size; ++i) {
      const T value = rounded<T>(values[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return bytes;
}

void count_flops(benchmark::State& state, double flops_per_iteration) {
  state.counters["FLOP/s"] =
      benchmark::Counter(flops_per_iteration, benchmark::Counter::kIsIterationInvariantRate);
}

struct LinearShape {
  const char* name;
  int num_rows, in, out;
};

void bench_linear(benchmark::State& state, const VectorOps& ops, LinearShape shape) {
  const auto num_rows = static_cast<std::size_t>(shape.num_rows);
  const auto x = random_tensor(ops, num_rows * shape.in);
  const auto weight = random_tensor(ops, static_cast<std::size_t>(shape.in) * shape.out);
  const auto bias = random_tensor(ops, shape.out);
  auto y = random_tensor(ops, num_rows * shape.out);
  for (auto _ : state) {
    linear(ops, {.x = x.data(),
                 .x_stride = shape.in,
                 .weights = {weight.data(), bias.data(), shape.in, shape.out},
                 .y = y.data(),
                 .y_stride = shape.out,
                 .y_dtype = ops.dtype,
                 .num_rows = shape.num_rows,
                 .decode = shape.num_rows <= 8});
  }
  count_flops(state, 2.0 * shape.num_rows * shape.in * shape.out);
}

void bench_vision_attention(benchmark::State& state, const VectorOps& ops) {
  constexpr int kSeqLen = 729, kHeads = 4, kHeadDim = 72;
  const auto qkv = random_tensor(ops, std::size_t{kSeqLen} * 3 * kHeads * kHeadDim);
  auto out = random_tensor(ops, std::size_t{kSeqLen} * kHeads * kHeadDim);
  for (auto _ : state) {
    vision_attention(ops, {.qkv = qkv.data(),
                           .out = out.data(),
                           .num_crops = 1,
                           .seq_len = kSeqLen,
                           .num_heads = kHeads,
                           .head_dim = kHeadDim});
  }
  count_flops(state, 4.0 * kSeqLen * kSeqLen * kHeads * kHeadDim);
}

// Prefill of an image and a prompt (num_new = 760, prefix 730), or one decode step at that context.
void bench_paged_attention(benchmark::State& state, const VectorOps& ops, int num_new) {
  constexpr int kContext = 760, kHeads = 4, kHeadDim = 64, kPages = 48;
  constexpr int kWidth = kHeads * kHeadDim;
  auto cache = random_tensor(ops, std::size_t{2} * kPages * kPageTokens * kWidth);
  const auto qkv = random_tensor(ops, static_cast<std::size_t>(num_new) * 3 * kWidth);
  auto out = random_tensor(ops, static_cast<std::size_t>(num_new) * kWidth);
  std::vector<std::int32_t> page_table(kPages);
  for (int page = 0; page < kPages; ++page) page_table[page] = (page * 7) % kPages;
  const AttentionSequence sequence{
      .num_tokens = num_new, .num_cached = kContext - num_new, .prefix_len = 730};
  for (auto _ : state) {
    paged_attention(ops,
                    {.qkv = qkv.data(),
                     .qkv_stride = 3 * kWidth,
                     .out = out.data(),
                     .out_stride = kWidth,
                     .kv = {cache.data()},
                     .page_table = page_table.data(),
                     .page_table_stride = kPages,
                     .sequences = &sequence,
                     .num_sequences = 1,
                     .num_tokens = num_new,
                     .max_new_tokens = num_new,
                     .max_context = kContext,
                     .heads = {.num_heads = kHeads, .num_kv_heads = kHeads, .head_dim = kHeadDim}});
  }
  count_flops(state, 4.0 * num_new * kContext * kWidth);
}

void bench_sample(benchmark::State& state, float temperature, float top_p) {
  constexpr int kVocab = 51200;
  const auto logits = random_values(kVocab);
  RowState row;
  row.sampling.temperature = temperature;
  row.sampling.top_p = top_p;
  const std::int32_t seat = 0;
  std::int32_t token = 0;
  float logprob = 0;
  std::vector<std::uint8_t> scratch(sample_scratch_bytes(1, kVocab));
  for (auto _ : state) {
    sample({.logits = logits.data(),
            .logits_stride = kVocab,
            .rows = &seat,
            .row_states = &row,
            .tokens = &token,
            .logprobs = &logprob,
            .num_rows = 1,
            .vocab = kVocab,
            .scratch = scratch.data()});
    ++row.num_generated;
  }
}

constexpr LinearShape kLinearShapes[] = {
    {"tiny vision qkv", 729, 288, 864},        {"tiny vision fc1", 729, 288, 1152},
    {"tiny vision fc2", 729, 1152, 288},       {"tiny prefill qkv", 760, 256, 768},
    {"tiny prefill fc2", 760, 1024, 256},      {"tiny decode fc1", 1, 256, 1024},
    {"tiny decode fc1, 8 rows", 8, 256, 1024}, {"Moondream 2 vision qkv", 729, 1152, 3456},
    {"Moondream 2 decode fc1", 1, 2048, 8192}};

// Real time: the work of one call is on several threads.
void register_all() {
  for (const VectorOps* ops : available_vector_ops()) {
    const std::string set =
        std::string("/") + ops->name + (ops->dtype == DType::kBF16 ? "/bfloat16" : "/float32");
    for (const LinearShape& shape : kLinearShapes) {
      benchmark::RegisterBenchmark(
          ("linear " + std::string(shape.name) + set).c_str(),
          [=](benchmark::State& state) { bench_linear(state, *ops, shape); })
          ->UseRealTime();
    }
    benchmark::RegisterBenchmark(
        ("tiny vision attention, one crop" + set).c_str(),
        [=](benchmark::State& state) { bench_vision_attention(state, *ops); })
        ->UseRealTime();
    for (const int num_new : {760, 1}) {
      benchmark::RegisterBenchmark(
          ("tiny attention, " + std::to_string(num_new) + " of 760" + set).c_str(),
          [=](benchmark::State& state) { bench_paged_attention(state, *ops, num_new); })
          ->UseRealTime();
    }
  }
  benchmark::RegisterBenchmark("sample 51200 greedy", [](benchmark::State& state) {
    bench_sample(state, 0, 1);
  })->UseRealTime();
  benchmark::RegisterBenchmark("sample 51200 top_p 0.9", [](benchmark::State& state) {
    bench_sample(state, 1, 0.9f);
  })->UseRealTime();
}

}  // namespace
}  // namespace gapless::cpu

int main(int argc, char** argv) {
  gapless::cpu::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
