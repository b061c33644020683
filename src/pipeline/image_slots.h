// Places in the model's image-embedding pool, by image.
//
// Seats that show the same image share a place. A place keeps its embeddings after its last user
// has gone, until another image needs it (least recently used first), so an image that comes back
// soon is not encoded again.
//
// "Encoded" means that the encode step was launched: whatever reads the embeddings is launched
// later on the same compute stream.
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
  void set_encoded(ImageSlotId slot) { places_[index(slot)].encoded = true; }

  // Forgets every image that nobody uses.
  void clear();

  int num_in_use() const;

 private:
  struct Place {
    bool known = false;  // holds, or will hold, `image`
    bool encoded = false;
    ContentHash image{};
    int num_refs = 0;
    std::int64_t last_use = 0;
  };
  std::size_t index(ImageSlotId slot) const;

  std::vector<Place> places_;
  std::int64_t num_uses_ = 0;
};

}  // namespace gapless
