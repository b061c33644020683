// Where the hub is, who asks, and where its files are kept: from the environment variables that
// Python's huggingface_hub looks at.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "base/status.h"
#include "base/url.h"
#include "hub/hub_limits.h"

namespace gapless {

// Bounds of hub_limits.h; tests make them small.
struct HubPatience {
  std::chrono::milliseconds stall = kHubStallTime;
  std::chrono::milliseconds first_pause = kHubFirstPause;
  int tries = kMaxHubTries;
};

struct HubSettings {
  std::filesystem::path cache;  // the folder with models--OWNER--NAME
  Url endpoint;                 // its target is "/", or "/prefix/"
  std::string token;            // empty: nobody
  bool offline = false;         // nothing is ever asked over the network
  // Whether `offline` comes from a variable of the environment, by name; empty: it does not.
  std::string offline_variable;
  HubPatience patience;
};

// Reads
//   HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub,
//   ~/.cache/huggingface/hub                                    the first that is set
//   HF_TOKEN, HUGGING_FACE_HUB_TOKEN, HF_TOKEN_PATH, HF_HOME/token   the same
//   HF_ENDPOINT                                                 default: https://huggingface.co
//   HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE                        1, on, yes or true
// `variable` is std::getenv, or a test's. InvalidArgument names the variable; never the token.
using EnvironmentVariable = std::function<const char*(const char* name)>;
StatusOr<HubSettings> hub_settings(const EnvironmentVariable& variable);

}  // namespace gapless
