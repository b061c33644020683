#include <vector>

#include "kernels/cpu/processor.h"
#include "kernels/cpu/vector_ops_sets.h"

namespace gapless::cpu {

std::span<const VectorOps* const> available_vector_ops() {
  static const std::vector<const VectorOps*> available = [] {
    std::vector<const VectorOps*> sets;
    const Processor processor = this_processor();
    if (processor.has_amx) sets.push_back(&kAvx512AmxBf16Ops);
    if (processor.has_avx512_vnni) sets.push_back(&kAvx512VnniBf16Ops);
    if (processor.has_avx512) {
      sets.insert(sets.end(), {&kAvx512F32Ops, &kAvx512Bf16Ops});
    }
    if (processor.has_avx2) {
      sets.insert(sets.end(), {&kAvx2F32Ops, &kAvx2Bf16Ops});
    }
    sets.insert(sets.end(), {&kPortableF32Ops, &kPortableBf16Ops});
    return sets;
  }();
  return available;
}

}  // namespace gapless::cpu
