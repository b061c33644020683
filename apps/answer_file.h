// The output of `gapless batch`: whole lines, whatever happens to the process or the disk.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/status.h"
#include "batch_lines.h"

namespace gapless {

// Each line goes out in one piece, and one that does not fit on the disk is taken back: a reader,
// or the next run with kResume, finds whole lines only. Used by one thread.
class AnswerFile {
 public:
  enum class Mode {
    kNew,        // there must be no such file
    kResume,     // what it holds is kept, and is_answered() knows it; it may be missing
    kOverwrite,  // what it holds is lost
  };

  // Changes and makes no file yet: the first append() or close() does. `requests`: those of the input; an answer to none of them means
  // that the file belongs to another input. Errors: the file exists (kNew), is no file of answers
  // (kResume), is written by another process, or cannot be written.
  static StatusOr<AnswerFile> open(const std::filesystem::path& path, Mode mode,
                                   const BatchKeys& requests);
  ~AnswerFile();
  AnswerFile(AnswerFile&& other) noexcept;
  AnswerFile& operator=(AnswerFile&&) = delete;

  bool is_answered(const std::string& key) const { return answered_.contains(key); }
  int num_answered() const { return static_cast<int>(answered_.size()); }
  int num_failed() const { return num_failed_; }  // of those

  // `line` without its newline.
  Status append(std::string_view line);
  // Waits until all of it is on the disk, and says if that failed.
  Status close();

 private:
  AnswerFile() = default;
  Status open_existing(Mode mode);
  Status open_descriptor(int flags);
  Status read_answers(const BatchKeys& requests);
  Status prepare();
  Status error(int code) const;

  std::filesystem::path path_;
  int descriptor_ = -1;
  bool is_regular_ = true;    // not a device or a pipe
  bool is_prepared_ = false;  // there, and cut behind end_
  std::int64_t end_ = 0;      // behind the last whole line
  std::unordered_set<std::string> answered_;
  int num_failed_ = 0;
};

}  // namespace gapless
