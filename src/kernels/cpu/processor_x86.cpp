#include <cpuid.h>

#include <cstdlib>

#include "kernels/cpu/processor.h"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace gapless {
namespace {

bool has_amx_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  return (d & kBf16) != 0 && (d & kTile) != 0;
}

// The tiles are 8 KiB of a thread's state, which Linux saves for those processes alone that have asked. It refuses
// where the system, or a virtual machine's host, does not know them.
bool ask_for_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int kAskForState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

Processor this_processor() {
  Processor processor;
  processor.is_x86 = true;
  processor.has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  processor.has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
  processor.has_avx512_vnni = processor.has_avx512 && __builtin_cpu_supports("avx512vnni");
  processor.has_avx512_bf16 = processor.has_avx512 && __builtin_cpu_supports("avx512bf16");
  processor.has_amx =
      processor.has_avx512_vnni && processor.has_avx512_bf16 && has_amx_bf16() && ask_for_tiles();
  const char* const wanted = std::getenv("GAPLESS_CPU_SIMD");
  processor.is_overridden = wanted != nullptr && wanted[0] != '\0';
  return processor;
}

}  // namespace gapless
