// The preprocess stage: image bytes and text in, a prompt that is ready to run out. On worker
// threads; never touches the device.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "image/crop_tiles.h"
#include "model/model_loader.h"
#include "pipeline/crop_pool.h"
#include "pipeline/prepared_prompt.h"
#include "skill/skill_request.h"

namespace gapless {

class Preprocessor {
 public:
  // `model` must outlive this.
  Preprocessor(const LoadedModel& model, std::shared_ptr<CropPool> crops)
      : model_(model), crops_(std::move(crops)) {}

  // Decodes, hashes and tiles the images into pinned crops; tokenises the prompt. Waits for crop
  // buffers when too many pictures are in flight. InvalidArgument also when the images are cut into
  // more crops than there are buffers. Any thread.
  StatusOr<PreparedPrompt> prepare(const SkillRequest& request) const;

 private:
  StatusOr<std::vector<PreparedImage>> prepare_images(const SkillRequest& request) const;
  StatusOr<CropSet> make_crops_of(std::string_view encoded, bool apply_exif_orientation) const;

  const LoadedModel& model_;
  std::shared_ptr<CropPool> crops_;
};

}  // namespace gapless
