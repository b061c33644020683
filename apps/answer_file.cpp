#include "answer_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

namespace gapless {

Status AnswerFile::error(int code) const {
  return data_loss("{}: {}", path_.string(), std::strerror(code));
}

StatusOr<AnswerFile> AnswerFile::open(const std::filesystem::path& path, Mode mode,
                                      const BatchKeys& requests) {
  AnswerFile file;
  file.path_ = path;
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    file.is_regular_ = S_ISREG(info.st_mode);
    GAPLESS_RETURN_IF_ERROR(file.open_existing(mode));
    if (mode == Mode::kResume) GAPLESS_RETURN_IF_ERROR(file.read_answers(requests));
    return file;
  }
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if (errno != ENOENT || ::access(folder.c_str(), W_OK | X_OK) != 0) return file.error(errno);
  return file;
}

Status AnswerFile::open_existing(Mode mode) {
  if (is_regular_ && mode == Mode::kNew) {
    return invalid_argument(
        "{}: is there already; --resume goes on with it, --overwrite replaces it", path_.string());
  }
  if (!is_regular_ && mode == Mode::kResume) {
    return invalid_argument("{}: only a file can be resumed", path_.string());
  }
  return open_descriptor(O_WRONLY);
}

Status AnswerFile::open_descriptor(int flags) {
  descriptor_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0666);
  if (descriptor_ < 0) return error(errno);
  if (is_regular_ && ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    return make_error(StatusCode::kUnavailable, "{}: another process writes to it", path_.string());
  }
  return ok_status();
}

Status AnswerFile::read_answers(const BatchKeys& requests) {
  std::ifstream in(path_, std::ios::binary);
  std::string text;
  for (int number = 1; std::getline(in, text); ++number) {
    // The last line of a process that was killed: it is asked again.
    if (in.eof()) break;
    boost::system::error_code failed;
    const boost::json::value line = boost::json::parse(text, failed);
    const boost::json::value* id =
        failed || !line.is_object() ? nullptr : line.get_object().if_contains("id");
    if (id == nullptr) {
      return invalid_argument("{}, line {}: is no answer of gapless batch", path_.string(), number);
    }
    const std::string key = boost::json::serialize(*id);
    if (!requests.contains(key)) {
      return invalid_argument("{}, line {}: answers id {}, which the input does not have",
                              path_.string(), number, key);
    }
    if (answered_.insert(key).second && line.get_object().contains("error")) ++num_failed_;
    end_ += static_cast<std::int64_t>(text.size()) + 1;
  }
  if (in.bad()) return data_loss("{}: could not be read to its end", path_.string());
  return ok_status();
}

AnswerFile::AnswerFile(AnswerFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      is_regular_(other.is_regular_),
      is_prepared_(other.is_prepared_),
      end_(other.end_),
      answered_(std::move(other.answered_)),
      num_failed_(other.num_failed_) {}

AnswerFile::~AnswerFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status AnswerFile::prepare() {
  if (is_prepared_) return ok_status();
  // Somebody else may have made it meanwhile: that one is not ours to write.
  if (descriptor_ < 0) GAPLESS_RETURN_IF_ERROR(open_descriptor(O_WRONLY | O_CREAT | O_EXCL));
  if (is_regular_ &&
      (::ftruncate(descriptor_, end_) != 0 || ::lseek(descriptor_, end_, SEEK_SET) < 0)) {
    return error(errno);
  }
  is_prepared_ = true;
  return ok_status();
}

Status AnswerFile::append(std::string_view line) {
  GAPLESS_RETURN_IF_ERROR(prepare());
  std::string bytes(line);
  bytes += '\n';
  for (std::size_t written = 0; written < bytes.size();) {
    const ssize_t count = ::write(descriptor_, bytes.data() + written, bytes.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const Status status = error(errno);
      // Of a line that does not fit, nothing stays. Where even that fails, kResume cuts it.
      if (is_regular_ && ::ftruncate(descriptor_, end_) == 0) ::lseek(descriptor_, end_, SEEK_SET);
      return status;
    }
    written += static_cast<std::size_t>(count);
  }
  end_ += static_cast<std::int64_t>(bytes.size());
  return ok_status();
}

Status AnswerFile::close() {
  GAPLESS_RETURN_IF_ERROR(prepare());
  Status status;
  if (is_regular_ && ::fsync(descriptor_) != 0) status = error(errno);
  // Even a close() that fails has closed it.
  if (::close(std::exchange(descriptor_, -1)) != 0 && status.ok()) status = error(errno);
  return status;
}

}  // namespace gapless
