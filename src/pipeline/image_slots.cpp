#include "pipeline/image_slots.h"

#include <algorithm>

#include "base/check.h"

namespace gapless {

ImageSlots::ImageSlots(int num_slots) : places_(static_cast<std::size_t>(num_slots)) {}

std::optional<ImageSlotId> ImageSlots::acquire(const ContentHash& image) {
  Place* chosen = nullptr;
  for (Place& place : places_) {
    if (place.known && place.image == image) {
      chosen = &place;
      break;
    }
    if (place.num_refs > 0) continue;
    if (chosen == nullptr || place.last_use < chosen->last_use) chosen = &place;
  }
  if (chosen == nullptr) return std::nullopt;
  if (!chosen->known || chosen->image != image) {
    *chosen = Place{.known = true, .image = image};
  }
  ++chosen->num_refs;
  chosen->last_use = ++num_uses_;
  return ImageSlotId(static_cast<std::int32_t>(chosen - places_.data()));
}

bool ImageSlots::holds(const ContentHash& image) const {
  return std::any_of(places_.begin(), places_.end(), [&](const Place& place) {
    return place.known && place.encoded && place.image == image;
  });
}

void ImageSlots::release(ImageSlotId slot) {
  Place& place = places_[index(slot)];
  GAPLESS_CHECK_MSG(place.num_refs > 0, "an image slot released twice");
  --place.num_refs;
  if (place.num_refs > 0 || place.encoded) return;
  // Nobody is left to encode it.
  place = Place{};
  if (in_part_.slot == slot) in_part_ = {};
}

void ImageSlots::crops_launched(ImageSlotId slot, int end_crop, bool is_whole) {
  places_[index(slot)].encoded = is_whole;
  in_part_ = is_whole ? InPart{} : InPart{slot, end_crop};
}

void ImageSlots::clear() {
  for (Place& place : places_) {
    if (place.num_refs == 0) place = Place{};
  }
}

int ImageSlots::num_in_use() const {
  int count = 0;
  for (const Place& place : places_) count += place.num_refs > 0 ? 1 : 0;
  return count;
}

int ImageSlots::num_to_encode() const {
  int count = 0;
  for (const Place& place : places_) count += place.num_refs > 0 && !place.encoded ? 1 : 0;
  return count;
}

std::size_t ImageSlots::index(ImageSlotId slot) const {
  GAPLESS_CHECK_MSG(slot.value >= 0 && slot.value < static_cast<int>(places_.size()),
                    "no such image slot");
  return static_cast<std::size_t>(slot.value);
}

}  // namespace gapless
