// Where the stages of a ring lie: pieces of one array, taken and given back first in, first out.
// Host and device, so that it is tested without a GPU.
#pragma once

#include "base/host_device.h"

namespace gapless {

class RingSpace {
 public:
  // `bytes` hold any stage twice.
  GAPLESS_HOST_DEVICE explicit RingSpace(int bytes) : bytes_(bytes), free_(bytes) {}

  // What a stage of `size` takes if it is the next. A stage lies in one piece: where the array's
  // end is too near, it is left unused.
  GAPLESS_HOST_DEVICE int taken_by(int size) const {
    return is_before_end(size) ? size : bytes_ - next_ + size;
  }
  GAPLESS_HOST_DEVICE bool has_room(int size) const { return taken_by(size) <= free_; }

  // Where the next stage lies. There must be room.
  GAPLESS_HOST_DEVICE int take(int size) {
    free_ -= taken_by(size);
    const int at = is_before_end(size) ? next_ : 0;
    next_ = at + size;
    return at;
  }
  // The oldest stage's, with what was taken_by it.
  GAPLESS_HOST_DEVICE void give_back(int taken) { free_ += taken; }

 private:
  GAPLESS_HOST_DEVICE bool is_before_end(int size) const { return next_ + size <= bytes_; }

  int bytes_;
  int next_ = 0;  // where the last stage ends; up to bytes_
  int free_;
};

}  // namespace gapless
