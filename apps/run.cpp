// gapless run SKILL --image FILE ...: one request, its answer on standard output. Of the skills that
// take one picture, several pictures are requests one after another.
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <future>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file_bytes.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "commands.h"
#include "engine_options.h"
#include "grammar/grammar_limits.h"
#include "image/annotate.h"
#include "image/decode_image.h"
#include "image/svg_path.h"
#include "image/write_png.h"
#include "option_values.h"
#include "picture_source.h"
#include "skill/request_json.h"
#include "skill/response_json.h"

namespace gapless {
namespace {

struct RunOptions {
  EngineCommandOptions engine;
  std::string skill;
  std::vector<std::string> images;
  std::string question;
  std::string prompt;
  std::string system;
  std::vector<std::string> objects;
  std::vector<std::string> spatial_refs;
  std::optional<std::string> length;
  std::string annotate;
  bool json = false;
  bool stream = false;
  bool ignore_exif = false;
  bool host_masks = false;
  std::string json_schema;
  std::optional<std::string> regex;
  std::vector<std::string> choices;
  bool complete = true;
  bool verbose = false;
  bool no_thinking = false;
  bool reasoning = false;
  GenerationSettings settings;
};

// Between a reasoning and its answer.
constexpr std::string_view kBehindReasoning = "\n\n";

std::string shown_box(const Box& box) {
  return fmt::format("{:.4f} {:.4f} {:.4f} {:.4f}", box.x_min, box.y_min, box.x_max, box.y_max);
}

// Between a segment's box and its path.
constexpr std::string_view kBehindBox = "  ";

// Prints text as it comes when asked to, and keeps the end of the request for the main thread.
class ConsoleSink final : public ResponseSink {
 public:
  explicit ConsoleSink(bool stream) : stream_(stream) {}

  void on_text(std::string_view chunk, int) override {
    if (std::exchange(has_reasoning_, false)) show(kBehindReasoning);
    show(chunk);
  }
  void on_reasoning(std::string_view chunk, int) override {
    show(chunk);
    has_reasoning_ = true;
  }
  void on_box(const Box& box, int) override {
    show(shown_box(box));
    show(kBehindBox);
  }
  void on_done(const SkillResult& result) override { promise_.set_value(result); }
  void on_error(const Status& status) override { promise_.set_value(status); }

  StatusOr<SkillResult> wait() { return promise_.get_future().get(); }

 private:
  void show(std::string_view text) const {
    if (!stream_) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  const bool stream_;
  bool has_reasoning_ = false;
  std::promise<StatusOr<SkillResult>> promise_;
};

// What --json-schema, --regex and --choice ask for.
StatusOr<std::optional<GrammarSpec>> make_grammar(const RunOptions& options) {
  const int num_asked = (options.json_schema.empty() ? 0 : 1) + (options.regex ? 1 : 0) +
                        (options.choices.empty() ? 0 : 1);
  if (num_asked > 1) {
    return invalid_argument("--json-schema, --regex and --choice cannot be combined");
  }
  if (!options.json_schema.empty()) {
    GAPLESS_ASSIGN_OR_RETURN(std::string text, read_file(options.json_schema, kMaxSchemaBytes));
    return std::optional(GrammarSpec{
        .kind = GrammarSpec::Kind::kJsonSchema, .text = std::move(text), .field = "--json-schema"});
  }
  if (options.regex) {
    return std::optional(
        GrammarSpec{.kind = GrammarSpec::Kind::kRegex, .text = *options.regex, .field = "--regex"});
  }
  if (options.choices.empty()) return std::optional<GrammarSpec>();
  return std::optional(GrammarSpec{
      .kind = GrammarSpec::Kind::kChoice, .choices = options.choices, .field = "--choice"});
}

template <typename Number>
bool parse_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// "0.5,0.25", or a box's "0.25,0.25,0.5,0.5".
StatusOr<SpatialRef> parse_spatial_ref(const std::string& text) {
  std::vector<double> numbers;
  std::string_view rest = text;
  while (true) {
    const std::size_t comma = rest.find(',');
    if (!parse_number(rest.substr(0, comma), numbers.emplace_back())) break;
    if (comma == rest.npos) {
      if (const auto ref = make_spatial_ref(numbers); ref.ok()) return ref;
      break;
    }
    rest.remove_prefix(comma + 1);
  }
  return invalid_argument(
      "--spatial-ref: '{}' is not X,Y or X_MIN,Y_MIN,X_MAX,Y_MAX with numbers from 0 to 1", text);
}

StatusOr<GenerationSettings> make_settings(const RunOptions& options) {
  GenerationSettings settings = options.settings;
  GAPLESS_ASSIGN_OR_RETURN(settings.grammar, make_grammar(options));
  // Who asks for JSON wants to parse it.
  settings.complete = settings.grammar.has_value() && options.complete;
  return settings;
}

constexpr std::string_view kChat = "chat", kComplete = "complete";

// An option that the skill does not look at is a slip: its answer would be to something else.
Status check_options_of_skill(const RunOptions& options) {
  struct OptionOfSkills {
    std::string_view name;
    bool is_given;
    std::vector<std::string_view> skills;
  };
  const OptionOfSkills all[] = {
      {"--question", !options.question.empty(), {"query"}},
      {"--prompt", !options.prompt.empty(), {kChat, kComplete}},
      {"--system", !options.system.empty(), {kChat}},
      {"--no-thinking", options.no_thinking, {kChat}},
      {"--object", !options.objects.empty(), {"point", "detect", "segment"}},
      {"--length", options.length.has_value(), {"caption"}},
      {"--annotate", !options.annotate.empty(), {"point", "detect", "segment"}},
  };
  for (const auto& [name, is_given, skills] : all) {
    if (!is_given || std::ranges::find(skills, options.skill) != skills.end()) continue;
    return invalid_argument("{} is for {}, not for {}", name, fmt::join(skills, " and "),
                            options.skill);
  }
  return ok_status();
}

// Of a text model.
StatusOr<SkillRequest> make_text_request(const RunOptions& options) {
  GAPLESS_RETURN_IF_ERROR(check_options_of_skill(options));
  if (options.prompt.empty()) return invalid_argument("{} needs --prompt", options.skill);
  if (!options.images.empty()) return invalid_argument("{} takes no --image", options.skill);
  SkillRequest request;
  request.text = options.prompt;
  if (options.skill == kChat) {
    request.form = QueryForm::kChat;
    if (!options.system.empty()) request.messages.push_back({ChatRole::kSystem, options.system});
    request.messages.push_back({ChatRole::kUser, options.prompt});
    if (options.no_thinking) request.thinking = false;
  } else {
    request.form = QueryForm::kCompletion;
  }
  GAPLESS_ASSIGN_OR_RETURN(request.settings, make_settings(options));
  GAPLESS_RETURN_IF_ERROR(validate(request));
  return request;
}

// Of these pictures; their bytes are read here.
StatusOr<SkillRequest> make_request(const RunOptions& options,
                                    std::span<const std::string> pictures) {
  if (options.skill == kChat || options.skill == kComplete) return make_text_request(options);
  SkillRequest request;
  const StatusOr<Skill> skill = skill_from_name(options.skill);
  if (!skill.ok()) {
    return invalid_argument("{}; of text models {} and {}", skill.status().message(), kChat,
                            kComplete);
  }
  request.skill = *skill;
  GAPLESS_RETURN_IF_ERROR(check_options_of_skill(options));
  GAPLESS_ASSIGN_OR_RETURN(request.length,
                           caption_length_from_name(options.length.value_or("normal")));
  for (const std::string& picture : pictures) {
    GAPLESS_ASSIGN_OR_RETURN(std::shared_ptr<const std::string> bytes, read_picture(picture));
    request.images.push_back(std::move(bytes));
  }
  if (request.skill == Skill::kQuery) {
    if (options.question.empty()) return invalid_argument("query needs --question");
    request.text = options.question;
  } else if (request.skill != Skill::kCaption) {
    if (options.objects.empty()) return invalid_argument("{} needs --object", options.skill);
    if (options.objects.size() == 1) {
      request.text = options.objects.front();
    } else {
      request.objects = options.objects;
    }
  }
  GAPLESS_ASSIGN_OR_RETURN(request.settings, make_settings(options));
  for (const std::string& text : options.spatial_refs) {
    GAPLESS_ASSIGN_OR_RETURN(const SpatialRef ref, parse_spatial_ref(text));
    request.spatial_refs.push_back(ref);
  }
  request.reasoning = options.reasoning;
  request.apply_exif_orientation = !options.ignore_exif;
  if (options.host_masks) request.constraint_mode = ConstraintMode::kHostMask;
  GAPLESS_RETURN_IF_ERROR(validate(request));
  return request;
}

// "  0.9876": of the i-th object, where it was asked for.
std::string shown_confidence(const SkillResult& result, std::size_t i) {
  if (i >= result.confidences.size()) return "";
  return fmt::format("  {:.4f}", result.confidences[i].object);
}

// `label` begins each line: "a.jpg: ", or nothing. `streamed`: text is on the screen already.
void print_answer(const SkillResult& result, const std::string& label, bool streamed) {
  switch (result.skill) {
    case Skill::kQuery:
    case Skill::kCaption:
      if (!streamed) {
        std::cout << label;
        if (result.reasoning) std::cout << result.reasoning->text << kBehindReasoning;
        std::cout << result.text;
      }
      std::cout << "\n";
      break;
    case Skill::kPoint:
      for (std::size_t i = 0; i < result.points.size(); ++i) {
        const Point& point = result.points[i];
        fmt::print("{}{:.4f} {:.4f}{}\n", label, point.x, point.y, shown_confidence(result, i));
      }
      if (result.points.empty()) fmt::print("{}none there\n", label);
      break;
    case Skill::kDetect:
      for (std::size_t i = 0; i < result.boxes.size(); ++i) {
        fmt::print("{}{}{}\n", label, shown_box(result.boxes[i]), shown_confidence(result, i));
      }
      if (result.boxes.empty()) fmt::print("{}none there\n", label);
      break;
    case Skill::kSegment:
      if (!streamed) fmt::print("{}", label);
      // The length limit may have come before the box.
      if (!streamed && !result.boxes.empty()) {
        fmt::print("{}{}{}{}", shown_box(result.boxes[0]), shown_confidence(result, 0), kBehindBox,
                   result.text);
      }
      // What was streamed is the coarse one.
      if (streamed && result.is_refined) {
        fmt::print("\n{}{}{}{}", label, shown_box(result.boxes[0]), kBehindBox, result.text);
      }
      fmt::print("\n");
      break;
  }
}

// One object to a line; of several pictures each says which.
void print_json(std::span<const SkillResult> results, const SkillRequest& request,
                const std::string& picture, bool several) {
  boost::json::object object = request.objects.empty() ? response_json(results.front())
                                                       : response_json(results, request.objects);
  if (several) object["image"] = picture;
  std::cout << json_text(object) << "\n";
}

Status annotate_image(const RunOptions& options, const SkillRequest& request,
                      std::span<const SkillResult> results) {
  DecodeOptions decode_options;
  if (options.ignore_exif) decode_options.exif = ExifOrientation::kIgnore;
  const std::string& encoded = *request.images.front();
  GAPLESS_ASSIGN_OR_RETURN(Image image,
                           decode_image(std::as_bytes(std::span(encoded)), decode_options));
  std::size_t index = 0;
  for (const SkillResult& result : results) {
    if (result.skill == Skill::kSegment) {
      if (result.boxes.empty()) continue;
      const Box& box = result.boxes.front();
      draw_path(image, result.text, {box.x_min, box.y_min, box.x_max, box.y_max},
                mark_colour(index++));
      continue;
    }
    for (const Box& box : result.boxes) {
      draw_box(image, {box.x_min, box.y_min, box.x_max, box.y_max}, mark_colour(index++));
    }
    for (const Point& point : result.points) {
      draw_point(image, {point.x, point.y}, mark_colour(index++));
    }
  }
  return write_png(options.annotate, image);
}

// Asks about these pictures and prints the answer. With `several` others like it follow or went
// before.
Status answer_one(const RunOptions& options, EngineGroup& engines, const SkillRequest& request,
                  std::span<const std::string> pictures, bool several) {
  const std::string picture = pictures.size() == 1 ? pictures.front() : "";
  const std::string label = several ? picture + ": " : "";
  const bool has_pieces = request.skill != Skill::kPoint && request.skill != Skill::kDetect;
  const bool stream = options.stream && !options.json && has_pieces && request.objects.empty();
  if (stream) std::cout << label << std::flush;
  // One for each object that is named, or one.
  std::vector<std::shared_ptr<ConsoleSink>> sinks;
  for (std::size_t i = 0; i < std::max<std::size_t>(1, request.objects.size()); ++i) {
    sinks.push_back(std::make_shared<ConsoleSink>(stream));
  }
  GAPLESS_RETURN_IF_ERROR(engines.submit_choices(request, {sinks.begin(), sinks.end()}).status());
  std::vector<SkillResult> results;
  Status failed;
  for (const auto& sink : sinks) {
    StatusOr<SkillResult> result = sink->wait();
    if (result.ok()) {
      results.push_back(std::move(result).value());
    } else if (failed.ok()) {
      failed = result.status();
    }
  }
  if (!failed.ok()) return picture.empty() ? failed : failed.with_context(picture);
  if (options.json) {
    print_json(results, request, picture, several);
  } else {
    for (std::size_t i = 0; i < results.size(); ++i) {
      const bool is_named = !request.objects.empty();
      print_answer(results[i], is_named ? label + request.objects[i] + ": " : label, stream);
    }
  }
  // An answer is read while the next one is computed; where nobody reads, none is.
  if (std::fflush(stdout) != 0) {
    return make_error(StatusCode::kDataLoss, "standard output could not be written: {}",
                      std::strerror(errno));
  }
  return options.annotate.empty() ? ok_status() : annotate_image(options, request, results);
}

// The pictures of each request.
StatusOr<std::vector<std::span<const std::string>>> requests_of(
    const RunOptions& options, std::span<const std::string> pictures) {
  const bool takes_several = options.skill == skill_name(Skill::kQuery);
  if (takes_several || pictures.size() < 2) {
    if (pictures.size() <= kMaxImagesPerPrompt) return std::vector{pictures};
    return invalid_argument("--image: {} pictures, of which a question takes {} at most",
                            pictures.size(), kMaxImagesPerPrompt);
  }
  if (!options.annotate.empty()) return invalid_argument("--annotate takes one --image");
  std::vector<std::span<const std::string>> requests;
  for (std::size_t i = 0; i < pictures.size(); ++i) requests.push_back(pictures.subspan(i, 1));
  return requests;
}

Status run(const RunOptions& options) {
  if (!options.verbose) set_log_level(LogLevel::kWarning);
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<std::string> pictures,
                           expand_pictures(options.images));
  GAPLESS_ASSIGN_OR_RETURN(const auto requests, requests_of(options, pictures));
  // What is wrong with the first one shows before a model is loaded.
  StatusOr<SkillRequest> request = make_request(options, requests.front());
  if (!request.ok()) return request.status();
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<EngineGroup> engines,
                           start_engines(options.engine));
  const bool several = requests.size() > 1;
  Status first_error;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (i > 0) request = make_request(options, requests[i]);
    const Status status = request.ok()
                              ? answer_one(options, *engines, *request, requests[i], several)
                              : request.status();
    if (status.ok()) continue;
    if (!several || status.code() == StatusCode::kDeviceError) return status;
    // The others have their answers all the same.
    if (first_error.ok()) {
      first_error = status;
    } else {
      (void)report(status);
    }
  }
  GAPLESS_RETURN_IF_ERROR(write_trace(options.engine, *engines));
  return first_error;
}

// "50=-1.5". False: it is not that.
bool parse_logit_bias(std::string_view text, LogitBias& bias) {
  const std::size_t equals = text.find('=');
  return equals != text.npos && parse_number(text.substr(0, equals), bias.token.value) &&
         bias.token.value >= 0 && bias.token.value < kMaxVocabSize &&
         parse_number(text.substr(equals + 1), bias.bias);
}

void add_sampling_options(CLI::App& command, GenerationSettings& settings) {
  command.add_option("--temperature", settings.temperature, "0 (the default) is greedy");
  command.add_option("--top-p", settings.top_p, "Nucleus sampling, (0, 1]");
  command.add_option("--top-k", settings.top_k, "Keep the k best tokens; 0 and -1 are off");
  command.add_option("--min-p", settings.min_p, "Drop tokens below this share of the best one");
  command.add_option("--repetition-penalty", settings.repetition_penalty,
                     "Makes tokens of the prompt and the answer less likely; 1 is off");
  command.add_option("--presence-penalty", settings.presence_penalty,
                     "Makes tokens of the answer less likely, [-2, 2]");
  command.add_option("--frequency-penalty", settings.frequency_penalty,
                     "The same, for each time that they are in it");
  command
      .add_option_function<std::vector<std::string>>(
          "--logit-bias",
          [&settings](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) {
              if (parse_logit_bias(text, settings.logit_bias.emplace_back())) continue;
              throw CLI::ValidationError("--logit-bias",
                                         "'" + text + "' is not TOKEN=BIAS, such as 50=-1.5");
            }
          },
          "TOKEN=BIAS: added to this token's logit, [-100, 100] (repeatable)")
      ->allow_extra_args(false);
  command.add_option("--seed", settings.seed, "Same seed, same answer; without one a random one");
  command.add_option("--max-tokens", settings.max_tokens, "Longest answer in tokens");
  command.add_option("--min-tokens", settings.min_tokens, "Shortest answer in tokens");
  command.add_option("--max-objects", settings.max_objects, "Most objects of point and detect");
  command.add_flag("--confidence", settings.confidence,
                   "point, detect, segment: how sure the model is of each object");
  command.add_option("--stop", settings.stop, "End the text before this string (repeatable)");
  command
      .add_option_function<std::vector<std::int32_t>>(
          "--stop-token-id",
          [&settings](const std::vector<std::int32_t>& ids) {
            for (const std::int32_t id : ids) settings.stop_token_ids.emplace_back(id);
          },
          "End the answer before this token (repeatable)")
      ->check(CLI::Range(0, kMaxVocabSize - 1))
      ->allow_extra_args(false);
}

}  // namespace

void add_run_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand(
      "run", "Answer one request about a picture, or several; or one to a text model");
  command
      ->add_option("skill", options->skill,
                   "query, caption, point, detect or segment; of text models chat or complete")
      ->required();
  command
      ->add_option("--image", options->images,
                   "JPEG, PNG, WebP or GIF: a file, an http(s) address, - for standard input, or a "
                   "pattern in quotes ('photos/*.jpg'). Of several, query asks about all at once, "
                   "the other skills about one after the other")
      ->allow_extra_args(false);
  command->add_option("--question", options->question, "query: the question");
  command->add_option("--prompt", options->prompt,
                      "chat: what the user says; complete: the text to go on with");
  command->add_option("--system", options->system, "chat: the system's message");
  command->add_flag("--no-thinking", options->no_thinking,
                    "chat: answer at once, of a model that would think first");
  command->add_flag("--reasoning", options->reasoning,
                    "query: reason before the answer, of a model that can");
  command
      ->add_option("--object", options->objects,
                   "point, detect, segment: what to look for (repeatable: each is answered)")
      ->allow_extra_args(false);
  command
      ->add_option("--spatial-ref", options->spatial_refs,
                   "query, point, segment: a place in the picture that is meant, X,Y or "
                   "X_MIN,Y_MIN,X_MAX,Y_MAX from 0 to 1 (repeatable). point --object gaze with the "
                   "place of someone's eyes, or the box of a face: where they look")
      ->allow_extra_args(false);
  command->add_option("--length", options->length, "caption: short, normal (the default) or long");
  command->add_flag("--json", options->json, "Print the response object of the HTTP API");
  command->add_flag("--stream", options->stream, "Print text as it is generated");
  command->add_option(
      "--annotate", options->annotate,
      "point, detect, segment: write the picture with what was found drawn into it (PNG)");
  command->add_flag("--ignore-exif", options->ignore_exif, "Do not apply the EXIF orientation");
  command->add_flag("--host-masks", options->host_masks,
                    "Constrain answers with masks from the host instead of on the device");
  command
      ->add_option("--json-schema", options->json_schema,
                   "query: a file with the JSON Schema that the answer keeps to")
      ->check(not_empty());
  command->add_option("--regex", options->regex,
                      "query: the regular expression that the whole answer matches");
  command->add_option("--choice", options->choices, "query: answer with one of these (repeatable)")
      ->allow_extra_args(false);
  command->add_flag("--complete,!--no-complete", options->complete,
                    "With one of these: the answer is whole within --max-tokens (the default), or "
                    "may be cut by it");
  add_sampling_options(*command, options->settings);
  add_engine_options(*command, options->engine);
  add_trace_option(*command, options->engine);
  command->add_flag("--verbose", options->verbose, "Log what the engine chooses at start");
  command->callback([options, &chosen] { chosen = [options] { return report(run(*options)); }; });
}

}  // namespace gapless
