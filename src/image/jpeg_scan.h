// The bits of a JPEG read by several threads at once, and files of its bands of rows, so that several decoders can
// begin in the middle of a picture.
//
// Nothing in a JPEG says where a row begins: that is known when the bits before it have been read. But Huffman
// codes synchronise themselves: whoever begins to read anywhere is soon in step with whoever read from the top. So
// the bits are cut into parts, each thread reads one of them from a guess some way before it, and notes where blocks begin. Then
// the parts are joined: behind the end of each, reading goes on until it comes to a block that the next part's reader has noted too.
// From there on that one was right.
//
//   bits     |-- part 0 ----------|-- part 1 -------|-- part 2 ----
//   blocks    0 1 2 3 4 5 6 7 8 9 |
//                         ? ? 8 9 | 10 11 12 13 14 15 |
//                                        ?  ?  ? 15 | 16 17 18 ...
//
// If a guess never falls into step, join() reads its part once more: it gets slower, not wrong.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "image/jpeg_huffman.h"
#include "image/stop_check.h"

namespace gapless {

class JpegScan {
 public:
  // Of a baseline file with one scan and without restart markers, which must outlive this; to be read in so many
  // parts at most. nullptr: it is another kind of file, or a broken one.
  static std::unique_ptr<JpegScan> open(std::span<const std::byte> file, int max_parts);

  // What it and the files of bands take at most, of a file with half a byte or less for each pixel.
  static std::int64_t memory_bytes(int width, int height);

  int num_parts() const { return static_cast<int>(parts_.size()); }
  // Rows of pixels that the smallest unit of the bits makes.
  int unit_rows() const { return kBlockSide * max_v_; }

  // Each part once, by any thread.
  void read_part(int part, const StopCheck& stop);
  // By one thread, when all parts are read. False: `stop` said so, or the bits are not those of this picture to the last one;
  // what is wrong with them is for others to find out.
  bool join(const StopCheck& stop);

  // A JPEG whose rows [first_row - start_row, end_row - start_row) have the pixels of the picture's [first_row, end_row).
  struct BandFile {
    std::vector<std::byte> bytes;
    int num_rows = 0;    // of the file
    int rows_above = 0;  // before the band's first
  };
  // Once joined, by any thread. first_row is a multiple of unit_rows(), end_row too or the picture's last.
  BandFile band_file(int first_row, int end_row) const;

 private:
  static constexpr int kBlockSide = 8;
  static constexpr int kMaxComponents = 3;
  static constexpr int kMaxBlocksPerMcu = 10;  // the standard's bound

  struct Component {
    int id = 0;
    int h = 1, v = 1;  // blocks of an MCU
    const JpegCode* dc = nullptr;
    const JpegCode* ac = nullptr;
  };
  // Where a block begins and by how much its first coefficient differs from its component's last one.
  struct Block {
    std::uint32_t bit = 0;
    std::int32_t dc = 0;
  };
  struct Part {
    std::uint32_t first_bit = 0, end_bit = 0;  // it reads the blocks that begin there
    // One behind the other; blocks[i] is number i % blocks_per_mcu of its MCU, if the guess was right.
    std::vector<Block> blocks;
    std::uint32_t next_bit = 0;  // behind the last one
  };
  struct RowStart {
    std::uint32_t bit = 0;
    std::array<std::int64_t, kMaxComponents> dc{};  // sums over the blocks before
  };
  class ScanWriter;

  JpegScan() = default;
  bool read_header(std::span<const std::byte> file);
  bool read_frame(std::span<const std::uint8_t> segment);
  bool read_codes(std::span<const std::uint8_t> segment);
  bool read_scan_header(std::span<const std::uint8_t> segment);
  bool take_bits(std::span<const std::uint8_t> stuffed);
  void make_parts(int max_parts);
  // From this one on, 57 at least.
  std::uint64_t bits_at(std::uint32_t bit) const;
  // False: no such code.
  bool read_block(int number, Block& block, std::uint32_t& bit) const;
  std::vector<int> steps_of(const RowStart& start, int component) const;
  bool can_begin_at(const RowStart& start) const;
  void write_row_up_to(const RowStart& start, ScanWriter& writer) const;
  void copy_bits(std::uint32_t bit, std::uint32_t end_bit, ScanWriter& writer) const;

  std::vector<std::uint8_t>
      head_;                   // of the file, to the scan's bits, without what decoders do not need
  std::size_t height_at_ = 0;  // in head_
  int width_ = 0, height_ = 0;
  int num_components_ = 0;
  std::array<Component, kMaxComponents> components_;  // in the order of the scan
  int max_h_ = 1, max_v_ = 1;
  std::array<int, kMaxBlocksPerMcu> component_of_block_{};
  int blocks_per_mcu_ = 0;
  int mcus_per_row_ = 0, num_mcu_rows_ = 0;
  std::int64_t num_blocks() const {
    return std::int64_t{mcus_per_row_} * blocks_per_mcu_ * num_mcu_rows_;
  }
  std::array<JpegCode, 4> dc_codes_;
  std::array<JpegCode, 4> ac_codes_;

  std::vector<std::uint8_t> bits_;  // of the scan, without stuffing, and some bytes of padding
  std::uint32_t num_bits_ = 0;
  std::vector<Part> parts_;
  // That all parts together may note: wrong guesses can make many of few bits.
  std::atomic<std::int64_t> blocks_left_{0};
  std::vector<RowStart> row_starts_;  // of each row of MCUs, and the end
};

}  // namespace gapless
