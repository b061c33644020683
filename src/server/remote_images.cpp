#include "server/remote_images.h"

#include <fmt/format.h>

#include <boost/json/value.hpp>
#include <string>
#include <vector>

#include "base/base64.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/url.h"
#include "server/api_support.h"
#include "server/url_fetcher.h"

namespace gapless {
namespace {

namespace json = boost::json;

// A picture as far as a request can be judged without looking into it.
constexpr std::string_view kStandIn = "data:;base64,AA==";

void add_address(json::object& fields, std::vector<json::string*>& found) {
  json::value* url = fields.if_contains("image_url");
  if (url != nullptr && url->is_object()) url = url->get_object().if_contains("url");
  if (url != nullptr && url->is_string() && is_web_url(url->get_string())) {
    found.push_back(&url->get_string());
  }
}

std::vector<json::string*> find_addresses(json::object& body, ImagePlace place) {
  std::vector<json::string*> found;
  if (place == ImagePlace::kTop) {
    add_address(body, found);
    return found;
  }
  json::value* const messages = body.if_contains("messages");
  if (messages == nullptr || !messages->is_array()) return found;
  for (json::value& message : messages->get_array()) {
    json::value* const content =
        message.is_object() ? message.get_object().if_contains("content") : nullptr;
    if (content == nullptr || !content->is_array()) continue;
    for (json::value& part : content->get_array()) {
      if (!part.is_object()) continue;
      const json::value* const type = part.get_object().if_contains("type");
      if (type != nullptr && *type == "image_url") add_address(part.get_object(), found);
    }
  }
  return found;
}

// What clients learn. Why an address was not reached is for the log: the answer must not be a map
// of the network. Which hosts are allowed is no secret of the network.
ApiError fetch_error(const Status& status) {
  ApiError error;
  error.param = "image_url";
  error.code = "image_fetch_failed";
  error.message = "image_url: the picture could not be fetched";
  if (status.code() == StatusCode::kInvalidArgument) {
    error.message = "image_url: this server does not fetch pictures from there";
    error.code = "image_host_not_allowed";
  }
  return error;
}

// Fetches one address after the other.
class Fetching : public std::enable_shared_from_this<Fetching> {
 public:
  Fetching(UrlFetcher& fetcher, std::shared_ptr<Exchange> exchange, json::object body,
           ImagePlace place, std::function<void(json::object)> then)
      : fetcher_(fetcher),
        exchange_(std::move(exchange)),
        body_(std::move(body)),
        then_(std::move(then)),
        addresses_(find_addresses(body_, place)) {}

  // Whether all may be fetched.
  Status check() const {
    for (const json::string* address : addresses_) {
      GAPLESS_RETURN_IF_ERROR(fetcher_.check(*address));
    }
    return ok_status();
  }

  void next() {
    if (num_fetched_ == addresses_.size()) return then_(std::move(body_));
    fetcher_.fetch(std::string(*addresses_[num_fetched_]),
                   [self = shared_from_this()](const StatusOr<std::string>& bytes) {
                     self->on_fetched(bytes);
                   });
  }

 private:
  void on_fetched(const StatusOr<std::string>& bytes) {
    json::string& address = *addresses_[num_fetched_];
    if (!bytes.ok()) {
      log_warning("request_id={} image_url not fetched: {}", exchange_->request().request_id,
                  bytes.status().message());
      ApiError error = fetch_error(bytes.status());
      if (addresses_.size() > 1) {
        error.message += fmt::format(" (address {} of {})", num_fetched_ + 1, addresses_.size());
      }
      return respond_error(*exchange_, error);
    }
    address = "data:;base64," + encode_base64(*bytes);
    ++num_fetched_;
    next();
  }

  UrlFetcher& fetcher_;
  const std::shared_ptr<Exchange> exchange_;
  json::object body_;
  const std::function<void(json::object)> then_;
  const std::vector<json::string*> addresses_;  // in body_
  std::size_t num_fetched_ = 0;
};

}  // namespace

void with_remote_images(ServerState& state, const std::shared_ptr<Exchange>& exchange,
                        json::object body, ImagePlace place,
                        const std::function<Status(json::object)>& check,
                        std::function<void(json::object)> then) {
  UrlFetcher* const fetcher = state.fetcher();
  const std::size_t num_addresses = fetcher == nullptr ? 0 : find_addresses(body, place).size();
  if (num_addresses == 0) return then(std::move(body));
  json::object with_stand_ins = body;
  for (json::string* address : find_addresses(with_stand_ins, place)) *address = kStandIn;
  Status status = check(std::move(with_stand_ins));
  if (status.ok() && num_addresses > kMaxFetchedImages) {
    status = invalid_argument("image_url: at most {} pictures are fetched for a request",
                              kMaxFetchedImages)
                 .with_field("image_url");
  }
  if (!status.ok()) return respond_error(*exchange, error_of_request(status));
  const auto fetching =
      std::make_shared<Fetching>(*fetcher, exchange, std::move(body), place, std::move(then));
  if (const Status allowed = fetching->check(); !allowed.ok()) {
    log_warning("request_id={} image_url not fetched: {}", exchange->request().request_id,
                allowed.message());
    return respond_error(*exchange, fetch_error(allowed));
  }
  fetching->next();
}

}  // namespace gapless
