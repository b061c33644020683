// gapless batch --in requests.jsonl --out answers.jsonl: many requests through one engine, batched
// continuously. Answers keep the order of the requests.
#include <boost/json/parse.hpp>
#include <deque>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>
#include <memory>
#include <string>

#include "base/file_bytes.h"
#include "base/json.h"
#include "base/limits.h"
#include "commands.h"
#include "engine_options.h"
#include "skill/request_json.h"
#include "skill/response_json.h"

namespace gapless {
namespace {

struct BatchOptions {
  EngineCommandOptions engine;
  std::string in;
  std::string out;
  int concurrency = 16;
};

class PromiseSink final : public ResponseSink {
 public:
  void on_text(std::string_view, int) override {}
  void on_done(const SkillResult& result) override { promise.set_value(result); }
  void on_error(const Status& status) override { promise.set_value(status); }
  std::promise<StatusOr<SkillResult>> promise;
};

// A line that was sent, or the reason why it was not.
struct Pending {
  boost::json::value id;
  std::future<StatusOr<SkillResult>> result;
};

Status add_image(const boost::json::value& path, const std::filesystem::path& folder,
                 SkillRequest& request) {
  if (!path.is_string()) return invalid_argument("image must be a path, images a list of paths");
  GAPLESS_ASSIGN_OR_RETURN(std::string bytes,
                           read_file(folder / std::string(path.get_string()), kMaxImageBytes));
  request.images.push_back(std::make_shared<const std::string>(std::move(bytes)));
  return ok_status();
}

// {"id"?, "skill", "image"? (a path, relative to the JSONL file) | "images"? (a list of paths),
//  "question" | "object" | "length", "settings"?}
StatusOr<SkillRequest> read_line(const boost::json::object& line,
                                 const std::filesystem::path& folder) {
  const boost::json::value* skill = line.if_contains("skill");
  if (skill == nullptr || !skill->is_string()) return invalid_argument("skill is missing");
  GAPLESS_ASSIGN_OR_RETURN(const Skill parsed_skill, skill_from_name(skill->get_string()));
  GAPLESS_ASSIGN_OR_RETURN(SkillRequest request, skill_request_from_json(parsed_skill, line));
  request.cut_max_tokens = true;  // as Moondream's API does
  const boost::json::value* image = line.if_contains("image");
  if (image != nullptr && !image->is_null()) {
    GAPLESS_RETURN_IF_ERROR(add_image(*image, folder, request));
  }
  const boost::json::value* images = line.if_contains("images");
  if (images != nullptr && !images->is_null()) {
    if (!images->is_array()) return invalid_argument("images must be a list of paths");
    if (images->get_array().size() > kMaxImagesPerPrompt) {
      return invalid_argument("images: at most {} are allowed", kMaxImagesPerPrompt);
    }
    for (const boost::json::value& path : images->get_array()) {
      GAPLESS_RETURN_IF_ERROR(add_image(path, folder, request));
    }
  }
  return request;
}

Pending submit_line(Engine& engine, const std::string& text, const std::filesystem::path& folder) {
  Pending pending;
  auto sink = std::make_shared<PromiseSink>();
  pending.result = sink->promise.get_future();
  const auto submit = [&]() -> Status {
    boost::system::error_code error;
    const boost::json::value value = boost::json::parse(text, error);
    if (error || !value.is_object()) return invalid_argument("the line is not a JSON object");
    if (const auto* id = value.get_object().if_contains("id")) pending.id = *id;
    GAPLESS_ASSIGN_OR_RETURN(SkillRequest request, read_line(value.get_object(), folder));
    return engine.submit(std::move(request), sink).status();
  };
  if (const Status status = submit(); !status.ok()) sink->promise.set_value(status);
  return pending;
}

// False when the request failed.
bool write_answer(std::ostream& out, Pending& pending) {
  const StatusOr<SkillResult> result = pending.result.get();
  boost::json::object line;
  line["id"] = pending.id;
  if (result.ok()) {
    for (auto& field : response_json(*result)) line[field.key()] = field.value();
  } else {
    line["error"] = {{"code", status_code_name(result.status().code())},
                     {"message", result.status().message()}};
  }
  out << json_text(line) << "\n";
  return result.ok();
}

int run_batch(const BatchOptions& options) {
  std::ifstream in(options.in);
  if (!in) return report(make_error(StatusCode::kNotFound, "{}: cannot be opened", options.in));
  std::ofstream out(options.out);
  if (!out) return report(invalid_argument("{}: cannot be written", options.out));
  StatusOr<std::unique_ptr<Engine>> engine = start_engine(options.engine);
  if (!engine.ok()) return report(engine.status());

  const std::filesystem::path folder = std::filesystem::path(options.in).parent_path();
  std::deque<Pending> running;
  int num_done = 0;
  int num_failed = 0;
  const auto finish_oldest = [&] {
    if (!write_answer(out, running.front())) ++num_failed;
    running.pop_front();
    if (++num_done % 50 == 0) std::cerr << "\r" << num_done << " answered" << std::flush;
  };
  std::string text;
  while (std::getline(in, text)) {
    if (text.empty()) continue;
    if (static_cast<int>(running.size()) >= options.concurrency) finish_oldest();
    running.push_back(submit_line(**engine, text, folder));
  }
  while (!running.empty()) finish_oldest();
  if (const Status traced = write_trace(options.engine, **engine); !traced.ok()) {
    return report(traced);
  }
  std::cerr << "\r" << num_done << " answered, " << num_failed << " failed\n";
  return num_failed == 0 ? 0 : 1;
}

}  // namespace

void add_batch_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<BatchOptions>();
  CLI::App* command = app.add_subcommand("batch", "Answer a JSONL file of requests");
  command->add_option("--in", options->in, "One request per line")->required();
  command->add_option("--out", options->out, "One answer per line, in the same order")->required();
  command->add_option("--concurrency", options->concurrency, "Requests at a time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  add_engine_options(*command, options->engine);
  add_trace_option(*command, options->engine);
  command->callback([options, &chosen] { chosen = [options] { return run_batch(*options); }; });
}

}  // namespace gapless
