#include "pipeline/preprocess.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "image/decode_image.h"
#include "image/image_hash.h"
#include "skill/skill_prompt.h"

namespace gapless {
namespace {

ContentHash hash_of_both(const ContentHash& first, const ContentHash& second) {
  std::array<std::uint8_t, 2 * std::tuple_size_v<ContentHash>> both;
  std::copy(second.begin(), second.end(), std::copy(first.begin(), first.end(), both.begin()));
  return hash_image_bytes(std::as_bytes(std::span(both))).bytes;
}

}  // namespace

StatusOr<PreparedPrompt> Preprocessor::prepare(const SkillRequest& request) const {
  const StepModelInfo& info = model_.model->info();
  GAPLESS_ASSIGN_OR_RETURN(
      SkillPrompt skill_prompt,
      build_skill_prompt(request, model_.prompts, {info.max_context, info.image_tokens}));
  PreparedPrompt prompt;
  prompt.inputs = std::move(skill_prompt.inputs);
  prompt.prefix_len = skill_prompt.prefix_len;
  prompt.row = skill_prompt.row;
  prompt.host_constraint = std::move(skill_prompt.host_constraint);
  GAPLESS_ASSIGN_OR_RETURN(prompt.images, prepare_images(request));
  return prompt;
}

StatusOr<CropSet> Preprocessor::make_crops_of(std::string_view encoded,
                                              bool apply_exif_orientation) const {
  DecodeOptions options;
  options.exif = apply_exif_orientation ? ExifOrientation::kApply : ExifOrientation::kIgnore;
  GAPLESS_ASSIGN_OR_RETURN(const Image image,
                           decode_image(std::as_bytes(std::span(encoded)), options));
  return make_crops(image, model_.crop_geometry());
}

StatusOr<std::vector<PreparedImage>> Preprocessor::prepare_images(
    const SkillRequest& request) const {
  std::vector<CropSet> crop_sets;
  int num_crops = 0;
  for (const auto& encoded : request.images) {
    GAPLESS_ASSIGN_OR_RETURN(CropSet crops,
                             make_crops_of(*encoded, request.apply_exif_orientation));
    num_crops += crops.num_crops;
    crop_sets.push_back(std::move(crops));
  }
  std::vector<PreparedImage> images;
  if (crop_sets.empty()) return images;
  if (num_crops > crops_->capacity()) {
    return invalid_argument("the {} images are cut into {} crops, more than the {} there is room for",
                            crop_sets.size(), num_crops, crops_->capacity());
  }
  // For all images at once: workers that hold some and wait for more would hold each other up.
  const std::shared_ptr<CropPool::Lease> lease = crops_->acquire(num_crops);
  if (!lease) return make_error(StatusCode::kUnavailable, "the engine is shutting down");
  int next_crop = 0;
  for (std::size_t n = 0; n < crop_sets.size(); ++n) {
    const CropSet& crops = crop_sets[n];
    PreparedImage image;
    image.hash = hash_image_bytes(std::as_bytes(std::span(*request.images[n]))).bytes;
    // Orientation changes the pixels, so it is part of the key.
    if (!request.apply_exif_orientation) image.hash.back() ^= 1;
    image.prefix_hash = n == 0 ? image.hash : hash_of_both(images.back().prefix_hash, image.hash);
    image.tile_rows = crops.tiling.rows;
    image.tile_cols = crops.tiling.cols;
    for (int i = 0; i < crops.num_crops; ++i) {
      const std::size_t offset = static_cast<std::size_t>(i) * crops_->crop_bytes();
      std::uint8_t* const crop_pinned = lease->crop_pinned(next_crop++);
      std::memcpy(crop_pinned, crops.pixels.data() + offset, crops_->crop_bytes());
      image.crops_pinned.push_back(crop_pinned);
    }
    image.crops_owner = lease;
    images.push_back(std::move(image));
  }
  return images;
}

}  // namespace gapless
