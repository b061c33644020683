// Pinned memory for crops between preprocessing and the encode step's upload: the only place where
// pixels wait. A fixed number of crop buffers, so pictures in flight are bounded; workers wait here
// when the device is behind.
//
// Threads: any.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "device/device.h"

namespace gapless {

class CropPool : public std::enable_shared_from_this<CropPool> {
 public:
  // num_crops must be at least kMaxTilesPerImage + 1, so that every image that is admitted fits.
  static StatusOr<std::shared_ptr<CropPool>> create(Device& device, int num_crops,
                                                    std::size_t crop_bytes);

  // Crop buffers that go back to the pool with the lease.
  class Lease {
   public:
    Lease(std::shared_ptr<CropPool> pool, std::vector<int> indices);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    int size() const { return static_cast<int>(indices_.size()); }
    std::uint8_t* crop_pinned(int i) const;

   private:
    std::shared_ptr<CropPool> pool_;
    std::vector<int> indices_;
  };

  // Waits until `count` buffers, at most capacity(), are free: all or none, so that two workers
  // cannot hold each other up; first come, first served, so that a request for many is not
  // overtaken for ever. nullptr after close().
  std::shared_ptr<Lease> acquire(int count);

  void close();

  int num_free() const;
  int num_waiting() const;  // callers of acquire()
  int capacity() const { return capacity_; }
  std::size_t crop_bytes() const { return crop_bytes_; }

 private:
  CropPool(PinnedBuffer memory, int num_crops, std::size_t crop_bytes);
  void release(const std::vector<int>& indices);

  PinnedBuffer memory_;
  const std::size_t crop_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> free_;
  const int capacity_;
  std::uint64_t next_turn_ = 0;  // of whoever comes next
  std::uint64_t turn_ = 0;       // whose it is
  bool closed_ = false;
};

}  // namespace gapless
