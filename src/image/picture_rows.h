// The rows of a picture while it is decoded: one thread publishes them from the top, others wait
// for the rows that they need.
#pragma once

#include <atomic>
#include <cstdint>

namespace gapless {

class PictureRows {
 public:
  // Nothing yet.
  PictureRows() = default;
  // All there: `rgb` has num_rows rows.
  PictureRows(const std::uint8_t* rgb, int num_rows) { publish(rgb, num_rows); }
  PictureRows(const PictureRows&) = delete;
  PictureRows& operator=(const PictureRows&) = delete;

  // The first num_rows rows are final. The rows lie at `rgb` from the first call to the last.
  void publish(const std::uint8_t* rgb, int num_rows) {
    if (num_rows_.load(std::memory_order_relaxed) == 0) rgb_ = rgb;  // before anybody reads it
    tell(num_rows);
  }

  // No more will come, and those that did are of no use; their memory stays until nobody waits or
  // reads any more. The last call.
  void give_up() { tell(kGaveUp); }

  // Waits until the first num_rows are there. nullptr when the decoder gave up.
  const std::uint8_t* wait_for(int num_rows) const {
    int there = num_rows_.load(std::memory_order_acquire);
    while (there != kGaveUp && there < num_rows) {
      num_rows_.wait(there, std::memory_order_acquire);
      there = num_rows_.load(std::memory_order_acquire);
    }
    return there == kGaveUp ? nullptr : rgb_;
  }

 private:
  static constexpr int kGaveUp = -1;
  void tell(int num_rows) {
    num_rows_.store(num_rows, std::memory_order_release);
    num_rows_.notify_all();
  }

  const std::uint8_t* rgb_ = nullptr;
  std::atomic<int> num_rows_{0};
};

}  // namespace gapless
