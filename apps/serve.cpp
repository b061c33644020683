// gapless serve: the HTTP server.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/limits.h"
#include "base/log.h"
#include "commands.h"
#include "config_file.h"
#include "engine_options.h"
#include "engine_service/engine_service.h"
#include "parent_watch.h"
#include "server/api_handler.h"
#include "server/host_policy.h"
#include "server/http_server.h"

namespace gapless {
namespace {

struct ServeOptions {
  EngineCommandOptions engine;
  HttpServerOptions http;
  std::string model_name;
  std::vector<std::string> api_keys;
  std::vector<std::string> cors_origins;
  std::vector<std::string> allowed_hosts;
  FetchPolicy fetch;
  std::size_t max_fetch_mb = kMaxFetchBytes >> 20;
  std::optional<int> parent;
  int drain_lead_seconds = 5;
  int drain_seconds = 30;
  std::size_t max_body_mb = kMaxHttpBodyBytes >> 20;
  bool debug = false;
  bool quiet = false;
  bool dry_run = false;
};

sigset_t end_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  // A terminal that closes; nohup ignores it, and a blocked signal would be waited for even so.
  struct sigaction hangup {};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) {
    sigaddset(&set, SIGHUP);
  }
  return set;
}

// Every connection takes a descriptor; the soft limit is often 1024.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 65'536);
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Ends the process when the last device is lost, whatever the main thread is doing: a lost CUDA
// context cannot be made anew inside of the process, and calls that would give its memory back may never
// return. Before that, requests get the answers that say so.
class DeviceLossExit {
 public:
  explicit DeviceLossExit(HttpServer& server) : server_(server), thread_([this] { wait(); }) {}
  // Nothing was lost.
  ~DeviceLossExit() {
    {
      std::lock_guard lock(mutex_);
      dismissed_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  DeviceLossExit(const DeviceLossExit&) = delete;
  DeviceLossExit& operator=(const DeviceLossExit&) = delete;

  // Any thread; returns at once.
  void on_device_lost(const Status& status) {
    {
      std::lock_guard lock(mutex_);
      lost_ = status;
    }
    changed_.notify_one();
  }

 private:
  void wait() {
    Status lost;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return dismissed_ || !lost_.ok(); });
      lost = lost_;
    }
    if (lost.ok()) return;
    log_error("{}: leaving with exit status {}", lost.message(), kExitDeviceError);
    server_.begin_drain();
    (void)server_.wait_drained(std::chrono::seconds(kLostDrainSeconds));
    std::_Exit(kExitDeviceError);
  }

  HttpServer& server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Status lost_;             // guarded by mutex_
  bool dismissed_ = false;  // guarded by mutex_
  std::thread thread_;      // last: it uses the others
};

// Loads the model and warms it up while the server already answers /health, then opens the door.
class Loader {
 public:
  // `main_thread` gets SIGTERM when loading fails.
  Loader(const ServeOptions& options, ServerState& state, pthread_t main_thread)
      : thread_([this, &options, &state, main_thread] {
          status_ = load(options, state);
          done_.store(true);
          if (!status_.ok()) pthread_kill(main_thread, SIGTERM);
        }) {}
  ~Loader() { thread_.join(); }

  bool done() const { return done_.load(); }
  // Once done.
  const Status& status() const { return status_; }

 private:
  Status load(const ServeOptions& options, ServerState& state) {
    GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<EngineGroup> engines, start_engines(options.engine));
    service_ = std::make_unique<EngineService>(std::move(engines), options.model_name);
    GAPLESS_RETURN_IF_ERROR(service_->warm_up());
    const ServiceInfo info = service_->info();
    state.set_service(service_.get());
    // Who reads it may ask.
    log_info("ready model={} device=\"{}\" max_context={}", info.model, info.device,
             info.max_context);
    return ok_status();
  }

  Status status_;
  std::atomic<bool> done_{false};
  std::unique_ptr<EngineService> service_;
  std::thread thread_;  // last: it uses the others
};

constexpr const char* kKeyVariable = "GAPLESS_API_KEY";

// CLI11 takes an empty variable for none, and the server would be open to everybody.
Status check_key_variable() {
  const char* key = std::getenv(kKeyVariable);
  if (key == nullptr || *key != '\0') return ok_status();
  return invalid_argument("{} is empty: unset it, or set it to a key", kKeyVariable);
}

// Empty, or what is wrong with it. Headers are trimmed and in ASCII: no client could send another.
std::string check_key(const std::string& key) {
  const bool visible =
      std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7F; });
  return !key.empty() && visible ? "" : "a key must be one or more visible ASCII characters";
}

std::string check_host(const std::string& host) {
  if (host == "*" || !host_of_authority(host).empty()) return "";
  return "'" + host + "' is neither a host name, an address ([...] for IPv6), nor *";
}

constexpr timespec kTenthOfASecond{.tv_sec = 0, .tv_nsec = 100'000'000};

// Whether no further signal came in this time.
bool quiet_for(int seconds) {
  const sigset_t signals = end_signals();
  for (int tenth = 0; tenth < seconds * 10; ++tenth) {
    if (sigtimedwait(&signals, nullptr, &kTenthOfASecond) > 0) return false;
  }
  return true;
}

// Those who route requests ask /ready every second or so. Until they have all seen that this server
// is leaving, what they send is answered as before. False: a further signal came.
bool let_routers_leave(ServerState& state, HttpServer& server, int seconds) {
  log_info("leaving: /ready is 503, requests are taken for {} s more", seconds);
  state.begin_drain();
  server.end_keep_alive();
  return quiet_for(seconds);
}

// Lets running answers finish; a further signal or the time limit ends them.
void drain(HttpServer& server, int seconds) {
  const sigset_t signals = end_signals();
  const timespec no_wait{};
  log_info("draining");
  server.begin_drain();
  for (int tenth = 0; tenth < seconds * 10; ++tenth) {
    if (server.wait_drained(std::chrono::milliseconds(100))) return;
    if (sigtimedwait(&signals, nullptr, &no_wait) > 0) break;
  }
  log_warning("ending requests that still run");
}

void say_where(const HttpServerOptions& http, const HttpServer& server) {
  if (http.unix_socket) return log_info("listening unix_socket={}", *http.unix_socket);
  const bool is_ipv6 = http.host.find(':') != http.host.npos;
  const std::string host = is_ipv6 ? "[" + http.host + "]" : http.host;
  log_info("listening url=http://{}:{}", host, server.port());
  if (http.second_port) log_info("listening ollama_url=http://{}:{}", host, server.second_port());
}

int serve(const ServeOptions& options) {
  if (options.dry_run) return print_memory_plan(options.engine);
  // Before any thread starts, so that only this one takes them.
  const sigset_t signals = end_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  raise_descriptor_limit();
  const ParentWatch parent_watch(options.parent);
  if (options.quiet) set_log_level(LogLevel::kWarning);

  if (const Status status = check_key_variable(); !status.ok()) return report(status);
  const bool local = is_loopback_address(options.http.host);
  if (!local && options.api_keys.empty()) {
    log_warning("everybody who reaches {} may use this server: there is no --api-key",
                options.http.host);
  }
  ServerStateOptions state_options;
  state_options.api_keys = options.api_keys;
  state_options.cors_origins = options.cors_origins;
  state_options.allowed_hosts = options.allowed_hosts;
  state_options.version = GAPLESS_VERSION;
  // On this machine alone nobody else can turn the switch.
  state_options.debug = options.debug || local;
  ServerState state(std::move(state_options));
  if (!options.fetch.allowed_hosts.empty()) {
    FetchPolicy policy = options.fetch;
    policy.max_bytes = options.max_fetch_mb << 20;
    StatusOr<std::unique_ptr<UrlFetcher>> fetcher = UrlFetcher::create(std::move(policy));
    if (!fetcher.ok()) return report(fetcher.status());
    state.set_fetcher(std::move(fetcher).value());
  }
  HttpServerOptions http = options.http;
  http.limits.max_body_bytes = options.max_body_mb << 20;
  StatusOr<std::unique_ptr<HttpServer>> server =
      HttpServer::start(http, make_api_handler(state), state.metrics());
  if (!server.ok()) return report(server.status());
  say_where(options.http, **server);

  DeviceLossExit loss_exit(**server);
  ServeOptions load_options = options;
  load_options.engine.on_device_lost = [&loss_exit](const Status& lost) {
    loss_exit.on_device_lost(lost);
  };
  Status status;
  {
    Loader loader(load_options, state, pthread_self());
    int signal = 0;
    sigwait(&signals, &signal);
    if (!loader.done()) {
      // Loading cannot be interrupted. The server is stopped so that it removes its socket's file.
      (*server)->stop();
      std::_Exit(128 + signal);
    }
    status = loader.status();
    // Whoever presses Ctrl-C routes nothing here.
    const int lead = signal == SIGTERM ? options.drain_lead_seconds : 0;
    if (status.ok() && let_routers_leave(state, **server, lead)) {
      drain(**server, options.drain_seconds);
    }
    (*server)->stop();
    if (state.fetcher() != nullptr) state.fetcher()->stop();
    // Calls that give something back to a lost device may never return, those of the process's own
    // end included.
    const InferenceService* service = state.service();
    if (service != nullptr && !service->lost_devices().empty()) std::_Exit(report(status));
    state.set_service(nullptr);
  }
  return report(status);
}

}  // namespace

void add_serve_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command =
      app.add_subcommand("serve", "Answer Moondream's, OpenAI's and Ollama's HTTP APIs");
  add_config_option(*command);
  add_engine_options(*command, options->engine);
  HttpServerOptions& http = options->http;
  command
      ->add_option("--host", http.host,
                   "Address to listen on, or localhost (127.0.0.1); 0.0.0.0 for everywhere")
      ->transform([](std::string host) { return host == "localhost" ? "127.0.0.1" : host; })
      ->capture_default_str();
  const CLI::Range is_port(0, 65'535);
  command->add_option("--port", http.port, "0: any free one")
      ->check(is_port)
      ->capture_default_str();
  command
      ->add_option("--ollama-port", http.second_port,
                   "A second port, the same in all else, for clients that expect Ollama at 11434; "
                   "0: any free one")
      ->check(is_port);
  command
      ->add_option("--unix-socket", http.unix_socket,
                   "Listen on this Unix socket instead, which only your user may connect to")
      ->excludes("--host", "--port", "--ollama-port");
  command->add_flag(
      "--dry-run", options->dry_run,
      "Print what the model would take of the device's memory, and end; needs no GPU");
  command->add_option("--threads", http.num_threads, "Threads for connections")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--served-model-name", options->model_name,
                      "The id that /v1/models lists; else the name of the model's folder");
  command
      ->add_option("--api-key", options->api_keys,
                   "Ask clients for this key (repeatable): Authorization: Bearer, X-Moondream-Auth")
      ->envname(kKeyVariable)
      ->check(CLI::Validator(check_key, "KEY"));
  command
      ->add_option("--allowed-host", options->allowed_hosts,
                   "Answer requests to this host name too (repeatable), beside localhost and the "
                   "address that clients connect to; * for all")
      ->check(CLI::Validator(check_host, "HOST"));
  command->add_option("--cors-origin", options->cors_origins,
                      "Let pages of this origin use the server (repeatable); * for all");
  command->add_option("--fetch-host", options->fetch.allowed_hosts,
                      "Fetch image_urls of this host over http(s) (repeatable); .example.org: all "
                      "hosts below it; *: all. Without it nothing is fetched");
  command->add_option("--max-fetch-mb", options->max_fetch_mb, "Largest picture fetched, in MiB")
      ->check(CLI::Range(std::size_t{1}, kMaxImageBytes >> 20))
      ->capture_default_str();
  command
      ->add_option("--max-requests", options->engine.max_active_requests,
                   "Requests that run or wait, for each device; one more is answered with 429")
      ->check(CLI::Range(1, kMaxWaitingRequests))
      ->capture_default_str();
  command->add_option("--max-body-mb", options->max_body_mb, "Largest request, in MiB")
      ->check(CLI::Range(std::size_t{1}, kMaxHttpBodyBytes >> 20))
      ->capture_default_str();
  command
      ->add_option(
          "--drain-lead", options->drain_lead_seconds,
          "Seconds after SIGTERM in which /ready says 503 and requests are still taken, so "
          "that routers have time to notice")
      ->check(CLI::Range(0, 3600))
      ->capture_default_str();
  command
      ->add_option("--drain-seconds", options->drain_seconds,
                   "How long running requests may take to finish after that")
      ->check(CLI::Range(0, 3600))
      ->capture_default_str();
  command->add_flag("--debug", options->debug,
                    "Serve /debug/timeline, /debug/trace and /debug/depth, which the playground "
                    "shows, also when --host is not a loopback address");
  add_parent_option(*command, options->parent);
  command->add_flag("--quiet", options->quiet, "Log warnings only, no line per request");
  command->callback([options, &chosen] { chosen = [options] { return serve(*options); }; });
}

}  // namespace gapless
