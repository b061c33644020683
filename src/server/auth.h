// API keys: "Authorization: Bearer KEY" or "X-Moondream-Auth: KEY".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http_message.h"

namespace gapless {

class ApiKeys {
 public:
  ApiKeys() = default;
  // No keys: everybody may come in.
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  bool required() const { return !keys_.empty(); }

  // True when no key is required or either header has one of them. An empty header is none. Takes
  // equally long wherever a key differs.
  bool admit(const HttpHeaders& headers) const;

 private:
  bool is_known(std::string_view key) const;
  std::vector<std::string> keys_;
};

}  // namespace gapless
