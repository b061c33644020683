// What this machine's processor says that it has.
#pragma once

namespace gapless {

struct Processor {
  bool is_x86 = false;
  bool has_avx2 = false;    // with FMA
  bool has_avx512 = false;  // F, DQ, VL and BW
  bool has_avx512_vnni = false;
  bool has_avx512_bf16 = false;
  bool has_amx =
      false;  // of bfloat16, with both of the above, and the system lets this process use it
  // GAPLESS_CPU_SIMD is set: whoever sets it has chosen the instructions (vector_ops.h).
  bool is_overridden = false;
};

Processor this_processor();

}  // namespace gapless
