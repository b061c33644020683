#include "refine/segment_refiner.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "image/svg_path.h"
#include "refine/bilinear.h"
#include "refine/mask.h"

namespace gapless {
namespace {

constexpr double kMargin = 0.25;
// Specks smaller than this share of the picture are no part of an object.
constexpr double kSpeckShare = 0.0015;
// Around the area, so that closing gaps ends where it would end in the whole picture.
constexpr int kBorder = 2;

// The area's pixels in a square of `side`.
std::vector<std::uint8_t> crop_of(const Image& image, const PixelArea& area, int side) {
  std::vector<std::uint8_t> crop;
  crop.reserve(static_cast<std::size_t>(side) * static_cast<std::size_t>(side) * 3);
  const std::vector<BilinearTap> columns = bilinear_taps(area.width(), side);
  for (const BilinearTap& line : bilinear_taps(area.height(), side)) {
    for (const BilinearTap& column : columns) {
      for (std::size_t c = 0; c < 3; ++c) {
        const float value = sample_bilinear(column, line, [&](int x, int y) {
          const auto pixel =
              static_cast<std::size_t>(area.top + y) * static_cast<std::size_t>(image.width) +
              static_cast<std::size_t>(area.left + x);
          return static_cast<float>(image.rgb[3 * pixel + c]);
        });
        crop.push_back(static_cast<std::uint8_t>(std::lround(value)));
      }
    }
  }
  return crop;
}

// Lines or columns of the area that a square of `side` is made of: the quarters of each of them once, and which of them a line of
// the square is.
struct SquareSamples {
  std::vector<double> quarters;
  std::vector<std::size_t> first_quarter;  // [side]

  SquareSamples(int begin, int size, int side) {
    int last = -1;
    for (int i = 0; i < side; ++i) {
      const int pixel = static_cast<int>(std::int64_t{i} * size / side);
      if (pixel != last) {
        quarters.push_back(begin + pixel + 0.25);
        quarters.push_back(begin + pixel + 0.75);
        last = pixel;
      }
      first_quarter.push_back(quarters.size() - 2);
    }
  }
};

// What of the path lies in the area: a pixel counts if more than half of its quarters are inside.
Rows coarse_mask(const PathPolygons& polygons, const PixelArea& area, int side) {
  const SquareSamples columns(area.left, area.width(), side), lines(area.top, area.height(), side);
  const std::size_t stride = columns.quarters.size();
  const std::vector<std::uint8_t> inside =
      inside_polygons(polygons, columns.quarters, lines.quarters);
  Rows mask{side * side, 1};
  for (const std::size_t y : lines.first_quarter) {
    for (const std::size_t x : columns.first_quarter) {
      const std::uint8_t* const quarter = inside.data() + y * stride + x;
      const int count = quarter[0] + quarter[1] + quarter[stride] + quarter[stride + 1];
      mask.values.push_back(count > 2 ? 1.0f : 0.0f);
    }
  }
  return mask;
}

// The area with a border, as far as the picture goes.
PixelArea with_border(const PixelArea& area, int width, int height) {
  return {std::max(0, area.left - kBorder), std::max(0, area.top - kBorder),
          std::min(width, area.right + kBorder), std::min(height, area.bottom + kBorder)};
}

// Shares of the square become pixels of `frame`, in which the area lies.
Mask pixels_of(const Rows& shares, int side, const PixelArea& area, const PixelArea& frame) {
  Mask mask = Mask::empty(frame.width(), frame.height());
  const std::vector<BilinearTap> columns = bilinear_taps(side, area.width());
  const std::vector<BilinearTap> lines = bilinear_taps(side, area.height());
  for (int y = 0; y < area.height(); ++y) {
    for (int x = 0; x < area.width(); ++x) {
      const float share = sample_bilinear(
          columns[static_cast<std::size_t>(x)], lines[static_cast<std::size_t>(y)],
          [&](int from_x, int from_y) { return shares.row(from_y * side + from_x)[0]; });
      mask.at(area.left - frame.left + x, area.top - frame.top + y) = share > 0.5f ? 1 : 0;
    }
  }
  return mask;
}

}  // namespace

PixelArea area_around(const MarkBox& box, int picture_width, int picture_height) {
  const auto ends = [](double low, double high, int size) {
    const double margin = (high - low) * kMargin;
    return std::pair(std::max(0, static_cast<int>((low - margin) * size)),
                     std::min(size, static_cast<int>((high + margin) * size)));
  };
  const auto [left, right] = ends(double{box.x_min}, double{box.x_max}, picture_width);
  const auto [top, bottom] = ends(double{box.y_min}, double{box.y_max}, picture_height);
  return {left, top, right, bottom};
}

StatusOr<std::unique_ptr<SegmentRefiner>> SegmentRefiner::load(const ModelSource& source,
                                                               const std::filesystem::path& file,
                                                               Compute compute) {
  if (source.llama || source.config.tokenizer.segment.prefix.empty()) {
    return invalid_argument("{} has no segments that {} could refine", source.name, file.string());
  }
  std::unique_ptr<SegmentRefiner> refiner(new SegmentRefiner);
  const VisionConfig& vision = source.config.vision;
  refiner->crop_size_ = vision.crop_size;
  GAPLESS_ASSIGN_OR_RETURN(refiner->device_, open_device("cpu"));
  GAPLESS_ASSIGN_OR_RETURN(refiner->ops_, FloatOps::create(*refiner->device_));
  GAPLESS_ASSIGN_OR_RETURN(refiner->head_,
                           RefinerHead::load(*refiner->ops_, file, vision.enc_dim, vision.grid()));
  GAPLESS_ASSIGN_OR_RETURN(refiner->tower_, VisionTower::load(*refiner->device_, source, compute));
  return refiner;
}

std::size_t SegmentRefiner::bytes() const {
  return tower_->bytes() + head_->weight_bytes() + head_->activation_bytes();
}

StatusOr<std::optional<Outline>> SegmentRefiner::refine(const Image& image, std::string_view path,
                                                        const MarkBox& box, const StopCheck& stop) {
  const std::lock_guard turn(turn_);
  const int side = crop_size_;
  const PixelArea area = area_around(box, image.width, image.height);
  if (area.width() < 1 || area.height() < 1) return std::optional<Outline>();
  // A twentieth of a pixel of the square.
  GAPLESS_ASSIGN_OR_RETURN(PathPolygons polygons, flatten_svg_path(path, 0.05 / side));
  Rows mask =
      coarse_mask(in_pixels(std::move(polygons), box, image.width, image.height), area, side);
  if (std::ranges::max(mask.values) == 0) return std::optional<Outline>();

  const std::vector<std::uint8_t> crop = crop_of(image, area, side);
  GAPLESS_ASSIGN_OR_RETURN(const CropFeatures seen, tower_->encode(crop.data(), stop));
  GAPLESS_ASSIGN_OR_RETURN(const Rows features, head_->picture_features(seen.early, seen.final));
  for (int round = 0; round < kRounds; ++round) {
    if (is_stopped(stop)) return stopped_status();
    GAPLESS_ASSIGN_OR_RETURN(mask, head_->refine(features, mask, side));
    for (float& logit : mask.values) logit = 1.0f / (1.0f + std::exp(-logit));
  }

  const PixelArea frame = with_border(area, image.width, image.height);
  Mask pixels = pixels_of(mask, side, area, frame);
  const double num_pixels = static_cast<double>(image.width) * image.height;
  remove_specks(pixels, std::max(1.0, kSpeckShare * num_pixels),
                {.left = frame.left > 0,
                 .top = frame.top > 0,
                 .right = frame.right < image.width,
                 .bottom = frame.bottom < image.height});
  close_gaps(pixels);
  return outline_of(pixels, frame.left, frame.top, image.width, image.height);
}

}  // namespace gapless
