#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <utility>

#include "base/host_clock.h"
#include "base/limits.h"
#include "device/dry_device.h"
#include "model/weight_format.h"

namespace gapless {
namespace {

constexpr double kGiB = static_cast<double>(std::size_t{1} << 30);
// More than any device has.
constexpr std::size_t kPlentyBytes = std::size_t{1} << 50;

double gib(std::size_t bytes) {
  return static_cast<double>(bytes) / kGiB;
}

std::string describe_capacity(const MemoryPlan& plan) {
  return fmt::format("{} row{} of up to {} tokens, keys and values of {} tokens together",
                     plan.max_rows, plan.max_rows == 1 ? "" : "s", plan.max_context,
                     plan.cache_tokens);
}

// What is known of a size before the cache is chosen.
struct Sized {
  std::size_t without_cache = 0;
  std::size_t page = 0;         // bytes
  std::size_t one_context = 0;  // bytes of the smallest cache
};

struct DryStart {
  MemoryPlan plan;
  Sized sized;
};

StatusOr<DryStart> start_dry(const DeviceInfo& info, const ModelSource& source,
                             ModelOptions options, const LoopOptions& loop_options) {
  options.dry_run = true;
  auto made = make_dry_device(info);
  const DryDevice& device = *made;
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> loaded,
                           load_model(std::move(made), source, options));
  RealHostClock clock;
  LoopOptions dry_loop = loop_options;
  dry_loop.on_device_lost = nullptr;
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Loop> loop,
                           Loop::create(*loaded->device, *loaded->model, clock, dry_loop));
  DryStart start;
  start.plan = memory_of(*loaded->model, *loop);
  start.plan.is_small = options.sizing == StepSizing::kSmall;
  const std::size_t told = start.plan.total_bytes();
  start.plan.parts.push_back({"tables and workspaces of kernels", device.allocated_bytes() - told});
  const DeviceState& state = loaded->model->state();
  start.sized.page = state.cache_bytes() / static_cast<std::size_t>(state.num_pages());
  start.sized.one_context =
      start.sized.page * static_cast<std::size_t>(1 + loaded->model->limits().max_pages_per_row);
  start.sized.without_cache = device.allocated_bytes() - state.cache_bytes();
  return start;
}

std::size_t least_bytes(const Sized& sized, const ModelOptions& options) {
  return sized.without_cache + options.kv_cache_bytes.value_or(sized.one_context) + kDriverBytes;
}

// Changes of the options that make a model smaller, those that cost the least first.
struct Change {
  const char* option;
  bool (*applies)(const ModelOptions& options);
  void (*make)(ModelOptions& options);
};

constexpr Change kChanges[] = {
    {"without --kv-cache-gb", [](const ModelOptions& o) { return o.kv_cache_bytes.has_value(); },
     [](ModelOptions& o) { o.kv_cache_bytes.reset(); }},
    {"--max-rows 1", [](const ModelOptions& o) { return o.max_rows.value_or(2) > 1; },
     [](ModelOptions& o) { o.max_rows = 1; }},
    {"--kv-cache fp8", [](const ModelOptions& o) { return o.kv_cache == KvFormat::kNative; },
     [](ModelOptions& o) { o.kv_cache = KvFormat::kFp8; }},
    {"--weights fp8", [](const ModelOptions& o) { return o.weights != WeightFormat::kFp8; },
     [](ModelOptions& o) { o.weights = WeightFormat::kFp8; }}};

constexpr int kShortContext = 256;

// As many of them as make it fit, as a person would write them; empty: none do.
StatusOr<std::string> find_what_would_do(const DeviceInfo& info, std::size_t max_bytes,
                                         const ModelSource& source, ModelOptions options,
                                         const LoopOptions& loop) {
  options.sizing = StepSizing::kSmall;
  options.shares_rows = true;
  std::string changes;
  DryStart start;
  for (const Change& change : kChanges) {
    if (!change.applies(options)) continue;
    change.make(options);
    changes += fmt::format(" {}", change.option);
    GAPLESS_ASSIGN_OR_RETURN(start, start_dry(info, source, options, loop));
    if (least_bytes(start.sized, options) <= max_bytes) return changes;
  }
  for (int context = start.plan.max_context / 2; context >= kShortContext; context /= 2) {
    options.max_context = context;
    GAPLESS_ASSIGN_OR_RETURN(start, start_dry(info, source, options, loop));
    if (least_bytes(start.sized, options) <= max_bytes) {
      return changes + fmt::format(" --max-context {}", context);
    }
  }
  return std::string();
}

Status does_not_fit_error(const DeviceInfo& info, std::size_t max_bytes, const ModelSource& source,
                          const ModelOptions& options, const LoopOptions& loop,
                          const DryStart& least) {
  GAPLESS_ASSIGN_OR_RETURN(const std::string what,
                           find_what_would_do(info, max_bytes, source, options, loop));
  return make_error(StatusCode::kResourceExhausted,
                    "{} takes {:.2f} GiB of device memory at least, and may take {:.2f}; {}\n{}",
                    source.name, gib(least_bytes(least.sized, options)), gib(max_bytes),
                    what.empty() ? "no option makes it fit" : "what would do:" + what,
                    memory_table(least.plan));
}

}  // namespace

std::size_t MemoryPlan::total_bytes() const {
  std::size_t total = 0;
  for (const MemoryPart& part : parts) total += part.bytes;
  return total;
}

MemoryPlan memory_of(const DecoderModel& model, const Loop& loop) {
  MemoryPlan plan;
  plan.parts = model.memory_parts();
  plan.parts.push_back({"steps in flight", loop.device_bytes()});
  plan.max_rows = model.limits().max_seats;
  plan.max_context = model.info().max_context;
  // Page 0 holds nothing.
  plan.cache_tokens = (model.state().num_pages() - 1) * kPageTokens;
  return plan;
}

std::string describe(const MemoryPlan& plan) {
  std::string text;
  for (const MemoryPart& part : plan.parts) {
    text += fmt::format("{} {:.2f}, ", part.name, gib(part.bytes));
  }
  return text +
         fmt::format("{:.2f} GiB in all; {}", gib(plan.total_bytes()), describe_capacity(plan));
}

std::string memory_table(const MemoryPlan& plan) {
  std::string text;
  for (const MemoryPart& part : plan.parts) {
    text += fmt::format("  {:<34} {:>8.2f} GiB\n", part.name, gib(part.bytes));
  }
  text += fmt::format("  {:<34} {:>8.2f} GiB\n", "in all", gib(plan.total_bytes()));
  return text + fmt::format("  {}\n", describe_capacity(plan));
}

StatusOr<FittedModel> fit_model(const DeviceInfo& device, std::size_t max_bytes,
                                const ModelSource& source, const ModelOptions& options,
                                const LoopOptions& loop) {
  DryStart start;
  DeviceInfo plenty = device;
  plenty.total_memory_bytes = plenty.free_memory_bytes = kPlentyBytes;
  struct Rung {
    StepSizing sizing;
    bool shares_rows;
  };
  for (const Rung rung : {Rung{StepSizing::kUsual, false}, Rung{StepSizing::kSmall, false},
                          Rung{StepSizing::kSmall, true}}) {
    FittedModel fitted{options, {}};
    fitted.options.sizing = rung.sizing;
    fitted.options.shares_rows = rung.shares_rows;
    GAPLESS_ASSIGN_OR_RETURN(start, start_dry(plenty, source, fitted.options, loop));
    if (least_bytes(start.sized, fitted.options) > max_bytes) continue;
    // All that is counted is counted: nothing has to stay free beside it.
    fitted.options.reserve_bytes = 0;
    if (!fitted.options.kv_cache_bytes) {
      fitted.options.kv_cache_bytes = max_bytes - kDriverBytes - start.sized.without_cache;
    }
    GAPLESS_ASSIGN_OR_RETURN(fitted.plan, plan_memory(plenty, source, fitted.options, loop));
    return fitted;
  }
  // As little as it may be.
  ModelOptions least = options;
  least.sizing = StepSizing::kSmall;
  least.shares_rows = true;
  if (!least.kv_cache_bytes) least.kv_cache_bytes = start.sized.one_context;
  GAPLESS_ASSIGN_OR_RETURN(start, start_dry(plenty, source, least, loop));
  return does_not_fit_error(plenty, max_bytes, source, options, loop, start);
}

StatusOr<MemoryPlan> plan_memory(const DeviceInfo& device, const ModelSource& source,
                                 const ModelOptions& options, const LoopOptions& loop) {
  GAPLESS_ASSIGN_OR_RETURN(DryStart start, start_dry(device, source, options, loop));
  return std::move(start.plan);
}

}  // namespace gapless
