// How a model of the hub is named: OWNER/NAME[@REVISION].
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace gapless {

struct HubName {
  std::string repository;         // "vikhyatk/moondream2"
  std::string revision = "main";  // a branch, a tag or a commit

  std::string to_string() const;  // without the revision when it is main
  // "models--vikhyatk--moondream2": its folder in the cache.
  std::string folder() const;
};

// OWNER/NAME with at most one '@'. What could be a path only ("/a", "./a", "a/b/c", "a") is not.
bool looks_like_hub_name(std::string_view text);

// InvalidArgument: not a name that the hub could have. Both parts are safe as parts of a path and of
// a URL: letters, digits and "-_.", of a revision also single slashes, nothing that leads upwards.
StatusOr<HubName> parse_hub_name(std::string_view text);

// 40 hexadecimal digits, lower case.
bool is_commit(std::string_view text);

}  // namespace gapless
