// An engine with the model that ships, and what its requests said in which order.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "image/write_png.h"

namespace gapless::testing {

// Everything takes far less; a test that waits so long is stuck.
inline constexpr std::chrono::seconds kDeadlockGuard{300};

// What requests told, in the order of time.
class Journal {
 public:
  void add(std::string line) {
    std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
    changed_.notify_all();
  }
  // Waits for a line; its place, or -1 when it does not come.
  int wait_for(const std::string& line) {
    std::unique_lock lock(mutex_);
    int at = -1;
    changed_.wait_for(lock, kDeadlockGuard, [&] { return (at = place(line)) >= 0; });
    EXPECT_GE(at, 0) << line;
    return at;
  }
  std::vector<std::string> lines() const {
    std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  int place(const std::string& line) const {
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      if (lines_[i] == line) return static_cast<int>(i);
    }
    return -1;
  }
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;  // guarded by mutex_
};

// "NAME starts" with its first text, and "NAME ends".
class JournalSink final : public ResponseSink {
 public:
  JournalSink(Journal& journal, std::string name) : journal_(journal), name_(std::move(name)) {}
  void on_text(std::string_view, int) override {
    if (!std::exchange(started_, true)) journal_.add(name_ + " starts");
  }
  void on_done(const SkillResult&) override { journal_.add(name_ + " ends"); }
  void on_error(const Status& status) override {
    status_ = status;
    journal_.add(name_ + " ends");
  }
  // Once it has ended.
  const Status& status() const { return status_; }

 private:
  Journal& journal_;
  const std::string name_;
  bool started_ = false;
  Status status_;
};

// What a request was told, to be waited for.
struct Answer : ResponseSink {
  void on_text(std::string_view chunk, int) override { streamed += chunk; }
  void on_done(const SkillResult& result) override { promise.set_value(result); }
  void on_error(const Status& status) override { promise.set_value(status); }
  std::string streamed;
  std::promise<StatusOr<SkillResult>> promise;
};

inline SkillRequest question(int max_tokens) {
  SkillRequest request;
  request.skill = Skill::kQuery;
  request.text = "How many circles are there?";
  request.settings.ignore_eos = true;
  request.settings.max_tokens = max_tokens;
  return request;
}

// A picture of its own for every shade.
inline std::shared_ptr<const std::string> flat_picture(int width, int height, int shade) {
  Image image{.width = width, .height = height, .rgb = {}};
  image.rgb.assign(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3,
                   static_cast<std::uint8_t>(shade));
  const std::vector<std::byte> png = encode_png(image).value();
  return std::make_shared<const std::string>(reinterpret_cast<const char*>(png.data()), png.size());
}

inline SkillRequest question_about(std::shared_ptr<const std::string> picture, int max_tokens) {
  SkillRequest request = question(max_tokens);
  request.images = {std::move(picture)};
  return request;
}

}  // namespace gapless::testing
