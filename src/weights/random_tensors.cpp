#include "weights/random_tensors.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/num_cores.h"
#include "weights/float_conversion.h"
#include "weights/safetensors_writer.h"

namespace gapless {
namespace {

constexpr float kBiasStddev = 0.02f;
// The token embeddings beside the image's: the projector's outputs come out at about 0.65.
constexpr float kEmbeddingStddev = 0.5f;
// Tells the patches of a plain image apart without drowning what is in them.
constexpr float kPositionStddev = 0.2f;
// Phases of up to a few turns: larger ones would lose themselves in bf16.
constexpr float kFourierStddev = 1.0f;
// Some heads' values grow by a half over a context, some shrink by as much.
constexpr float kSlopeStddev = 0.5f;
// Logits of a standard deviation of 3 have a clear but not absurd winner among 51200.
constexpr float kLogitGain = 3.0f;

// Runs work(begin, end) over [0, count) on every core; begins are multiples of 4, as Philox's
// blocks are.
template <typename Work>
void in_parallel(std::size_t count, const Work& work) {
  const std::size_t num_threads = static_cast<std::size_t>(num_usable_cores());
  const std::size_t share = (count / num_threads + 4) / 4 * 4;
  std::vector<std::jthread> threads;
  for (std::size_t begin = 0; begin < count; begin += share) {
    threads.emplace_back(
        [&work, begin, end = std::min(count, begin + share)] { work(begin, end); });
  }
}

template <typename Out, typename Convert>
void fill(const RandomTensorSpec& spec, std::uint64_t first, std::span<Out> out, Convert convert) {
  float values[4];
  for (std::size_t i = 0; i < out.size();) {
    const std::uint64_t element = first + i;
    random_values_of_block(spec, element / 4, values);
    for (std::size_t at = element % 4; at < 4 && i < out.size(); ++at) {
      out[i++] = convert(values[at]);
    }
  }
}

}  // namespace

RandomTensorSpec random_tensor_spec(const WeightSpec& weight, std::uint64_t seed) {
  RandomTensorSpec spec{.seed = seed, .tensor_hash = hash_tensor_name(weight.name)};
  const auto inputs = static_cast<float>(weight.row_size());
  switch (weight.role) {
    case TensorRole::kProduct:
      spec.stddev = 1.0f / std::sqrt(inputs);
      break;
    case TensorRole::kResidualProduct:
      GAPLESS_CHECK_MSG(weight.num_layers > 0, weight.name);
      spec.stddev =
          1.0f / std::sqrt(2.0f * static_cast<float>(weight.num_layers)) / std::sqrt(inputs);
      break;
    case TensorRole::kLogits:
      spec.stddev = kLogitGain / std::sqrt(inputs);
      break;
    case TensorRole::kBias:
      spec.stddev = kBiasStddev;
      break;
    case TensorRole::kNormGain:
      spec.mean = 1;
      break;
    case TensorRole::kTokenEmbedding:
      spec.stddev = kEmbeddingStddev;
      break;
    case TensorRole::kPositionEmbedding:
      spec.stddev = kPositionStddev;
      break;
    case TensorRole::kFrequencies:
      spec.stddev = kFourierStddev;
      break;
    case TensorRole::kPositionSlope:
      spec.stddev = kSlopeStddev;
      break;
  }
  return spec;
}

void fill_random_f32(const RandomTensorSpec& spec, std::uint64_t first, std::span<float> out) {
  fill(spec, first, out, [](float value) { return value; });
}

void fill_random_bf16(const RandomTensorSpec& spec, std::uint64_t first,
                      std::span<std::uint16_t> out) {
  fill(spec, first, out, [](float value) { return bf16_from_f32(value); });
}

Status write_random_weights(std::span<const WeightSpec> weights, std::uint64_t seed,
                            const std::filesystem::path& folder,
                            const std::function<void(std::int64_t, std::int64_t)>& progress) {
  constexpr std::int64_t kPieceElements = 8 << 20;
  std::error_code ec;
  std::filesystem::create_directories(folder, ec);
  if (ec) return invalid_argument("{}: {}", folder.string(), ec.message());

  std::vector<SafetensorsWriter::Tensor> tensors;
  std::int64_t total_bytes = 0, written_bytes = 0;
  for (const WeightSpec& spec : weights) {
    tensors.push_back({spec.name, TensorDType::kBF16, spec.shape});
    total_bytes += 2 * spec.num_elements();
  }
  GAPLESS_ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::create(folder / "model.safetensors", tensors,
                                {{"format", "pt"}, {"gapless_random_seed", std::to_string(seed)}}));
  std::vector<std::uint16_t> piece;
  for (const WeightSpec& weight : weights) {
    const RandomTensorSpec spec = random_tensor_spec(weight, seed);
    for (std::int64_t first = 0; first < weight.num_elements(); first += kPieceElements) {
      piece.resize(
          static_cast<std::size_t>(std::min(kPieceElements, weight.num_elements() - first)));
      in_parallel(piece.size(), [&](std::size_t begin, std::size_t end) {
        fill_random_bf16(spec, static_cast<std::uint64_t>(first) + begin,
                         std::span(piece).subspan(begin, end - begin));
      });
      GAPLESS_RETURN_IF_ERROR(writer.append(std::as_bytes(std::span(piece))));
      written_bytes += static_cast<std::int64_t>(2 * piece.size());
      if (progress) progress(written_bytes, total_bytes);
    }
  }
  return writer.finish();
}

}  // namespace gapless
