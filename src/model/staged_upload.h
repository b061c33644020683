// Copies host data to the device at start-up, in pieces through pinned memory.
//
// Two pieces alternate: while the device copies one, the host fills the other. Waits for the
// device, so never used by the engine loop.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "device/device.h"

namespace gapless {

// Of a piece, where what is copied is small.
inline constexpr std::size_t kUploadPieceBytes = 1u << 20;
class StagedUpload {
 public:
  // `stream` must outlive the upload. piece_bytes is the size of each of the two pinned pieces.
  static StatusOr<StagedUpload> create(Device& device, Stream& stream, std::size_t piece_bytes);

  // From now on a copy that is not done by then is a DeviceError: the device hangs. 0, as at first: each wait takes as
  // long as it takes.
  void set_timeout(std::int64_t timeout_ns) { timeout_ns_ = timeout_ns; }

  // Pinned memory to fill, at least piece_bytes; waits until its previous copy is done.
  StatusOr<std::span<std::byte>> begin_piece();
  // Enqueues the copy of the first `bytes` of the piece got last.
  Status end_piece(void* to_dev, std::size_t bytes);

  // The same for bytes that need no conversion, of any length.
  Status copy(void* to_dev, std::span<const std::byte> from_host);

  // Waits until everything has arrived.
  Status finish();
  // The same by the pieces' events, which is no synchronisation that I7 forbids. Of copies that begin_piece() or copy() made.
  Status wait();

 private:
  struct Piece {
    PinnedBuffer pinned;
    std::unique_ptr<Event> copied;
  };
  Status wait_for(Piece& piece) const;
  explicit StagedUpload(Stream& stream) : stream_(&stream) {}

  Stream* stream_;
  std::array<Piece, 2> pieces_;
  std::size_t current_ = 0;
  std::int64_t timeout_ns_ = 0;
};

template <typename T>
std::span<const std::byte> bytes_of(const T& container) {
  return std::as_bytes(std::span(container));
}

}  // namespace gapless
