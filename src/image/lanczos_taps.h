// Which inputs an output of a Lanczos resize is the weighted sum of, along one axis, as Pillow
// reckons it (resize_lanczos.h says how).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gapless {

// Weights are fixed-point numbers: 32 bits less 8 of pixel and 2 of headroom.
inline constexpr int kLanczosPrecisionBits = 22;

// Two neighbouring taps' weights as processors multiply and add them at once: 16 bits times 16. A weight is
// high * 2^12 + low; the pair's first tap lies in the lower half of each word.
struct LanczosTapPair {
  std::int32_t low = 0;
  std::int32_t high = 0;
};
inline constexpr int kLanczosLowBits = 12;

// Four neighbouring taps' weights for processors that multiply and add four bytes at once: a weight is
// digits[2] * 2^16 + digits[1] * 2^8 + digits[0], each from -128 to 127; the first tap lies in the lowest byte of each word.
struct LanczosTapQuad {
  std::int32_t digits[3] = {};
  std::int32_t unused = 0;  // 16 bytes: one load
};

class LanczosTaps {
 public:
  // Both sizes at least 1.
  LanczosTaps(int in_size, int out_size);

  int out_size() const { return static_cast<int>(first_.size()); }

  // Those of outputs [begin, end). Parts that do not overlap may be computed at once: a weight
  // takes two sines.
  void compute(int begin, int end);

  // Output o reads inputs before this one, whether it is computed or not.
  int end_of(int o) const;

  // Output o, once computed, reads inputs first(o) .. first(o) + num_taps(o) - 1.
  int first(int o) const { return first_[static_cast<std::size_t>(o)]; }
  int num_taps(int o) const { return num_taps_[static_cast<std::size_t>(o)]; }
  const std::int32_t* weights(int o) const { return fixed_weights_.data() + o * max_taps_; }
  // The same weights: (num_taps(o) + 1) / 2 of them, the last one's second weight 0 where taps are odd.
  const LanczosTapPair* pairs(int o) const { return pairs_.data() + o * max_pairs(); }
  // The same weights in fours: max_quads() of them, 0 behind the last tap.
  const LanczosTapQuad* quads(int o) const { return quads_.data() + o * max_quads(); }
  std::ptrdiff_t max_quads() const { return (max_taps_ + 3) / 4; }
  int num_quads(int o) const { return (num_taps(o) + 3) / 4; }

 private:
  std::ptrdiff_t max_pairs() const { return (max_taps_ + 1) / 2; }

  int in_size_ = 0;
  double scale_ = 1;
  double support_ = 0;
  std::ptrdiff_t max_taps_ = 0;
  std::vector<int> first_, num_taps_;
  std::vector<std::int32_t> fixed_weights_;
  std::vector<LanczosTapPair> pairs_;
  std::vector<LanczosTapQuad> quads_;
};

}  // namespace gapless
