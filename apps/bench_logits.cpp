// gapless bench logits: how far the logits of a model with the given options (--weights,
// --kv-cache) are from those of the same model without them, on the same device.
//
// The native model reads some prompts (an image of noise and random text) and continues them
// greedily. The other one reads the same prompts and is given the same continuations, whatever it
// would have sampled itself: so each of its logits has the native ones of the same context beside
// it.
#include <algorithm>
#include <boost/json/object.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "bench_options.h"
#include "engine_options.h"
#include "measure/step_statistics.h"
#include "model/step_driver.h"

namespace gapless {
namespace {

struct LogitsOptions {
  BenchOptions bench;
  int rows = 8;
  int context = 850;
  int tokens = 32;
  unsigned seed = 1;
};

// Of each step, the prefill first: logits and sampled tokens of all rows.
struct Steps {
  std::vector<std::vector<float>> logits;
  std::vector<std::vector<std::int32_t>> tokens;
};

std::vector<DriverPrompt> make_prompts(const LogitsOptions& options, const LoadedModel& model) {
  std::mt19937 random(options.seed);
  const int prefix_len = std::min(model.config.prefix_len(), options.context);
  std::vector<DriverPrompt> prompts;
  for (int row = 0; row < options.rows; ++row) {
    DriverPrompt prompt{.row = row, .prefix_len = prefix_len};
    prompt.state.max_generated = options.tokens + 1;
    for (int i = 0; i < options.context; ++i) {
      const bool is_image = i > 0 && i < prefix_len;
      const auto vocab = static_cast<unsigned>(model.config.text.vocab_size);
      const int text = i == 0 ? 0 : static_cast<int>(random() % vocab);
      prompt.inputs.push_back(
          {.kind = is_image ? InputKind::kImage : InputKind::kText, .id = is_image ? i - 1 : text});
    }
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

Status encode_noise(const LogitsOptions& options, const LoadedModel& model, StepDriver& driver) {
  std::mt19937 random(options.seed);
  std::vector<std::uint8_t> crop(model.model->info().crop_bytes);
  for (std::uint8_t& byte : crop) byte = static_cast<std::uint8_t>(random());
  const DriverImage image{.crops = crop};
  return driver.encode({&image, 1});
}

// The rows' next inputs become these tokens.
Status force_tokens(LoadedModel& model, Stream& stream, const std::vector<std::int32_t>& tokens) {
  GAPLESS_ASSIGN_OR_RETURN(const PinnedBuffer pinned,
                           model.device->allocate_pinned(tokens.size() * sizeof(TokenInput)));
  auto* inputs = pinned.as<TokenInput>();
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    inputs[row] = {.kind = InputKind::kText, .id = tokens[row]};
    GAPLESS_RETURN_IF_ERROR(stream.copy_to_device(&model.model->state().row_states()[row].input,
                                                  &inputs[row], sizeof(TokenInput)));
  }
  return stream.synchronize();
}

// `forced`: whose tokens to continue with; nullptr: its own.
StatusOr<Steps> run_steps(const LogitsOptions& options, LoadedModel& model, const Steps* forced) {
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<StepDriver> driver,
                           StepDriver::create(*model.device, *model.model));
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream,
                           model.device->create_stream("force"));
  const StepLimits& limits = model.model->limits();
  if (options.rows > limits.max_seats ||
      options.context + options.tokens >= model.model->info().max_context ||
      options.context > limits.max_prefill_tokens) {
    return invalid_argument("{} rows, {} + {} tokens: more than this model takes here",
                            options.rows, options.context, options.tokens);
  }
  GAPLESS_RETURN_IF_ERROR(encode_noise(options, model, *driver));
  Steps steps;
  std::vector<std::int32_t> rows;
  steps.logits.emplace_back();
  steps.tokens.emplace_back();
  // One at a time: a pack would have to fit.
  for (const DriverPrompt& prompt : make_prompts(options, model)) {
    rows.push_back(prompt.row);
    GAPLESS_ASSIGN_OR_RETURN(const std::vector<StepOutput> outputs, driver->prefill({&prompt, 1}));
    GAPLESS_ASSIGN_OR_RETURN(const std::vector<float> logits, driver->logits(1));
    steps.logits[0].insert(steps.logits[0].end(), logits.begin(), logits.end());
    steps.tokens[0].push_back(outputs[0].token);
  }
  for (int step = 0; step < options.tokens; ++step) {
    const auto& fed = (forced != nullptr ? *forced : steps).tokens[static_cast<std::size_t>(step)];
    GAPLESS_RETURN_IF_ERROR(force_tokens(model, *stream, fed));
    GAPLESS_ASSIGN_OR_RETURN(const std::vector<StepOutput> outputs, driver->decode(rows));
    GAPLESS_ASSIGN_OR_RETURN(std::vector<float> logits, driver->logits(options.rows));
    steps.logits.push_back(std::move(logits));
    steps.tokens.emplace_back();
    for (const StepOutput& output : outputs) steps.tokens.back().push_back(output.token);
  }
  return steps;
}

StatusOr<Steps> load_and_run(const LogitsOptions& options, const BenchOptions& model_options,
                             const Steps* forced, ResultHeader& header) {
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model,
                           load_bench_model(model_options));
  GAPLESS_RETURN_IF_ERROR(expect_pictures(*model));
  GAPLESS_ASSIGN_OR_RETURN(header, result_header(model_options, *model));
  return run_steps(options, *model, forced);
}

struct Difference {
  std::vector<double> errors;  // |other - native| / |native| of each row
  double divergence = 0;       // sum of KL(native || other), in nats
  int num_same_tokens = 0;

  int count() const { return static_cast<int>(errors.size()); }
};

void add_row(std::span<const float> native, std::span<const float> other, Difference& difference) {
  const auto log_sum = [](std::span<const float> logits) {
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - largest);
    return largest + std::log(sum);
  };
  const double native_sum = log_sum(native), other_sum = log_sum(other);
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < native.size(); ++i) {
    const double a = native[i], b = other[i];
    error += (b - a) * (b - a);
    norm += a * a;
    difference.divergence += std::exp(a - native_sum) * ((a - native_sum) - (b - other_sum));
  }
  difference.errors.push_back(std::sqrt(error / norm));
}

Difference difference_of(const Steps& native, const Steps& other, std::size_t begin,
                         std::size_t end) {
  Difference difference;
  for (std::size_t step = begin; step < end; ++step) {
    const std::size_t rows = native.tokens[step].size();
    const std::size_t vocab = native.logits[step].size() / rows;
    for (std::size_t row = 0; row < rows; ++row) {
      add_row(std::span(native.logits[step]).subspan(row * vocab, vocab),
              std::span(other.logits[step]).subspan(row * vocab, vocab), difference);
      if (native.tokens[step][row] == other.tokens[step][row]) ++difference.num_same_tokens;
    }
  }
  return difference;
}

boost::json::object print_difference(const char* name, const Difference& difference) {
  const Spread errors = spread_of(difference.errors);
  const double worst = *std::max_element(difference.errors.begin(), difference.errors.end());
  const double same = 100.0 * difference.num_same_tokens / difference.count();
  const double divergence = difference.divergence / difference.count();
  fmt::print("{:<8} {:>6} | {:>8.2e} {:>8.2e} {:>8.2e} | {:>9.1f} % | {:>8.2e}\n", name,
             difference.count(), errors.median, errors.p90, worst, same, divergence);
  return {{"rows", difference.count()},
          {"error_median", rounded(errors.median, 6)},
          {"error_p90", rounded(errors.p90, 6)},
          {"error_max", rounded(worst, 6)},
          {"same_token_percent", rounded(same, 2)},
          {"kl_nats", rounded(divergence, 8)}};
}

Status run_logits(const LogitsOptions& options) {
  BenchOptions native = options.bench;
  native.weights = WeightFormat::kNative;
  native.kv_cache = KvFormat::kNative;
  ResultHeader header;
  GAPLESS_ASSIGN_OR_RETURN(const Steps expected, load_and_run(options, native, nullptr, header));
  GAPLESS_ASSIGN_OR_RETURN(const Steps actual,
                           load_and_run(options, options.bench, &expected, header));
  fmt::print("{} on {}: {} rows, context {}, {} steps\n", header.model, header.device, options.rows,
             options.context, options.tokens);
  fmt::print("{:<8} {:>6} | {:>8} {:>8} {:>8} | {:>11} | {:>8}\n", "step", "rows", "error", "p90",
             "max", "same token", "KL nats");
  const boost::json::object prefill =
      print_difference("prefill", difference_of(expected, actual, 0, 1));
  const boost::json::object decode =
      print_difference("decode", difference_of(expected, actual, 1, expected.tokens.size()));
  if (options.bench.json.empty()) return ok_status();
  return write_result(options.bench.json, header,
                      {{"benchmark", "logits"}, {"prefill", prefill}, {"decode", decode}});
}

}  // namespace

void add_bench_logits_command(CLI::App& bench, Command& chosen) {
  auto options = std::make_shared<LogitsOptions>();
  CLI::App* command = bench.add_subcommand(
      "logits", "Error of the logits with --weights or --kv-cache against the native model");
  add_bench_options(*command, options->bench);
  command->add_option("--rows", options->rows, "Prompts, and rows of a decode step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--context", options->context, "Length of a prompt: bos and image, then text")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--tokens", options->tokens, "Decode steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of the prompts")->capture_default_str();
  command->callback(
      [options, &chosen] { chosen = [options] { return report(run_logits(*options)); }; });
}

}  // namespace gapless
