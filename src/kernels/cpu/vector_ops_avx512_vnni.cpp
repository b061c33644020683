#include "kernels/cpu/packed_vector_ops.h"
#include "kernels/cpu/simd_avx512_bf16.h"
#include "kernels/cpu/vector_ops_sets.h"
#include "kernels/cpu/whole_number_attention.h"
#include "kernels/cpu/whole_number_linear.h"

namespace gapless::cpu {
namespace {

// A type of its own: what is compiled here must not take the place of what vector_ops_avx512.cpp compiles
// for processors without VNNI.
struct Avx512VnniSimd : Avx512QuickSimd {
  static constexpr const char* kName = "avx512_vnni";
};

}  // namespace

constinit const VectorOps kAvx512VnniBf16Ops =
    PackedVectorOps<Avx512VnniSimd, WholeNumberLinearTiles<Avx512VnniSimd>,
                    WholeNumberAttention<Avx512VnniSimd>>::make();

}  // namespace gapless::cpu
