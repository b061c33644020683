// The preprocess stage: image bytes and text in, a prompt that is ready to run out. On worker
// threads; never touches the device.
//
// In two parts, because they differ by a factor of a thousand: begin() takes what a hash of the
// pictures takes, and is all that a text or a known picture needs; finish() decodes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/request_stages.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "engine/crop_pool.h"
#include "image/decode_helpers.h"
#include "image/stop_check.h"
#include "model/model_loader.h"
#include "pipeline/prepared_prompt.h"
#include "skill/skill_request.h"

namespace gapless {

class Preprocessor {
 public:
  // `model` and `resize_pool` must outlive this.
  Preprocessor(const LoadedModel& model, std::shared_ptr<CropPool> crops,
               ThreadPool& resize_pool = ThreadPool::shared())
      : model_(model),
        crops_(std::move(crops)),
        // On the CPU device the cores compute the model.
        resize_pool_(model.device->kind() == DeviceKind::kCpu ? nullptr : &resize_pool) {}

  struct Begun {
    std::vector<PreparedPrompt> prompts;  // one for each choice
    // Memory that finish() takes at most; 0: the prompts are complete.
    std::int64_t decode_bytes = 0;
  };
  // Tokenises the prompts, judges the images by their headers, hashes them, and takes their crops if
  // all are still there. The prompts are those of the request's choices and share the images. An error of one
  // image among several says which. Adds to `stages` what took how long. `constrain` is called
  // with each prompt of a request with a grammar. Any thread.
  using Constrain = std::function<Status(PreparedPrompt& prompt)>;
  StatusOr<Begun> begin(const SkillRequest& request, int num_choices, StageTimes& stages,
                        const Constrain& constrain = nullptr) const;

  // Decodes the images and tiles them into pinned crops. Waits for crop buffers when too many
  // pictures are in flight, before it decodes: what waits holds no pixels. Cancelled soon after
  // `stop` is requested. Any thread.
  Status finish(const SkillRequest& request, std::span<PreparedPrompt> prompts,
                const std::stop_token& stop, StageTimes& stages) const;

  // Both parts.
  StatusOr<std::vector<PreparedPrompt>> prepare_choices(const SkillRequest& request,
                                                        int num_choices) const;
  StatusOr<PreparedPrompt> prepare(const SkillRequest& request) const;

 private:
  // Everything but the images.
  StatusOr<PreparedPrompt> prepare_text(const SkillRequest& request,
                                        const Constrain& constrain) const;
  // The images' names, with their crops where all are known. What finish() takes.
  StatusOr<std::int64_t> begin_images(const SkillRequest& request,
                                      std::vector<PreparedImage>& images, StageTimes& stages) const;
  // Of all images or of none: who holds some crops and waits for others may hold somebody up.
  bool find_crops(std::vector<PreparedImage>& images) const;
  Status make_crops(const SkillRequest& request, std::vector<PreparedImage>& prepared,
                    const std::stop_token& stop, StageTimes& stages) const;
  // Decodes an image and cuts it, both at once where resize_pool_ is free.
  Status cut_image(const std::string& encoded, const SkillRequest& request, const Tiling& tiling,
                   std::span<std::uint8_t* const> crops, const StopCheck& stop,
                   StageTimes& stages) const;
  // Those of resize_pool_.
  DecodeHelpers decode_helpers() const;

  const LoadedModel& model_;
  std::shared_ptr<CropPool> crops_;
  ThreadPool* const resize_pool_;  // for an image that comes alone; nullptr: none
};

}  // namespace gapless
