#include "hub/hub_name.h"

#include <algorithm>

#include "hub/hub_limits.h"

namespace gapless {
namespace {

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

// One part of a path: no "..", and nothing that a shell or a tool would take for an option or for a
// hidden file.
bool is_part(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_name_character) &&
         text.front() != '.' && text.front() != '-' && text.back() != '.' &&
         text.find("..") == text.npos;
}

bool is_repository(std::string_view text) {
  const std::size_t slash = text.find('/');
  return text.size() <= kMaxHubRepositoryBytes && slash != text.npos &&
         is_part(text.substr(0, slash)) && is_part(text.substr(slash + 1)) &&
         // The cache writes "--" for the slash.
         text.find("--") == text.npos;
}

bool is_revision(std::string_view text) {
  if (text.empty() || text.size() > kMaxHubRevisionBytes) return false;
  while (true) {
    const std::size_t slash = text.find('/');
    if (!is_part(text.substr(0, slash))) return false;
    if (slash == text.npos) return true;
    text.remove_prefix(slash + 1);
  }
}

}  // namespace

std::string HubName::to_string() const {
  return revision == "main" ? repository : repository + "@" + revision;
}

std::string HubName::folder() const {
  const std::size_t slash = repository.find('/');
  return "models--" + repository.substr(0, slash) + "--" + repository.substr(slash + 1);
}

bool looks_like_hub_name(std::string_view text) {
  const std::string_view repository = text.substr(0, text.find('@'));
  return std::count(repository.begin(), repository.end(), '/') == 1 &&
         !repository.starts_with('/') && !repository.starts_with('.') && !repository.ends_with('/');
}

StatusOr<HubName> parse_hub_name(std::string_view text) {
  const std::size_t at = text.find('@');
  HubName name;
  name.repository = text.substr(0, at);
  if (at != text.npos) name.revision = text.substr(at + 1);
  if (!is_repository(name.repository)) {
    return invalid_argument("'{}' is not the name of a repository: OWNER/NAME", name.repository);
  }
  if (!is_revision(name.revision)) {
    return invalid_argument("'{}' is not the name of a revision: a branch, a tag or a commit",
                            name.revision);
  }
  return name;
}

bool is_commit(std::string_view text) {
  return text.size() == 40 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace gapless
