// The preprocess stage: image bytes and text in, a prompt that is ready to run out. On worker
// threads; never touches the device.
#pragma once

#include <memory>
#include <vector>

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
  // in flight. An error of one image among several says which. Any thread.
  StatusOr<PreparedPrompt> prepare(const SkillRequest& request) const;

  // As many prompts of the same request, whose images are prepared once: they share the crops.
  StatusOr<std::vector<PreparedPrompt>> prepare_choices(const SkillRequest& request,
                                                        int num_choices) const;

 private:
  // Everything but the images.
  StatusOr<PreparedPrompt> prepare_text(const SkillRequest& request) const;
  StatusOr<std::vector<PreparedImage>> prepare_images(const SkillRequest& request) const;
  // Of all images or of none: who holds some crops and waits for others may hold somebody up.
  bool find_crops(std::vector<PreparedImage>& images) const;
  Status make_crops(const SkillRequest& request, std::vector<PreparedImage>& prepared) const;

  const LoadedModel& model_;
  std::shared_ptr<CropPool> crops_;
  ThreadPool* const resize_pool_;  // for an image that comes alone; nullptr: none
};

}  // namespace gapless
