// Waiting awake. A thread that sleeps is woken some 30 to 250 us late on a virtual machine, so who waits for what others
// bring within such a time looks for it first.
#pragma once

namespace gapless {

// Tells the processor that this thread only looks. 15 to 50 ns.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Whether the condition came true while looking so many times.
template <typename Condition>
bool look_for(const Condition& condition, int num_looks) {
  for (int look = 0; look < num_looks; ++look) {
    if (condition()) return true;
    relax();
  }
  return false;
}

}  // namespace gapless
