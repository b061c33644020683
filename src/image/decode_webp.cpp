#include <webp/decode.h>
#include <webp/demux.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "image/codecs.h"
#include "image/raster_memory.h"
#include "image/webp_rows.h"

namespace gapless::internal {
namespace {

const char* webp_error_text(VP8StatusCode code) {
  switch (code) {
    case VP8_STATUS_OUT_OF_MEMORY:
      return "out of memory";
    case VP8_STATUS_INVALID_PARAM:
      return "invalid parameter";
    case VP8_STATUS_BITSTREAM_ERROR:
      return "corrupt bitstream";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return "unsupported feature";
    case VP8_STATUS_SUSPENDED:
      return "truncated";
    case VP8_STATUS_NOT_ENOUGH_DATA:
      return "truncated";
    default:
      return "decoder error";
  }
}

// The library decodes what it is given and, where webp_rows.h does not help, asks nobody meanwhile, so it is given pieces
// that make about this many rows each. How many bytes that are shows as it goes: a piece that makes fewer
// rows is followed by one twice as long, one that makes more by one half as long. (A fixed length
// would cost a lossless file of a few large rows many times over: each piece begins with the rows
// that the one before could not end. A lossy one goes on where it stopped, so its pieces are always
// short, and a flat part behind a detailed one is no surprise.)
constexpr int kPieceRows = 32;
constexpr std::size_t kMinPieceBytes = 64;
constexpr std::size_t kMaxLossyPieceBytes = 1024;
// The library does not begin with a lossless bitstream before it has this part of it.
constexpr std::size_t kLosslessBegin = 8;

Status decode_in_pieces(WebPIDecoder* decoder, const std::uint8_t* data, std::size_t num_bytes,
                        bool is_lossy, const StopCheck& stop) {
  const WebpRowStops row_stops(stop);
  std::size_t piece_bytes = is_lossy ? kMinPieceBytes : num_bytes / kLosslessBegin + kMinPieceBytes;
  int num_rows = 0;
  for (std::size_t given = 0;;) {
    if (is_stopped(stop)) return stopped_status();
    given += std::min(piece_bytes, num_bytes - given);
    const VP8StatusCode code = WebPIUpdate(decoder, data, given);
    if (code == VP8_STATUS_OK) return ok_status();
    if (code == VP8_STATUS_USER_ABORT) return stopped_status();
    if (code != VP8_STATUS_SUSPENDED || given == num_bytes) {
      return data_loss("WebP: {}", webp_error_text(code));
    }
    int last_row = 0;
    (void)WebPIDecGetRGB(decoder, &last_row, nullptr, nullptr, nullptr);
    piece_bytes = last_row - num_rows < kPieceRows ? 2 * piece_bytes
                                                   : std::max(kMinPieceBytes, piece_bytes / 2);
    if (is_lossy) piece_bytes = std::min(piece_bytes, kMaxLossyPieceBytes);
    num_rows = last_row;
  }
}

// Zeros for the raster, in strips: the kernel's clearing of 400 MB takes a while.
Status make_room(Pixels& pixels, std::size_t num_bytes, const StopCheck& stop) {
  constexpr std::size_t kStripBytes = std::size_t{4} << 20;
  reserve_raster(pixels, num_bytes);
  while (pixels.size() < num_bytes) {
    if (is_stopped(stop)) return stopped_status();
    pixels.resize(std::min(num_bytes, pixels.size() + kStripBytes), 0);
  }
  return ok_status();
}

// Decodes one still bitstream of exactly width x height into `to`, whose rows are row_bytes apart.
Status decode_bitstream(const std::uint8_t* data, std::size_t num_bytes, int width, int height,
                        WEBP_CSP_MODE mode, std::uint8_t* to, std::size_t row_bytes,
                        const StopCheck& stop) {
  WebPDecoderConfig config;
  if (!WebPInitDecoderConfig(&config)) {
    return make_error(StatusCode::kInternal, "WebP: the library's version does not match");
  }
  const VP8StatusCode header_code = WebPGetFeatures(data, num_bytes, &config.input);
  if (header_code != VP8_STATUS_OK) return data_loss("WebP: {}", webp_error_text(header_code));
  if (config.input.width != width || config.input.height != height) {
    return data_loss("WebP: container and bitstream disagree about the size");
  }
  const std::size_t num_channels = mode == MODE_RGBA ? 4 : 3;
  config.output.colorspace = mode;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = to;
  config.output.u.RGBA.stride = static_cast<int>(row_bytes);
  config.output.u.RGBA.size = row_bytes * static_cast<std::size_t>(height - 1) +
                              static_cast<std::size_t>(width) * num_channels;
  config.options.use_threads = 1;  // for WebpRowStops
  const std::unique_ptr<WebPIDecoder, void (*)(WebPIDecoder*)> decoder(
      WebPIDecode(nullptr, 0, &config), WebPIDelete);
  if (decoder == nullptr) {
    return make_error(StatusCode::kResourceExhausted, "WebP: the decoder cannot start");
  }
  constexpr int kLossy = 1;
  return decode_in_pieces(decoder.get(), data, num_bytes, config.input.format == kLossy, stop);
}

// The first frame on a transparent canvas, which is what a player shows at time 0.
StatusOr<Raster> decode_first_frame(const std::uint8_t* data, std::size_t num_bytes,
                                    const ImageInfo& info, const StopCheck& stop) {
  const WebPData webp{data, num_bytes};
  const std::unique_ptr<WebPDemuxer, void (*)(WebPDemuxer*)> demuxer(WebPDemux(&webp),
                                                                     WebPDemuxDelete);
  if (demuxer == nullptr) return data_loss("WebP: broken animation container");
  WebPIterator frame{};
  const std::unique_ptr<WebPIterator, void (*)(WebPIterator*)> release(&frame,
                                                                       WebPDemuxReleaseIterator);
  if (!WebPDemuxGetFrame(demuxer.get(), 1, &frame) || !frame.complete) {
    return data_loss("WebP: the animation has no complete first frame");
  }
  if (frame.x_offset < 0 || frame.y_offset < 0 || frame.width < 1 || frame.height < 1 ||
      frame.width > info.width - frame.x_offset || frame.height > info.height - frame.y_offset) {
    return data_loss("WebP: the first frame lies outside the canvas");
  }
  Raster raster{info.width, info.height, 4, {}};
  const std::size_t row_bytes = static_cast<std::size_t>(info.width) * 4;
  GAPLESS_RETURN_IF_ERROR(
      make_room(raster.pixels, row_bytes * static_cast<std::size_t>(info.height), stop));
  std::uint8_t* to = raster.pixels.data() + static_cast<std::size_t>(frame.y_offset) * row_bytes +
                     static_cast<std::size_t>(frame.x_offset) * 4;
  GAPLESS_RETURN_IF_ERROR(decode_bitstream(frame.fragment.bytes, frame.fragment.size, frame.width,
                                           frame.height, MODE_RGBA, to, row_bytes, stop));
  return raster;
}

}  // namespace

StatusOr<Raster> decode_webp(std::span<const std::byte> bytes, const ImageInfo& info,
                             const StopCheck& stop) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  WebPBitstreamFeatures features;
  const VP8StatusCode code = WebPGetFeatures(data, bytes.size(), &features);
  if (code != VP8_STATUS_OK) return data_loss("WebP: {}", webp_error_text(code));
  if (features.has_animation) return decode_first_frame(data, bytes.size(), info, stop);

  Raster raster{info.width, info.height, features.has_alpha ? 4 : 3, {}};
  const std::size_t row_bytes =
      static_cast<std::size_t>(info.width) * static_cast<std::size_t>(raster.num_channels);
  GAPLESS_RETURN_IF_ERROR(
      make_room(raster.pixels, row_bytes * static_cast<std::size_t>(info.height), stop));
  GAPLESS_RETURN_IF_ERROR(decode_bitstream(data, bytes.size(), info.width, info.height,
                                           features.has_alpha ? MODE_RGBA : MODE_RGB,
                                           raster.pixels.data(), row_bytes, stop));
  return raster;
}

}  // namespace gapless::internal
