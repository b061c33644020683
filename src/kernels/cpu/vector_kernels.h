// The bodies behind VectorOps, templates over simd_*.h and the element type. Included by
// vector_ops_*.cpp only, each of which is compiled for its instruction set.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_kernel.h"
#include "kernels/cpu/for_lanes.h"
#include "kernels/cpu/int8_linear.h"
#include "kernels/cpu/linear_kernel.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_ops.h"

namespace gapless::cpu {

template <typename Simd, typename Function>
[[gnu::always_inline]] inline void map_in_place(float* values, std::int64_t count,
                                                Function function) {
  for_lanes<Simd>(
      static_cast<int>(count), [&](int at, int lanes) __attribute__((always_inline)) {
        store_count<Simd>(values + at, function(load_count<Simd>(values + at, lanes)), lanes);
      });
}

template <typename Simd, typename T>
constexpr VectorOps make_vector_ops() {
  return {
      .name = Simd::kName,
      .dtype = kDTypeOf<T>,
      .linear_rows = kLinearPanelRows,
      .linear_columns = kLinearPanelColumns,
      .linear_row_unit = Simd::kPackedRows,
      .linear_block = linear_block<Simd, T>,
      .round_rows_to_int8 = round_rows_to_int8<Simd, T>,
      .int8_block = int8_block<Simd, T, PlainInt8Products<Simd>>,
      .norm_rows = norm_rows<Simd, T>,
      .gate_rows = gate_rows<Simd, T>,
      .rotate_head = rotate_head<Simd, T>,
      .attend = attend<Simd, T>,
      .exp = [](float* values,
                std::int64_t count) { map_in_place<Simd>(values, count, exp<Simd>); },
      .gelu_tanh = [](float* values,
                      std::int64_t count) { map_in_place<Simd>(values, count, gelu_tanh<Simd>); },
      .gelu_erf = [](float* values,
                     std::int64_t count) { map_in_place<Simd>(values, count, gelu_erf<Simd>); }};
}

}  // namespace gapless::cpu
