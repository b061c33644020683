// What the benchmarks ask of the engine: prompts whose answers have chosen lengths, made without
// pictures and text, so that any weights will do.
//
// An answer ends when it has its tokens, and the loop does not foresee it
// (LoopOptions::foresees_limits is false), so that ends come as stop tokens do. Its length is drawn
// uniformly from [L/2, 3L/2] (mean L) from the seed, the client and the number of the answer: every
// run of a workload sees the same answers in the same order. A client's first answer is
// shorter, so that the clients do not end in step.
//
// With an image, every client asks about a picture of its own: encoded once, then found in the
// prefix cache. So no two rows read the same pages. When all ask about one picture they do, and
// much of what a step reads comes from the GPU's second-level cache instead of its memory.
//
// Greedy rows of random weights soon say the same, so they choose the same experts. With random_tokens each text token of
// a prompt is drawn evenly from the vocabulary, for each client and answer anew. The device draws those of an answer, at a
// temperature at which all tokens are equally likely.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "constraint/spatial_automaton.h"
#include "device/device.h"
#include "model/device_grammars.h"
#include "pipeline/prepared_prompt.h"
#include "step/step_model.h"

namespace gapless {

enum class RowConstraint : std::uint8_t {
  kNone,             // plain text, greedy
  kDeviceAutomaton,  // detect's grammar on the device, without region decoding
  kHostMask,         // the same grammar by host masks
  kGrammar,          // JSON, walked on the device
  kHostGrammar,      // the same by host masks
};

// JSON for as long as any answer of a workload is: a list that is not whole before its fortieth object.
inline constexpr std::string_view kWorkloadSchema =
    R"({"type": "array", "minItems": 40, "maxItems": 40, "items": {"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 16}, "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3}},
        "required": ["name", "count", "tags"], "additionalProperties": false}})";

// A compiled kWorkloadSchema: for the next answer one on the device, or the constraint of its row on the host.
struct WorkloadGrammar {
  std::function<std::shared_ptr<const DeviceGrammar>()> on_device;
  std::function<std::unique_ptr<TokenConstraint>()> on_host;
};

struct Workload {
  std::string name;
  RowConstraint constraint = RowConstraint::kNone;
  bool decodes_regions = false;  // with detect's grammar: coordinates and sizes are decoded
  bool new_grammars = false;     // kGrammar: no answer meets a place that an earlier one met
  double mean_tokens = 110;      // L
  bool random_lengths = true;    // false: every answer has mean_tokens tokens, the first ones too
  int context = 850;             // cached tokens in the middle of an answer
  bool image = true;             // of a model that takes pictures
  bool shared_image = false;     // all clients ask about one picture
  bool random_tokens = false;    // rows that have nothing to do with each other: below
  std::uint64_t seed = 1;
};

// "plain", "host-mask", "device-constrained", "detect", "detect-host-mask", "json", "json-new", "json-host-mask", "short" (plain, L = 3)
// or "long" (plain, 3 times `mean_tokens`), both with the prompts of the others; `base` gives the
// rest. InvalidArgument, listing the names, for another name.
StatusOr<Workload> named_workload(std::string_view name, const Workload& base);
std::vector<std::string> workload_names();

class PromptSource {
 public:
  // Makes one prompt to see that it fits. InvalidArgument when the context is too small for the
  // image or too large for the model. `grammar`: of a workload that has one. `device` outlives the source and its prompts.
  static StatusOr<PromptSource> create(Device& device, const StepModelInfo& info,
                                       const SpatialTokens& tokens, Workload workload,
                                       WorkloadGrammar grammar = {});

  PreparedPrompt make(int client, std::int64_t answer) const;
  const Workload& workload() const { return workload_; }

 private:
  PromptSource(const StepModelInfo& info, const SpatialTokens& tokens, Workload workload)
      : info_(info), tokens_(tokens), workload_(std::move(workload)) {}
  int answer_tokens(int client, std::int64_t answer) const;
  int prompt_tokens() const;
  void draw_tokens(int client, std::int64_t answer, PreparedPrompt& prompt) const;
  void set_constraint(PreparedPrompt& prompt) const;

  StepModelInfo info_;
  SpatialTokens tokens_;
  Workload workload_;
  WorkloadGrammar grammar_;
  std::shared_ptr<PinnedBuffer> crop_;  // null without an image
  std::vector<TokenInput> inputs_;      // of every prompt, but for the last token
};

}  // namespace gapless
