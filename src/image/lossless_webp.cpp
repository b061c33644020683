#include "image/lossless_webp.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "image/lossless_webp_codes.h"
#include "image/lossless_webp_transforms.h"
#include "image/raster_memory.h"

namespace gapless::internal {
namespace {

constexpr int kNumLiterals = 256;
constexpr int kNumLengths = 24;
constexpr int kNumDistances = 40;
constexpr int kMaxCacheBits = 11;
// Of tables of codes, of which a few bytes of a file can ask for a kilobyte. Encoders make a tenth of it.
constexpr std::size_t kMaxCodeEntries = std::size_t{1} << 24;
constexpr std::uint8_t kSignature = 0x2f;

Status corrupt() {
  return data_loss("WebP: corrupt bitstream");
}

int divide_up(int value, int bits) {
  return (value + (1 << bits) - 1) >> bits;
}

// The pixels near one are the most frequent to be copied, so the first 120 distances name them, the nearest first: (columns to the
// left, rows above).
constexpr std::array<std::array<std::int8_t, 2>, 120> kNear = {{
    {0, 1},  {1, 0},  {1, 1},  {-1, 1}, {0, 2},  {2, 0},  {1, 2},  {-1, 2}, {2, 1},  {-2, 1},
    {2, 2},  {-2, 2}, {0, 3},  {3, 0},  {1, 3},  {-1, 3}, {3, 1},  {-3, 1}, {2, 3},  {-2, 3},
    {3, 2},  {-3, 2}, {0, 4},  {4, 0},  {1, 4},  {-1, 4}, {4, 1},  {-4, 1}, {3, 3},  {-3, 3},
    {2, 4},  {-2, 4}, {4, 2},  {-4, 2}, {0, 5},  {3, 4},  {-3, 4}, {4, 3},  {-4, 3}, {5, 0},
    {1, 5},  {-1, 5}, {5, 1},  {-5, 1}, {2, 5},  {-2, 5}, {5, 2},  {-5, 2}, {4, 4},  {-4, 4},
    {3, 5},  {-3, 5}, {5, 3},  {-5, 3}, {0, 6},  {6, 0},  {1, 6},  {-1, 6}, {6, 1},  {-6, 1},
    {2, 6},  {-2, 6}, {6, 2},  {-6, 2}, {4, 5},  {-4, 5}, {5, 4},  {-5, 4}, {3, 6},  {-3, 6},
    {6, 3},  {-6, 3}, {0, 7},  {7, 0},  {1, 7},  {-1, 7}, {5, 5},  {-5, 5}, {7, 1},  {-7, 1},
    {4, 6},  {-4, 6}, {6, 4},  {-6, 4}, {2, 7},  {-2, 7}, {7, 2},  {-7, 2}, {3, 7},  {-3, 7},
    {7, 3},  {-7, 3}, {5, 6},  {-5, 6}, {6, 5},  {-6, 5}, {8, 0},  {4, 7},  {-4, 7}, {7, 4},
    {-7, 4}, {8, 1},  {8, 2},  {6, 6},  {-6, 6}, {8, 3},  {5, 7},  {-5, 7}, {7, 5},  {-7, 5},
    {8, 4},  {6, 7},  {-6, 7}, {7, 6},  {-7, 6}, {8, 5},  {7, 7},  {-7, 7}, {8, 6},  {8, 7},
}};

// The pixels that came last, by a hash of their value.
class ColourCache {
 public:
  explicit ColourCache(int bits) : bits_(bits), colours_(bits > 0 ? std::size_t{1} << bits : 0) {}
  int size() const { return static_cast<int>(colours_.size()); }
  void note(std::uint32_t argb) {
    if (bits_ > 0) colours_[(argb * 0x1e35a7bdu) >> (32 - bits_)] = argb;
  }
  std::uint32_t operator[](int index) const { return colours_[static_cast<std::size_t>(index)]; }

 private:
  const int bits_;
  std::vector<std::uint32_t> colours_;
};

enum CodeOf { kGreen, kRed, kBlue, kAlpha, kDistance, kNumCodes };
using CodeGroup = std::array<WebpCode, kNumCodes>;

// Codes of a picture, which may differ from one square of it to another.
struct CodeGroups {
  std::vector<WebpCodeEntry> entries;
  std::vector<CodeGroup> groups;
  int square_bits = 0;
  int squares_per_row = 0;
  std::vector<std::uint32_t> group_of_square;  // empty: the first one everywhere

  const CodeGroup& at(int x, int y) const {
    if (group_of_square.empty()) return groups[0];
    return groups[group_of_square[static_cast<std::size_t>((y >> square_bits) * squares_per_row +
                                                           (x >> square_bits))]];
  }
};

class Decoder {
 public:
  Decoder(std::span<const std::uint8_t> chunk, const StopCheck& stop) : bits_(chunk), stop_(stop) {}

  Status decode(int width, int height, int num_channels, std::uint8_t* to, std::size_t row_bytes);

 private:
  using Pixels = std::vector<std::uint32_t>;

  Status read_transforms(int& width, int height);
  StatusOr<Pixels> read_small_picture(int width, int height);
  StatusOr<int> read_cache_bits();
  Status read_squares(int width, int height, CodeGroups& codes);
  Status read_groups(int num_groups, int num_cached, CodeGroups& codes);
  // Calls on_rows(n) when the first n rows are there.
  template <typename OnRows>
  Status read_pixels(int width, int height, const CodeGroups& codes, int cache_bits, Pixels& pixels,
                     const OnRows& on_rows);
  // What a length's or a distance's symbol stands for.
  int read_number(int symbol);

  WebpBits bits_;
  const StopCheck& stop_;
  std::vector<WebpTransform> transforms_;
};

Status Decoder::read_transforms(int& width, int height) {
  unsigned seen = 0;
  while (bits_.read(1) != 0) {
    const auto kind = static_cast<WebpTransform::Kind>(bits_.read(2));
    if ((seen >> static_cast<int>(kind) & 1) != 0) return corrupt();
    seen |= 1u << static_cast<int>(kind);
    WebpTransform transform;
    transform.kind = kind;
    transform.width = width;
    switch (kind) {
      case WebpTransform::Kind::kPredict:
      case WebpTransform::Kind::kColour: {
        transform.square_bits = static_cast<int>(bits_.read(3)) + 2;
        GAPLESS_ASSIGN_OR_RETURN(transform.data,
                                 read_small_picture(divide_up(width, transform.square_bits),
                                                    divide_up(height, transform.square_bits)));
        break;
      }
      case WebpTransform::Kind::kSubtractGreen:
        break;
      case WebpTransform::Kind::kPalette: {
        const int num_colours = static_cast<int>(bits_.read(8)) + 1;
        GAPLESS_ASSIGN_OR_RETURN(transform.data, read_small_picture(num_colours, 1));
        transform.finish_palette();
        width = divide_up(width, transform.square_bits);
        break;
      }
    }
    transforms_.push_back(std::move(transform));
  }
  return ok_status();
}

// One of those that say how the picture is coded. Its codes are the same everywhere.
StatusOr<Decoder::Pixels> Decoder::read_small_picture(int width, int height) {
  GAPLESS_ASSIGN_OR_RETURN(const int cache_bits, read_cache_bits());
  CodeGroups codes;
  GAPLESS_RETURN_IF_ERROR(read_groups(1, cache_bits > 0 ? 1 << cache_bits : 0, codes));
  Pixels pixels;
  GAPLESS_RETURN_IF_ERROR(read_pixels(width, height, codes, cache_bits, pixels, [](int) {}));
  return pixels;
}

StatusOr<int> Decoder::read_cache_bits() {
  if (bits_.read(1) == 0) return 0;
  const int cache_bits = static_cast<int>(bits_.read(4));
  if (cache_bits < 1 || cache_bits > kMaxCacheBits) return corrupt();
  return cache_bits;
}

Status Decoder::read_squares(int width, int height, CodeGroups& codes) {
  if (bits_.read(1) == 0) return ok_status();
  codes.square_bits = static_cast<int>(bits_.read(3)) + 2;
  codes.squares_per_row = divide_up(width, codes.square_bits);
  GAPLESS_ASSIGN_OR_RETURN(
      codes.group_of_square,
      read_small_picture(codes.squares_per_row, divide_up(height, codes.square_bits)));
  for (std::uint32_t& square : codes.group_of_square) square = square >> 8 & 0xffff;
  return ok_status();
}

Status Decoder::read_groups(int num_groups, int num_cached, CodeGroups& codes) {
  for (int i = 0; i < num_groups; ++i) {
    if (is_stopped(stop_)) return stopped_status();
    CodeGroup& group = codes.groups.emplace_back();
    const int sizes[kNumCodes] = {kNumLiterals + kNumLengths + num_cached, kNumLiterals,
                                  kNumLiterals, kNumLiterals, kNumDistances};
    for (std::size_t c = 0; c < kNumCodes; ++c) {
      const std::optional<WebpCode> code = read_webp_code(bits_, sizes[c], codes.entries);
      if (!code) return corrupt();
      group[c] = *code;
    }
    if (codes.entries.size() > kMaxCodeEntries) return data_loss("WebP: too many Huffman codes");
  }
  return ok_status();
}

int Decoder::read_number(int symbol) {
  if (symbol < 4) return symbol + 1;
  const int num_bits = (symbol - 2) >> 1;
  return ((2 + (symbol & 1)) << num_bits) + static_cast<int>(bits_.read(num_bits)) + 1;
}

template <typename OnRows>
Status Decoder::read_pixels(int width, int height, const CodeGroups& codes, int cache_bits,
                            Pixels& pixels, const OnRows& on_rows) {
  const std::size_t num_pixels = static_cast<std::size_t>(width) * static_cast<std::size_t>(height);
  pixels.reserve(num_pixels);
  prefer_huge_pages(pixels.data(), num_pixels * sizeof(std::uint32_t));
  ColourCache cache(cache_bits);
  const WebpCodeEntry* const entries = codes.entries.data();
  const int square_mask = codes.group_of_square.empty() ? -1 : (1 << codes.square_bits) - 1;
  int x = 0, y = 0;
  if (is_stopped(stop_)) return stopped_status();
  pixels.resize(static_cast<std::size_t>(width));  // a row at a time: the last byte may end it all
  std::size_t done = 0;
  const CodeGroup* group = &codes.at(0, 0);
  while (y < height) {
    if ((x & square_mask) == 0) group = &codes.at(x, y);
    const int symbol = bits_.symbol((*group)[kGreen], entries);
    std::size_t num_copied = 1;
    if (symbol < kNumLiterals) {
      const auto red = static_cast<std::uint32_t>(bits_.symbol((*group)[kRed], entries));
      const auto blue = static_cast<std::uint32_t>(bits_.symbol((*group)[kBlue], entries));
      const auto alpha = static_cast<std::uint32_t>(bits_.symbol((*group)[kAlpha], entries));
      const std::uint32_t argb =
          alpha << 24 | red << 16 | static_cast<std::uint32_t>(symbol) << 8 | blue;
      pixels[done] = argb;
      cache.note(argb);
    } else if (symbol < kNumLiterals + kNumLengths) {
      num_copied = static_cast<std::size_t>(read_number(symbol - kNumLiterals));
      const int code = read_number(bits_.symbol((*group)[kDistance], entries));
      std::int64_t distance = code - std::ssize(kNear);
      if (distance <= 0) {
        const auto [left, above] = kNear[static_cast<std::size_t>(code - 1)];
        distance = std::max<std::int64_t>(1, std::int64_t{above} * width + left);
      }
      if (distance > static_cast<std::int64_t>(done) || num_copied > num_pixels - done) {
        return bits_.is_past_end() ? data_loss("WebP: truncated") : corrupt();
      }
      const std::size_t rows_end = (done + num_copied + static_cast<std::size_t>(width) - 1) /
                                   static_cast<std::size_t>(width) *
                                   static_cast<std::size_t>(width);
      if (rows_end > pixels.size()) pixels.resize(rows_end);
      const std::uint32_t* const from = pixels.data() + done - distance;
      std::uint32_t* const to = pixels.data() + done;
      if (distance == 1) {
        std::fill_n(to, num_copied, *from);
      } else if (distance >= static_cast<std::int64_t>(num_copied)) {
        std::copy_n(from, num_copied, to);
      } else {
        for (std::size_t i = 0; i < num_copied; ++i) to[i] = from[i];
      }
      if (cache_bits > 0) {
        for (std::size_t i = 0; i < num_copied; ++i) cache.note(to[i]);
      }
    } else {
      const int index = symbol - kNumLiterals - kNumLengths;
      if (index >= cache.size()) return corrupt();
      pixels[done] = cache[index];
      // A place that was never noted has transparent black, whose place is another one.
      cache.note(pixels[done]);
    }
    done += num_copied;
    x += static_cast<int>(num_copied);
    if (x < width) {
      if (num_copied > 1) group = &codes.at(x, y);
      continue;
    }
    if (bits_.is_past_end()) return data_loss("WebP: truncated");
    if (is_stopped(stop_)) return stopped_status();
    y += x / width;
    x %= width;
    on_rows(y);
    if (y == height) break;
    group = &codes.at(x, y);
    const std::size_t rows_end = static_cast<std::size_t>(y + 1) * static_cast<std::size_t>(width);
    if (pixels.size() < rows_end) pixels.resize(rows_end);
  }
  return ok_status();
}

void write_row(const std::uint32_t* argb, int width, int num_channels, std::uint8_t* to) {
  for (int x = 0; x < width; ++x, to += num_channels) {
    to[0] = static_cast<std::uint8_t>(argb[x] >> 16);
    to[1] = static_cast<std::uint8_t>(argb[x] >> 8);
    to[2] = static_cast<std::uint8_t>(argb[x]);
    if (num_channels == 4) to[3] = static_cast<std::uint8_t>(argb[x] >> 24);
  }
}

Status Decoder::decode(int width, int height, int num_channels, std::uint8_t* to,
                       std::size_t row_bytes) {
  if (bits_.read(8) != kSignature || static_cast<int>(bits_.read(14)) + 1 != width ||
      static_cast<int>(bits_.read(14)) + 1 != height) {
    return data_loss("WebP: container and bitstream disagree about the size");
  }
  (void)bits_.read(1);  // whether alpha is used: it is there in any case
  if (bits_.read(3) != 0) return corrupt();
  int coded_width = width;
  GAPLESS_RETURN_IF_ERROR(read_transforms(coded_width, height));
  GAPLESS_ASSIGN_OR_RETURN(const int cache_bits, read_cache_bits());
  CodeGroups codes;
  GAPLESS_RETURN_IF_ERROR(read_squares(coded_width, height, codes));
  std::uint32_t last_group = 0;
  for (const std::uint32_t group : codes.group_of_square) last_group = std::max(last_group, group);
  GAPLESS_RETURN_IF_ERROR(
      read_groups(static_cast<int>(last_group) + 1, cache_bits > 0 ? 1 << cache_bits : 0, codes));
  for (WebpTransform& transform : transforms_) transform.begin();
  Pixels pixels;
  const GivesBackPages<std::uint32_t> gives_back(pixels);
  Pixels row(static_cast<std::size_t>(width) + 1), other(static_cast<std::size_t>(width) + 1);
  int written = 0;
  return read_pixels(coded_width, height, codes, cache_bits, pixels, [&](int num_rows) {
    for (; written < num_rows; ++written) {
      std::copy_n(pixels.begin() + std::ptrdiff_t{written} * coded_width, coded_width, row.begin());
      for (auto transform = transforms_.rbegin(); transform != transforms_.rend(); ++transform) {
        transform->invert_row(written, row, other);
      }
      write_row(row.data(), width, num_channels,
                to + static_cast<std::size_t>(written) * row_bytes);
    }
  });
}

}  // namespace

std::span<const std::uint8_t> lossless_webp_chunk(std::span<const std::uint8_t> file) {
  const auto is_at = [&](std::size_t at, std::string_view name) {
    return std::memcmp(file.data() + at, name.data(), name.size()) == 0;
  };
  std::size_t at = 0;
  if (file.size() >= 12 && is_at(0, "RIFF") && is_at(8, "WEBP")) at = 12;
  while (file.size() - at >= 8) {
    std::size_t num_bytes = 0;
    for (std::size_t i = 0; i < 4; ++i) num_bytes |= std::size_t{file[at + 4 + i]} << (8 * i);
    if (num_bytes > file.size() - at - 8) return {};
    // To an even number.
    const std::size_t filled = std::min(num_bytes + num_bytes % 2, file.size() - at - 8);
    if (is_at(at, "VP8L")) return file.subspan(at + 8, filled);
    at += 8 + filled;
  }
  return {};
}

Status decode_lossless_webp(std::span<const std::uint8_t> chunk, int width, int height,
                            int num_channels, std::uint8_t* to, std::size_t row_bytes,
                            const StopCheck& stop) {
  return Decoder(chunk, stop).decode(width, height, num_channels, to, row_bytes);
}

}  // namespace gapless::internal
