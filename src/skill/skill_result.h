// What a skill answers. Coordinates are normalised to the upright image: [0, 1] from left and top.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/finish_reason.h"
#include "base/request_stages.h"
#include "skill/skill_request.h"

namespace gapless {

struct Point {
  float x = 0;
  float y = 0;
};

// How sure the model is of a point or a box: shares of softmaxes of its own logits.
struct ObjectConfidence {
  float object = 0;         // that there is another one
  std::vector<float> bins;  // of its x and y, of a box its width and height too: each among 1024
};

struct Box {
  float x_min = 0;
  float y_min = 0;
  float x_max = 0;
  float y_max = 0;
};

// Points that a part of a reasoning's text is about.
struct Grounding {
  int start_idx = 0;  // its first character, of the whole text; Unicode code points
  int end_idx = 0;    // behind its last one
  std::vector<Point> points;
};

struct Reasoning {
  std::string text;
  std::vector<Grounding> grounding;  // in the text's order; parts without points are not there
};

struct GenerationMetrics {
  int input_tokens = 0;   // BOS, image positions and prompt
  int output_tokens = 0;  // sampled for it: a stop string's too, but no end token and none behind
  double prefill_time_ms = 0;  // from the prefill's launch to the first token
  double decode_time_ms = 0;   // from the first token to the last
  double ttft_ms = 0;          // from submission to the first token, be it the end token
  StageTimes stages;           // up to the first text; not in the answer
  int cached_tokens = 0;       // of input_tokens: found in the prefix cache, not computed
  int reasoning_tokens = 0;    // of output_tokens: up to the answer's first
};

struct SkillResult {
  std::string request_id;
  Skill skill = Skill::kQuery;
  FinishReason finish_reason = FinishReason::kStop;
  std::string text;                    // query: the answer; caption: the caption; segment: its path
  std::optional<Reasoning> reasoning;  // query that was asked to reason
  std::vector<Point> points;           // point
  std::vector<Box> boxes;   // detect; segment: one, or none where the length limit came first
  bool is_refined = false;  // segment: its path and box are more exact than what was streamed
  // Where asked for: of each point, or of each box.
  std::vector<ObjectConfidence> confidences;
  std::vector<ToolCall> tool_calls;  // query of a chat with tools
  GenerationMetrics metrics;
};

}  // namespace gapless
