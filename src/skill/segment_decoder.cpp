#include "skill/segment_decoder.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "constraint/path_tokens.h"

namespace gapless {
namespace {

// In units of the box: "0.5", "-0.021", "1".
std::string in_box(int value) {
  std::string text = fmt::format("{:.3f}", static_cast<double>(value) / kPathUnits);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string path_number_text(char command, int i, int value) {
  const PathNumber kind = path_number(command, i);
  const bool is_length = kind == PathNumber::kCoordinate || kind == PathNumber::kRadius;
  return is_length ? in_box(value) : fmt::format("{}", value);
}

// coord x, coord y, size, then the path.
class SegmentDecoder final : public SkillDecoder {
 public:
  SegmentDecoder(const Tokenizer& tokenizer, const AnswerTokenIds& ids, bool with_confidence)
      : tokenizer_(tokenizer), ids_(ids), with_confidence_(with_confidence) {}

  int num_final_tokens() const override { return num_tokens_; }

  std::string push(const SampledToken& token) override {
    ++num_tokens_;
    if (box_) return path_.push(tokenizer_.token_bytes(token.id));
    if (token.id == ids_.coord && num_coords_ < 2) {
      if (num_coords_ == 0) confidence_.object = token.confidence.token;
      confidence_.bins.push_back(token.confidence.x);
      center_[num_coords_++] = token.x;
    } else if (token.id == ids_.size && num_coords_ == 2) {
      box_ = box_around({center_[0], center_[1]}, token.x, token.y);
      new_box_ = box_;
      confidence_.bins.insert(confidence_.bins.end(), {token.confidence.x, token.confidence.y});
    }
    return {};
  }

  std::optional<Box> take_box() override { return std::exchange(new_box_, std::nullopt); }

  std::string finish() override { return path_.finish(); }

  void fill(SkillResult& result) const override {
    result.text = path_.so_far();
    if (!box_) return;
    result.boxes = {*box_};
    if (with_confidence_) result.confidences = {confidence_};
  }

 private:
  const Tokenizer& tokenizer_;
  const AnswerTokenIds ids_;
  const bool with_confidence_;
  int num_tokens_ = 0;
  int num_coords_ = 0;
  float center_[2] = {};
  std::optional<Box> box_, new_box_;
  ObjectConfidence confidence_;
  PathText path_;
};

}  // namespace

std::string PathText::push(std::string_view token) {
  const std::string_view text = trim_path_token(token);
  switch (path_token(text)) {
    case PathToken::kNone:
      return {};
    case PathToken::kMinus:
      is_negative_ = true;
      return {};
    case PathToken::kBit:
    case PathToken::kNumber: {
      int value = 0;
      std::from_chars(text.data(), text.data() + text.size(), value);
      numbers_.push_back(std::exchange(is_negative_, false) ? -value : value);
      return {};
    }
    default: {
      std::string ended = end_command();
      if (!path_.empty() || path_token(text) == PathToken::kMove) {
        command_ = text.front();
      }
      return ended;
    }
  }
}

std::string PathText::end_command() {
  const char command = std::exchange(command_, 0);
  const std::vector<int> numbers = std::exchange(numbers_, {});
  is_negative_ = false;
  if (command == 0) return {};
  const auto at_a_time = static_cast<std::size_t>(*num_path_numbers(command));
  const std::size_t num_used = at_a_time == 0 ? 0 : numbers.size() - numbers.size() % at_a_time;
  if (num_used == 0 && at_a_time != 0) return {};
  std::string text = path_.empty() ? "" : " ";
  text += command;
  for (std::size_t i = 0; i < num_used; ++i) {
    text += ' ';
    text += path_number_text(command, static_cast<int>(i % at_a_time), numbers[i]);
  }
  path_ += text;
  return text;
}

std::unique_ptr<SkillDecoder> make_segment_decoder(const Tokenizer& tokenizer,
                                                   const AnswerTokenIds& ids,
                                                   bool with_confidence) {
  return std::make_unique<SegmentDecoder>(tokenizer, ids, with_confidence);
}

}  // namespace gapless
