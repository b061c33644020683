#include "model/staged_upload.h"

#include <algorithm>
#include <cstring>

namespace gapless {

StatusOr<StagedUpload> StagedUpload::create(Device& device, Stream& stream,
                                            std::size_t piece_bytes) {
  StagedUpload upload(stream);
  for (Piece& piece : upload.pieces_) {
    GAPLESS_ASSIGN_OR_RETURN(piece.pinned, device.allocate_pinned(piece_bytes));
    GAPLESS_ASSIGN_OR_RETURN(piece.copied, device.create_event());
  }
  return upload;
}

StatusOr<std::span<std::byte>> StagedUpload::begin_piece() {
  current_ = 1 - current_;
  Piece& piece = pieces_[current_];
  GAPLESS_RETURN_IF_ERROR(wait_for(piece));
  return std::span(piece.pinned.as<std::byte>(), piece.pinned.size_bytes());
}

Status StagedUpload::end_piece(void* to_dev, std::size_t bytes) {
  Piece& piece = pieces_[current_];
  GAPLESS_RETURN_IF_ERROR(stream_->copy_to_device(to_dev, piece.pinned.data(), bytes));
  return stream_->record(*piece.copied);
}

Status StagedUpload::copy(void* to_dev, std::span<const std::byte> from_host) {
  auto* to = static_cast<std::byte*>(to_dev);
  while (!from_host.empty()) {
    GAPLESS_ASSIGN_OR_RETURN(const std::span<std::byte> piece, begin_piece());
    const std::size_t bytes = std::min(piece.size(), from_host.size());
    std::memcpy(piece.data(), from_host.data(), bytes);
    GAPLESS_RETURN_IF_ERROR(end_piece(to, bytes));
    to += bytes;
    from_host = from_host.subspan(bytes);
  }
  return ok_status();
}

Status StagedUpload::wait_for(Piece& piece) const {
  if (timeout_ns_ == 0) return piece.copied->synchronize();
  GAPLESS_ASSIGN_OR_RETURN(const bool is_there, piece.copied->synchronize_within(timeout_ns_));
  if (is_there) return ok_status();
  return make_error(StatusCode::kDeviceError, "an upload did not end within {} s",
                    timeout_ns_ / 1'000'000'000);
}

Status StagedUpload::wait() {
  for (Piece& piece : pieces_) GAPLESS_RETURN_IF_ERROR(wait_for(piece));
  return ok_status();
}

Status StagedUpload::finish() {
  return stream_->synchronize();
}

}  // namespace gapless
