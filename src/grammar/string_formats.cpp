#include "grammar/string_formats.h"

#include <array>
#include <iterator>
#include <mutex>

#include "base/check.h"
#include "grammar/compile_work.h"
#include "grammar/grammar_limits.h"

namespace gapless {
namespace {

#define GAPLESS_DATE                                                                             \
  "(\\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|" \
  "1\\d|2[0-8]))"                                                                                \
  "|(\\d\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
#define GAPLESS_TIME \
  "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d+)?([Zz]|[+-]([01]\\d|2[0-3]):[0-5]\\d)"

#define GAPLESS_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define GAPLESS_HOSTNAME GAPLESS_LABEL "(\\." GAPLESS_LABEL ")*"

#define GAPLESS_BYTE "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define GAPLESS_IPV4 GAPLESS_BYTE "(\\." GAPLESS_BYTE "){3}"

// RFC 4291: eight groups, one run of them left out, the last two perhaps as IPv4.
#define GAPLESS_H "[0-9A-Fa-f]{1,4}"
#define GAPLESS_TAIL "(" GAPLESS_H ":" GAPLESS_H "|" GAPLESS_IPV4 ")"
#define GAPLESS_IPV6                                                                              \
  "((" GAPLESS_H ":){6}" GAPLESS_TAIL "|::(" GAPLESS_H ":){5}" GAPLESS_TAIL "|(" GAPLESS_H        \
  ")?::(" GAPLESS_H ":){4}" GAPLESS_TAIL "|((" GAPLESS_H ":){0,1}" GAPLESS_H ")?::(" GAPLESS_H    \
  ":){3}" GAPLESS_TAIL "|((" GAPLESS_H ":){0,2}" GAPLESS_H ")?::(" GAPLESS_H ":){2}" GAPLESS_TAIL \
  "|((" GAPLESS_H ":){0,3}" GAPLESS_H ")?::" GAPLESS_H ":" GAPLESS_TAIL "|((" GAPLESS_H           \
  ":){0,4}" GAPLESS_H ")?::" GAPLESS_TAIL "|((" GAPLESS_H ":){0,5}" GAPLESS_H ")?::" GAPLESS_H    \
  "|((" GAPLESS_H ":){0,6}" GAPLESS_H ")?::)"

// RFC 3986.
#define GAPLESS_UNRESERVED "A-Za-z0-9._~!$&'()*+,;=\\-"
#define GAPLESS_PERCENT "%[0-9A-Fa-f]{2}"
#define GAPLESS_PCHAR "([" GAPLESS_UNRESERVED ":@]|" GAPLESS_PERCENT ")"
#define GAPLESS_AUTHORITY                        \
  "(([" GAPLESS_UNRESERVED ":]|" GAPLESS_PERCENT \
  ")*@)?"                                        \
  "(\\[" GAPLESS_IPV6 "\\]|([" GAPLESS_UNRESERVED "]|" GAPLESS_PERCENT ")*)(:\\d*)?"
#define GAPLESS_ABSOLUTE \
  "//" GAPLESS_AUTHORITY "(/" GAPLESS_PCHAR "*)*|/(" GAPLESS_PCHAR "+(/" GAPLESS_PCHAR "*)*)?"
#define GAPLESS_TAIL_OF_URI "(\\?(" GAPLESS_PCHAR "|[/?])*)?(#(" GAPLESS_PCHAR "|[/?])*)?"
#define GAPLESS_URI                                                                  \
  "[A-Za-z][A-Za-z0-9+.-]*:(" GAPLESS_ABSOLUTE "|" GAPLESS_PCHAR "+(/" GAPLESS_PCHAR \
  "*)*)?" GAPLESS_TAIL_OF_URI
#define GAPLESS_FIRST_SEGMENT "([" GAPLESS_UNRESERVED "@]|" GAPLESS_PERCENT ")+"
#define GAPLESS_RELATIVE \
  "(" GAPLESS_ABSOLUTE "|" GAPLESS_FIRST_SEGMENT "(/" GAPLESS_PCHAR "*)*)?" GAPLESS_TAIL_OF_URI

#define GAPLESS_ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"

struct Definition {
  std::string_view name;
  std::string_view pattern;  // empty: no automaton holds it
  int max_length = 0;
};

constexpr Definition kFormats[] = {
    {"date", GAPLESS_DATE},
    {"time", GAPLESS_TIME},
    {"date-time", "(" GAPLESS_DATE ")[Tt]" GAPLESS_TIME},
    {"duration",
     "P(\\d+W|(\\d+Y(\\d+M(\\d+D)?)?|\\d+M(\\d+D)?|\\d+D)(T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|"
     "\\d+S))?"
     "|T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S))"},
    {"email", GAPLESS_ATOM "(\\." GAPLESS_ATOM ")*@" GAPLESS_HOSTNAME},
    {"hostname", GAPLESS_HOSTNAME, 253},
    {"ipv4", GAPLESS_IPV4},
    {"ipv6", GAPLESS_IPV6},
    {"uuid", "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
    {"uri", GAPLESS_URI},
    {"uri-reference", GAPLESS_URI "|" GAPLESS_RELATIVE},
    {"json-pointer", "(/([^/~]|~[01])*)*"},
    {"relative-json-pointer", "(0|[1-9]\\d*)(#|(/([^/~]|~[01])*)*)"},
    {"regex", ""},
    {"idn-email", ""},
    {"idn-hostname", ""},
    {"iri", ""},
    {"iri-reference", ""},
    {"uri-template", ""},
};

StringFormat format_of(const Definition& definition) {
  StringFormat format{.name = definition.name, .max_length = definition.max_length};
  if (definition.pattern.empty()) return format;
  const CompileWork own(kMaxGrammarWork);  // whoever is first does not pay for all
  StatusOr<RegexPtr> regex = parse_regex(definition.pattern);
  GAPLESS_CHECK_MSG(regex.ok(), regex.status().to_string());
  format.pattern = std::make_shared<const StringPattern>(std::move(*regex));
  GAPLESS_CHECK_MSG(format.pattern->dfa().ok(), definition.name);
  return format;
}

}  // namespace

const StringFormat* find_string_format(std::string_view name) {
  static std::array<std::once_flag, std::size(kFormats)> is_made;
  static std::array<StringFormat, std::size(kFormats)> formats;
  for (std::size_t i = 0; i < formats.size(); ++i) {
    if (kFormats[i].name != name) continue;
    std::call_once(is_made[i], [&] { formats[i] = format_of(kFormats[i]); });
    return &formats[i];
  }
  return nullptr;
}

}  // namespace gapless
