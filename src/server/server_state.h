// What all handlers share. It outlives the HTTP server and the service; see http_server.h for the
// order of ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/auth.h"
#include "server/host_policy.h"
#include "server/inference_service.h"
#include "server/metrics.h"
#include "server/url_fetcher.h"

namespace gapless {

struct ServerStateOptions {
  std::vector<std::string> api_keys;       // none: open to everybody
  std::vector<std::string> cors_origins;   // "*", or origins such as "https://example.org"
  std::vector<std::string> allowed_hosts;  // beyond those that HostPolicy always allows
  std::string version;
  bool debug = false;  // the paths under /debug/
};

class ServerState {
 public:
  explicit ServerState(ServerStateOptions options);

  // nullptr while the model loads. Any thread.
  InferenceService* service() const { return service_.load(); }
  // The service lives until the state is told of its end with nullptr.
  void set_service(InferenceService* service) { service_.store(service); }

  // From now on /ready says that the server is leaving. What it is asked is still answered: a request
  // that is on its way has nowhere else to go. Any thread.
  void begin_drain() { draining_.store(true); }
  bool draining() const { return draining_.load(); }

  const ApiKeys& keys() const { return keys_; }
  const HostPolicy& hosts() const { return hosts_; }
  const ServerStateOptions& options() const { return options_; }
  std::int64_t started_unix_s() const { return started_unix_s_; }
  ServerMetrics& metrics() { return metrics_; }

  // nullptr: pictures are not fetched. Set before the server starts.
  UrlFetcher* fetcher() const { return fetcher_.get(); }
  void set_fetcher(std::unique_ptr<UrlFetcher> fetcher) { fetcher_ = std::move(fetcher); }

 private:
  const ServerStateOptions options_;
  const ApiKeys keys_;
  const HostPolicy hosts_;
  const std::int64_t started_unix_s_;
  std::atomic<InferenceService*> service_{nullptr};
  std::atomic<bool> draining_{false};
  ServerMetrics metrics_;
  std::unique_ptr<UrlFetcher> fetcher_;
};

}  // namespace gapless
