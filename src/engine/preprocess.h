// The preprocess stage: image bytes and text in, a prompt that is ready to run out. On worker
// threads; never touches the device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/request_stages.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "engine/crop_pool.h"
#include "model/model_loader.h"
#include "pipeline/prepared_prompt.h"
#include "skill/skill_request.h"

namespace gapless {

class Preprocessor {
 public:
  // `model` must outlive this.
  Preprocessor(const LoadedModel& model, std::shared_ptr<CropPool> crops)
      : model_(model),
        crops_(std::move(crops)),
        // On the CPU device these threads compute the model.
        resize_pool_(model.device->kind() == DeviceKind::kCpu ? nullptr : &ThreadPool::shared()) {}

  // Hashes, decodes and tiles the images into pinned crops; tokenises the prompt. Of images whose
  // crops are all still there nothing is decoded. Waits for crop buffers when too many pictures are
  // in flight, before it decodes: what waits holds no pixels. An error of one image among several
  // says which. Any thread.
  StatusOr<PreparedPrompt> prepare(const SkillRequest& request) const;

  // As many prompts of the same request, whose images are prepared once: they share the crops. Notes
  // in *stages, unless that is null, what took how long.
  StatusOr<std::vector<PreparedPrompt>> prepare_choices(const SkillRequest& request,
                                                        int num_choices,
                                                        StageTimes* stages = nullptr) const;

 private:
  // Everything but the images.
  StatusOr<PreparedPrompt> prepare_text(const SkillRequest& request) const;
  StatusOr<std::vector<PreparedImage>> prepare_images(const SkillRequest& request,
                                                      StageTimes& stages) const;
  // Of all images or of none: who holds some crops and waits for others may hold somebody up.
  bool find_crops(std::vector<PreparedImage>& images) const;
  Status make_crops(const SkillRequest& request, std::vector<PreparedImage>& prepared,
                    StageTimes& stages) const;
  // Decodes an image and cuts it, both at once where resize_pool_ is free.
  Status cut_image(const std::string& encoded, bool apply_exif_orientation, const Tiling& tiling,
                   std::span<std::uint8_t* const> crops, StageTimes& stages) const;

  const LoadedModel& model_;
  std::shared_ptr<CropPool> crops_;
  ThreadPool* const resize_pool_;  // for an image that comes alone; nullptr: none
};

}  // namespace gapless
