// What the server needs of an engine. EngineService (engine_service.h) is the real one; tests bring
// their own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "skill/response_sink.h"
#include "skill/skill_request.h"

namespace gapless {

struct ServiceInfo {
  std::string model;  // the id that /v1/models lists
  int max_context = 0;
  std::string device;  // "NVIDIA H200", "CPU"
  // Other names of the same model. A request for any other one is not for us.
  std::vector<std::string> other_names = {};

  // Of what is loaded, for clients that describe it to people.
  std::string family = "moondream";
  std::string weight_type = "";  // "F32", "BF16", "FP8"
  std::string digest = "";       // SHA-256 of the name and the sizes below, in hexadecimal digits
  std::int64_t num_parameters = 0;
  std::int64_t weight_bytes = 0;  // in the device's memory
  bool on_gpu = false;
  int max_running = 0;  // seats
  // What may be asked for: "query", "caption", "point", "detect"; "chat" of a text model; "reasoning" of a
  // model that can do so before it answers a query.
  std::vector<std::string> skills = {};
  bool has_skill(std::string_view name) const {
    return std::find(skills.begin(), skills.end(), name) != skills.end();
  }
  bool takes_tools = false;  // chats may have functions to call

  // "NAME:latest" is NAME: so Ollama's clients spell names.
  bool is_named(std::string_view name) const {
    constexpr std::string_view kTag = ":latest";
    if (name.ends_with(kTag)) name.remove_suffix(kTag.size());
    return name == model ||
           std::find(other_names.begin(), other_names.end(), name) != other_names.end();
  }
};

// Gauges and totals since the start, for /metrics: of one device, or of all together.
struct ServiceMetrics {
  std::string device;       // "cuda:0": unlike any other device's; empty: of all together
  std::string device_name;  // "NVIDIA H200"
  bool lost = false;        // the others may go on
  int num_running = 0;      // seated
  int num_waiting = 0;
  double kv_usage = 0;                    // share of the pages that running requests hold, 0 to 1
  std::int64_t num_pictures_waiting = 0;  // for a decoder
  std::int64_t picture_memory_bytes = 0;  // of those that are being decoded
  int num_pages = 0;
  int page_tokens = 0;
  // The bubble ledger, seconds and counts.
  double busy_s = 0;
  double preparing_s = 0;
  double starved_s = 0;
  double bubble_s = 0;
  struct NamedTime {
    std::string_view name;
    double seconds = 0;
  };
  std::vector<NamedTime> bubble_by_phase;
  std::vector<NamedTime> host_work_by_phase;  // of the engine thread
  std::vector<NamedTime> device_by_step;      // forwards and samplings by kind of step
  std::int64_t num_encode_steps = 0;
  std::int64_t num_prefill_steps = 0;
  std::int64_t num_decode_steps = 0;
  std::int64_t num_decode_rows = 0;
  std::int64_t num_zombie_rows = 0;
  std::int64_t num_forbidden_calls = 0;
};

// Counts and times are added up; the share of the pages is that of all pages.
ServiceMetrics sum_of(const std::vector<ServiceMetrics>& devices);

// One step of the device, for the timeline: nanoseconds of one clock.
struct TimelineStep {
  std::int64_t number = 0;
  std::string_view kind;  // "encode", "prefill", "decode"
  int num_rows = 0;
  int num_zombies = 0;
  std::int64_t forward_begin_ns = 0;
  std::int64_t forward_end_ns = 0;
  std::int64_t sampling_begin_ns = 0;
  std::int64_t sampling_end_ns = 0;
};

struct ServiceTimeline {
  std::string device;                // whose it is
  std::vector<std::string> devices;  // that there are
  int depth = 1;                     // steps in flight now, at most
  int max_depth = 1;                 // what it may be set to
  std::vector<TimelineStep> steps;   // the last ones, oldest first
  struct Gap {
    std::string_view state;  // "preparing", "starved", "bubble"
    std::string_view phase;  // of a bubble: what the host was doing
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
  };
  std::vector<Gap> gaps;  // between steps, as the ledger charged them
};

// Every function may be called from any thread and none blocks for long.
class InferenceService {
 public:
  virtual ~InferenceService() = default;

  // As Engine::submit: errors here are the request's (ResourceExhausted: try again later), and the
  // sink is then not called. Otherwise the sink gets exactly one of on_done and on_error, last.
  virtual StatusOr<RequestId> submit(SkillRequest request, std::shared_ptr<ResponseSink> sink) = 0;
  // Several answers to one request, each with an id and a sink of its own; choice i takes seed + i, if
  // there is a seed, and is about the i-th object, if it names several. All are accepted or none. The default submits them one by one.
  virtual StatusOr<std::vector<RequestId>> submit_choices(
      SkillRequest request, std::vector<std::shared_ptr<ResponseSink>> sinks);
  // The request ends within a step with kCancelled, unless it has ended.
  virtual void cancel(RequestId id) = 0;

  // Not OK once nothing can be answered any more: every device is lost.
  virtual Status health() const { return ok_status(); }
  // Those that are lost while others go on.
  virtual std::vector<std::string> lost_devices() const { return {}; }

  virtual ServiceInfo info() const = 0;
  // At least one.
  virtual std::vector<ServiceMetrics> device_metrics() const = 0;
  ServiceMetrics metrics() const { return sum_of(device_metrics()); }

  virtual StatusOr<std::vector<TokenId>> tokenize(std::string_view text) const = 0;
  // Bytes that need not be UTF-8. InvalidArgument: an id outside of the vocabulary.
  virtual StatusOr<std::string> detokenize(const std::vector<TokenId>& ids) const = 0;
  // What a device did of late, for people who watch it; `device` is empty for the first. Unavailable
  // where nothing is recorded. InvalidArgument: there is no such device.
  virtual StatusOr<ServiceTimeline> timeline(int max_steps, std::string_view device = {}) const;
  // The same with the host's phases, as a Chrome trace of all devices.
  virtual StatusOr<std::string> trace(int max_steps) const;
  // How many steps each device may have in flight, from 1 (blocking) to timeline().max_depth. Answers
  // stay the same. InvalidArgument: another number.
  virtual Status set_depth(int depth);

  // What a sequence begins with.
  // Invalid: prompts begin without one.
  virtual TokenId bos_id() const = 0;
};

}  // namespace gapless
