// Places in the model's image-embedding pool, by image.
//
// Seats that show the same image share a place. A place keeps its embeddings after its last user
// has gone, until another image needs it (least recently used first), so an image that comes back
// soon is not encoded again.
//
// "Encoded" means that the encode step was launched: whatever reads the embeddings is launched
// later on the same compute stream. An image of many crops is encoded in several steps. What is there of
// it are features that the next encode of another image overwrites, so at most one image is encoded
// in part: the one whose crops were launched last.
//
// Threads: the engine thread only. No allocation after the constructor.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/content_hash.h"
#include "pipeline/sequence.h"

namespace gapless {

class ImageSlots {
 public:
  explicit ImageSlots(int num_slots);

  // One reference to the image's place, found or made. nullopt: every place is in use.
  std::optional<ImageSlotId> acquire(const ContentHash& image);
  void release(ImageSlotId slot);

  bool is_encoded(ImageSlotId slot) const { return places_[index(slot)].encoded; }
  // In some place, in use or not.
  bool holds(const ContentHash& image) const;
  // Of an image that is not encoded: its first crops whose features are there.
  int num_encoded_crops(ImageSlotId slot) const {
    return slot == in_part_.slot ? in_part_.num_crops : 0;
  }
  // An encode of the image's crops up to `end_crop` was launched.
  void crops_launched(ImageSlotId slot, int end_crop, bool is_whole);
  // An encode may have been launched or not: no image is encoded in part.
  void forget_part() { in_part_ = {}; }

  // Forgets every image that nobody uses.
  void clear();

  int num_in_use() const;
  // Places in use whose image is to be encoded.
  int num_to_encode() const;

 private:
  struct Place {
    bool known = false;  // holds, or will hold, `image`
    bool encoded = false;
    ContentHash image{};
    int num_refs = 0;
    std::int64_t last_use = 0;
  };
  struct InPart {
    ImageSlotId slot;  // invalid: none
    int num_crops = 0;
  };
  std::size_t index(ImageSlotId slot) const;

  std::vector<Place> places_;
  InPart in_part_;
  std::int64_t num_uses_ = 0;
};

}  // namespace gapless
