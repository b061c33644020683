#include "server/remote_images.h"

#include <fmt/format.h>

#include <boost/json/value.hpp>
#include <string>
#include <vector>

#include "base/base64.h"
#include "base/limits.h"
#include "base/log.h"
#include "server/api_support.h"
#include "server/url_fetcher.h"

namespace gapless {
namespace {

namespace json = boost::json;

void find_addresses(json::value& value, std::vector<json::string*>& found) {
  if (value.is_array()) {
    for (json::value& item : value.get_array()) find_addresses(item, found);
  }
  if (!value.is_object()) return;
  for (auto& field : value.get_object()) {
    json::value* url = &field.value();
    if (field.key() == "image_url") {
      if (url->is_object()) url = url->get_object().if_contains("url");
      if (url != nullptr && url->is_string() && is_fetchable_url(url->get_string())) {
        found.push_back(&url->get_string());
      }
    } else {
      find_addresses(*url, found);
    }
  }
}

// What clients learn. Why an address was not reached is for the log: the answer must not be a map
// of the network.
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
           std::function<void(json::object)> then)
      : fetcher_(fetcher),
        exchange_(std::move(exchange)),
        body_(std::move(body)),
        then_(std::move(then)) {}

  // False: there is nothing to fetch; take_body().
  bool prepare() {
    find_addresses(body_, addresses_);
    return !addresses_.empty();
  }
  std::size_t num_addresses() const { return addresses_.size(); }

  void next() {
    if (num_fetched_ == addresses_.size()) return then_(std::move(body_.get_object()));
    fetcher_.fetch(std::string(*addresses_[num_fetched_]),
                   [self = shared_from_this()](const StatusOr<std::string>& bytes) {
                     self->on_fetched(bytes);
                   });
  }

  json::object take_body() { return std::move(body_.get_object()); }

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
  json::value body_;
  const std::function<void(json::object)> then_;
  std::vector<json::string*> addresses_;  // in body_
  std::size_t num_fetched_ = 0;
};

}  // namespace

void with_remote_images(ServerState& state, const std::shared_ptr<Exchange>& exchange,
                        json::object body, std::function<void(json::object)> then) {
  UrlFetcher* const fetcher = state.fetcher();
  if (fetcher == nullptr) return then(std::move(body));
  auto fetching = std::make_shared<Fetching>(*fetcher, exchange, std::move(body), then);
  if (!fetching->prepare()) return then(fetching->take_body());
  if (fetching->num_addresses() > kMaxFetchedImages) {
    return respond_error(
        *exchange, error_of_request(
                       invalid_argument("image_url: at most {} pictures are fetched for a request",
                                        kMaxFetchedImages)
                           .with_field("image_url")));
  }
  fetching->next();
}

}  // namespace gapless
