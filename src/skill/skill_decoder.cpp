#include "skill/skill_decoder.h"

#include <algorithm>
#include <utility>

#include "skill/segment_decoder.h"
#include "text/tool_calls.h"

namespace gapless {
namespace {

// query, caption: text.
class TextDecoder final : public SkillDecoder {
 public:
  TextDecoder(const Tokenizer& tokenizer, StopStrings stop_strings)
      : detokenizer_(tokenizer), stop_strings_(std::move(stop_strings)) {}

  std::string push(const SampledToken& token) override {
    if (stop_strings_.stopped()) return {};
    begins_.push_back(num_detokenized_);
    return keep(detokenizer_.push(token.id));
  }

  int num_final_tokens() const override { return num_final_; }

  bool stopped() const override { return stop_strings_.stopped(); }

  std::string finish() override {
    if (stop_strings_.stopped()) return {};
    std::string tail = keep(detokenizer_.flush());
    if (stop_strings_.stopped()) return tail;
    const std::string held_back = stop_strings_.flush();
    text_ += held_back;
    num_final_ = static_cast<int>(begins_.size());
    return tail + held_back;
  }

  void fill(SkillResult& result) const override { result.text = text_; }

 private:
  // Of what the detokenizer gave, the part that is final.
  std::string keep(std::string_view detokenized) {
    num_detokenized_ += detokenized.size();
    std::string chunk = stop_strings_.push(detokenized);
    text_ += chunk;
    const auto begin_of = [this](int token) { return begins_[static_cast<std::size_t>(token)]; };
    const int num_tokens = static_cast<int>(begins_.size());
    while (num_final_ < num_tokens && begin_of(num_final_) < text_.size()) ++num_final_;
    return chunk;
  }

  IncrementalDetokenizer detokenizer_;
  StopStrings stop_strings_;
  std::string text_;
  std::size_t num_detokenized_ = 0;  // bytes; text_ is the beginning of what they make
  // Where each token's text begins among those bytes: with the character that it continues, if any.
  std::vector<std::size_t> begins_;
  int num_final_ = 0;
};

// The reasoning of a query: parts of text, each of which may be about points. A part begins at the token that
// starts points and at the one that ends them (Moondream 2's public code of June 2025). Of a coordinate without
// a partner nothing comes.
class ReasoningText {
 public:
  ReasoningText(const Tokenizer& tokenizer, const AnswerTokenIds& ids)
      : ids_(ids), detokenizer_(tokenizer) {}

  std::string push(const SampledToken& token) {
    std::string chunk;
    if (token.id == ids_.start_ground_points || token.id == ids_.end_ground) chunk = end_part();
    if (token.id == ids_.coord) coordinates_.push_back(token.x);
    return chunk + keep(detokenizer_.push(token.id));
  }

  std::string finish() { return end_part(); }

  const Reasoning& so_far() const { return reasoning_; }

 private:
  std::string keep(std::string text) {
    reasoning_.text += text;
    num_characters_ +=
        static_cast<int>(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
    return text;
  }

  std::string end_part() {
    std::string tail = keep(detokenizer_.flush());
    Grounding part{.start_idx = begin_, .end_idx = num_characters_, .points = {}};
    for (std::size_t i = 0; i + 1 < coordinates_.size(); i += 2) {
      part.points.push_back({coordinates_[i], coordinates_[i + 1]});
    }
    if (!part.points.empty()) reasoning_.grounding.push_back(std::move(part));
    begin_ = num_characters_;
    coordinates_.clear();
    return tail;
  }

  const AnswerTokenIds ids_;
  IncrementalDetokenizer detokenizer_;
  Reasoning reasoning_;
  int num_characters_ = 0;
  int begin_ = 0;                   // of the part, in characters
  std::vector<float> coordinates_;  // of the part
};

// query that reasons first: reasoning, its end, then the answer.
class ReasoningDecoder final : public SkillDecoder {
 public:
  ReasoningDecoder(const Tokenizer& tokenizer, StopStrings stop_strings, const AnswerTokenIds& ids)
      : ids_(ids), reasoning_(tokenizer, ids), answer_(tokenizer, std::move(stop_strings)) {}

  std::string push(const SampledToken& token) override {
    if (num_fed_ > ids_.num_answers_fed_again) return answer_.push(token);
    ++num_reasoning_tokens_;
    if (num_fed_ > 0) {
      ++num_fed_;
    } else if (token.id == ids_.answer) {
      ++num_fed_;
      new_reasoning_ += reasoning_.finish();
    } else {
      new_reasoning_ += reasoning_.push(token);
    }
    return {};
  }

  std::string take_reasoning() override { return std::exchange(new_reasoning_, {}); }
  int num_reasoning_tokens() const override { return num_reasoning_tokens_; }
  int num_final_tokens() const override { return answer_.num_final_tokens(); }
  bool stopped() const override { return answer_.stopped(); }

  std::string finish() override {
    if (num_fed_ == 0) new_reasoning_ += reasoning_.finish();
    return answer_.finish();
  }

  void fill(SkillResult& result) const override {
    answer_.fill(result);
    result.reasoning = reasoning_.so_far();
    result.metrics.reasoning_tokens = num_reasoning_tokens_;
  }

 private:
  const AnswerTokenIds ids_;
  ReasoningText reasoning_;
  TextDecoder answer_;
  std::string new_reasoning_;
  int num_fed_ = 0;  // of the tokens between reasoning and answer
  int num_reasoning_tokens_ = 0;
};

// A chat with tools: the text without the calls in it.
class ToolDecoder final : public SkillDecoder {
 public:
  ToolDecoder(std::unique_ptr<SkillDecoder> inner, const ToolUse& tools, ChatTemplate chat)
      : inner_(std::move(inner)), reader_(chat, names_of(tools), tools.must_call) {}

  std::string push(const SampledToken& token) override { return keep(inner_->push(token)); }
  int num_final_tokens() const override { return inner_->num_final_tokens(); }
  bool stopped() const override { return inner_->stopped(); }
  std::string finish() override {
    std::string text = keep(inner_->finish());
    const std::string rest = reader_.finish();
    text_ += rest;
    return text + rest;
  }
  void fill(SkillResult& result) const override {
    result.text = text_;
    result.tool_calls = reader_.calls();
  }

 private:
  static std::vector<std::string> names_of(const ToolUse& tools) {
    std::vector<std::string> names;
    for (const boost::json::object& function : tools.callable()) {
      names.emplace_back(function.at("name").as_string());
    }
    return names;
  }
  std::string keep(std::string_view chunk) {
    std::string text = chunk.empty() ? std::string() : reader_.push(chunk);
    text_ += text;
    return text;
  }

  const std::unique_ptr<SkillDecoder> inner_;
  ToolCallReader reader_;
  std::string text_;
};

// point: (coord x, coord y)*. detect: (coord x, coord y, size)*. An object that the length limit
// cut off is dropped.
class RegionDecoder final : public SkillDecoder {
 public:
  RegionDecoder(bool boxes, bool with_confidences, const AnswerTokenIds& ids)
      : boxes_(boxes), with_confidences_(with_confidences), ids_(ids) {}

  int num_final_tokens() const override { return num_tokens_; }

  std::string push(const SampledToken& token) override {
    ++num_tokens_;
    if (token.id == ids_.coord) {
      if (num_coords_ == 2) num_coords_ = 0;  // a box whose size never came
      if (num_coords_ == 0) confidence_ = {.object = token.confidence.token, .bins = {}};
      confidence_.bins.push_back(token.confidence.x);
      center_[num_coords_++] = token.x;
      if (!boxes_ && num_coords_ == 2) {
        points_.push_back({center_[0], center_[1]});
        keep_confidence();
        num_coords_ = 0;
      }
    } else if (token.id == ids_.size && num_coords_ == 2) {
      found_boxes_.push_back(box_around({center_[0], center_[1]}, token.x, token.y));
      confidence_.bins.insert(confidence_.bins.end(), {token.confidence.x, token.confidence.y});
      keep_confidence();
      num_coords_ = 0;
    }
    return {};
  }

  void fill(SkillResult& result) const override {
    result.points = points_;
    result.boxes = found_boxes_;
    result.confidences = confidences_;
  }

 private:
  void keep_confidence() {
    if (with_confidences_) confidences_.push_back(confidence_);
  }

  const bool boxes_;
  const bool with_confidences_;
  const AnswerTokenIds ids_;
  int num_tokens_ = 0;
  int num_coords_ = 0;
  float center_[2] = {};
  std::vector<Point> points_;
  std::vector<Box> found_boxes_;
  ObjectConfidence confidence_;  // of the object that is coming
  std::vector<ObjectConfidence> confidences_;
};

}  // namespace

Box box_around(const Point& center, float width, float height) {
  const auto clamped = [](float value) { return std::clamp(value, 0.0f, 1.0f); };
  return {clamped(center.x - width / 2), clamped(center.y - height / 2),
          clamped(center.x + width / 2), clamped(center.y + height / 2)};
}

std::unique_ptr<SkillDecoder> make_skill_decoder(const SkillRequest& request,
                                                 const Tokenizer& tokenizer,
                                                 const AnswerTokenIds& ids,
                                                 std::optional<ChatTemplate> chat) {
  switch (request.skill) {
    case Skill::kQuery:
      if (request.reasoning) {
        return std::make_unique<ReasoningDecoder>(tokenizer, StopStrings(request.settings.stop),
                                                  ids);
      }
      [[fallthrough]];
    case Skill::kCaption: {
      auto text = std::make_unique<TextDecoder>(tokenizer, StopStrings(request.settings.stop));
      if (!request.tools || !chat) return text;
      return std::make_unique<ToolDecoder>(std::move(text), *request.tools, *chat);
    }
    case Skill::kPoint:
      return std::make_unique<RegionDecoder>(false, request.settings.confidence, ids);
    case Skill::kDetect:
      return std::make_unique<RegionDecoder>(true, request.settings.confidence, ids);
    case Skill::kSegment:
      return make_segment_decoder(tokenizer, ids, request.settings.confidence);
  }
  return nullptr;
}

}  // namespace gapless
