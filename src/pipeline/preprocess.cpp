#include "pipeline/preprocess.h"

#include <utility>
#include <vector>

#include "image/crop_tiles.h"
#include "image/decode_image.h"
#include "image/image_hash.h"
#include "skill/skill_prompt.h"

namespace gapless {

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
  if (request.image) {
    GAPLESS_ASSIGN_OR_RETURN(prompt.image, prepare_image(request));
  }
  return prompt;
}

StatusOr<PreparedImage> Preprocessor::prepare_image(const SkillRequest& request) const {
  const auto bytes = std::as_bytes(std::span(*request.image));
  DecodeOptions options;
  options.exif =
      request.apply_exif_orientation ? ExifOrientation::kApply : ExifOrientation::kIgnore;
  GAPLESS_ASSIGN_OR_RETURN(const Image image, decode_image(bytes, options));
  const CropGeometry geometry = model_.crop_geometry();
  GAPLESS_ASSIGN_OR_RETURN(const Tiling tiling, select_tiling(image.width, image.height, geometry));

  const std::shared_ptr<CropPool::Lease> lease = crops_->acquire(num_crops(tiling));
  if (!lease) return make_error(StatusCode::kUnavailable, "the engine is shutting down");
  PreparedImage prepared;
  prepared.hash = hash_image_bytes(bytes).bytes;
  // Orientation changes the pixels, so it is part of the key.
  if (!request.apply_exif_orientation) prepared.hash.back() ^= 1;
  prepared.tile_rows = tiling.rows;
  prepared.tile_cols = tiling.cols;
  std::vector<std::uint8_t*> crops_pinned;
  for (int i = 0; i < lease->size(); ++i) crops_pinned.push_back(lease->crop_pinned(i));
  make_crops_into(image, tiling, geometry, crops_pinned, resize_pool_);
  prepared.crops_pinned.assign(crops_pinned.begin(), crops_pinned.end());
  prepared.crops_owner = lease;
  return prepared;
}

}  // namespace gapless
