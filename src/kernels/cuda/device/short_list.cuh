// A row's short list (needed_logits.h) for kernels that have nothing else to wait for.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/needed_logits.h"

namespace gapless {

// All of it is asked for before anything is used. A field where it is first needed would be a trip to memory each.
template <typename T>
__device__ __forceinline__ T load_at_once(const T& from) {
  static_assert(sizeof(T) % 8 == 0);
  std::uint64_t words[sizeof(T) / 8];
#pragma unroll
  for (std::size_t i = 0; i < sizeof(T) / 8; ++i) {
    // Volatile, so that the compiler does not move it behind a branch.
    asm volatile("ld.global.u64 %0, [%1];"
                 : "=l"(words[i])
                 : "l"(reinterpret_cast<const std::uint64_t*>(&from) + i));
  }
  T loaded;
  std::memcpy(&loaded, words, sizeof(T));
  return loaded;
}

// Of a row that is done it says nothing.
__device__ __forceinline__ ShortList load_short_list(const AutomatonState* automata,
                                                     const RowState& row, int vocab) {
  RowState own = load_at_once(row);
  if (own.automaton == kNoAutomaton) return {};
  const AutomatonState state = load_at_once(automata[own.automaton]);
  own.automaton = 0;
  return short_list(&state, own, vocab);
}

}  // namespace gapless
