// Where the time of a request goes from its arrival to its first text, in the order of the road.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gapless {

enum class RequestStage : std::uint8_t {
  // One behind the other.
  kRead,     // whole on the server -> submitted: JSON, base64
  kQueue,    // -> taken by a preprocessing worker
  kPrepare,  // -> in the loop's hands, ready to run
  kAdmit,    // -> its first step launched: woken, seated, planned
  kDevice,   // -> its first token committed: uploads, encode, prefill, outputs
  kEmit,     // -> its first text handed to the connection
  // Parts of kPrepare.
  kHash,
  kDecode,    // until the last row; where it may, cutting goes on beside it
  kCropWait,  // for free crop buffers
  kCut,       // what was left of it behind the last row
  kTokenise,
};
inline constexpr std::size_t kNumRequestStages = 11;
inline constexpr std::size_t kNumStagesInARow = 6;  // the first ones; together the whole time

constexpr const char* request_stage_name(RequestStage stage) {
  constexpr std::array<const char*, kNumRequestStages> kNames{
      "read", "queue",  "prepare",   "admit", "device",  "emit",
      "hash", "decode", "crop_wait", "cut",   "tokenise"};
  return kNames[static_cast<std::size_t>(stage)];
}

// Nanoseconds; 0 where nothing was done.
class StageTimes {
 public:
  std::int64_t& operator[](RequestStage stage) { return ns_[static_cast<std::size_t>(stage)]; }
  std::int64_t operator[](RequestStage stage) const { return ns_[static_cast<std::size_t>(stage)]; }

 private:
  std::array<std::int64_t, kNumRequestStages> ns_{};
};

}  // namespace gapless
