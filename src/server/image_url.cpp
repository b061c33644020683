#include "server/image_url.h"

#include <algorithm>

#include "base/base64.h"
#include "base/limits.h"

namespace gapless {
namespace {

bool starts_with_ignoring_case(std::string_view text, std::string_view lower_case_prefix) {
  return text.size() >= lower_case_prefix.size() &&
         std::equal(lower_case_prefix.begin(), lower_case_prefix.end(), text.begin(),
                    [](char want, char c) {
                      return want == (c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
                    });
}

// The longest type that means something is about 100 characters; beyond this a comma is noise.
constexpr std::size_t kMaxMediaTypeBytes = 1024;

}  // namespace

StatusOr<std::string> image_bytes_from_url(std::string_view url) {
  const std::size_t begin = url.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return invalid_argument("image_url is empty");
  url.remove_prefix(begin);
  for (const std::string_view scheme : {"http:", "https:", "file:", "ftp:"}) {
    if (starts_with_ignoring_case(url, scheme)) {
      return invalid_argument(
          "image_url: this server does not fetch pictures; send a data: URI with base64");
    }
  }
  if (starts_with_ignoring_case(url, "data:")) {
    const std::size_t comma = url.substr(0, kMaxMediaTypeBytes).find(',');
    if (comma == std::string_view::npos) {
      return invalid_argument("image_url: the data: URI has no comma before its data");
    }
    url.remove_prefix(comma + 1);
  }
  StatusOr<std::string> bytes = decode_base64(url);
  if (!bytes.ok()) return bytes.status().with_context("image_url");
  if (bytes->empty()) return invalid_argument("image_url holds no data");
  if (bytes->size() > kMaxImageBytes) {
    return invalid_argument("image_url: the picture has {} bytes, more than the {} allowed",
                            bytes->size(), kMaxImageBytes);
  }
  return bytes;
}

StatusOr<std::string> take_image_bytes(boost::json::value& url) {
  StatusOr<std::string> bytes = image_bytes_from_url(url.get_string());
  url.emplace_string();
  return bytes;
}

}  // namespace gapless
