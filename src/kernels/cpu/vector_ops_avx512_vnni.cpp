#include "kernels/cpu/simd_avx512.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/cpu/vector_ops_sets.h"
#include "kernels/cpu/whole_number_attention.h"
#include "kernels/cpu/whole_number_linear.h"

namespace gapless::cpu {
namespace {

// A type of its own: what is compiled here must not take the place of what vector_ops_avx512.cpp compiles
// for processors without VNNI.
struct Avx512VnniSimd : Avx512Simd {
  static constexpr const char* kName = "avx512_vnni";
};

// VPDPBUSD: four products of a byte and a signed byte in each of sixteen lanes.
struct VnniInt8Products {
  static constexpr int kTileRows = 12;

  // Not by the intrinsic, as in whole_numbers.h.
  [[gnu::always_inline]] static __m512i plus_products(__m512i sum, __m512i bytes,
                                                      __m512i signed_bytes) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(signed_bytes));
    return sum;
  }

  // Not inlined: gcc 12 keeps the sums in memory otherwise.
  template <int kRows>
  [[gnu::noinline]] static void multiply(const std::uint8_t* x, const std::int8_t* panel,
                                         int num_steps, std::int32_t (&sums)[kRows][kInt8Columns]) {
    __m512i lanes[kRows][2];
    for (auto& row : lanes) row[0] = row[1] = _mm512_setzero_si512();
    const auto* numbers = reinterpret_cast<const std::int32_t*>(x);
    const auto* w = reinterpret_cast<const std::int32_t*>(panel);
    for (int step = 0; step < num_steps; ++step) {
      const __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 16);
      for (int i = 0; i < kRows; ++i) {
        const __m512i four = _mm512_set1_epi32(numbers[i]);
        lanes[i][0] = plus_products(lanes[i][0], four, w0);
        lanes[i][1] = plus_products(lanes[i][1], four, w1);
      }
      numbers += Int8Rows::kTile;
      w += kInt8Columns;
    }
    for (int i = 0; i < kRows; ++i) {
      _mm512_store_si512(sums[i], lanes[i][0]);
      _mm512_store_si512(sums[i] + 16, lanes[i][1]);
    }
  }
};

void linear_block_vnni(const LinearParams& params, const LinearBlock& block) {
  // Numbers of 8-bit floating point have too many sizes for whole numbers: their products are exact.
  if (params.decode || params.x_scales != nullptr) {
    return linear_block<Avx512VnniSimd, Bf16>(params, block);
  }
  for_blocks(block, WholeNumberLinear<Avx512VnniSimd>::kMaxRows,
             WholeNumberLinear<Avx512VnniSimd>::kMaxColumns, [&](const LinearBlock& part) {
               WholeNumberLinear<Avx512VnniSimd>(params, part).run();
             });
}

// One query takes its keys as they are: to make whole numbers of them would take longer than to multiply them.
void attend_vnni(const AttentionTile& tile) {
  if (tile.decode) return attend<Avx512VnniSimd, Bf16>(tile);
  WholeNumberAttention<Avx512VnniSimd>(tile).run();
}

constexpr VectorOps make_vnni_ops() {
  VectorOps ops = make_vector_ops<Avx512VnniSimd, Bf16>();
  ops.linear_rows = WholeNumberLinear<Avx512VnniSimd>::kMaxRows;
  ops.linear_columns = WholeNumberLinear<Avx512VnniSimd>::kMaxColumns;
  ops.linear_block = linear_block_vnni;
  ops.int8_block = int8_block<Avx512VnniSimd, Bf16, VnniInt8Products>;
  ops.attend = attend_vnni;
  return ops;
}

}  // namespace

constinit const VectorOps kAvx512VnniBf16Ops = make_vnni_ops();

}  // namespace gapless::cpu
