// gapless run SKILL --image FILE ...: one request, its answer on standard output.
#include <cstdio>
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/file_bytes.h"
#include "base/json.h"
#include "base/limits.h"
#include "commands.h"
#include "engine_options.h"
#include "image/annotate.h"
#include "image/decode_image.h"
#include "image/write_png.h"
#include "skill/response_json.h"

namespace gapless {
namespace {

struct RunOptions {
  EngineCommandOptions engine;
  std::string skill;
  std::vector<std::string> images;
  std::string question;
  std::string object;
  std::string length = "normal";
  std::string annotate;
  bool json = false;
  bool stream = false;
  bool ignore_exif = false;
  bool host_masks = false;
  GenerationSettings settings;
};

// Prints text as it comes when asked to, and keeps the end of the request for the main thread.
class ConsoleSink final : public ResponseSink {
 public:
  explicit ConsoleSink(bool stream) : stream_(stream) {}

  void on_text(std::string_view chunk, int) override {
    if (!stream_) return;
    std::fwrite(chunk.data(), 1, chunk.size(), stdout);
    std::fflush(stdout);
  }
  void on_done(const SkillResult& result) override { promise_.set_value(result); }
  void on_error(const Status& status) override { promise_.set_value(status); }

  StatusOr<SkillResult> wait() { return promise_.get_future().get(); }

 private:
  const bool stream_;
  std::promise<StatusOr<SkillResult>> promise_;
};

StatusOr<SkillRequest> make_request(const RunOptions& options) {
  SkillRequest request;
  GAPLESS_ASSIGN_OR_RETURN(request.skill, skill_from_name(options.skill));
  GAPLESS_ASSIGN_OR_RETURN(request.length, caption_length_from_name(options.length));
  for (const std::string& image : options.images) {
    GAPLESS_ASSIGN_OR_RETURN(std::string bytes, read_file(image, kMaxImageBytes));
    request.images.push_back(std::make_shared<const std::string>(std::move(bytes)));
  }
  if (request.skill == Skill::kQuery) {
    if (options.question.empty()) return invalid_argument("query needs --question");
    request.text = options.question;
  } else if (request.skill != Skill::kCaption) {
    if (options.object.empty()) return invalid_argument("{} needs --object", options.skill);
    request.text = options.object;
  }
  request.settings = options.settings;
  request.apply_exif_orientation = !options.ignore_exif;
  if (options.host_masks) request.constraint_mode = ConstraintMode::kHostMask;
  GAPLESS_RETURN_IF_ERROR(validate(request));
  return request;
}

void print_answer(const RunOptions& options, const SkillResult& result) {
  if (options.json) {
    std::cout << json_text(response_json(result)) << "\n";
    return;
  }
  switch (result.skill) {
    case Skill::kQuery:
    case Skill::kCaption:
      // Streamed text is on the screen already.
      std::cout << (options.stream ? "" : result.text) << "\n";
      break;
    case Skill::kPoint:
      for (const Point& point : result.points) fmt::print("{:.4f} {:.4f}\n", point.x, point.y);
      if (result.points.empty()) fmt::print("none there\n");
      break;
    case Skill::kDetect:
      for (const Box& box : result.boxes) {
        fmt::print("{:.4f} {:.4f} {:.4f} {:.4f}\n", box.x_min, box.y_min, box.x_max, box.y_max);
      }
      if (result.boxes.empty()) fmt::print("none there\n");
      break;
  }
}

Status annotate_image(const RunOptions& options, const SkillRequest& request,
                      const SkillResult& result) {
  DecodeOptions decode_options;
  if (options.ignore_exif) decode_options.exif = ExifOrientation::kIgnore;
  const std::string& encoded = *request.images.front();
  GAPLESS_ASSIGN_OR_RETURN(Image image,
                           decode_image(std::as_bytes(std::span(encoded)), decode_options));
  std::size_t index = 0;
  for (const Box& box : result.boxes) {
    draw_box(image, {box.x_min, box.y_min, box.x_max, box.y_max}, mark_colour(index++));
  }
  for (const Point& point : result.points) {
    draw_point(image, {point.x, point.y}, mark_colour(index++));
  }
  return write_png(options.annotate, image);
}

int run(const RunOptions& options) {
  const StatusOr<SkillRequest> request = make_request(options);
  if (!request.ok()) {
    return report(request.status());
  }
  StatusOr<std::unique_ptr<Engine>> engine = start_engine(options.engine);
  if (!engine.ok()) return report(engine.status());

  auto sink = std::make_shared<ConsoleSink>(options.stream && !options.json);
  const StatusOr<RequestId> id = (*engine)->submit(*request, sink);
  if (!id.ok()) return report(id.status());
  const StatusOr<SkillResult> result = sink->wait();
  if (!result.ok()) {
    return report(options.images.size() == 1 ? result.status().with_context(options.images[0])
                                             : result.status());
  }
  print_answer(options, *result);
  if (const Status traced = write_trace(options.engine, **engine); !traced.ok()) {
    return report(traced);
  }
  if (!options.annotate.empty()) return report(annotate_image(options, *request, *result));
  return 0;
}

}  // namespace

void add_run_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Answer one request about a picture, or several");
  command->add_option("skill", options->skill, "query, caption, point or detect")->required();
  command->add_option("--image", options->images, "JPEG, PNG or WebP file; query takes several")
      ->allow_extra_args(false);
  command->add_option("--question", options->question, "query: the question");
  command->add_option("--object", options->object, "point, detect: what to look for");
  command->add_option("--length", options->length, "caption: short, normal or long")
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print the response object of the HTTP API");
  command->add_flag("--stream", options->stream, "Print text as it is generated");
  command->add_option("--annotate", options->annotate,
                      "Write the picture with points and boxes (PNG)");
  command->add_flag("--ignore-exif", options->ignore_exif, "Do not apply the EXIF orientation");
  command->add_flag("--host-masks", options->host_masks,
                    "Constrain point and detect with masks from the host instead of on the device");
  GenerationSettings& settings = options->settings;
  command->add_option("--temperature", settings.temperature, "0 (the default) is greedy");
  command->add_option("--top-p", settings.top_p, "Nucleus sampling, (0, 1]");
  command->add_option("--top-k", settings.top_k, "Keep the k best tokens; 0 and -1 are off");
  command->add_option("--min-p", settings.min_p, "Drop tokens below this share of the best one");
  command->add_option("--seed", settings.seed, "Same seed, same answer; without one a random one");
  command->add_option("--max-tokens", settings.max_tokens, "Longest answer in tokens");
  command->add_option("--max-objects", settings.max_objects, "Most objects of point and detect");
  command->add_option("--stop", settings.stop, "End the text before this string (repeatable)");
  add_engine_options(*command, options->engine);
  add_trace_option(*command, options->engine);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace gapless
