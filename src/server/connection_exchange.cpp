#include "server/connection_exchange.h"

#include <boost/asio/post.hpp>

#include "server/api_error.h"

namespace gapless {

ConnectionExchange::ConnectionExchange(boost::asio::any_io_executor strand, HttpRequest request,
                                       std::size_t max_outbox_bytes)
    : strand_(std::move(strand)),
      request_(std::move(request)),
      max_outbox_bytes_(max_outbox_bytes),
      wake_(strand_) {}

std::shared_ptr<Exchange> ConnectionExchange::handle() {
  return std::shared_ptr<Exchange>(
      this, [self = shared_from_this()](Exchange*) { self->handler_dropped(); });
}

// A stream without its end must not look like a whole one, so it is broken off.
void ConnectionExchange::handler_dropped() {
  {
    MutexLock lock(mutex_);
    if (ended_ || aborted_ || finished_) return;
    broken_ = is_stream_;
  }
  ApiError error;
  error.status = 500;
  error.message = "the request was dropped";
  error.code = "internal_error";
  respond(error_response(error));  // nothing after begin_stream
  notify();
}

// Several events may be written before the strand comes round: one wake-up is enough for them.
void ConnectionExchange::notify() {
  {
    MutexLock lock(mutex_);
    if (wake_posted_) return;
    wake_posted_ = true;
  }
  boost::asio::post(strand_, [self = shared_from_this()] {
    {
      MutexLock lock(self->mutex_);
      self->wake_posted_ = false;
    }
    self->wake_.cancel();
  });
}

void ConnectionExchange::add_header(std::string name, std::string value) {
  more_headers_.add(std::move(name), std::move(value));
}

void ConnectionExchange::respond(HttpResponse response) {
  {
    MutexLock lock(mutex_);
    if (started_) return;
    started_ = true;
    ended_ = true;
    head_ = std::move(response);
  }
  notify();
}

void ConnectionExchange::begin_stream(HttpResponse head) {
  {
    MutexLock lock(mutex_);
    if (started_) return;
    started_ = true;
    is_stream_ = true;
    head_ = std::move(head);
  }
  notify();
}

bool ConnectionExchange::write(std::string bytes) {
  {
    MutexLock lock(mutex_);
    if (!is_stream_ || ended_ || aborted_ || broken_) return false;
    if (outbox_.size() + bytes.size() > max_outbox_bytes_) {
      broken_ = true;
    } else {
      outbox_ += bytes;
    }
  }
  notify();
  return true;
}

void ConnectionExchange::end_stream() {
  {
    MutexLock lock(mutex_);
    if (!is_stream_ || ended_) return;
    ended_ = true;
  }
  notify();
}

void ConnectionExchange::on_abort(std::function<void()> abort) {
  {
    MutexLock lock(mutex_);
    if (finished_ && !aborted_) return;
    if (!aborted_) {
      abort_ = std::move(abort);
      return;
    }
  }
  abort();
}

void ConnectionExchange::annotate(std::string_view text) {
  MutexLock lock(mutex_);
  annotations_ += text;
}

ConnectionExchange::Output ConnectionExchange::take() {
  MutexLock lock(mutex_);
  Output output;
  output.head = std::exchange(head_, std::nullopt);
  output.is_stream = is_stream_;
  output.bytes = std::exchange(outbox_, {});
  output.ended = ended_;
  output.broken = broken_;
  return output;
}

bool ConnectionExchange::is_complete() const {
  MutexLock lock(mutex_);
  return ended_;
}

void ConnectionExchange::abort() {
  std::function<void()> abort;
  {
    MutexLock lock(mutex_);
    aborted_ = true;
    outbox_ = {};
    abort = std::exchange(abort_, nullptr);
  }
  if (abort) abort();
}

void ConnectionExchange::finish() {
  std::function<void()> forgotten;  // destroyed outside of the lock: it may hold the last handle
  {
    MutexLock lock(mutex_);
    finished_ = true;
    forgotten = std::exchange(abort_, nullptr);
  }
}

std::string ConnectionExchange::annotations() const {
  MutexLock lock(mutex_);
  return annotations_;
}

}  // namespace gapless
