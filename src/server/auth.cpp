#include "server/auth.h"

namespace gapless {
namespace {

// Looks at every character of `given` whatever it finds, so that its time says nothing about `key`.
bool equals_in_constant_time(std::string_view given, std::string_view key) {
  unsigned difference = given.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char other = key.empty() ? '\0' : key[i % key.size()];
    difference |= static_cast<unsigned char>(given[i] ^ other);
  }
  return difference == 0;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

bool ApiKeys::is_known(std::string_view key) const {
  if (key.empty()) return false;
  bool known = false;
  for (const std::string& candidate : keys_) known |= equals_in_constant_time(key, candidate);
  return known;
}

bool ApiKeys::admit(const HttpHeaders& headers) const {
  if (!required()) return true;
  const std::string_view authorization = headers.find("Authorization");
  constexpr std::string_view kBearer = "Bearer ";
  if (equals_ignoring_case(authorization.substr(0, kBearer.size()), kBearer) &&
      is_known(trimmed(authorization.substr(kBearer.size())))) {
    return true;
  }
  return is_known(trimmed(headers.find("X-Moondream-Auth")));
}

}  // namespace gapless
