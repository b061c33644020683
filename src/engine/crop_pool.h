// Pinned memory for crops between preprocessing and the encode step's upload: the only place where
// pixels wait. A fixed number of crop buffers, so pictures in flight are bounded; workers wait here
// when the device is behind.
//
// A free buffer keeps what is in it until it is taken again, the longest free one first. So the
// crops of a picture that comes once more (the next question about it) are mostly still there, at
// no memory of their own: find(). Pictures that were found are taken last, so that many new ones,
// each of which comes once, do not drive out the one that everybody asks about.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "base/content_hash.h"
#include "base/mutex.h"
#include "base/status.h"
#include "device/device.h"
#include "image/crop_tiles.h"

namespace gapless {

class CropPool : public std::enable_shared_from_this<CropPool> {
 public:
  // num_crops must be at least kMaxTilesPerImage + 1, so that every image that is admitted fits.
  static StatusOr<std::shared_ptr<CropPool>> create(Device& device, int num_crops,
                                                    std::size_t crop_bytes);

  // Crop buffers that go back to the pool with the last lease of them.
  class Lease {
   public:
    Lease(std::shared_ptr<CropPool> pool, std::vector<int> buffers);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    int size() const { return static_cast<int>(buffers_.size()); }
    std::uint8_t* crop_pinned(int i) const;

   private:
    friend class CropPool;
    std::shared_ptr<CropPool> pool_;
    std::vector<int> buffers_;
  };

  // Waits until `count` buffers, at most capacity(), are free: all or none, so that two workers
  // cannot hold each other up; first come, first served, so that a request for many is not
  // overtaken for ever. nullptr after close(), and when `stop` is requested before they are free.
  std::shared_ptr<Lease> acquire(int count, const std::stop_token& stop = {});

  // A picture's crops, whole and not to be written to any more, and how it was tiled.
  struct Picture {
    std::shared_ptr<Lease> crops;
    Tiling tiling;
  };

  // From now on find(name) knows the picture whose crops are the lease's [first, first + count).
  void remember(const ContentHash& name, const Lease& lease, int first, int count,
                const Tiling& tiling);

  // The picture, if none of its buffers was taken since. Never blocks. It takes free buffers before
  // whoever is first in acquire()'s line, but at most kMaxOvertaken times.
  std::optional<Picture> find(const ContentHash& name);

  void close();

  int num_free() const;
  int num_waiting() const;  // callers of acquire()
  int capacity() const { return num_crops_; }
  std::size_t crop_bytes() const { return crop_bytes_; }

 private:
  struct Buffer {
    int num_leases = 0;
    std::optional<ContentHash> picture;  // that it holds a crop of
  };
  struct Known {
    std::vector<int> buffers;
    Tiling tiling;
    bool was_found = false;
  };

  CropPool(PinnedBuffer memory, int num_crops, std::size_t crop_bytes);
  Buffer& buffer(int index) GAPLESS_REQUIRES(mutex_) {
    return buffers_[static_cast<std::size_t>(index)];
  }
  // Of the free buffers, of which there are so many.
  std::vector<int> choose_free(std::size_t count) GAPLESS_REQUIRES(mutex_);
  void forget_picture_of(int index) GAPLESS_REQUIRES(mutex_);
  std::shared_ptr<Lease> lease(std::vector<int> buffers) GAPLESS_REQUIRES(mutex_);
  void release(const std::vector<int>& buffers);

  PinnedBuffer memory_;
  const int num_crops_;
  const std::size_t crop_bytes_;
  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::vector<Buffer> buffers_ GAPLESS_GUARDED_BY(mutex_);
  std::vector<int> free_ GAPLESS_GUARDED_BY(mutex_);  // the longest free one first
  std::map<ContentHash, Known> pictures_ GAPLESS_GUARDED_BY(mutex_);
  // Turns of callers of acquire(), whose it is first.
  std::deque<std::uint64_t> waiting_ GAPLESS_GUARDED_BY(mutex_);
  std::uint64_t next_turn_ GAPLESS_GUARDED_BY(mutex_) = 0;  // of whoever comes next
  int num_overtaken_ GAPLESS_GUARDED_BY(mutex_) = 0;  // how often find() overtook the first one
  bool closed_ GAPLESS_GUARDED_BY(mutex_) = false;
};

}  // namespace gapless
