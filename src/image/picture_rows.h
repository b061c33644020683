// The rows of a picture while it is decoded: one thread publishes them from the top, others wait
// for the rows that they need.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace gapless {

class PictureRows {
 public:
  // Nothing yet. Only `num_kept` rows are there at a time (0: all): row y at y % num_kept of them.
  explicit PictureRows(int num_kept = 0) : num_kept_(num_kept) {}
  // All there: `rgb` has num_rows rows.
  PictureRows(const std::uint8_t* rgb, int num_rows) { publish(rgb, num_rows); }
  PictureRows(const PictureRows&) = delete;
  PictureRows& operator=(const PictureRows&) = delete;

  int num_kept() const { return num_kept_; }
  // Where row y lies, in rows behind the pointer of wait_for().
  std::ptrdiff_t place_of(int y) const { return num_kept_ > 0 ? y % num_kept_ : y; }

  // Who reads rows that do not stay. `let_go(num_rows, end)` returns when nobody reads rows before `end` any more;
  // num_rows are there. It runs on the thread that publishes. Before the first publish().
  using LetGo = std::function<void(int num_rows, int end)>;
  void set_reader(LetGo let_go) { let_go_ = std::move(let_go); }

  // The first num_rows rows are final. The rows lie at `rgb` from the first call to the last. When it returns, the newer
  // half of those that are kept may still be read, and no others.
  void publish(const std::uint8_t* rgb, int num_rows) {
    if (num_rows_.load(std::memory_order_relaxed) == 0) rgb_ = rgb;  // before anybody reads it
    tell(num_rows);
    if (num_kept_ > 0 && let_go_) let_go_(num_rows, num_rows - num_kept_ / 2);
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

  const int num_kept_ = 0;
  LetGo let_go_;
  const std::uint8_t* rgb_ = nullptr;
  std::atomic<int> num_rows_{0};
};

}  // namespace gapless
