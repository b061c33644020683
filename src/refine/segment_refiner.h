// From the coarse outline that a model wrote to one that follows the picture.
//
// The box and a quarter of it on each side are seen by the vision encoder once more, and a small network (refiner_head.h) makes the mask
// exact in five rounds. All of it runs on the CPU, whatever device the model runs on.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "device/device.h"
#include "image/annotate.h"
#include "image/image.h"
#include "image/stop_check.h"
#include "model/model_source.h"
#include "refine/outline.h"
#include "refine/refiner_head.h"
#include "refine/vision_tower.h"

namespace gapless {

// Pixels [left, right) x [top, bottom) of a picture.
struct PixelArea {
  int left = 0, top = 0, right = 0, bottom = 0;
  int width() const { return right - left; }
  int height() const { return bottom - top; }
  friend bool operator==(const PixelArea&, const PixelArea&) = default;
};

// The box and a quarter of it on each side, inside the picture.
PixelArea area_around(const MarkBox& box, int picture_width, int picture_height);

class SegmentRefiner {
 public:
  static constexpr int kRounds = 5;

  // `file`: the network's weights (refiner_tensors.h). InvalidArgument, which names the file, what was found and what is
  // expected; also for a model that does not segment.
  static StatusOr<std::unique_ptr<SegmentRefiner>> load(const ModelSource& source,
                                                        const std::filesystem::path& file,
                                                        Compute compute);

  // path: SVG path data in a unit square that is `box` of the image. nullopt: nothing of the path lies in the picture, or nothing was left
  // of it. Cancelled soon after `stop` says so: it is asked between the encoder's blocks and between the rounds. Any thread; one
  // refines at a time, the others wait for their turn.
  StatusOr<std::optional<Outline>> refine(const Image& image, std::string_view path,
                                          const MarkBox& box, const StopCheck& stop);

  // Of the host's memory, without the picture: weights, and what a refinement works on.
  std::size_t bytes() const;

 private:
  SegmentRefiner() = default;

  std::unique_ptr<Device> device_;
  std::unique_ptr<FloatOps> ops_;
  std::unique_ptr<VisionTower> tower_;
  std::unique_ptr<RefinerHead> head_;
  int crop_size_ = 0;
  std::mutex turn_;  // held while one refines
};

}  // namespace gapless
