#include "hub/hub_settings.h"

#include <algorithm>
#include <string_view>

#include "base/file_bytes.h"

namespace gapless {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxTokenFileBytes = 4096;

// Environment variables; an empty one counts as none.
class Variables {
 public:
  explicit Variables(const EnvironmentVariable& get) : get_(get) {}

  std::string value(const char* name) const {
    const char* found = get_(name);
    return found == nullptr ? "" : found;
  }
  // "~" and "~/..." lead home, as in a shell.
  fs::path path(const char* name) const {
    const std::string text = value(name);
    if (text == "~" || text.starts_with("~/")) return fs::path(value("HOME") + text.substr(1));
    return text;
  }
  bool is_true(const char* name) const {
    std::string text = value(name);
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
    return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
  }

 private:
  const EnvironmentVariable& get_;
};

fs::path home_folder(const Variables& variables) {
  if (const fs::path home = variables.path("HF_HOME"); !home.empty()) return home;
  fs::path caches = variables.path("XDG_CACHE_HOME");
  if (caches.empty()) caches = fs::path(variables.value("HOME")) / ".cache";
  return caches / "huggingface";
}

fs::path cache_folder(const Variables& variables) {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const fs::path path = variables.path(name); !path.empty()) return path;
  }
  return home_folder(variables) / "hub";
}

std::string trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) - begin + 1));
}

// It becomes part of a header.
StatusOr<std::string> checked_token(const std::string& text, std::string_view where) {
  const std::string token = trimmed(text);
  const bool visible =
      std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7F; });
  if (!visible) {
    return invalid_argument("{}: the token has characters that none can have", where);
  }
  return token;
}

StatusOr<std::string> read_token(const Variables& variables) {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    const std::string text = variables.value(name);
    if (!text.empty()) return checked_token(text, name);
  }
  fs::path path = variables.path("HF_TOKEN_PATH");
  if (path.empty()) path = home_folder(variables) / "token";
  std::error_code error;
  if (!fs::exists(path, error)) return std::string();
  GAPLESS_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxTokenFileBytes));
  return checked_token(text, path.string());
}

StatusOr<Url> read_endpoint(const Variables& variables) {
  std::string text = variables.value("HF_ENDPOINT");
  if (text.empty()) text = "https://huggingface.co";
  StatusOr<Url> url = parse_url(text);
  if (!url.ok()) return url.status().with_context("HF_ENDPOINT");
  if (url->target.find('?') != url->target.npos) {
    return invalid_argument("HF_ENDPOINT: '{}' has a query", text);
  }
  while (url->target.ends_with('/')) url->target.pop_back();
  url->target += '/';
  return url;
}

}  // namespace

StatusOr<HubSettings> hub_settings(const EnvironmentVariable& variable) {
  const Variables variables(variable);
  HubSettings settings;
  settings.cache = cache_folder(variables);
  GAPLESS_ASSIGN_OR_RETURN(settings.endpoint, read_endpoint(variables));
  GAPLESS_ASSIGN_OR_RETURN(settings.token, read_token(variables));
  for (const char* name : {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}) {
    if (!variables.is_true(name)) continue;
    settings.offline = true;
    settings.offline_variable = name;
    break;
  }
  return settings;
}

}  // namespace gapless
