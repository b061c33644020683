// For callers that wait for an answer.
#pragma once

#include <future>

#include "skill/response_sink.h"

namespace gapless {

class PromiseSink final : public ResponseSink {
 public:
  void on_text(std::string_view, int) override {}
  void on_done(const SkillResult& result) override { promise_.set_value(result); }
  void on_error(const Status& status) override { promise_.set_value(status); }
  // Once.
  std::future<StatusOr<SkillResult>> future() { return promise_.get_future(); }

 private:
  std::promise<StatusOr<SkillResult>> promise_;
};

}  // namespace gapless
