#include "kernels/compute.h"

#include <fmt/format.h>

#include "kernels/cpu/vector_ops.h"

namespace gapless {
namespace {

ComputeChoice choice(DType dtype, std::string_view because) {
  const char* const type = dtype == DType::kF32 ? "float32" : "bfloat16";
  return {.dtype = dtype,
          .description = fmt::format("{} by {}, {}", type, cpu::vector_ops(dtype).name, because)};
}

}  // namespace

StatusOr<ComputeChoice> choose_cpu_compute(Compute compute, const Processor& processor) {
  if (processor.is_x86 && !processor.has_avx2 && !processor.is_overridden) {
    return make_error(StatusCode::kUnavailable,
                      "this processor has no AVX2, which gapless needs on x86-64: run it on a "
                      "processor that has it (Intel from 2013, AMD from 2015 on) or on a GPU "
                      "(--device cuda); GAPLESS_CPU_SIMD=portable runs here, but slowly");
  }
  switch (compute) {
    case Compute::kPortable:
    case Compute::kFloat32:
      return choice(DType::kF32, "as asked for");
    case Compute::kBFloat16:
      return choice(DType::kBF16, "as asked for");
    case Compute::kAuto:
      break;
  }
  if (processor.has_avx512) {
    return choice(DType::kBF16, "since the processor has AVX-512 (--compute float32 is exacter)");
  }
  return choice(DType::kF32,
                "since the processor has no AVX-512 (--compute bfloat16 takes half "
                "the memory)");
}

}  // namespace gapless
