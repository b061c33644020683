#include "hub/hub_download.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <thread>
#include <vector>

#include "hub/content_digest.h"
#include "hub/hub_limits.h"

namespace gapless {
namespace {

namespace fs = std::filesystem;

std::optional<std::uint64_t> whole_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

// One part of a URL's path. Slashes of a revision are part of its name.
std::string quoted(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.';
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

// A text from the network in an error of ours: one line, no control characters.
std::string readable(std::string_view text) {
  std::string out(text.substr(0, 200));
  for (char& c : out) {
    if (c < ' ' || c == 0x7F) c = ' ';
  }
  return out;
}

bool is_worth_another_try(unsigned status) {
  return status == 408 || status == 429 || status >= 500;
}

Status io_error(const fs::path& path) {
  return invalid_argument("{}: {}", path.string(), std::strerror(errno));
}

Status check_space(const fs::path& folder, std::uint64_t more_bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error || space.available >= more_bytes) return ok_status();
  return make_error(StatusCode::kResourceExhausted,
                    "{}: {:.1f} GB more are needed, {:.1f} are free", folder.string(),
                    static_cast<double>(more_bytes) / 1e9,
                    static_cast<double>(space.available) / 1e9);
}

}  // namespace

// The file that grows: blobs/ETAG.incomplete. Its lock is held.
struct HubRepository::Partial {
  Partial(fs::path path_in, int fd_in) : path(std::move(path_in)), fd(fd_in) {}
  Partial(const Partial&) = delete;
  Partial& operator=(const Partial&) = delete;
  ~Partial() { ::close(fd); }

  static StatusOr<std::unique_ptr<Partial>> open(const fs::path& path) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return io_error(path);
    auto partial = std::make_unique<Partial>(path, fd);
    struct stat info {};
    if (::fstat(fd, &info) != 0) return io_error(path);
    partial->num_bytes = static_cast<std::uint64_t>(info.st_size);
    return partial;
  }

  Status restart() {
    num_bytes = 0;
    return ::ftruncate(fd, 0) == 0 ? ok_status() : io_error(path);
  }

  Status append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written =
          ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(num_bytes));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return io_error(path);
      num_bytes += static_cast<std::uint64_t>(written);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    return ok_status();
  }

  StatusOr<bool> has_content(std::string_view etag) const {
    GAPLESS_ASSIGN_OR_RETURN(ContentDigest digest, ContentDigest::of_etag(etag, num_bytes));
    std::vector<std::byte> piece(kHubReadBytes);
    for (std::uint64_t at = 0; at < num_bytes;) {
      const ssize_t count = ::pread(fd, piece.data(), piece.size(), static_cast<off_t>(at));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return io_error(path);
      digest.update(std::span(piece).first(static_cast<std::size_t>(count)));
      at += static_cast<std::uint64_t>(count);
    }
    return digest.matches();
  }

  const fs::path path;
  const int fd;
  std::uint64_t num_bytes = 0;
};

HubRepository::HubRepository(HubName name, const HubSettings& settings, HubHttp& http,
                             const HubEvents& events)
    : name_(std::move(name)),
      settings_(settings),
      http_(http),
      events_(events),
      cache_(settings.cache, name_),
      commit_(cache_.commit()) {}

fs::path HubRepository::snapshot() const {
  return cache_.snapshot(commit_.value_or(""));
}

std::optional<fs::path> HubRepository::cached(std::string_view file) const {
  return commit_ ? cache_.find(*commit_, file) : std::nullopt;
}

StatusOr<fs::path> HubRepository::get(std::string_view file) {
  if (const auto path = cached(file)) return *path;
  if (settings_.offline) {
    return make_error(StatusCode::kUnavailable, "{}: {} is not in {}", name_.to_string(), file,
                      settings_.cache.string());
  }
  GAPLESS_ASSIGN_OR_RETURN(const RemoteFile remote, look_up(file));
  GAPLESS_RETURN_IF_ERROR(
      download(remote, file).with_context(fmt::format("{}: {}", name_.to_string(), file)));
  commit_ = remote.commit;
  return cache_.snapshot(remote.commit) / file;
}

StatusOr<std::optional<fs::path>> HubRepository::get_if_any(std::string_view file) {
  if (const auto path = cached(file)) return path;
  const std::optional<fs::path> nothing;
  if (settings_.offline || (commit_ && cache_.is_absent(*commit_, file))) return nothing;
  StatusOr<fs::path> path = get(file);
  if (path.ok()) return std::optional<fs::path>(*path);
  if (path.status().code() != StatusCode::kNotFound) return path.status();
  // To be looked for no more. A cache that cannot be written to has failed for other files already.
  if (commit_) (void)cache_.note_absent(*commit_, file);
  return nothing;
}

Url HubRepository::url_of(std::string_view revision, std::string_view file) const {
  Url url = http_.endpoint();
  url.target += fmt::format("{}/resolve/{}/{}", name_.repository, quoted(revision), quoted(file));
  return url;
}

// What an answer means that is no file.
Status HubRepository::refusal(const HubAnswer& answer, std::string_view file) const {
  const std::string who = answer.url.host_header();
  const std::string said =
      answer.explanation.empty() ? "" : fmt::format(" ({})", readable(answer.explanation));
  const char* const with_token =
      settings_.token.empty() ? "without a token (HF_TOKEN)" : "with the token of HF_TOKEN";
  if (answer.status == 404 && answer.error == "EntryNotFound") {
    return make_error(StatusCode::kNotFound, "{} has no {}", name_.to_string(), file);
  }
  if (answer.status == 404 && answer.error == "RevisionNotFound") {
    return invalid_argument("{}: {} has no revision '{}'", who, name_.repository, name_.revision);
  }
  if (answer.error == "GatedRepo") {
    return invalid_argument("{}: {} asks for its terms to be accepted there first; asked {}{}", who,
                            name_.repository, with_token, said);
  }
  if (answer.status == 401 || answer.status == 403) {
    return invalid_argument("{}: {} is not there, or not for everybody: status {}, asked {}{}", who,
                            name_.repository, answer.status, with_token, said);
  }
  if (answer.status == 404) {
    return invalid_argument("{}: there is no {} of {}: status 404{}", who, file, name_.to_string(),
                            said);
  }
  const StatusCode code =
      is_worth_another_try(answer.status) ? StatusCode::kUnavailable : StatusCode::kInvalidArgument;
  return make_error(code, "{}: status {} for {} of {}{}", who, answer.status, file,
                    name_.to_string(), said);
}

StatusOr<HubRepository::RemoteFile> HubRepository::describe(const HubAnswer& answer,
                                                            std::string_view file) const {
  const auto bad = [&](std::string_view what) {
    return invalid_argument("{}: does not answer as a hub does: {} of {} has {}",
                            answer.url.host_header(), file, name_.to_string(), what);
  };
  RemoteFile remote;
  remote.commit = answer.commit;
  if (!is_commit(remote.commit)) return bad("no X-Repo-Commit");
  if (commit_ && *commit_ != remote.commit) return bad("another commit than was asked for");
  remote.etag = answer.linked_etag.empty() ? answer.etag : answer.linked_etag;
  if (const auto digest = ContentDigest::of_etag(remote.etag, 0); !digest.ok()) {
    return bad("an ETag that is no hash");
  }
  const auto num_bytes =
      whole_number(answer.linked_size.empty() ? answer.length : answer.linked_size);
  if (!num_bytes || *num_bytes > kMaxHubFileBytes) return bad("no size, or none that is possible");
  remote.num_bytes = *num_bytes;
  return remote;
}

StatusOr<HubRepository::RemoteFile> HubRepository::look_up(std::string_view file) {
  HubAnswer answer;
  const Status status = persist(
      [&] {
        GAPLESS_ASSIGN_OR_RETURN(answer,
                                 http_.head(url_of(commit_.value_or(name_.revision), file)));
        answered_ = true;
        retry_after_ = answer.retry_after;
        return answer.status < 400 ? ok_status() : refusal(answer, file);
      },
      [] { return std::uint64_t{0}; });
  if (!status.ok()) {
    // Which commit has no such file is worth knowing, too.
    if (status.code() == StatusCode::kNotFound && !commit_ && is_commit(answer.commit)) {
      commit_ = answer.commit;
    }
    return status;
  }
  return describe(answer, file);
}

Status HubRepository::persist(const std::function<Status()>& attempt,
                              const std::function<std::uint64_t()>& num_bytes) {
  std::chrono::milliseconds pause = settings_.patience.first_pause;
  int tries = 0;
  std::uint64_t before = num_bytes();
  while (true) {
    retry_after_.clear();
    const Status status = attempt();
    // A hub that has never answered is most likely out of reach.
    if (status.code() != StatusCode::kUnavailable || !answered_) return status;
    std::chrono::milliseconds wait{0};
    if (num_bytes() > before) {
      tries = 0;
      pause = settings_.patience.first_pause;
      before = num_bytes();
    } else {
      wait = pause;
      pause *= 2;
    }
    if (const auto asked = whole_number(retry_after_)) {
      if (*asked > static_cast<std::uint64_t>(kMaxHubRetryAfter.count())) {
        return make_error(StatusCode::kUnavailable, "{}; it asks to come back in {} s",
                          status.message(), *asked);
      }
      wait = std::chrono::seconds(*asked);
    }
    if (++tries >= settings_.patience.tries) return status;
    events_.notice(
        fmt::format("{}; trying again{}", status.message(),
                    wait.count() == 0 ? "" : fmt::format(" in {} s", wait.count() / 1000)));
    std::this_thread::sleep_for(wait);
  }
}

// Into the cache, whole and checked, or not at all.
Status HubRepository::download(const RemoteFile& remote, std::string_view file) {
  GAPLESS_RETURN_IF_ERROR(cache_.prepare(remote.commit));
  const fs::path blob = cache_.blob(remote.etag);
  GAPLESS_ASSIGN_OR_RETURN(
      const FileLock lock, FileLock::acquire(cache_.lock_file(remote.etag), [&] {
        events_.notice(fmt::format("{}: another process downloads {}", name_.to_string(), file));
      }));
  std::error_code error;
  if (!fs::is_regular_file(blob, error)) {
    fs::path incomplete = blob;
    incomplete += ".incomplete";
    GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Partial> partial, Partial::open(incomplete));
    GAPLESS_RETURN_IF_ERROR(fill(*partial, remote, file));
    if (::fsync(partial->fd) != 0) return io_error(incomplete);
    fs::rename(incomplete, blob, error);
    if (error) return invalid_argument("{}: {}", blob.string(), error.message());
  }
  GAPLESS_RETURN_IF_ERROR(cache_.link(remote.commit, file, remote.etag));
  return cache_.set_commit(remote.commit);
}

// Downloads what is missing. On return it has the bytes that the hub's hash names.
Status HubRepository::fill(Partial& partial, const RemoteFile& remote, std::string_view file) {
  if (partial.num_bytes > remote.num_bytes) GAPLESS_RETURN_IF_ERROR(partial.restart());
  GAPLESS_RETURN_IF_ERROR(
      check_space(partial.path.parent_path(), remote.num_bytes - partial.num_bytes));
  // The url names the commit, so what comes is the same at every try.
  const std::string label = fmt::format("{}/{}", name_.repository, file);
  const Url url = url_of(remote.commit, file);

  const auto on_head = [&](const HubAnswer& answer) {
    answered_ = true;
    retry_after_ = answer.retry_after;
    if (answer.status == 200) return partial.restart();  // it does not know ranges
    if (answer.status != 206) return refusal(answer, file);
    const std::string expected =
        fmt::format("bytes {}-{}/{}", partial.num_bytes, remote.num_bytes - 1, remote.num_bytes);
    if (partial.num_bytes > 0 && answer.range == expected) return ok_status();
    return invalid_argument("{}: asked for '{}', it sends '{}'", answer.url.host_header(), expected,
                            readable(answer.range));
  };
  const auto sink = [&](std::span<const std::byte> bytes) {
    if (bytes.size() > remote.num_bytes - partial.num_bytes) {
      return data_loss("more than the {} bytes that the hub says", remote.num_bytes);
    }
    GAPLESS_RETURN_IF_ERROR(partial.append(bytes));
    events_.progress(label, partial.num_bytes, remote.num_bytes);
    return ok_status();
  };
  const auto attempt = [&]() -> Status {
    if (partial.num_bytes == remote.num_bytes && remote.num_bytes > 0) return ok_status();
    GAPLESS_RETURN_IF_ERROR(http_.get(url, {.begin = partial.num_bytes}, on_head, sink));
    if (partial.num_bytes == remote.num_bytes) return ok_status();
    return make_error(StatusCode::kUnavailable, "{} of {} bytes came", partial.num_bytes,
                      remote.num_bytes);
  };
  // What an earlier run has left may be damaged: then it is thrown away, and all of it comes anew.
  for (bool resumed = partial.num_bytes > 0;; resumed = false) {
    const Status status = persist(attempt, [&] { return partial.num_bytes; });
    if (!status.ok() && status.code() != StatusCode::kDataLoss) return status;
    if (status.ok()) {
      GAPLESS_ASSIGN_OR_RETURN(const bool whole, partial.has_content(remote.etag));
      if (whole) return ok_status();
    }
    GAPLESS_RETURN_IF_ERROR(partial.restart());
    if (resumed) continue;
    std::error_code ignored;
    fs::remove(partial.path, ignored);
    if (!status.ok()) return status;
    return data_loss("what came is not what the hub says: its hash is not {}", remote.etag);
  }
}

StatusOr<HubRepository::Beginning> HubRepository::beginning(std::string_view file,
                                                            std::uint64_t num_bytes) {
  GAPLESS_ASSIGN_OR_RETURN(const RemoteFile remote, look_up(file));
  commit_ = remote.commit;
  Beginning result;
  result.file_bytes = remote.num_bytes;
  num_bytes = std::min(num_bytes, remote.num_bytes);
  const auto on_head = [&](const HubAnswer& answer) {
    retry_after_ = answer.retry_after;
    const bool good =
        answer.status == 200 || (answer.status == 206 && answer.range.starts_with("bytes 0-"));
    return good ? ok_status() : refusal(answer, file);
  };
  // Enough is enough: the rest is not read.
  const auto sink = [&](std::span<const std::byte> bytes) {
    const std::size_t wanted = std::min<std::size_t>(bytes.size(), num_bytes - result.bytes.size());
    result.bytes.append(reinterpret_cast<const char*>(bytes.data()), wanted);
    if (result.bytes.size() < num_bytes) return ok_status();
    return make_error(StatusCode::kCancelled, "enough has been read");
  };
  const Url url = url_of(remote.commit, file);
  const Status status = persist(
      [&] {
        result.bytes.clear();
        const Status got = http_.get(url, {.begin = 0, .end = num_bytes}, on_head, sink);
        return got.code() == StatusCode::kCancelled ? ok_status() : got;
      },
      [] { return std::uint64_t{0}; });
  if (!status.ok()) return status;
  if (result.bytes.size() < num_bytes) return data_loss("{}: ends too early", file);
  return result;
}

}  // namespace gapless
