#include "picture_source.h"

#include <glob.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>

#include "base/file_bytes.h"
#include "base/limits.h"
#include "base/url.h"
#include "server/url_fetcher.h"

namespace gapless {
namespace {

constexpr const char* kStandardInput = "-";
// A picture of kMaxImageBytes over a slow line; nobody else waits for it.
constexpr std::chrono::seconds kFetchTime{120};

StatusOr<std::string> read_standard_input() {
  std::string bytes;
  std::vector<char> piece(1 << 16);
  while (const std::size_t count = std::fread(piece.data(), 1, piece.size(), stdin)) {
    bytes.append(piece.data(), count);
    if (bytes.size() > kMaxImageBytes) {
      return make_error(StatusCode::kResourceExhausted,
                        "standard input: more than the {} bytes allowed", kMaxImageBytes);
    }
  }
  if (std::ferror(stdin) != 0) return data_loss("standard input: cannot be read");
  if (bytes.empty()) return invalid_argument("standard input: is empty");
  return bytes;
}

StatusOr<std::string> fetch(const std::string& url) {
  FetchPolicy policy;
  policy.allowed_hosts = {"*"};
  policy.max_bytes = kMaxImageBytes;
  policy.timeout = kFetchTime;
  policy.allows_address = [](std::string_view) { return true; };
  policy.hide_names = false;
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<UrlFetcher> fetcher,
                           UrlFetcher::create(std::move(policy)));
  std::promise<StatusOr<std::string>> promise;
  fetcher->fetch(url,
                 [&promise](StatusOr<std::string> body) { promise.set_value(std::move(body)); });
  StatusOr<std::string> body = promise.get_future().get();
  if (!body.ok()) return body.status().with_context(url);
  return body;
}

bool is_pattern(const std::string& name) {
  std::error_code error;
  return name.find_first_of("*?[") != name.npos && !is_web_url(name) &&
         !std::filesystem::exists(name, error);
}

Status add_matches(const std::string& pattern, std::vector<std::string>& files) {
  glob_t found{};
  const int result = ::glob(pattern.c_str(), 0, nullptr, &found);
  if (result == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) files.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  if (result == 0) return ok_status();
  return make_error(StatusCode::kNotFound, "{}: no file matches", pattern);
}

}  // namespace

StatusOr<std::vector<std::string>> expand_pictures(const std::vector<std::string>& names) {
  std::vector<std::string> expanded;
  for (const std::string& name : names) {
    if (name.empty()) return invalid_argument("--image names no file");
    if (is_pattern(name)) {
      GAPLESS_RETURN_IF_ERROR(add_matches(name, expanded));
    } else {
      expanded.push_back(name);
    }
  }
  if (std::count(expanded.begin(), expanded.end(), kStandardInput) > 1) {
    return invalid_argument("--image -: standard input is one picture");
  }
  return expanded;
}

StatusOr<std::shared_ptr<const std::string>> read_picture(const std::string& name) {
  StatusOr<std::string> bytes = name == kStandardInput ? read_standard_input()
                                : is_web_url(name)     ? fetch(name)
                                                       : read_file(name, kMaxImageBytes);
  if (!bytes.ok()) return bytes.status();
  if (bytes->empty()) return invalid_argument("{}: is empty", name);
  return std::make_shared<const std::string>(std::move(bytes).value());
}

}  // namespace gapless
