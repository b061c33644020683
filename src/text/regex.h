// A compiled PCRE2 pattern over UTF-8 text, and the state of one thread's matching with it.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "base/status.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace gapless {

// Immutable; any thread may make a Matcher of it.
class CompiledRegex {
 public:
  // `literal`: the pattern is a plain string. The error says where the pattern is wrong.
  static StatusOr<CompiledRegex> compile(std::string_view pattern, bool literal);

 private:
  friend class RegexMatcher;
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  explicit CompiledRegex(pcre2_real_code_8* code) : code_(code) {}
  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
};

// Finds matches one after the other. One thread. The regex must outlive it.
class RegexMatcher {
 public:
  explicit RegexMatcher(const CompiledRegex& regex);

  struct Match {
    std::size_t begin, end;
  };
  // The first match at or after byte `from` of `text`, which must be valid UTF-8. Looks behind may
  // see what comes before `from`. An error when the search passes kMaxRegexBacktracks.
  StatusOr<std::optional<Match>> find(std::string_view text, std::size_t from);

 private:
  struct Free {
    void operator()(pcre2_real_match_data_8* data) const;
    void operator()(pcre2_real_match_context_8* context) const;
    void operator()(pcre2_real_jit_stack_8* stack) const;
  };
  const CompiledRegex& regex_;
  std::unique_ptr<pcre2_real_match_data_8, Free> data_;
  std::unique_ptr<pcre2_real_match_context_8, Free> context_;
  std::unique_ptr<pcre2_real_jit_stack_8, Free> jit_stack_;
};

}  // namespace gapless
