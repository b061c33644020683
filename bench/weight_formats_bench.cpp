// What 8-bit weights and products do to the numbers of a model of full shape: image features and
// logits of the same pictures and prompts, against the native format's.
//   weight_formats_bench [DEVICE] [MODEL]     cuda and random:moondream2 when not named
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "model/model_loader.h"
#include "testing/step_driver.h"

namespace gapless {
namespace {

constexpr int kPictures = 8;
constexpr int kQuestionTokens = 20;

template <typename T>
T value_of(StatusOr<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().to_string().c_str());
    std::exit(1);
  }
  return std::move(result).value();
}

// One crop of soft noise and a prompt for each picture; [kPictures, vocab].
std::vector<float> logits_of(const std::string& device_name, const std::string& name,
                             WeightFormat format) {
  const std::unique_ptr<LoadedModel> loaded = value_of(load_model(
      value_of(open_device(device_name)), name, {.weights = format, .adjust_limits = nullptr}));
  const StepModelInfo& info = loaded->model->info();
  const std::unique_ptr<StepDriver> driver =
      value_of(StepDriver::create(*loaded->device, *loaded->model));
  std::mt19937 random(1);
  std::vector<float> logits;
  for (int picture = 0; picture < kPictures; ++picture) {
    std::vector<std::uint8_t> crop(info.crop_bytes);
    int level = 128;
    for (std::uint8_t& byte : crop) {
      level = std::clamp(level + static_cast<int>(random() % 31) - 15, 0, 255);
      byte = static_cast<std::uint8_t>(level);
    }
    const DriverImage image{.crops = crop};
    const Status encoded = driver->encode({&image, 1});
    if (!encoded.ok()) value_of(StatusOr<int>(encoded));

    const int prefix_len = loaded->config.prefix_len();
    DriverPrompt prompt{.row = 0, .prefix_len = prefix_len};
    prompt.state.max_generated = 1;
    for (int i = 0; i < prefix_len + kQuestionTokens; ++i) {
      const bool is_image = i > 0 && i < prefix_len;
      const auto id = static_cast<std::int32_t>(random() % static_cast<unsigned>(info.vocab));
      prompt.inputs.push_back(
          {.kind = is_image ? InputKind::kImage : InputKind::kText, .id = is_image ? i - 1 : id});
    }
    value_of(driver->prefill({&prompt, 1}));
    const std::vector<float> row = value_of(driver->logits(1));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

void compare(const char* name, const std::vector<float>& expected,
             const std::vector<float>& actual) {
  const std::size_t vocab = expected.size() / kPictures;
  double error = 0, norm = 0, largest = 0;
  int same_token = 0;
  for (std::size_t p = 0; p < kPictures; ++p) {
    const auto begin = expected.begin() + static_cast<std::ptrdiff_t>(p * vocab);
    const auto other = actual.begin() + static_cast<std::ptrdiff_t>(p * vocab);
    double mean = 0;
    for (std::size_t i = 0; i < vocab; ++i) mean += begin[static_cast<std::ptrdiff_t>(i)];
    mean /= static_cast<double>(vocab);
    for (std::size_t i = 0; i < vocab; ++i) {
      const double x = begin[static_cast<std::ptrdiff_t>(i)];
      const double difference = other[static_cast<std::ptrdiff_t>(i)] - x;
      error += difference * difference;
      norm += (x - mean) * (x - mean);
      largest = std::max(largest, std::fabs(difference));
    }
    const auto length = static_cast<std::ptrdiff_t>(vocab);
    same_token += std::max_element(begin, begin + length) - begin ==
                  std::max_element(other, other + length) - other;
  }
  std::printf(
      "%-6s  relative error of the logits %.4f, largest %.4f of a deviation, first token "
      "the same in %d of %d\n",
      name, std::sqrt(error / norm),
      largest / std::sqrt(norm / static_cast<double>(expected.size())), same_token, kPictures);
}

}  // namespace
}  // namespace gapless

int main(int argc, char** argv) {
  using gapless::WeightFormat;
  const std::string device = argc > 1 ? argv[1] : "cuda";
  const std::string model = argc > 2 ? argv[2] : "random:moondream2";
  const std::vector<float> native = gapless::logits_of(device, model, WeightFormat::kNative);
  gapless::compare("fp8", native, gapless::logits_of(device, model, WeightFormat::kFp8));
  gapless::compare("w8a8", native, gapless::logits_of(device, model, WeightFormat::kW8A8));
  return 0;
}
