// The preprocess stage: image bytes and text in, a prompt that is ready to run out. On worker
// threads; never touches the device.
//
// In two parts, because they differ by a factor of a thousand: begin() takes what a hash of the
// pictures takes, and is all that a text or a known picture needs; finish() decodes.
#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>
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

  struct Begun {
    PreparedPrompt prompt;
    // Memory that finish() takes at most; 0: the prompt is complete.
    std::int64_t decode_bytes = 0;
  };
  // Tokenises the prompt, judges the images by their headers, hashes them, and takes their crops if
  // all are still there. An error of one image among several says which. Any thread.
  StatusOr<Begun> begin(const SkillRequest& request) const;

  // Decodes the images and tiles them into pinned crops. Waits for crop buffers when too many
  // pictures are in flight. Cancelled soon after `stop` is requested. Any thread.
  Status finish(const SkillRequest& request, PreparedPrompt& prompt,
                const std::stop_token& stop) const;

  // Both parts.
  StatusOr<PreparedPrompt> prepare(const SkillRequest& request) const;

 private:
  // Of all images or of none: who holds some crops and waits for others may hold somebody up.
  bool find_crops(std::vector<PreparedImage>& images) const;
  Status make_crops(const SkillRequest& request, std::vector<PreparedImage>& prepared,
                    const std::stop_token& stop) const;

  const LoadedModel& model_;
  std::shared_ptr<CropPool> crops_;
  ThreadPool* const resize_pool_;  // for an image that comes alone; nullptr: none
};

}  // namespace gapless
