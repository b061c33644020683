// HTTP for the hub: requests that block, one after another. The token goes to the endpoint and
// nowhere else, whatever a redirect says; an https address is never left for an http one.
//
// Proxies that the environment names are not looked at. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/url.h"
#include "hub/hub_settings.h"

namespace gapless {

// The head of an answer, as far as the hub's API uses it. Empty: there is no such field.
struct HubAnswer {
  unsigned status = 0;
  Url url;  // that gave it
  std::string location;
  std::string commit;       // X-Repo-Commit
  std::string etag;         // without W/ and quotes
  std::string linked_etag;  // X-Linked-Etag: of the file that a redirect leads to
  std::string linked_size;  // X-Linked-Size
  std::string length;       // Content-Length
  std::string range;        // Content-Range
  std::string retry_after;  // Retry-After
  std::string error;        // X-Error-Code
  std::string explanation;  // X-Error-Message

  bool is_redirect() const;
};

// Bytes of a file, from `begin` to before `end`; of its own size without one.
struct ByteRange {
  std::uint64_t begin = 0;
  std::optional<std::uint64_t> end = std::nullopt;
};

// Takes a piece of the body; an error ends the request with it.
using HubSink = std::function<Status(std::span<const std::byte>)>;

class HubHttp {
 public:
  // InvalidArgument: the system's certificates cannot be read.
  static StatusOr<std::unique_ptr<HubHttp>> create(const HubSettings& settings);
  ~HubHttp();

  const Url& endpoint() const;

  // The answer to HEAD: the first one that is no redirect, or that says X-Linked-Etag. Unavailable:
  // none came.
  StatusOr<HubAnswer> head(const Url& url);

  // Asks for these bytes; a server may send all. `on_head` judges the answer's head, which is no
  // redirect; its body goes to `sink` when that was OK, and is not read otherwise. Unavailable: the connection failed
  // or ended too early; what came until then has been given to `sink`.
  Status get(const Url& url, const ByteRange& range,
             const std::function<Status(const HubAnswer&)>& on_head, const HubSink& sink);

 private:
  class Impl;
  explicit HubHttp(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gapless
