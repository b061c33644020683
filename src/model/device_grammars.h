// The grammars that lie on a device, and what rows need to walk them: the tables of those that requests use, the bytes of the
// vocabulary, where each row stands, and the sets of legal tokens that were found (kernels/grammar_mask_cache.h).
//
// All memory is allocated at start-up. A grammar's tables go up once, on a worker's thread and a stream of their own, and stay
// until their place is needed and nobody holds them. Who finds no room gets none, and builds masks on the host.
//
// Threads: find and hold from any; hold waits for the device. The rest from start-up and the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "device/device.h"
#include "grammar/grammar.h"
#include "kernels/kernels.h"
#include "model/staged_upload.h"
#include "step/step_model.h"

namespace gapless {

// Tables of all grammars that lie on a device at once. A typical one has 60 KB, one of 1,000 over 14 MB.
inline constexpr std::size_t kDeviceGrammarBytes = 64u << 20;
// Where memory is short (StepSizing::kSmall): any one of those, or hundreds of typical ones.
inline constexpr std::size_t kSmallDeviceGrammarBytes = 16u << 20;
inline constexpr int kMaxDeviceGrammars = 256;
// Of kGrammarCacheWays sets of legal tokens each: with 51,200 tokens 7 MB, and 8 MB for their places and bounded tokens.
inline constexpr int kGrammarCacheSets = 32;

// A grammar on the device, as long as somebody holds it.
struct DeviceGrammar {
  std::int32_t index = kNoGrammar;  // RowState::grammar
};

class DeviceGrammars {
 public:
  // texts[i]: the bytes of token i. table_bytes: of all grammars.
  static StatusOr<std::unique_ptr<DeviceGrammars>> create(Device& device,
                                                          const std::vector<std::string>& texts,
                                                          std::int32_t eos_id, int vocab,
                                                          const StepLimits& limits,
                                                          std::size_t table_bytes);

  // The grammar is known by its owner, whose `grammar` it is; nullptr: it does not lie here.
  std::shared_ptr<const DeviceGrammar> find(const std::shared_ptr<const void>& owner);
  // Puts it here unless it is. nullptr: there is no room now.
  StatusOr<std::shared_ptr<const DeviceGrammar>> hold(const std::shared_ptr<const void>& owner,
                                                      const Grammar& grammar);

  // What the op needs, but for its rows.
  GrammarMasksParams params() const { return params_; }

  struct Counts {
    int resident = 0, held = 0;
    std::size_t bytes = 0;
    std::int64_t num_uploads = 0;
  };
  Counts counts() const;
  // Of device memory.
  std::size_t bytes() const { return tables_.size_bytes() + memory_.size_bytes(); }
  // Sets of legal tokens that were put into the cache since the start. Waits for the device, and is for measurements: nothing may
  // run that looks for some.
  StatusOr<std::int64_t> count_found_masks();

 private:
  // One that lies on the device.
  struct Place {
    std::weak_ptr<const void> owner;
    std::int32_t index = 0;
    std::size_t begin = 0, end = 0;  // of the tables' memory
    int num_holders = 0;
    std::int64_t last_held = 0;
    bool is_ready = false;
  };
  // Shared with who holds one, so that it may outlive the rest.
  struct Places {
    mutable Mutex mutex;
    std::vector<Place> list GAPLESS_GUARDED_BY(mutex);  // in order of memory
    std::int64_t num_held GAPLESS_GUARDED_BY(mutex) = 0;
    std::int64_t num_uploads GAPLESS_GUARDED_BY(mutex) = 0;
  };

  DeviceGrammars(std::unique_ptr<Stream> stream, StagedUpload upload)
      : stream_(std::move(stream)), upload_(std::move(upload)) {}
  Status allocate(Device& device, const std::vector<std::string>& texts, std::int32_t eos_id,
                  int vocab, const StepLimits& limits, std::size_t table_bytes);
  std::optional<Place> reserve(std::size_t bytes) GAPLESS_REQUIRES(places_->mutex);
  Status upload(const Grammar& grammar, const Place& place) GAPLESS_REQUIRES(upload_mutex_);
  std::shared_ptr<const DeviceGrammar> take(Place& place) GAPLESS_REQUIRES(places_->mutex);

  std::unique_ptr<Stream> stream_;
  Mutex upload_mutex_;  // one at a time; taken before places_->mutex
  StagedUpload upload_ GAPLESS_GUARDED_BY(upload_mutex_);
  Buffer tables_, memory_;
  PinnedBuffer turns_pinned_
      GAPLESS_GUARDED_BY(upload_mutex_);  // a copy of GrammarMaskCache::turns
  GrammarTables* grammars_ = nullptr;     // [kMaxDeviceGrammars], on the device
  GrammarMasksParams params_;
  std::int32_t next_id_ GAPLESS_GUARDED_BY(upload_mutex_) = 1;
  const std::shared_ptr<Places> places_ = std::make_shared<Places>();
};

}  // namespace gapless
