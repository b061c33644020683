// Bounds of what is taken from a hub, and how long it is waited for.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gapless {

// Of one file. The largest published files of this family have 20 GB.
inline constexpr std::uint64_t kMaxHubFileBytes = std::uint64_t{200} << 30;
// Between two bytes of an answer, and for a connection to stand. CDNs pause for seconds at most.
inline constexpr std::chrono::seconds kHubStallTime{30};
// A hub redirects to its CDN, and a renamed repository to its new name.
inline constexpr int kMaxHubRedirects = 5;
inline constexpr std::uint32_t kMaxHubResponseHeadBytes = 32u << 10;
// Tries in a row that brought no byte. Each one waits twice as long as the one before.
inline constexpr int kMaxHubTries = 5;
inline constexpr std::chrono::seconds kHubFirstPause{1};
// A hub that asks for more patience (Retry-After) is not waited for: the error says so.
inline constexpr std::chrono::seconds kMaxHubRetryAfter{120};
// Names of repositories have 96 characters at most, branches and tags fewer than this.
inline constexpr std::size_t kMaxHubRepositoryBytes = 96;
inline constexpr std::size_t kMaxHubRevisionBytes = 200;
// One read from the network.
inline constexpr std::size_t kHubReadBytes = 256u << 10;

}  // namespace gapless
