// What a user asks for, whatever door it came through (command line, Moondream's API, OpenAI's
// API).
#pragma once

#include <array>
#include <boost/json/object.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "grammar/grammar_spec.h"
#include "text/prompt_types.h"

namespace gapless {

enum class Skill : std::uint8_t { kQuery, kCaption, kPoint, kDetect, kSegment };

inline constexpr std::array kSkills = {Skill::kQuery, Skill::kCaption, Skill::kPoint,
                                       Skill::kDetect, Skill::kSegment};

std::string_view skill_name(Skill skill);
StatusOr<Skill> skill_from_name(std::string_view name);

StatusOr<CaptionLength> caption_length_from_name(std::string_view name);

struct LogitBias {
  TokenId token;
  float bias = 0;

  friend bool operator==(const LogitBias&, const LogitBias&) = default;
};

// Every field that is not set takes the default named beside it. SampleParams in kernels/kernels.h
// defines what those that pick tokens do.
struct GenerationSettings {
  std::optional<float> temperature;         // 0 = greedy
  std::optional<float> top_p;               // 1
  std::optional<std::int32_t> top_k;        // 0 or -1 = off
  std::optional<float> min_p;               // 0
  std::optional<float> repetition_penalty;  // 1 = off
  std::optional<float> presence_penalty;    // 0 = off
  std::optional<float> frequency_penalty;   // 0 = off
  std::vector<LogitBias> logit_bias;        // each token once
  std::optional<std::uint64_t> seed;        // a random one; matters only above temperature 0
  std::optional<std::int32_t> max_tokens;   // kDefaultMaxTokens or what fits into the context; of
                                            // reasoning and answer each
  std::optional<std::int32_t> min_tokens;   // 0; at most max_tokens
  std::optional<std::int32_t> max_objects;  // kDefaultMaxObjects (point, detect)
  std::vector<std::string> stop;            // text ends before any of these; reasoning does not
  std::vector<TokenId> stop_token_ids;      // and so do these tokens
  bool confidence = false;                  // point, detect, segment: say how sure each object is
  bool ignore_eos = false;                  // benchmarks: run to max_tokens
  bool logprobs = false;                    // tell each token's log probability
  std::int32_t top_logprobs = 0;            // and that many alternatives; needs logprobs
  std::optional<GrammarSpec> grammar;       // what the text must look like (query)
  bool complete = false;                    // with a grammar: whole within max_tokens
};

inline constexpr std::int32_t kDefaultMaxTokens = 768;
inline constexpr std::int32_t kDefaultMaxObjects = 50;

// How point, detect and segment keep to their grammar: both give the same tokens.
enum class ConstraintMode : std::uint8_t {
  kDeviceAutomaton,  // inside the step, on the device: such rows run ahead like plain text
  kHostMask,         // the host uploads a mask between forward and sampling
};

// What the text of a query is. Models that answer questions about pictures take each as a question; text
// models tell them apart, and have no questions.
enum class QueryForm : std::uint8_t {
  kQuestion,
  kChat,        // `messages`, the last one the user's; `text` holds them in one
  kCompletion,  // what the model goes on with, as it is
};

// Functions that the model may call (text/tool_calls.h).
struct ToolUse {
  std::vector<boost::json::object> tools;  // {"type": "function", "function": {"name", ...}}
  bool must_call = false;                  // the answer is a call of one of them
  std::string only;                        // must_call: of this one; empty: of any

  std::vector<boost::json::object> callable() const;  // the functions of an answer
};

struct SkillRequest {
  Skill skill = Skill::kQuery;
  std::string text;  // query: the question; point, detect, segment: the object; caption: unused
  // point, detect, segment: several things to look for, in place of `text`. Each is a choice of its own
  // (Engine::submit_choices), about the same picture.
  std::vector<std::string> objects;
  QueryForm form = QueryForm::kQuestion;
  std::vector<ChatMessage> messages;  // kChat
  std::optional<bool> thinking;       // of models that can be told; unset: as the model does
  bool reasoning = false;             // query: reason before the answer
  std::optional<ToolUse> tools;       // kChat
  CaptionLength length = CaptionLength::kNormal;
  // Encoded bytes (JPEG, PNG, WebP), in order. Query takes none, one or several, the others one.
  std::vector<std::shared_ptr<const std::string>> images;
  std::vector<SpatialRef> spatial_refs;
  GenerationSettings settings;
  // max_tokens that do not fit into the context: cut to what does, or refused.
  bool cut_max_tokens = false;
  ConstraintMode constraint_mode = ConstraintMode::kDeviceAutomaton;
  bool apply_exif_orientation = true;
  bool mirrored = false;  // the pictures' left and right are exchanged (not those of spatial_refs)
  // host_now_ns() when the whole request was there; 0: when it is submitted.
  std::int64_t received_ns = 0;
};

// What choice i asks for: `request` for the i-th of its objects, where it names several.
SkillRequest request_of_choice(SkillRequest request, std::size_t i);

// Everything about a request that can be judged without its image's pixels and without a tokenizer.
Status validate(const SkillRequest& request);

}  // namespace gapless
