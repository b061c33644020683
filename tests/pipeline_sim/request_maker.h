// Turns a schedule's requests into prompts on some device, and knows their answers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "tests/pipeline_sim/schedule.h"

namespace gapless {

class RequestMaker {
 public:
  // Puts the images' crops into the device's pinned memory. Outlives the loop that uses them.
  static StatusOr<std::unique_ptr<RequestMaker>> create(Device& device, const Schedule& schedule);

  PreparedPrompt prompt(const SimRequest& request) const;
  // From the sequential oracle.
  FakeAnswer expected(const SimRequest& request) const;

 private:
  explicit RequestMaker(const Schedule& schedule) : schedule_(schedule) {}

  const Schedule& schedule_;
  PinnedBuffer crops_pinned_;
  std::vector<std::vector<const std::uint8_t*>> crops_;  // by image
};

}  // namespace gapless
