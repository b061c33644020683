#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/exposition.h"
#include "server/process_metrics.h"
#include "server/unix_time.h"

namespace gapless {
namespace {

// vLLM's buckets, so that its dashboards work.
constexpr double kVllmTtft[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
constexpr double kVllmInterToken[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                      .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
constexpr double kVllmLatency[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                   30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
// From a tenth of a millisecond in steps of about 1.5.
constexpr double kFine[] = {.0001, .00015, .0002, .0003, .0005, .0007, .001, .0015, .002,
                            .003,  .005,   .007,  .01,   .015,  .02,   .03,  .05,   .07,
                            .1,    .15,    .2,    .3,    .5,    .7,    1,    1.5,   2,
                            3,     5,      7,     10,    30,    60};
constexpr double kTokenCounts[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000};

std::vector<double> to_vector(std::span<const double> bounds) {
  return {bounds.begin(), bounds.end()};
}

// In vLLM's buckets and in ours.
void write_latency(Exposition& out, std::string_view vllm_name, std::string_view gapless_name,
                   std::string_view help, const LatencyHistograms& histograms) {
  out.histogram(vllm_name, help, histograms.coarse);
  out.histogram(gapless_name, help, histograms.fine);
}

// How many tokens of prompts were looked for in the prefix cache, and how many were there; with the
// older names.
void write_prefix_cache(Exposition& out, double queries, double hits) {
  for (const std::string_view prefix : {"vllm:prefix_cache", "vllm:gpu_prefix_cache"}) {
    out.single(fmt::format("{}_queries_total", prefix), "counter",
               "Prompt tokens looked for in the prefix cache", queries);
    out.single(fmt::format("{}_hits_total", prefix), "counter",
               "Prompt tokens found in the prefix cache", hits);
  }
  out.single("vllm:gpu_prefix_cache_hit_rate", "gauge", "Hits of queries since the start, 0 to 1",
             queries > 0 ? hits / queries : 0);
}

// What routers read: of all devices together, because they see one server.
void write_load(Exposition& out, const ServiceMetrics& now) {
  out.single("vllm:num_requests_running", "gauge", "Requests that hold a seat", now.num_running);
  out.single("vllm:num_requests_waiting", "gauge", "Requests that wait for a seat",
             now.num_waiting);
  constexpr std::string_view kUsage = "Share of KV pages that running requests hold, 0 to 1";
  out.single("vllm:kv_cache_usage_perc", "gauge", kUsage, now.kv_usage);
  out.single("vllm:gpu_cache_usage_perc", "gauge", kUsage, now.kv_usage);  // its older name
  out.family("vllm:cache_config_info", "gauge", "The KV cache's shape");
  out.sample(
      "vllm:cache_config_info", 1,
      fmt::format("block_size=\"{}\",num_gpu_blocks=\"{}\"", now.page_tokens, now.num_pages));
  out.single("vllm:num_preemptions_total", "counter",
             "Running requests that had to give way: a seated request has all it can need", 0);
  out.family("vllm:lora_requests_info", "gauge", "Adapters in use: none are served");
  out.sample("vllm:lora_requests_info", unix_now_s(),
             "max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"");
}

// Families of which every device has samples of its own, with its label.
class DeviceFamilies {
 public:
  DeviceFamilies(Exposition& out, const std::vector<ServiceMetrics>& devices)
      : out_(out), devices_(devices) {}

  // `value_of`: of one device.
  template <typename ValueOf>
  void write(std::string_view name, std::string_view type, std::string_view help,
             const ValueOf& value_of) {
    out_.family(name, type, help);
    for (const ServiceMetrics& one : devices_) sample(name, one, {}, value_of(one));
  }
  // `times_of`: named values of one device.
  template <typename TimesOf>
  void write_by(std::string_view label, std::string_view name, std::string_view help,
                const TimesOf& times_of) {
    out_.family(name, "counter", help);
    for (const ServiceMetrics& one : devices_) {
      for (const auto& [value, seconds] : times_of(one)) {
        sample(name, one, fmt::format(",{}=\"{}\"", label, value), seconds);
      }
    }
  }

 private:
  void sample(std::string_view name, const ServiceMetrics& device, std::string_view more_labels,
              double value) {
    out_.sample(name, value,
                fmt::format("device=\"{}\"{}", Exposition::escape(device.device), more_labels));
  }

  Exposition& out_;
  const std::vector<ServiceMetrics>& devices_;
};

void write_devices(Exposition& out, const std::vector<ServiceMetrics>& devices) {
  using Times = std::vector<ServiceMetrics::NamedTime>;
  DeviceFamilies families(out, devices);
  families.write("gapless_device_up", "gauge", "1; 0 once the device is lost",
                 [](const ServiceMetrics& one) { return one.lost ? 0 : 1; });
  families.write("gapless_requests_running", "gauge", "Requests that hold a seat",
                 [](const ServiceMetrics& one) { return one.num_running; });
  families.write("gapless_requests_waiting", "gauge", "Requests that wait for a seat",
                 [](const ServiceMetrics& one) { return one.num_waiting; });
  families.write(
      "gapless_pictures_waiting", "gauge", "Pictures that wait for a decoder",
      [](const ServiceMetrics& one) { return static_cast<double>(one.num_pictures_waiting); });
  families.write(
      "gapless_picture_memory_bytes", "gauge",
      "Memory set aside for the pictures that are being decoded (--picture-memory-mb)",
      [](const ServiceMetrics& one) { return static_cast<double>(one.picture_memory_bytes); });
  families.write_by(
      "state", "gapless_device_seconds_total",
      "The device's time since the start, up to now: busy, preparing (requests are on their way), "
      "starved (nobody asked), bubble (work waited)",
      [](const ServiceMetrics& one) {
        return Times{{"busy", one.busy_s},
                     {"preparing", one.preparing_s},
                     {"starved", one.starved_s},
                     {"bubble", one.bubble_s}};
      });
  families.write_by("phase", "gapless_bubble_seconds_total",
                    "Bubble by the host phase that caused it",
                    [](const ServiceMetrics& one) { return one.bubble_by_phase; });
  families.write_by("phase", "gapless_engine_thread_seconds_total",
                    "The engine thread's work by phase",
                    [](const ServiceMetrics& one) { return one.host_work_by_phase; });
  families.write_by("kind", "gapless_step_seconds_total", "Device time of committed steps by kind",
                    [](const ServiceMetrics& one) { return one.device_by_step; });
  families.write_by("kind", "gapless_steps_total", "Steps by kind", [](const ServiceMetrics& one) {
    return Times{{"encode", static_cast<double>(one.num_encode_steps)},
                 {"prefill", static_cast<double>(one.num_prefill_steps)},
                 {"decode", static_cast<double>(one.num_decode_steps)}};
  });
  families.write(
      "gapless_decode_rows_total", "counter", "Rows of decode steps",
      [](const ServiceMetrics& one) { return static_cast<double>(one.num_decode_rows); });
  families.write(
      "gapless_zombie_rows_total", "counter",
      "Rows of decode steps whose sequence had finished before the commit",
      [](const ServiceMetrics& one) { return static_cast<double>(one.num_zombie_rows); });
  families.write(
      "gapless_stalling_calls_total", "counter",
      "Allocations, pageable copies and waits inside of steps; 0 in a healthy server",
      [](const ServiceMetrics& one) { return static_cast<double>(one.num_forbidden_calls); });
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), buckets_(bounds_.size() + 1) {}

void Histogram::observe(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  buckets_[static_cast<std::size_t>(at)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

LatencyHistograms::LatencyHistograms(std::span<const double> vllm_bounds)
    : coarse(to_vector(vllm_bounds)), fine(to_vector(kFine)) {}

ServerMetrics::ServerMetrics()
    : ttft_(kVllmTtft),
      inter_token_(kVllmInterToken),
      e2e_(kVllmLatency),
      prefill_(kVllmLatency),
      decode_(kVllmLatency),
      queue_(kVllmLatency),
      inference_(kVllmLatency),
      time_per_token_(kVllmInterToken),
      prompt_tokens_(to_vector(kTokenCounts)),
      generation_tokens_(to_vector(kTokenCounts)) {}

void ServerMetrics::count_result(const SkillResult& result, double e2e_s) {
  const GenerationMetrics& metrics = result.metrics;
  ttft_.observe(metrics.ttft_ms / 1e3);
  prefill_.observe(metrics.prefill_time_ms / 1e3);
  decode_.observe(metrics.decode_time_ms / 1e3);
  e2e_.observe(e2e_s);
  const auto seconds_of = [&metrics](RequestStage stage) {
    return static_cast<double>(metrics.stages[stage]) * 1e-9;
  };
  queue_.observe(seconds_of(RequestStage::kQueue) + seconds_of(RequestStage::kAdmit));
  inference_.observe(seconds_of(RequestStage::kDevice) + metrics.decode_time_ms / 1e3);
  if (metrics.output_tokens > 1) {
    time_per_token_.observe(metrics.decode_time_ms / 1e3 / (metrics.output_tokens - 1));
  }
  prompt_tokens_.observe(metrics.input_tokens);
  generation_tokens_.observe(metrics.output_tokens);
  num_prompt_tokens_.fetch_add(static_cast<std::uint64_t>(metrics.input_tokens));
  num_cached_tokens_.fetch_add(static_cast<std::uint64_t>(metrics.cached_tokens));
  num_generation_tokens_.fetch_add(static_cast<std::uint64_t>(metrics.output_tokens));
  for (std::size_t i = 0; i < kNumRequestStages; ++i) {
    stages_[i].seconds.fetch_add(seconds_of(static_cast<RequestStage>(i)),
                                 std::memory_order_relaxed);
    stages_[i].num_requests.fetch_add(1, std::memory_order_relaxed);
  }
  num_finished_[static_cast<std::size_t>(result.finish_reason)].fetch_add(1);
  num_by_skill_[static_cast<std::size_t>(result.skill)].fetch_add(1);
}

void ServerMetrics::count_inter_token(double seconds, int num_tokens) {
  for (int i = 0; i < num_tokens; ++i) inter_token_.observe(seconds / num_tokens);
}

void ServerMetrics::count_failure(const Status& status) {
  const FinishReason reason =
      status.code() == StatusCode::kCancelled ? FinishReason::kCancelled : FinishReason::kError;
  num_finished_[static_cast<std::size_t>(reason)].fetch_add(1);
}

void ServerMetrics::count_response(int status) {
  const auto hundreds = static_cast<std::size_t>(std::clamp(status / 100, 0, 5));
  num_responses_[hundreds].fetch_add(1);
  if (status == 429) num_refused_.fetch_add(1);
}

std::string ServerMetrics::text(const InferenceService* service) const {
  Exposition out(service == nullptr ? "" : service->info().model);
  if (service != nullptr) {
    const std::vector<ServiceMetrics> devices = service->device_metrics();
    out.family("gapless_info", "gauge", "What serves: one sample for each device");
    for (const ServiceMetrics& one : devices) {
      out.sample("gapless_info", 1,
                 fmt::format("device=\"{}\",device_name=\"{}\"", Exposition::escape(one.device),
                             Exposition::escape(one.device_name)));
    }
    write_load(out, sum_of(devices));
    write_devices(out, devices);
  }
  write_process(out);

  const auto number = [](const std::atomic<std::uint64_t>& counter) {
    return static_cast<double>(counter.load());
  };
  out.single("vllm:prompt_tokens_total", "counter", "Prompt tokens, image positions included",
             number(num_prompt_tokens_));
  out.single("vllm:generation_tokens_total", "counter", "Tokens generated",
             number(num_generation_tokens_));
  write_prefix_cache(out, number(num_prompt_tokens_), number(num_cached_tokens_));
  out.family("vllm:request_success_total", "counter", "Requests that ended, by reason");
  for (const FinishReason reason : {FinishReason::kStop, FinishReason::kLength,
                                    FinishReason::kCancelled, FinishReason::kError}) {
    // vLLM's word for it.
    const std::string_view name =
        reason == FinishReason::kCancelled ? "abort" : finish_reason_name(reason);
    out.sample("vllm:request_success_total",
               number(num_finished_[static_cast<std::size_t>(reason)]),
               fmt::format("finished_reason=\"{}\"", name));
  }
  out.family("gapless_requests_total", "counter", "Requests that were answered, by skill");
  for (const Skill skill : kSkills) {
    out.sample("gapless_requests_total", number(num_by_skill_[static_cast<std::size_t>(skill)]),
               fmt::format("skill=\"{}\"", skill_name(skill)));
  }
  out.family("gapless_http_responses_total", "counter", "Responses by hundreds of the status");
  for (std::size_t hundreds = 2; hundreds < num_responses_.size(); ++hundreds) {
    out.sample("gapless_http_responses_total", number(num_responses_[hundreds]),
               fmt::format("status=\"{}xx\"", hundreds));
  }
  out.single("gapless_http_refused_total", "counter", "Requests refused with 429",
             number(num_refused_));
  out.single("gapless_http_aborted_total", "counter", "Responses whose client went away or stalled",
             number(num_aborted_));
  out.single("gapless_http_connections", "gauge", "Open connections", num_connections.load());

  write_latency(out, "vllm:time_to_first_token_seconds", "gapless_ttft_seconds",
                "Submission to first token", ttft_);
  write_latency(out, "vllm:inter_token_latency_seconds", "gapless_inter_token_seconds",
                "Between two tokens of a stream", inter_token_);
  write_latency(out, "vllm:e2e_request_latency_seconds", "gapless_e2e_seconds",
                "Submission to answer", e2e_);
  write_latency(out, "vllm:request_prefill_time_seconds", "gapless_prefill_seconds",
                "Prefill's launch to first token", prefill_);
  write_latency(out, "vllm:request_decode_time_seconds", "gapless_decode_seconds",
                "First token to last token", decode_);
  write_latency(out, "vllm:request_queue_time_seconds", "gapless_queue_seconds",
                "Waiting for a worker and for a seat", queue_);
  write_latency(out, "vllm:request_inference_time_seconds", "gapless_inference_seconds",
                "First step's launch to last token", inference_);
  write_latency(out, "vllm:request_time_per_output_token_seconds", "gapless_time_per_token_seconds",
                "First token to last token, by the tokens behind the first", time_per_token_);
  out.family("gapless_request_stage_seconds", "summary",
             "From the request to its first text: read, queue, prepare, admit, device and emit one "
             "behind the other; hash, decode, crop_wait, cut and tokenise are parts of prepare");
  for (std::size_t i = 0; i < kNumRequestStages; ++i) {
    const std::string label =
        fmt::format("stage=\"{}\"", request_stage_name(static_cast<RequestStage>(i)));
    out.sample("gapless_request_stage_seconds_sum", stages_[i].seconds.load(), label);
    out.sample("gapless_request_stage_seconds_count", number(stages_[i].num_requests), label);
  }
  out.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", prompt_tokens_);
  out.histogram("vllm:request_generation_tokens", "Tokens generated for a request",
                generation_tokens_);
  return out.take();
}

}  // namespace gapless
