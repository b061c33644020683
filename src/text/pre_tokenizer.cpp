#include "text/pre_tokenizer.h"

#include "base/limits.h"
#include "text/utf8.h"

namespace gapless {
namespace {

// English contractions, then runs of letters, of digits and of other marks, each with at most one
// space in front; whitespace before a word leaves its last space to the word. (GPT-2's rules, in
// Hugging Face's ByteLevel.)
constexpr std::string_view kByteLevelPattern =
    "'(?:s|t|re|ve|m|ll|d)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

}  // namespace

Status PreTokenizer::add_split(std::string_view pattern, bool literal, OnMatch on_match,
                               bool invert) {
  if (steps_.size() == kMaxPreTokenizerSteps) {
    return invalid_argument("more than {} steps", kMaxPreTokenizerSteps);
  }
  GAPLESS_ASSIGN_OR_RETURN(CompiledRegex regex, CompiledRegex::compile(pattern, literal));
  steps_.push_back(Step{std::move(regex), on_match, invert});
  return ok_status();
}

Status PreTokenizer::set_byte_level(bool add_prefix_space, bool use_regex) {
  add_prefix_space_ = add_prefix_space;
  if (!use_regex) return ok_status();
  GAPLESS_ASSIGN_OR_RETURN(CompiledRegex regex,
                           CompiledRegex::compile(kByteLevelPattern, /*literal=*/false));
  byte_level_.emplace(Step{std::move(regex), OnMatch::kIsolate, /*invert=*/false});
  return ok_status();
}

Status PreTokenizer::apply(const Step& step, std::vector<std::string_view>& words) {
  RegexMatcher matcher(step.regex);
  std::vector<std::string_view> parts;
  for (const std::string_view word : words) {
    const auto add = [&](std::size_t begin, std::size_t end, bool is_match) {
      const bool removed = step.on_match == OnMatch::kRemove && is_match != step.invert;
      if (begin < end && !removed) parts.push_back(word.substr(begin, end - begin));
    };
    std::size_t done = 0, from = 0;
    while (from <= word.size()) {
      GAPLESS_ASSIGN_OR_RETURN(const auto match, matcher.find(word, from));
      if (!match) break;
      add(done, match->begin, false);
      add(match->begin, match->end, true);
      done = from = match->end;
      if (match->begin == match->end) {  // an empty match: look on behind the next character
        from += from < word.size() ? utf8_step(word.substr(from)).num_bytes : 1;
      }
    }
    add(done, word.size(), false);
  }
  words.swap(parts);
  return ok_status();
}

Status PreTokenizer::split(std::string_view text, std::vector<std::string_view>& words,
                           std::deque<std::string>& prefixed) const {
  if (text.empty()) return ok_status();
  std::vector<std::string_view> parts = {text};
  for (const Step& step : steps_) GAPLESS_RETURN_IF_ERROR(apply(step, parts));
  if (add_prefix_space_) {
    for (std::string_view& part : parts) {
      if (!part.starts_with(' ')) part = prefixed.emplace_back(fmt::format(" {}", part));
    }
  }
  if (byte_level_) GAPLESS_RETURN_IF_ERROR(apply(*byte_level_, parts));
  words.insert(words.end(), parts.begin(), parts.end());
  return ok_status();
}

}  // namespace gapless
