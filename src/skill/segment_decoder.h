// Tokens of a segment's answer become its box and its path.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "skill/skill_decoder.h"

namespace gapless {

// A path, as tokens of it come: SVG path data relative to the segment's box, whose sides are 1. Numbers have three
// decimals at most and no zeros behind them, blanks between them.
//
// What is no whole command is left out, so the path is SVG path data whatever tokens come: numbers that a command lacks
// some of, what stands before the first move, what is no path token.
class PathText {
 public:
  // `token`: the token's bytes. The command that ended with it, or nothing; behind the first one it begins with a blank.
  std::string push(std::string_view token);
  // The last one.
  std::string finish() { return end_command(); }

  const std::string& so_far() const { return path_; }

 private:
  std::string end_command();

  std::string path_;
  char command_ = 0;  // 0: none yet
  std::vector<int> numbers_;
  bool is_negative_ = false;  // the next number
};

// `tokenizer` outlives it.
std::unique_ptr<SkillDecoder> make_segment_decoder(const Tokenizer& tokenizer,
                                                   const AnswerTokenIds& ids, bool with_confidence);

}  // namespace gapless
