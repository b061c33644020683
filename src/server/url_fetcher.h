// Fetches pictures over http and https by the rules of a FetchPolicy.
//
// The address is judged twice: each one that a name resolves to before it is connected to, and the
// connected socket's own remote end after. Redirects go through the same as the first URL, host
// included. Environment variables that name proxies are not looked at; no cookies, no credentials.
//
// One thread of its own. fetch() may be called from any; `done` is called once, on that thread, or
// never if stop() comes first (what it holds is then destroyed).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/fetch_policy.h"

namespace gapless {

class UrlFetcher {
 public:
  // InvalidArgument: the policy's ca_file cannot be read.
  static StatusOr<std::unique_ptr<UrlFetcher>> create(FetchPolicy policy);
  ~UrlFetcher();

  // What can be said about a URL without looking at the network. InvalidArgument: it is none, or its
  // host is not allowed.
  Status check(std::string_view url) const;

  // The whole body of a 200. Errors: InvalidArgument: the URL, or that of a redirect, fails check();
  // NotFound: its name leads to no address that is allowed, or to none at all; ResourceExhausted:
  // too large, or too many fetches at once; Unavailable: no answer (in time), another status. The
  // message is for the log: it may say things about the network that clients should not learn.
  //
  // With the policy's hide_names NotFound comes when its timeout is over, not sooner: how long a
  // name takes to resolve would tell names of the network that the server stands in from names that
  // do not exist.
  using Done = std::function<void(StatusOr<std::string> body)>;
  void fetch(std::string_view url, Done done);

  // Ends the thread and destroys the `done` of fetches under way. Before what these use goes; no
  // fetch() after it.
  void stop();

 private:
  class Impl;
  explicit UrlFetcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gapless
