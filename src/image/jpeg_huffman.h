// A Huffman code of a JPEG, for those who want to know where blocks begin and not what is in them.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace gapless {

class JpegCode {
 public:
  enum class Kind { kDc, kAc };

  // The value of an AC step behind which nothing of the block comes.
  static constexpr int kEndOfBlock = 64;

  // What the code at the front of some bits says.
  struct Step {
    std::uint8_t num_bits =
        0;  // kDc: of the code; kAc: of the code and the number behind it. 0: no such code
    // kDc: how many bits the number behind it has. kAc: by how many coefficients it goes on.
    std::uint8_t value = 0;
  };

  // By the number of codes of 1 to 16 bits and their symbols. False: no such code can be.
  bool assign(Kind kind, std::span<const std::uint8_t, 16> counts,
              std::span<const std::uint8_t> symbols);
  bool is_assigned() const { return num_symbols_ > 0; }

  // Of the code at the front of `bits`, whose first bit is the highest. At least 16 of them count.
  Step step(std::uint64_t bits) const {
    const Step quick = quick_[static_cast<std::size_t>(bits >> (64 - kQuickBits))];
    return quick.num_bits != 0 ? quick : long_step(bits);
  }

  struct Word {
    std::uint16_t bits = 0;
    int num_bits = 0;  // 0: the symbol has no code
  };
  Word word_of(int symbol) const { return words_[static_cast<std::size_t>(symbol)]; }

 private:
  // Longer codes are rare.
  static constexpr int kQuickBits = 11;
  static constexpr int kMaxBits = 16;

  Step long_step(std::uint64_t bits) const;
  Step step_of(int num_bits, std::uint8_t symbol) const;

  Kind kind_ = Kind::kDc;
  int num_symbols_ = 0;
  std::array<Step, std::size_t{1} << kQuickBits> quick_;
  std::array<Word, 256> words_;
  // By length: the last code, or -1, and what is added to a code to find its symbol.
  std::array<int, kMaxBits + 1> last_code_;
  std::array<int, kMaxBits + 1> symbol_at_;
  std::array<std::uint8_t, 256> symbols_;
};

}  // namespace gapless
