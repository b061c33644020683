#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <string>

#include "base/check.h"
#include "base/limits.h"

namespace gapless {
namespace {

PCRE2_SPTR as_pcre2(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

void CompiledRegex::FreeCode::operator()(pcre2_code* code) const {
  pcre2_code_free(code);
}
void RegexMatcher::Free::operator()(pcre2_match_data* data) const {
  pcre2_match_data_free(data);
}
void RegexMatcher::Free::operator()(pcre2_match_context* context) const {
  pcre2_match_context_free(context);
}
void RegexMatcher::Free::operator()(pcre2_jit_stack* stack) const {
  pcre2_jit_stack_free(stack);
}

StatusOr<CompiledRegex> CompiledRegex::compile(std::string_view pattern, bool literal) {
  if (pattern.size() > kMaxRegexBytes) {
    return invalid_argument("a regular expression of {} bytes, more than the {} allowed",
                            pattern.size(), kMaxRegexBytes);
  }
  // \C would match a single byte and split a code point.
  const std::uint32_t options =
      PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(as_pcre2(pattern), pattern.size(), options, &error, &offset, nullptr);
  if (code == nullptr) {
    return invalid_argument("regular expression '{}' is wrong at byte {}: {}", pattern, offset,
                            error_text(error));
  }
  CompiledRegex regex(code);
  // Where there is no just-in-time compiler, matching falls back to the interpreter.
  (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return regex;
}

RegexMatcher::RegexMatcher(const CompiledRegex& regex)
    : regex_(regex),
      data_(pcre2_match_data_create_from_pattern(regex.code_.get(), nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      jit_stack_(pcre2_jit_stack_create(32u << 10, kMaxRegexJitStackBytes, nullptr)) {
  GAPLESS_CHECK_MSG(data_ && context_, "out of memory");
  constexpr std::uint32_t kMaxHeapKib = 64u << 10;  // of the interpreter
  pcre2_set_match_limit(context_.get(), kMaxRegexBacktracks);
  pcre2_set_heap_limit(context_.get(), kMaxHeapKib);
  // Without a stack of its own (no just-in-time compiler) PCRE2 uses the machine's.
  if (jit_stack_) pcre2_jit_stack_assign(context_.get(), nullptr, jit_stack_.get());
}

StatusOr<std::optional<RegexMatcher::Match>> RegexMatcher::find(std::string_view text,
                                                                std::size_t from) {
  // The text was validated once; PCRE2 would do it again at every match.
  const int found = pcre2_match(regex_.code_.get(), as_pcre2(text), text.size(), from,
                                PCRE2_NO_UTF_CHECK, data_.get(), context_.get());
  if (found == PCRE2_ERROR_NOMATCH) return std::optional<Match>();
  if (found < 0) {
    return make_error(StatusCode::kResourceExhausted,
                      "the tokenizer's regular expression failed at byte {} of the text: {}", from,
                      error_text(found));
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data_.get());
  // A pattern with \K can move the start of a match.
  if (offsets[0] < from || offsets[1] < offsets[0]) {
    return invalid_argument("the tokenizer's regular expression matches backwards");
  }
  return std::optional<Match>({offsets[0], offsets[1]});
}

}  // namespace gapless
