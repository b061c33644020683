#include "image/jpeg_scan.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace gapless {
namespace {

constexpr int kCoefficients = 64;
// Behind the last bit: what a block that goes wrong may read, a number of 26 bits for each coefficient.
constexpr std::size_t kPadding = 256;
// By so much a part's reader begins before the part, to be in step where it begins. (Of photographs with chroma at half its
// size a reader is after some 1.4 KB; it has to find its place in the MCU too.)
constexpr std::uint32_t kRunUpBytes = 2048;
// With shorter parts there would be more to read twice than to gain.
constexpr std::uint32_t kMinPartBytes = 2 * kRunUpBytes;
// Where bits are counted in 32 bits.
constexpr std::size_t kMaxFileBytes = std::size_t{1} << 28;
constexpr int kBlocksPerCheck = 4096;

constexpr std::uint8_t kStartOfImage = 0xd8, kEndOfImage = 0xd9, kStartOfScan = 0xda,
                       kQuantisation = 0xdb, kHuffman = 0xc4, kBaseline = 0xc0, kExtended = 0xc1,
                       kRestartInterval = 0xdd, kApp0 = 0xe0, kApp14 = 0xee, kApp15 = 0xef,
                       kComment = 0xfe;

int two_bytes(const std::uint8_t* at) {
  return at[0] << 8 | at[1];
}

std::uint64_t eight_bytes(const std::uint8_t* at) {
  std::uint64_t bytes;
  std::memcpy(&bytes, at, sizeof(bytes));
  if constexpr (std::endian::native == std::endian::big) return bytes;
  return __builtin_bswap64(bytes);
}

// A number of so many bits at the front of `bits`, as JPEG writes it: without a leading 1 it is negative.
int number_of(std::uint64_t bits, int num_bits) {
  if (num_bits == 0) return 0;
  const int value = static_cast<int>(bits >> (64 - num_bits));
  return value >> (num_bits - 1) != 0 ? value : value - (1 << num_bits) + 1;
}

int bits_of(int number) {
  int num_bits = 0;
  for (int rest = std::abs(number); rest != 0; rest >>= 1) ++num_bits;
  return num_bits;
}

// Numbers that the code has words for, and whose sum is `target`.
std::vector<int> steps_to(std::int64_t target, const JpegCode& code, std::size_t most_steps) {
  int least_bits = 0, most_bits = 0;
  for (int bits = 1; bits <= 11; ++bits) {
    if (code.word_of(bits).num_bits == 0) continue;
    if (least_bits == 0) least_bits = bits;
    most_bits = bits;
  }
  std::vector<int> steps;
  if (most_bits == 0) return steps;
  const int sign = target < 0 ? -1 : 1;
  const int least = 1 << (least_bits - 1);
  for (std::int64_t left = std::abs(target); left > 0 && steps.size() <= most_steps;) {
    if (left < least) {
      steps.insert(steps.end(), {sign * (least + static_cast<int>(left)), -sign * least});
      break;
    }
    int bits = most_bits;
    while (code.word_of(bits).num_bits == 0 || left < std::int64_t{1} << (bits - 1)) --bits;
    const auto step = static_cast<int>(std::min<std::int64_t>(left, (1 << bits) - 1));
    steps.push_back(sign * step);
    left -= step;
  }
  return steps;
}

}  // namespace

// Writes bits as a JPEG's scan has them: a byte of ones is followed by one of zeros.
class JpegScan::ScanWriter {
 public:
  // `to` has room for twice the bytes that come.
  explicit ScanWriter(std::uint8_t* to) : to_(to) {}

  void put(std::uint32_t value, int num_bits) {
    waiting_ = waiting_ << num_bits | value;
    num_waiting_ += num_bits;
    while (num_waiting_ >= 8) {
      num_waiting_ -= 8;
      const auto byte = static_cast<std::uint8_t>(waiting_ >> num_waiting_);
      *to_++ = byte;
      if (byte == 0xff) *to_++ = 0;
    }
  }
  void put(JpegCode::Word word) { put(word.bits, word.num_bits); }
  void put_number(int number, int num_bits) {
    if (num_bits == 0) return;
    const int value = number < 0 ? number + (1 << num_bits) - 1 : number;
    put(static_cast<std::uint32_t>(value), num_bits);
  }
  // Ends the last byte with ones, and the file.
  std::uint8_t* finish() {
    if (num_waiting_ > 0) put((1u << (8 - num_waiting_)) - 1, 8 - num_waiting_);
    *to_++ = 0xff;
    *to_++ = kEndOfImage;
    return to_;
  }

 private:
  std::uint8_t* to_;
  std::uint64_t waiting_ = 0;
  int num_waiting_ = 0;
};

std::unique_ptr<JpegScan> JpegScan::open(std::span<const std::byte> file, int max_parts) {
  std::unique_ptr<JpegScan> scan(new JpegScan());
  if (file.size() > kMaxFileBytes || !scan->read_header(file)) return nullptr;
  scan->make_parts(max_parts);
  return scan;
}

// ---- the header

bool JpegScan::read_header(std::span<const std::byte> file) {
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(file.data()), file.size());
  if (bytes.size() < 4 || bytes[0] != 0xff || bytes[1] != kStartOfImage) return false;
  head_.assign(bytes.begin(), bytes.begin() + 2);
  for (std::size_t at = 2; at + 4 <= bytes.size();) {
    const std::uint8_t marker = bytes[at + 1];
    const auto length = static_cast<std::size_t>(two_bytes(&bytes[at + 2]));
    if (bytes[at] != 0xff || length < 2 || length > bytes.size() - at - 2) return false;
    const std::span whole = bytes.subspan(at, length + 2);
    const std::span segment = whole.subspan(4);
    at += whole.size();
    bool is_kept = true;
    switch (marker) {
      case kBaseline:
      case kExtended:
        height_at_ = head_.size() + 5;
        if (!read_frame(segment)) return false;
        break;
      case kHuffman:
        if (!read_codes(segment)) return false;
        break;
      case kRestartInterval:
        if (segment.size() != 2 || two_bytes(segment.data()) != 0) return false;
        break;
      case kStartOfScan:
        head_.insert(head_.end(), whole.begin(), whole.end());
        return read_scan_header(segment) && take_bits(bytes.subspan(at));
      case kQuantisation:
      case kApp0:  // these two say what the colours are
      case kApp14:
        break;
      default:
        if (marker != kComment && (marker < kApp0 || marker > kApp15)) return false;
        is_kept = false;
    }
    if (is_kept) head_.insert(head_.end(), whole.begin(), whole.end());
  }
  return false;
}

bool JpegScan::read_frame(std::span<const std::uint8_t> segment) {
  if (num_components_ != 0 || segment.size() < 6 || segment[0] != 8) return false;
  height_ = two_bytes(&segment[1]);
  width_ = two_bytes(&segment[3]);
  num_components_ = segment[5];
  if (width_ == 0 || height_ == 0 || (num_components_ != 1 && num_components_ != 3) ||
      segment.size() != 6 + 3 * static_cast<std::size_t>(num_components_)) {
    return false;
  }
  for (int c = 0; c < num_components_; ++c) {
    const std::uint8_t* const at = &segment[6 + 3 * static_cast<std::size_t>(c)];
    Component& component = components_[static_cast<std::size_t>(c)];
    component.id = at[0];
    component.h = at[1] >> 4;
    component.v = at[1] & 15;
    if (component.h < 1 || component.h > 4 || component.v < 1 || component.v > 4) return false;
    // Blocks of a single component come one by one, whatever it says.
    if (num_components_ == 1 && at[1] != 0x11) return false;
    max_h_ = std::max(max_h_, component.h);
    max_v_ = std::max(max_v_, component.v);
  }
  return true;
}

bool JpegScan::read_codes(std::span<const std::uint8_t> segment) {
  while (!segment.empty()) {
    if (segment.size() < 17) return false;
    const int kind = segment[0] >> 4;
    const std::size_t index = segment[0] & 15;
    if (kind > 1 || index >= dc_codes_.size()) return false;
    const auto counts = segment.subspan<1, 16>();
    std::size_t num_symbols = 0;
    for (const std::uint8_t count : counts) num_symbols += count;
    if (num_symbols > segment.size() - 17) return false;
    JpegCode& code = kind == 0 ? dc_codes_[index] : ac_codes_[index];
    if (!code.assign(kind == 0 ? JpegCode::Kind::kDc : JpegCode::Kind::kAc, counts,
                     segment.subspan(17, num_symbols))) {
      return false;
    }
    // band_file() writes blocks without anything in them.
    if (code.word_of(0).num_bits == 0) return false;
    segment = segment.subspan(17 + num_symbols);
  }
  return true;
}

bool JpegScan::read_scan_header(std::span<const std::uint8_t> segment) {
  const auto num = static_cast<std::size_t>(num_components_);
  if (num == 0 || segment.size() != 4 + 2 * num || segment[0] != num) return false;
  const std::span limits = segment.subspan(1 + 2 * num);
  if (limits[0] != 0 || limits[1] != kCoefficients - 1 || limits[2] != 0) return false;
  for (std::size_t c = 0; c < num; ++c) {
    Component& component = components_[c];
    // In the order of the frame, as everybody writes them.
    if (segment[1 + 2 * c] != component.id) return false;
    const std::size_t dc = segment[2 + 2 * c] >> 4;
    const std::size_t ac = segment[2 + 2 * c] & 15;
    if (dc >= dc_codes_.size() || ac >= ac_codes_.size() || !dc_codes_[dc].is_assigned() ||
        !ac_codes_[ac].is_assigned()) {
      return false;
    }
    component.dc = &dc_codes_[dc];
    component.ac = &ac_codes_[ac];
    for (int i = 0; i < component.h * component.v; ++i) {
      if (blocks_per_mcu_ == kMaxBlocksPerMcu) return false;
      component_of_block_[static_cast<std::size_t>(blocks_per_mcu_++)] = static_cast<int>(c);
    }
  }
  const auto divide_up = [](int a, int b) { return (a + b - 1) / b; };
  mcus_per_row_ = divide_up(width_, kBlockSide * max_h_);
  num_mcu_rows_ = divide_up(height_, kBlockSide * max_v_);
  return true;
}

bool JpegScan::take_bits(std::span<const std::uint8_t> stuffed) {
  bits_.reserve(stuffed.size() + kPadding);
  const std::uint8_t* const end = stuffed.data() + stuffed.size();
  for (const std::uint8_t* at = stuffed.data(); at < end;) {
    const auto* const ones =
        static_cast<const std::uint8_t*>(std::memchr(at, 0xff, static_cast<std::size_t>(end - at)));
    if (ones == nullptr || ones + 1 == end) return false;
    if (ones[1] == 0) {
      bits_.insert(bits_.end(), at, ones + 1);
      at = ones + 2;
      continue;
    }
    if (ones[1] != kEndOfImage) return false;
    bits_.insert(bits_.end(), at, ones);
    num_bits_ = static_cast<std::uint32_t>(bits_.size() * 8);
    bits_.resize(bits_.size() + kPadding);
    return true;
  }
  return false;
}

// ---- the bits

std::int64_t JpegScan::memory_bytes(int width, int height) {
  const std::int64_t num_pixels = std::int64_t{width} * height;
  constexpr std::int64_t kBlocksOf64 =
      3;  // of pixels, where no component has fewer samples than another
  // Noted blocks, in vectors that grow; a file of half a byte for each pixel, and that once more in files of bands with room for stuffing.
  return num_pixels * kBlocksOf64 / 64 * 2 * 2 * std::int64_t{sizeof(Block)} + 2 * num_pixels +
         (std::int64_t{1} << 20);
}

void JpegScan::make_parts(int max_parts) {
  const std::uint32_t num_bytes = num_bits_ / 8;
  const auto num_parts = std::clamp<std::uint32_t>(num_bytes / kMinPartBytes, 1,
                                                   static_cast<std::uint32_t>(max_parts));
  parts_.resize(num_parts);
  for (std::uint32_t i = 0; i < num_parts; ++i) {
    const auto begin_of = [&](std::uint64_t part) {
      return static_cast<std::uint32_t>(part * num_bytes / num_parts * 8);
    };
    parts_[i].first_bit = begin_of(i) - (i > 0 ? kRunUpBytes * 8 : 0);
    parts_[i].end_bit = begin_of(i + 1);
    parts_[i].next_bit = parts_[i].first_bit;
  }
  blocks_left_ = 2 * num_blocks() + std::int64_t{num_parts} * kBlocksPerCheck;
}

std::uint64_t JpegScan::bits_at(std::uint32_t bit) const {
  return eight_bytes(bits_.data() + bit / 8) << bit % 8;
}

bool JpegScan::read_block(int number, Block& block, std::uint32_t& bit) const {
  constexpr int kAtLeast = 57;  // bits, whichever of a byte's is the first
  const Component& component =
      components_[static_cast<std::size_t>(component_of_block_[static_cast<std::size_t>(number)])];
  std::uint64_t bits = bits_at(bit);
  const JpegCode::Step dc = component.dc->step(bits);
  if (dc.num_bits == 0) return false;
  bits <<= dc.num_bits;
  block = {bit, number_of(bits, dc.value)};
  bits <<= dc.value;
  bit += std::uint32_t{dc.num_bits} + dc.value;
  int left = kAtLeast - dc.num_bits - dc.value;
  int coefficient = 1;
  while (coefficient < kCoefficients) {
    if (left < 16) {
      bits = bits_at(bit);
      left = kAtLeast;
    }
    const JpegCode::Step ac = component.ac->step(bits);
    if (ac.num_bits == 0) return false;
    bits <<= ac.num_bits;
    left -= ac.num_bits;
    bit += ac.num_bits;
    coefficient += ac.value;
  }
  return true;  // also where it went on too far, which libjpeg gets over in the same way
}

void JpegScan::read_part(int part, const StopCheck& stop) {
  Part& mine = parts_[static_cast<std::size_t>(part)];
  std::uint32_t bit = mine.first_bit;
  int number = 0;
  // The last bits may be none of a block; join() knows.
  const std::uint32_t end_bit = std::min(mine.end_bit, num_bits_ - std::min(num_bits_, 7u));
  for (int reads = 0; bit < end_bit; ++reads) {
    // What is missing join() reads.
    if (reads % kBlocksPerCheck == 0 &&
        (blocks_left_.fetch_sub(kBlocksPerCheck) < kBlocksPerCheck || is_stopped(stop))) {
      return;
    }
    Block block;
    std::uint32_t next = bit;
    if (read_block(number, block, next) && next <= num_bits_) {
      mine.blocks.push_back(block);
      bit = next;
      if (++number == blocks_per_mcu_) number = 0;
    } else {
      // So the guess was wrong. Another one.
      mine.blocks.clear();
      bit = (next / 8 + 1) * 8;
      number = 0;
    }
    mine.next_bit = bit;
  }
}

bool JpegScan::join(const StopCheck& stop) {
  const std::int64_t blocks_per_row = std::int64_t{mcus_per_row_} * blocks_per_mcu_;
  const std::int64_t num_blocks = this->num_blocks();
  std::int64_t done = 0;
  std::int64_t next_row = 0;  // the number of its first block
  int number = 0;             // within the MCU
  std::uint32_t bit = 0;
  RowStart sums;
  const auto take = [&](const Block& block) {
    if (done == next_row) {
      sums.bit = block.bit;
      row_starts_.push_back(sums);
      next_row += blocks_per_row;
    }
    sums.dc[static_cast<std::size_t>(component_of_block_[static_cast<std::size_t>(number)])] +=
        block.dc;
    ++done;
    if (++number == blocks_per_mcu_) number = 0;
  };
  const auto read_one = [&] {
    Block block;
    if (done % kBlocksPerCheck == 0 && is_stopped(stop)) return false;
    if (!read_block(number, block, bit) || bit > num_bits_) return false;
    take(block);
    return true;
  };
  for (const Part& part : parts_) {
    std::size_t seen = 0;
    const auto is_in_step = [&] {
      while (seen < part.blocks.size() && part.blocks[seen].bit < bit) ++seen;
      return seen < part.blocks.size() && part.blocks[seen].bit == bit &&
             static_cast<int>(seen % static_cast<std::size_t>(blocks_per_mcu_)) == number;
    };
    while (bit < part.end_bit && done < num_blocks && !is_in_step()) {
      if (!read_one()) return false;
    }
    if (!is_in_step()) continue;
    for (; seen < part.blocks.size() && done < num_blocks; ++seen) take(part.blocks[seen]);
    bit = seen < part.blocks.size() ? part.blocks[seen].bit : part.next_bit;
  }
  while (done < num_blocks) {
    if (!read_one()) return false;
  }
  // Nothing but what fills the last byte may follow.
  if (num_bits_ - bit >= 8) return false;
  sums.bit = bit;
  row_starts_.push_back(sums);
  return std::all_of(row_starts_.begin(), row_starts_.end(),
                     [this](const RowStart& start) { return can_begin_at(start); });
}

// ---- files of bands

// A band's decoder begins with 0 for the first coefficient before, so a row of flat blocks leads to what it is.
std::vector<int> JpegScan::steps_of(const RowStart& start, int component) const {
  const Component& of = components_[static_cast<std::size_t>(component)];
  return steps_to(start.dc[static_cast<std::size_t>(component)], *of.dc,
                  static_cast<std::size_t>(mcus_per_row_ * of.h * of.v));
}

bool JpegScan::can_begin_at(const RowStart& start) const {
  for (int c = 0; c < num_components_; ++c) {
    const Component& component = components_[static_cast<std::size_t>(c)];
    if (std::ssize(steps_of(start, c)) > mcus_per_row_ * component.h * component.v) return false;
  }
  return true;
}

void JpegScan::write_row_up_to(const RowStart& start, ScanWriter& writer) const {
  std::array<std::vector<int>, kMaxComponents> steps;
  std::array<std::size_t, kMaxComponents> done{};
  for (int c = 0; c < num_components_; ++c) {
    steps[static_cast<std::size_t>(c)] = steps_of(start, c);
  }
  for (int mcu = 0; mcu < mcus_per_row_; ++mcu) {
    for (int number = 0; number < blocks_per_mcu_; ++number) {
      const auto c =
          static_cast<std::size_t>(component_of_block_[static_cast<std::size_t>(number)]);
      const int step = done[c] < steps[c].size() ? steps[c][done[c]++] : 0;
      const int num_bits = bits_of(step);
      writer.put(components_[c].dc->word_of(num_bits));
      writer.put_number(step, num_bits);
      writer.put(components_[c].ac->word_of(0));
    }
  }
}

void JpegScan::copy_bits(std::uint32_t bit, std::uint32_t end_bit, ScanWriter& writer) const {
  for (; end_bit - bit >= 32; bit += 32) {
    writer.put(static_cast<std::uint32_t>(bits_at(bit) >> 32), 32);
  }
  if (end_bit > bit) {
    const int left = static_cast<int>(end_bit - bit);
    writer.put(static_cast<std::uint32_t>(bits_at(bit) >> (64 - left)), left);
  }
}

JpegScan::BandFile JpegScan::band_file(int first_row, int end_row) const {
  const int unit = unit_rows();
  GAPLESS_CHECK(first_row % unit == 0 && (end_row % unit == 0 || end_row == height_));
  // The row before and the one behind count, because chroma is interpolated between rows.
  const int first = std::max(0, first_row / unit - 1);
  const int end = std::min(num_mcu_rows_, (end_row + unit - 1) / unit + 1);
  const RowStart& start = row_starts_[static_cast<std::size_t>(first)];
  const std::uint32_t end_bit = row_starts_[static_cast<std::size_t>(end)].bit;
  const int num_rows_added = first > 0 ? unit : 0;

  BandFile file;
  file.num_rows = num_rows_added + std::min(height_, end * unit) - first * unit;
  file.rows_above = num_rows_added + first_row - first * unit;
  // An added row's blocks have two words of 16 bits at most and a number.
  const std::size_t added_bytes =
      static_cast<std::size_t>(num_rows_added == 0 ? 0 : mcus_per_row_ * blocks_per_mcu_) * 8;
  file.bytes.resize(head_.size() + 2 * (added_bytes + (end_bit - start.bit) / 8) + 16);
  auto* const bytes = reinterpret_cast<std::uint8_t*>(file.bytes.data());
  std::copy(head_.begin(), head_.end(), bytes);
  bytes[height_at_] = static_cast<std::uint8_t>(file.num_rows >> 8);
  bytes[height_at_ + 1] = static_cast<std::uint8_t>(file.num_rows);
  ScanWriter writer(bytes + head_.size());
  if (num_rows_added > 0) write_row_up_to(start, writer);
  copy_bits(start.bit, end_bit, writer);
  file.bytes.resize(static_cast<std::size_t>(writer.finish() - bytes));
  return file;
}

}  // namespace gapless
