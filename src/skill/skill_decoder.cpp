#include "skill/skill_decoder.h"

#include <algorithm>
#include <utility>

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

// point: (coord x, coord y)*. detect: (coord x, coord y, size)*. An object that the length limit
// cut off is dropped.
class RegionDecoder final : public SkillDecoder {
 public:
  RegionDecoder(bool boxes, const RegionTokenIds& ids) : boxes_(boxes), ids_(ids) {}

  int num_final_tokens() const override { return num_tokens_; }

  std::string push(const SampledToken& token) override {
    ++num_tokens_;
    if (token.id == ids_.coord) {
      if (num_coords_ == 2) num_coords_ = 0;  // a box whose size never came
      center_[num_coords_++] = token.x;
      if (!boxes_ && num_coords_ == 2) {
        points_.push_back({center_[0], center_[1]});
        num_coords_ = 0;
      }
    } else if (token.id == ids_.size && num_coords_ == 2) {
      add_box(token.x, token.y);
      num_coords_ = 0;
    }
    return {};
  }

  void fill(SkillResult& result) const override {
    result.points = points_;
    result.boxes = found_boxes_;
  }

 private:
  void add_box(float width, float height) {
    const auto clamped = [](float value) { return std::clamp(value, 0.0f, 1.0f); };
    found_boxes_.push_back({clamped(center_[0] - width / 2), clamped(center_[1] - height / 2),
                            clamped(center_[0] + width / 2), clamped(center_[1] + height / 2)});
  }

  const bool boxes_;
  const RegionTokenIds ids_;
  int num_tokens_ = 0;
  int num_coords_ = 0;
  float center_[2] = {};
  std::vector<Point> points_;
  std::vector<Box> found_boxes_;
};

}  // namespace

std::unique_ptr<SkillDecoder> make_skill_decoder(const SkillRequest& request,
                                                 const Tokenizer& tokenizer,
                                                 const RegionTokenIds& region_ids) {
  switch (request.skill) {
    case Skill::kQuery:
    case Skill::kCaption:
      return std::make_unique<TextDecoder>(tokenizer, StopStrings(request.settings.stop));
    case Skill::kPoint:
      return std::make_unique<RegionDecoder>(false, region_ids);
    case Skill::kDetect:
      return std::make_unique<RegionDecoder>(true, region_ids);
  }
  return nullptr;
}

}  // namespace gapless
