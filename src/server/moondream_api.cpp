#include "server/moondream_api.h"

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "server/api_support.h"
#include "server/image_url.h"
#include "server/json_body.h"
#include "server/remote_images.h"
#include "server/sse.h"
#include "skill/request_json.h"
#include "skill/response_json.h"
#include "text/prompt_template.h"

namespace gapless {
namespace {

namespace json = boost::json;

// Answers one exchange: one JSON object, or events. A stream's head goes out with its first event,
// so that a request that fails before gets a status of its own.
class MoondreamSink final : public ResponseSink {
 public:
  MoondreamSink(ServerState& state, std::shared_ptr<Exchange> exchange, Skill skill, bool stream)
      : exchange_(std::move(exchange)),
        request_id_(exchange_->request().request_id),
        skill_(skill),
        stream_(stream),
        meter_(state, exchange_) {}

  void on_box(const Box& box, int) override {
    if (stream_) send({{"type", "bbox"}, {"bbox", box_json(box)}});
  }

  void on_text(std::string_view chunk, int num_tokens) override {
    meter_.on_text(num_tokens);
    if (!stream_) return;
    json::object event = event_of("path_delta");
    event["chunk"] = chunk;
    event["completed"] = false;
    event["token_index"] = num_tokens;
    send(event);
  }

  void on_done(const SkillResult& result) override {
    meter_.on_done(result);
    SkillResult named = result;
    named.request_id = request_id_;
    json::object answer = response_json(named);
    if (!stream_) return respond_json(*exchange_, answer);
    json::object last = event_of("final");
    last["chunk"] = "";
    last["completed"] = true;
    for (auto& field : answer) last[field.key()] = std::move(field.value());
    send(last);
    exchange_->end_stream();
  }

  void on_error(const Status& status) override {
    meter_.on_error(status);
    const ApiError error = error_of_request(status);
    if (!started_) return respond_error(*exchange_, error);
    send({{"chunk", ""},
          {"completed", true},
          {"request_id", request_id_},
          {"finish_reason", "error"},
          {"error", json::parse(error.error_object())}});
    exchange_->end_stream();
  }

 private:
  // Events of segment say what they are.
  json::object event_of(std::string_view type) const {
    return skill_ == Skill::kSegment ? json::object{{"type", type}} : json::object();
  }

  void send(const json::object& event) {
    if (!started_) exchange_->begin_stream(stream_head());
    started_ = true;
    exchange_->write(sse_event(event));
  }

  const std::shared_ptr<Exchange> exchange_;
  const std::string request_id_;
  const Skill skill_;
  const bool stream_;
  RequestMeter meter_;
  bool started_ = false;
};

// Answers one exchange about several objects, each with a generation of its own, once all have ended. The first
// that fails ends the answer, and the others are cancelled.
class ObjectAnswers : public std::enable_shared_from_this<ObjectAnswers> {
 public:
  ObjectAnswers(ServerState& state, InferenceService& service, std::shared_ptr<Exchange> exchange,
                std::vector<std::string> objects)
      : state_(state),
        service_(service),
        exchange_(std::move(exchange)),
        objects_(std::move(objects)),
        results_(objects_.size()),
        num_open_(objects_.size()) {}

  std::vector<std::shared_ptr<ResponseSink>> sinks() {
    std::vector<std::shared_ptr<ResponseSink>> all;
    for (std::size_t i = 0; i < objects_.size(); ++i) {
      all.push_back(std::make_shared<Sink>(shared_from_this(), i));
    }
    return all;
  }

  void set_running(std::vector<RequestId> ids) {
    {
      MutexLock lock(mutex_);
      running_ = std::move(ids);
      if (!cancelled_) return;
    }
    cancel_all();
  }

  void cancel_all() {
    std::vector<RequestId> running;
    {
      MutexLock lock(mutex_);
      cancelled_ = true;
      running = running_;
    }
    for (const RequestId id : running) service_.cancel(id);
  }

 private:
  class Sink final : public ResponseSink {
   public:
    Sink(std::shared_ptr<ObjectAnswers> answers, std::size_t index)
        : answers_(std::move(answers)),
          index_(index),
          meter_(answers_->state_, answers_->exchange_) {}
    void on_text(std::string_view, int) override {}
    void on_done(const SkillResult& result) override {
      meter_.on_done(result);
      answers_->add(index_, result);
    }
    void on_error(const Status& status) override {
      meter_.on_error(status);
      answers_->fail(status);
    }

   private:
    const std::shared_ptr<ObjectAnswers> answers_;
    const std::size_t index_;
    RequestMeter meter_;
  };

  void add(std::size_t index, const SkillResult& result) {
    MutexLock lock(mutex_);
    results_[index] = result;
    results_[index].request_id = exchange_->request().request_id;
    if (--num_open_ > 0 || failed_) return;
    respond_json(*exchange_, response_json(results_, objects_));
  }

  void fail(const Status& status) {
    {
      MutexLock lock(mutex_);
      if (std::exchange(failed_, true)) return;
      respond_error(*exchange_, error_of_request(status));
    }
    cancel_all();
  }

  ServerState& state_;
  InferenceService& service_;
  const std::shared_ptr<Exchange> exchange_;
  const std::vector<std::string> objects_;
  Mutex mutex_;
  std::vector<SkillResult> results_ GAPLESS_GUARDED_BY(mutex_);
  std::size_t num_open_ GAPLESS_GUARDED_BY(mutex_);
  std::vector<RequestId> running_ GAPLESS_GUARDED_BY(mutex_);
  bool cancelled_ GAPLESS_GUARDED_BY(mutex_) = false;
  bool failed_ GAPLESS_GUARDED_BY(mutex_) = false;
};

StatusOr<SkillRequest> read_skill_request(Skill skill, json::object& body) {
  GAPLESS_ASSIGN_OR_RETURN(SkillRequest request, skill_request_from_json(skill, body));
  // Moondream's servers answer as far as the context goes, and its clients ask for round numbers.
  request.cut_max_tokens = true;
  if (find_field(body, "image_url") == nullptr) return request;
  json::value& image = body["image_url"];
  if (!image.is_string()) return invalid_field("image_url", "must be a string");
  StatusOr<std::string> bytes = take_image_bytes(image);
  if (!bytes.ok()) return bytes.status().with_field("image_url");
  request.images.push_back(std::make_shared<const std::string>(std::move(bytes).value()));
  return request;
}

// Of a request with one generation: wires the client's end to the engine's.
void submit(ServerState& state, InferenceService& service,
            const std::shared_ptr<Exchange>& exchange, SkillRequest request, bool stream) {
  request.received_ns = exchange->request().received_ns;
  auto sink = std::make_shared<MoondreamSink>(state, exchange, request.skill, stream);
  const StatusOr<RequestId> id = service.submit(std::move(request), std::move(sink));
  if (!id.ok()) return respond_error(*exchange, error_of_submit(id.status()));
  exchange->on_abort([&service, id = *id] { service.cancel(id); });
}

void submit_objects(ServerState& state, InferenceService& service,
                    const std::shared_ptr<Exchange>& exchange, SkillRequest request) {
  request.received_ns = exchange->request().received_ns;
  auto answers = std::make_shared<ObjectAnswers>(state, service, exchange, request.objects);
  StatusOr<std::vector<RequestId>> ids =
      service.submit_choices(std::move(request), answers->sinks());
  if (!ids.ok()) return respond_error(*exchange, error_of_submit(ids.status()));
  answers->set_running(std::move(ids).value());
  exchange->on_abort([answers] { answers->cancel_all(); });
}

void submit_skill(ServerState& state, Skill skill, const std::shared_ptr<Exchange>& exchange,
                  json::object body) {
  InferenceService* service = ready_service(state, *exchange);
  if (service == nullptr) return;
  const StatusOr<bool> stream = bool_or(body, "stream", false);
  if (!stream.ok()) return respond_error(*exchange, error_of_request(stream.status()));
  StatusOr<SkillRequest> request = read_skill_request(skill, body);
  if (!request.ok()) return respond_error(*exchange, error_of_request(request.status()));
  if (!request->objects.empty()) {
    return submit_objects(state, *service, exchange, std::move(request).value());
  }
  // point and detect have nothing to show before their end.
  const bool has_pieces = skill != Skill::kPoint && skill != Skill::kDetect;
  submit(state, *service, exchange, std::move(request).value(), *stream && has_pieces);
}

// What submit_skill() would refuse.
Status check_skill(Skill skill, json::object body) {
  GAPLESS_RETURN_IF_ERROR(bool_or(body, "stream", false).status());
  GAPLESS_ASSIGN_OR_RETURN(const SkillRequest request, read_skill_request(skill, body));
  return validate(request);
}

// Whatever the rest of the request is.
void refuse_skill(Skill skill, const ServiceInfo& info, Exchange& exchange) {
  const bool is_text_model = !info.has_skill(skill_name(Skill::kQuery));
  ApiError error = error_of_request(lacks_skill(skill_name(skill), is_text_model));
  error.code = "skill_not_available";
  respond_error(exchange, error);
}

void handle_skill(ServerState& state, Skill skill, const std::shared_ptr<Exchange>& exchange) {
  InferenceService* service = ready_service(state, *exchange);
  if (service == nullptr) return;
  const ServiceInfo info = service->info();
  if (!info.has_skill(skill_name(skill))) return refuse_skill(skill, info, *exchange);
  std::optional<json::object> body = read_json_request(info, *exchange);
  if (!body) return;
  with_remote_images(
      state, exchange, std::move(*body), ImagePlace::kTop,
      [skill](json::object placeholder) { return check_skill(skill, std::move(placeholder)); },
      [&state, skill, exchange](json::object complete) {
        submit_skill(state, skill, exchange, std::move(complete));
      });
}

}  // namespace

void add_moondream_routes(Router& router, ServerState& state) {
  for (const std::string prefix : {"/v1/", "/"}) {
    for (const Skill skill : kSkills) {
      router.add("POST", prefix + std::string(skill_name(skill)),
                 [&state, skill](const std::shared_ptr<Exchange>& exchange, std::string_view) {
                   handle_skill(state, skill, exchange);
                 });
    }
  }
}

}  // namespace gapless
