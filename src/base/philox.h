// Philox4x32-10: counter-based random numbers (Salmon et al., "Parallel Random Numbers: As Easy as
// 1, 2, 3", SC11). The output is a pure function of key and counter, so the host and the device, at
// any depth and in any batch, draw the same numbers without sharing a state.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace gapless {

// 128 random bits.
struct PhiloxBlock {
  std::uint32_t words[4];
};

// `key` and the two halves of the counter are split into 32-bit words, low word first.
GAPLESS_HOST_DEVICE inline PhiloxBlock philox4x32(std::uint64_t key, std::uint64_t counter_low,
                                                  std::uint64_t counter_high) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57u;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9u;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85u;
  constexpr int kRounds = 10;

  auto low = [](std::uint64_t v) { return static_cast<std::uint32_t>(v); };
  auto high = [](std::uint64_t v) { return static_cast<std::uint32_t>(v >> 32); };

  std::uint32_t key0 = low(key), key1 = high(key);
  std::uint32_t c0 = low(counter_low), c1 = high(counter_low);
  std::uint32_t c2 = low(counter_high), c3 = high(counter_high);
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * c0;
    const std::uint64_t product1 = kMultiplier1 * c2;
    c0 = high(product1) ^ c1 ^ key0;
    c1 = low(product1);
    c2 = high(product0) ^ c3 ^ key1;
    c3 = low(product0);
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return PhiloxBlock{{c0, c1, c2, c3}};
}

}  // namespace gapless
