#include "model/step_driver.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "base/limits.h"
#include "device/bump_layout.h"
#include "model/workspace.h"

namespace gapless {
namespace {

constexpr std::size_t kTransferBytes = 4u << 20;
constexpr int kUncountedRuns = 3;

enum Count { kInstalls, kDeltas, kCopies, kNumCounts };

std::size_t to_size(int n) {
  return static_cast<std::size_t>(n);
}

StepShape encode_shape(std::span<const EncodeImage> images) {
  StepShape shape{.kind = StepKind::kEncode};
  for (const EncodeImage& image : images) shape.num_crops += image.num_crops;
  return shape;
}

}  // namespace

StatusOr<std::unique_ptr<StepDriver>> StepDriver::create(Device& device, StepModel& model) {
  std::unique_ptr<StepDriver> driver(new StepDriver(device, model));
  GAPLESS_RETURN_IF_ERROR(driver->allocate());
  return driver;
}

StepDriver::Inputs StepDriver::carve_inputs(void* base, std::size_t* bytes) const {
  const StepLimits& limits = model_.limits();
  const std::size_t rows = to_size(limits.max_step_rows());
  const std::size_t tokens = to_size(limits.max_prefill_tokens);
  BumpLayout layout(base);
  Inputs in{};
  in.rows = layout.take_array<std::int32_t>(rows);
  in.counts = layout.take_array<std::int32_t>(kNumCounts);
  in.install_rows = layout.take_array<std::int32_t>(rows);
  in.installs = layout.take_array<RowState>(rows);
  in.deltas = layout.take_array<PageTableDelta>(to_size(limits.max_page_deltas));
  in.copies = layout.take_array<PageCopy>(to_size(limits.max_page_copies));
  in.tokens = layout.take_array<TokenInput>(tokens);
  in.positions = layout.take_array<std::int32_t>(tokens);
  in.cache_slots = layout.take_array<std::int32_t>(tokens);
  in.sequences = layout.take_array<AttentionSequence>(rows);
  in.last_tokens = layout.take_array<std::int32_t>(rows);
  in.tokens_consumed = layout.take_array<std::int32_t>(rows);
  *bytes = layout.peak_bytes();
  return in;
}

Status StepDriver::allocate() {
  const StepLimits& limits = model_.limits();
  const StepModelInfo& info = model_.info();
  mapped_pages_.assign(to_size(limits.num_rows()), 0);
  GAPLESS_ASSIGN_OR_RETURN(stream_, device_.create_stream("compute"));
  carve_inputs(nullptr, &input_bytes_);
  GAPLESS_ASSIGN_OR_RETURN(inputs_dev_, device_.allocate(input_bytes_));
  GAPLESS_ASSIGN_OR_RETURN(inputs_pinned_, device_.allocate_pinned(input_bytes_));
  GAPLESS_ASSIGN_OR_RETURN(transfer_pinned_, device_.allocate_pinned(kTransferBytes));
  GAPLESS_ASSIGN_OR_RETURN(crops_dev_,
                           device_.allocate(to_size(max_feature_crops(limits)) * info.crop_bytes));
  std::memset(inputs_pinned_.data(), 0, input_bytes_);
  std::size_t bytes = 0;
  in_ = carve_inputs(inputs_pinned_.data(), &bytes);
  const Inputs dev = carve_inputs(inputs_dev_.data(), &bytes);

  const std::size_t rows = to_size(limits.max_step_rows());
  auto carve_outputs = [&](BumpLayout layout) {
    buffers_.hidden = layout.take(rows * info.hidden_bytes);
    buffers_.logits = layout.take_array<float>(rows * to_size(info.vocab));
    buffers_.tokens = layout.take_array<std::int32_t>(rows);
    buffers_.logprobs = layout.take_array<float>(rows);
    buffers_.values = layout.take_array<float>(2 * rows);
    buffers_.confidences = layout.take_array<TokenConfidence>(rows);
    buffers_.outputs = layout.take_array<StepOutput>(rows);
    buffers_.stamps = layout.take_array<std::uint64_t>(kNumStamps);
    return layout.peak_bytes();
  };
  GAPLESS_ASSIGN_OR_RETURN(outputs_dev_, device_.allocate(carve_outputs(BumpLayout())));
  carve_outputs(BumpLayout(outputs_dev_.data()));

  buffers_.rows = dev.rows;
  buffers_.num_installs = dev.counts + kInstalls;
  buffers_.install_rows = dev.install_rows;
  buffers_.installs = dev.installs;
  buffers_.num_deltas = dev.counts + kDeltas;
  buffers_.deltas = dev.deltas;
  buffers_.num_copies = dev.counts + kCopies;
  buffers_.copies = dev.copies;
  buffers_.inputs = dev.tokens;
  buffers_.positions = dev.positions;
  buffers_.cache_slots = dev.cache_slots;
  buffers_.sequences = dev.sequences;
  buffers_.last_tokens = dev.last_tokens;
  buffers_.tokens_consumed = dev.tokens_consumed;
  buffers_.crops = crops_dev_.as<std::uint8_t>();
  return ok_status();
}

StatusOr<std::vector<EncodeImage>> StepDriver::upload_crops(std::span<const DriverImage> images) {
  const std::size_t crop_bytes = model_.info().crop_bytes;
  std::vector<EncodeImage> launch;
  int num_crops = 0;
  for (const DriverImage& image : images) {
    const int count = static_cast<int>(image.crops.size() / crop_bytes);
    launch.push_back({.first_crop = num_crops,
                      .num_crops = count,
                      .tile_rows = image.tile_rows,
                      .tile_cols = image.tile_cols,
                      .image_slot = image.image_slot});
    GAPLESS_CHECK(num_crops + count <= max_feature_crops(model_.limits()));
    for (std::size_t done = 0; done < image.crops.size();) {
      const std::size_t bytes = std::min(kTransferBytes, image.crops.size() - done);
      std::memcpy(transfer_pinned_.data(), image.crops.data() + done, bytes);
      GAPLESS_RETURN_IF_ERROR(stream_->copy_to_device(
          crops_dev_.as<std::uint8_t>() + to_size(num_crops) * crop_bytes + done,
          transfer_pinned_.data(), bytes));
      GAPLESS_RETURN_IF_ERROR(stream_->synchronize());
      done += bytes;
    }
    num_crops += count;
  }
  return launch;
}

// Crops by as many as a launch takes.
Status StepDriver::forward(const StepShape& shape) {
  if (shape.kind != StepKind::kEncode) return model_.forward(*stream_, shape, buffers_);
  const int most = model_.limits().max_crops_per_encode;
  for (int first = 0; first < shape.num_crops; first += most) {
    StepShape part = shape;
    part.first_crop = first;
    part.num_crops = std::min(most, shape.num_crops - first);
    StepBuffers buffers = buffers_;
    buffers.crops += to_size(first) * model_.info().crop_bytes;
    GAPLESS_RETURN_IF_ERROR(model_.forward(*stream_, part, buffers));
  }
  return ok_status();
}

Status StepDriver::encode(std::span<const DriverImage> images) {
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<EncodeImage> launch, upload_crops(images));
  const StepShape shape = encode_shape(launch);
  GAPLESS_RETURN_IF_ERROR(forward(shape));
  GAPLESS_RETURN_IF_ERROR(model_.project(*stream_, launch, buffers_));
  return stream_->synchronize();
}

StatusOr<std::vector<double>> StepDriver::time_encode(std::span<const DriverImage> images,
                                                      int repeats) {
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<EncodeImage> launch, upload_crops(images));
  return time_forward(encode_shape(launch), launch, repeats);
}

StatusOr<std::vector<double>> StepDriver::time_prefill(std::span<const DriverPrompt> prompts,
                                                       int repeats) {
  const StepShape shape = add_prompts(prompts, false);
  GAPLESS_RETURN_IF_ERROR(
      stream_->copy_to_device(inputs_dev_.data(), inputs_pinned_.data(), input_bytes_));
  return time_forward(shape, {}, repeats);
}

StatusOr<std::vector<double>> StepDriver::time_forward(const StepShape& shape,
                                                       std::span<const EncodeImage> images,
                                                       int repeats) {
  GAPLESS_RETURN_IF_ERROR(stream_->begin_capture());
  GAPLESS_RETURN_IF_ERROR(model_.stamp(*stream_, buffers_.stamps + kForwardBegin));
  GAPLESS_RETURN_IF_ERROR(forward(shape));
  GAPLESS_RETURN_IF_ERROR(model_.project(*stream_, images, buffers_));
  GAPLESS_RETURN_IF_ERROR(model_.stamp(*stream_, buffers_.stamps + kForwardEnd));
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Graph> graph, stream_->end_capture());
  return time_graph(*graph, kForwardBegin, kForwardEnd, repeats);
}

// Stamps where the pipeline puts them.
StatusOr<std::vector<double>> StepDriver::time_decode(std::span<const std::int32_t> rows,
                                                      int repeats) {
  const StepShape shape = set_decode_rows(rows, false);
  GAPLESS_RETURN_IF_ERROR(
      stream_->copy_to_device(inputs_dev_.data(), inputs_pinned_.data(), input_bytes_));
  GAPLESS_RETURN_IF_ERROR(stream_->begin_capture());
  GAPLESS_RETURN_IF_ERROR(model_.stamp(*stream_, buffers_.stamps + kForwardBegin));
  GAPLESS_RETURN_IF_ERROR(model_.forward(*stream_, shape, buffers_));
  GAPLESS_RETURN_IF_ERROR(model_.stamp(*stream_, buffers_.stamps + kForwardEnd));
  GAPLESS_RETURN_IF_ERROR(model_.sample(*stream_, shape, buffers_));
  GAPLESS_RETURN_IF_ERROR(model_.stamp(*stream_, buffers_.stamps + kSamplingEnd));
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Graph> graph, stream_->end_capture());
  return time_graph(*graph, kForwardBegin, kSamplingEnd, repeats);
}

StatusOr<std::vector<double>> StepDriver::time_graph(Graph& graph, StepStamp from, StepStamp to,
                                                     int repeats) {
  std::vector<double> times;
  const auto* stamps = transfer_pinned_.as<std::uint64_t>();
  for (int run = 0; run < kUncountedRuns + repeats; ++run) {
    if (rest_.count() > 0) std::this_thread::sleep_for(rest_);
    GAPLESS_RETURN_IF_ERROR(stream_->launch(graph));
    GAPLESS_RETURN_IF_ERROR(stream_->copy_to_host(transfer_pinned_.data(), buffers_.stamps,
                                                  kNumStamps * sizeof(std::uint64_t)));
    GAPLESS_RETURN_IF_ERROR(stream_->synchronize());
    if (run < kUncountedRuns) continue;
    times.push_back(static_cast<double>(stamps[to] - stamps[from]));
  }
  return times;
}

int StepDriver::page_of(int row, int position) const {
  return 1 + row * model_.limits().max_pages_per_row + position / kPageTokens;
}

void StepDriver::add_page(int row, int index, int page) {
  GAPLESS_CHECK(in_.counts[kDeltas] < model_.limits().max_page_deltas);
  in_.deltas[in_.counts[kDeltas]++] = {.row = row, .index = index, .page = page};
}

void StepDriver::share_pages(const DriverPrompt& prompt) {
  const int whole_pages = prompt.num_cached / kPageTokens;
  for (int i = 0; i < whole_pages; ++i) {
    add_page(prompt.row, i, page_of(prompt.cached_by_row, i * kPageTokens));
  }
  if (prompt.num_cached % kPageTokens != 0) {
    GAPLESS_CHECK(in_.counts[kCopies] < model_.limits().max_page_copies);
    in_.copies[in_.counts[kCopies]++] = {.from = page_of(prompt.cached_by_row, prompt.num_cached),
                                         .to = page_of(prompt.row, prompt.num_cached)};
  }
  mapped_pages_[to_size(prompt.row)] = whole_pages;
}

// Page-table entries for the prompt and for all that may be generated: decode() adds none.
void StepDriver::map_pages(const DriverPrompt& prompt) {
  int& mapped = mapped_pages_[to_size(prompt.row)];
  if (prompt.num_cached == 0) mapped = 0;
  if (prompt.cached_by_row >= 0) share_pages(prompt);
  const int num_tokens =
      prompt.num_cached + static_cast<int>(prompt.inputs.size()) + prompt.state.max_generated;
  const int needed =
      std::min(model_.limits().max_pages_per_row, (num_tokens + kPageTokens - 1) / kPageTokens);
  for (; mapped < needed; ++mapped) {
    add_page(prompt.row, mapped, page_of(prompt.row, mapped * kPageTokens));
  }
}

void StepDriver::add_prompt(const DriverPrompt& prompt, int index, StepShape& shape) {
  const int count = static_cast<int>(prompt.inputs.size());
  const int first = shape.num_tokens;
  GAPLESS_CHECK(first + count <= model_.limits().max_prefill_tokens);
  map_pages(prompt);
  for (int i = 0; i < count; ++i) {
    const int position = prompt.num_cached + i;
    in_.tokens[first + i] = prompt.inputs[to_size(i)];
    in_.positions[first + i] = position;
    in_.cache_slots[first + i] =
        page_of(prompt.row, position) * kPageTokens + position % kPageTokens;
  }
  in_.rows[index] = prompt.row;
  in_.install_rows[index] = prompt.row;
  GAPLESS_CHECK((prompt.state.flags & kRowAdjustsLogits) == 0);  // there are no notes here
  in_.installs[index] = prompt.state;
  in_.installs[index].position = prompt.num_cached;
  GAPLESS_CHECK(shape.num_segments + static_cast<int>(prompt.block_ends.size()) <
                model_.limits().max_prefill_sequences);
  int begin = prompt.num_cached;
  for (std::size_t i = 0; i <= prompt.block_ends.size(); ++i) {
    const bool is_last = i == prompt.block_ends.size();
    const int end = is_last ? prompt.num_cached + count : prompt.block_ends[i];
    in_.sequences[shape.num_segments++] = {.row = prompt.row,
                                           .first_token = first + begin - prompt.num_cached,
                                           .num_tokens = end - begin,
                                           .num_cached = begin,
                                           .prefix_len = is_last ? prompt.prefix_len : end};
    begin = end;
  }
  in_.last_tokens[index] = first + count - 1;
  in_.tokens_consumed[index] = count;
  shape.num_tokens += count;
  shape.max_new_tokens = std::max(shape.max_new_tokens, count);
}

StepShape StepDriver::add_prompts(std::span<const DriverPrompt> prompts, bool with_regions) {
  std::fill_n(in_.counts, kNumCounts, 0);
  StepShape shape{.kind = StepKind::kPrefill, .with_regions = with_regions};
  for (const DriverPrompt& prompt : prompts) add_prompt(prompt, shape.num_rows++, shape);
  in_.counts[kInstalls] = shape.num_rows;
  return shape;
}

StatusOr<std::vector<StepOutput>> StepDriver::prefill(std::span<const DriverPrompt> prompts,
                                                      bool with_regions) {
  return run(add_prompts(prompts, with_regions));
}

StatusOr<std::vector<StepOutput>> StepDriver::decode(std::span<const std::int32_t> rows,
                                                     bool with_regions) {
  return run(set_decode_rows(rows, with_regions));
}

StepShape StepDriver::set_decode_rows(std::span<const std::int32_t> rows, bool with_regions) {
  std::fill_n(in_.counts, kNumCounts, 0);
  std::copy(rows.begin(), rows.end(), in_.rows);
  return {.kind = StepKind::kDecode,
          .num_rows = static_cast<int>(rows.size()),
          .num_tokens = static_cast<int>(rows.size()),
          .with_regions = with_regions};
}

Status StepDriver::launch(const StepShape& shape) {
  GAPLESS_RETURN_IF_ERROR(model_.forward(*stream_, shape, buffers_));
  return model_.sample(*stream_, shape, buffers_);
}

Status StepDriver::launch_graph(const StepShape& shape) {
  std::unique_ptr<Graph>& graph = graphs_[shape.num_rows];
  if (!graph) {
    GAPLESS_RETURN_IF_ERROR(stream_->begin_capture());
    GAPLESS_RETURN_IF_ERROR(launch(shape));
    GAPLESS_ASSIGN_OR_RETURN(graph, stream_->end_capture());
  }
  return stream_->launch(*graph);
}

StatusOr<std::vector<StepOutput>> StepDriver::run(const StepShape& shape) {
  GAPLESS_RETURN_IF_ERROR(
      stream_->copy_to_device(inputs_dev_.data(), inputs_pinned_.data(), input_bytes_));
  const bool as_graph = graphs_on_ && shape.kind == StepKind::kDecode;
  GAPLESS_RETURN_IF_ERROR(as_graph ? launch_graph(shape) : launch(shape));
  const std::size_t bytes = to_size(shape.num_rows) * sizeof(StepOutput);
  GAPLESS_RETURN_IF_ERROR(stream_->copy_to_host(transfer_pinned_.data(), buffers_.outputs, bytes));
  GAPLESS_RETURN_IF_ERROR(stream_->synchronize());
  const auto* outputs = transfer_pinned_.as<StepOutput>();
  return std::vector<StepOutput>(outputs, outputs + shape.num_rows);
}

StatusOr<std::vector<StepOutput>> StepDriver::generate(const DriverPrompt& prompt) {
  GAPLESS_ASSIGN_OR_RETURN(std::vector<StepOutput> outputs, prefill({&prompt, 1}));
  const std::int32_t row = prompt.row;
  while (outputs.back().outcome == StepOutcome::kContinues) {
    GAPLESS_ASSIGN_OR_RETURN(const std::vector<StepOutput> step, decode({&row, 1}));
    outputs.push_back(step[0]);
  }
  return outputs;
}

StatusOr<std::vector<float>> StepDriver::logits(int num_rows) {
  const std::size_t count = to_size(num_rows) * to_size(model_.info().vocab);
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                           read(buffers_.logits, count * sizeof(float)));
  std::vector<float> values(count);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

StatusOr<std::vector<std::byte>> StepDriver::read(const void* from_dev, std::size_t bytes) {
  std::vector<std::byte> result(bytes);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(kTransferBytes, bytes - done);
    GAPLESS_RETURN_IF_ERROR(stream_->copy_to_host(
        transfer_pinned_.data(), static_cast<const std::byte*>(from_dev) + done, piece));
    GAPLESS_RETURN_IF_ERROR(stream_->synchronize());
    std::memcpy(result.data() + done, transfer_pinned_.data(), piece);
    done += piece;
  }
  return result;
}

}  // namespace gapless
