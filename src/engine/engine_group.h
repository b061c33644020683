// One engine per device behind one door: each with its own thread, pools, caches and ledger, and above
// them a chooser (device_chooser.h) that gives each request to one of them. With one device it does
// what that device's engine does.
//
// A device that is lost takes its own requests along, those that wait for it included; whatever comes
// later goes to the others. Only when the last device is lost does the group count as lost.
//
// Threads: every function from any thread; submit and cancel never block.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "engine/device_chooser.h"
#include "engine/engine.h"

namespace gapless {

// What one of `num_engines` engines should start with, where the options leave it open: preprocessing
// threads are half the cores in all, shared out (2 to 8 for each engine; one alone has a default of its own). A picture is cut
// on an engine's share of the cores less three, or on half of the share where that is more.
EngineOptions share_of_host(const EngineOptions& options, int num_engines, int num_cores);

class EngineGroup {
 public:
  // Loads the model of device `index`. Called on a thread of its own for each device, all at once.
  using LoadModel = std::function<StatusOr<std::unique_ptr<LoadedModel>>(std::size_t index)>;

  // One engine for each label ("cuda:0", ...; at least one). All have to start; the error names the
  // device. options.loop.on_device_lost is told when the last device is lost, options'
  // max_active_requests and picture_memory_bytes are each device's.
  static StatusOr<std::unique_ptr<EngineGroup>> start(std::vector<std::string> labels,
                                                      const LoadModel& load,
                                                      const EngineOptions& options);
  // As Engine's.
  ~EngineGroup();
  EngineGroup(const EngineGroup&) = delete;
  EngineGroup& operator=(const EngineGroup&) = delete;

  // As Engine's. A device that has as many requests as it may is passed over for the next one.
  // ResourceExhausted when all have; the answers to one request all come from one device. (A gaze from a face, face_gaze.h, is
  // many requests, whose first has its id.)
  StatusOr<RequestId> submit(SkillRequest request, std::shared_ptr<ResponseSink> sink);
  StatusOr<std::vector<RequestId>> submit_choices(SkillRequest request,
                                                  std::vector<std::shared_ptr<ResponseSink>> sinks);
  void cancel(RequestId id);
  StatusOr<SkillResult> run(SkillRequest request);

  // Not OK once every device is lost: the error of the one that was lost last.
  Status device_status() const;
  // Labels of those that are lost, when others may go on.
  std::vector<std::string> lost_devices() const;

  int size() const { return static_cast<int>(labels_.size()); }
  const std::string& label(int device) const { return labels_[static_cast<std::size_t>(device)]; }
  Engine& engine(int device) const { return *engines_[static_cast<std::size_t>(device)]; }
  std::int64_t tokens_to_do(int device) const;

 private:
  // Shared with the sinks of running requests, some of which a lost device may keep for good.
  struct Account {
    explicit Account(const DeviceChooser::Options& options) : chooser(options) {}
    mutable Mutex mutex;
    DeviceChooser chooser GAPLESS_GUARDED_BY(mutex);
  };
  class Charge;
  class ChargedSink;

  EngineGroup(std::vector<std::string> labels, std::function<void(const Status&)> on_all_lost);
  StatusOr<std::unique_ptr<Engine>> start_one(int device, const LoadModel& load,
                                              EngineOptions options);
  // Unless the engines are ending, which end all requests.
  void cancel_gaze(RequestId id);
  StatusOr<RequestId> submit_face_gaze(const SkillRequest& request,
                                       std::shared_ptr<ResponseSink> sink);
  void on_device_lost(int device, const Status& status);
  RequestId outer_id(RequestId inner, int device) const;

  const std::vector<std::string> labels_;
  const std::function<void(const Status&)> on_all_lost_;
  mutable Mutex mutex_;
  std::vector<Status> lost_ GAPLESS_GUARDED_BY(mutex_);  // by device
  Status all_lost_ GAPLESS_GUARDED_BY(mutex_);
  Mutex gazes_mutex_;
  bool is_closing_ GAPLESS_GUARDED_BY(gazes_mutex_) = false;
  std::shared_ptr<Account> account_;              // set before anybody submits
  std::vector<std::unique_ptr<Engine>> engines_;  // last: their ends tell the others
};

}  // namespace gapless
