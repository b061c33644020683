// gapless batch --in requests.jsonl --out answers.jsonl: many requests through one engine for each
// device, batched continuously. Answers keep the order of the requests. docs/batch.md describes both
// files.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "answer_file.h"
#include "base/file_bytes.h"
#include "base/json.h"
#include "base/limits.h"
#include "batch_lines.h"
#include "commands.h"
#include "engine_options.h"
#include "parent_watch.h"
#include "progress.h"
#include "server/image_url.h"
#include "skill/request_json.h"
#include "skill/response_json.h"

namespace gapless {
namespace {

struct BatchOptions {
  EngineCommandOptions engine;
  std::string in;
  std::string out;
  int concurrency = 16;
  std::optional<int> parent;
  bool resume = false;
  bool overwrite = false;
};

constexpr const char* kLineFormat = R"(A line of --in is a JSON object:
  {"id": "a", "skill": "query", "image": "a.jpg", "question": "What is this?"}
  {"id": "b", "skill": "detect", "image": "b.jpg", "object": "circle"}
skill: query, caption, point, detect or segment. image: a path from the file's folder; images: a list of
paths; image_url: a data: URI or base64. question (query), object (point, detect, segment), length (caption),
spatial_refs and settings are those of the HTTP API. id: a string or an integer of its own, else the
line's number.
A line of --out is the answer of the HTTP API with "id" and "line", or {"id", "line", "error":
{"code", "message"}}. The exit status is 0 if no line has an error, 74 if the device was
lost: --resume goes on. docs/batch.md says more.)";

// Errors of lines that are shown beside being written to the output: the first ones say it all.
constexpr int kMaxShownErrors = 20;

class PromiseSink final : public ResponseSink {
 public:
  void on_text(std::string_view, int) override {}
  void on_done(const SkillResult& result) override { promise.set_value(result); }
  void on_error(const Status& status) override { promise.set_value(status); }
  std::promise<StatusOr<SkillResult>> promise;
};

// A line that was sent, or the reason why it was not.
struct Pending {
  int number = 0;
  boost::json::value id;
  std::future<StatusOr<SkillResult>> result;
};

// Ctrl-C and SIGTERM: the first one lets what runs finish, a second one ends the process at once,
// which costs no line: each is written by one call.
std::atomic<int> interrupting_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void on_interrupt(int signal) {
  if (interrupting_signal.exchange(signal) != 0) _exit(128 + signal);
}

void catch_interrupts() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    // Whoever started us with nohup or in the background wants these ignored.
    if (sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = on_interrupt;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
  }
}

Status add_image(const boost::json::value& path, const std::filesystem::path& folder,
                 SkillRequest& request) {
  if (!path.is_string()) return invalid_argument("image must be a path, images a list of paths");
  GAPLESS_ASSIGN_OR_RETURN(std::string bytes,
                           read_file(folder / std::string(path.get_string()), kMaxImageBytes));
  request.images.push_back(std::make_shared<const std::string>(std::move(bytes)));
  return ok_status();
}

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
  const boost::json::value* url = line.if_contains("image_url");
  if (url != nullptr && !url->is_null()) {
    if (!url->is_string()) return invalid_argument("image_url must be a string");
    GAPLESS_ASSIGN_OR_RETURN(std::string bytes, image_bytes_from_url(url->get_string()));
    request.images.push_back(std::make_shared<const std::string>(std::move(bytes)));
  }
  return request;
}

Pending submit_line(EngineGroup& engines, const BatchLine& line,
                    const std::filesystem::path& folder) {
  Pending pending;
  pending.number = line.number;
  pending.id = line.id;
  auto sink = std::make_shared<PromiseSink>();
  pending.result = sink->promise.get_future();
  const auto submit = [&]() -> Status {
    if (!line.fields.ok()) return line.fields.status();
    GAPLESS_ASSIGN_OR_RETURN(SkillRequest request, read_line(*line.fields, folder));
    return engines.submit(std::move(request), sink).status();
  };
  if (const Status status = submit(); !status.ok()) sink->promise.set_value(status);
  return pending;
}

// Whether the error is the line's own and will come again: --resume need not ask it once more.
bool is_of_the_line(const Status& status) {
  const StatusCode code = status.code();
  return code != StatusCode::kDeviceError && code != StatusCode::kUnavailable &&
         code != StatusCode::kCancelled;
}

std::string answer_line(const Pending& pending, const StatusOr<SkillResult>& result) {
  boost::json::object line;
  line["id"] = pending.id;
  line["line"] = pending.number;
  if (result.ok()) {
    for (auto& field : response_json(*result)) line[field.key()] = field.value();
  } else {
    line["error"] = {{"code", status_code_name(result.status().code())},
                     {"message", result.status().message()}};
  }
  return json_text(line);
}

// One run: the lines of the input that the output has no answer to yet.
class BatchRun {
 public:
  BatchRun(const BatchOptions& options, int num_lines, AnswerFile& answers, EngineGroup& engines)
      : options_(options),
        num_lines_(num_lines),
        folder_(std::filesystem::path(options.in).parent_path()),
        answers_(answers),
        engines_(engines),
        progress_("answered", num_lines, answers.num_answered()),
        num_done_(answers.num_answered()),
        num_failed_(answers.num_failed()) {}

  // An error: the input could not be read, the output not be written, or the engine not go on.
  Status run() {
    GAPLESS_ASSIGN_OR_RETURN(BatchReader reader, BatchReader::open(options_.in));
    BatchLine line;
    while (interrupting_signal.load() == 0) {
      GAPLESS_ASSIGN_OR_RETURN(const bool more, reader.next(line));
      if (!more) break;
      if (answers_.is_answered(line.key)) continue;
      if (static_cast<int>(running_.size()) >= options_.concurrency * engines_.size()) {
        GAPLESS_RETURN_IF_ERROR(finish_oldest());
      }
      running_.push_back(submit_line(engines_, line, folder_));
    }
    if (interrupting_signal.load() != 0) say("interrupted: finishing what runs; once more ends it");
    while (!running_.empty()) GAPLESS_RETURN_IF_ERROR(finish_oldest());
    return answers_.close();
  }

  void say_result() {
    std::string text = fmt::format("{} answered, {} failed", num_done_, num_failed_);
    if (num_done_ < num_lines_) {
      text += fmt::format("; {} left, --resume goes on", num_lines_ - num_done_);
    }
    say(text);
  }
  int num_failed() const { return num_failed_; }

 private:
  Status finish_oldest() {
    Pending& oldest = running_.front();
    const StatusOr<SkillResult> result = oldest.result.get();
    if (!result.ok() && !is_of_the_line(result.status())) return result.status();
    GAPLESS_RETURN_IF_ERROR(answers_.append(answer_line(oldest, result)));
    ++num_done_;
    if (!result.ok()) show_error(oldest.number, result.status());
    running_.pop_front();
    progress_.update(num_done_);
    return ok_status();
  }

  void show_error(int number, const Status& status) {
    ++num_failed_;
    if (num_shown_ == kMaxShownErrors) say("more lines failed: see the output");
    if (num_shown_++ >= kMaxShownErrors) return;
    say(fmt::format("{}, line {}: {}", options_.in, number, status.message()));
  }

  void say(const std::string& text) {
    progress_.clear();
    std::fprintf(stderr, "%s\n", text.c_str());
  }

  const BatchOptions& options_;
  const int num_lines_;
  const std::filesystem::path folder_;
  AnswerFile& answers_;
  EngineGroup& engines_;
  Progress progress_;
  std::deque<Pending> running_;
  int num_done_ = 0;
  int num_failed_ = 0;
  int num_shown_ = 0;
};

StatusOr<AnswerFile> open_answers(const BatchOptions& options, const BatchKeys& requests) {
  std::error_code error;
  if (std::filesystem::equivalent(options.in, options.out, error)) {
    return invalid_argument("--in and --out are the same file: {}", options.out);
  }
  const auto mode = options.resume      ? AnswerFile::Mode::kResume
                    : options.overwrite ? AnswerFile::Mode::kOverwrite
                                        : AnswerFile::Mode::kNew;
  return AnswerFile::open(options.out, mode, requests);
}

// Everything that can be wrong with the files is found before the model is loaded.
int run_batch(const BatchOptions& options) {
  const StatusOr<BatchKeys> requests = scan_requests(options.in);
  if (!requests.ok()) return report(requests.status());
  StatusOr<AnswerFile> answers = open_answers(options, *requests);
  if (!answers.ok()) return report(answers.status());
  StatusOr<std::unique_ptr<EngineGroup>> engines = start_engines(options.engine);
  if (!engines.ok()) return report(engines.status());

  catch_interrupts();
  const ParentWatch parent_watch(options.parent);
  BatchRun run(options, static_cast<int>(requests->size()), *answers, **engines);
  const Status status = run.run();
  run.say_result();
  if (!status.ok()) return report(status);
  if (const Status traced = write_trace(options.engine, **engines); !traced.ok()) {
    return report(traced);
  }
  const int signal = interrupting_signal.load();
  if (signal != 0) return 128 + signal;
  return run.num_failed() == 0 ? 0 : 1;
}

}  // namespace

void add_batch_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<BatchOptions>();
  CLI::App* command = app.add_subcommand("batch", "Answer a JSONL file of requests");
  command->add_option("--in", options->in, "One request per line")->required();
  command
      ->add_option(
          "--out", options->out,
          "One answer per line, in the same order; a file that is there already is refused")
      ->required();
  CLI::Option* const resume = command->add_flag(
      "--resume", options->resume, "Keep the answers of --out and ask what has none, by id");
  command->add_flag("--overwrite", options->overwrite, "Replace the answers of --out")
      ->excludes(resume);
  command->add_option("--concurrency", options->concurrency, "Requests at a time, for each device")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  add_engine_options(*command, options->engine);
  add_trace_option(*command, options->engine);
  add_parent_option(*command, options->parent);
  command->footer(kLineFormat);
  command->callback([options, &chosen] { chosen = [options] { return run_batch(*options); }; });
}

}  // namespace gapless
