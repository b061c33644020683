#include "pipeline/step_slot.h"

#include <algorithm>

#include "base/check.h"

namespace gapless {
namespace {

constexpr std::size_t kBufferAlignment = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

}  // namespace

StatusOr<PipelineStreams> PipelineStreams::create(Device& device) {
  PipelineStreams streams;
  GAPLESS_ASSIGN_OR_RETURN(streams.h2d, device.create_stream("h2d"));
  GAPLESS_ASSIGN_OR_RETURN(streams.compute, device.create_stream("compute"));
  GAPLESS_ASSIGN_OR_RETURN(streams.d2h, device.create_stream("d2h"));
  GAPLESS_ASSIGN_OR_RETURN(streams.drained, device.create_event());
  return streams;
}

Status PipelineStreams::synchronize() {
  Status first;
  for (Stream* stream : {h2d.get(), compute.get(), d2h.get()}) {
    Status status = stream->synchronize();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

Status PipelineStreams::drain(std::int64_t timeout_ns) {
  if (timeout_ns == 0) return synchronize();
  for (Stream* stream : {h2d.get(), compute.get(), d2h.get()}) {
    GAPLESS_RETURN_IF_ERROR(stream->record(*drained));
    GAPLESS_ASSIGN_OR_RETURN(const bool done, drained->synchronize_within(timeout_ns));
    if (!done) {
      return make_error(StatusCode::kDeviceError, "stream {} is not done after {} s",
                        stream->name(), static_cast<double>(timeout_ns) / 1e9);
    }
  }
  return ok_status();
}

StatusOr<std::unique_ptr<StepSlot>> StepSlot::create(Device& device, StepModel& model,
                                                     PipelineStreams& streams) {
  std::unique_ptr<StepSlot> slot(new StepSlot(model, streams));
  GAPLESS_RETURN_IF_ERROR(slot->allocate(device));
  const auto enqueue = [&](StepPart part, const StepShape& shape) {
    return slot->enqueue(part, shape);
  };
  GAPLESS_RETURN_IF_ERROR(slot->graphs_.capture(*streams.compute, model.limits(), enqueue,
                                                model.info().holds_grammars));
  return slot;
}

StepSlot::StepSlot(StepModel& model, PipelineStreams& streams)
    : model_(model),
      streams_(streams),
      layout_(model.limits()),
      mask_words_((static_cast<std::size_t>(model.info().vocab) + 31) / 32) {}

Status StepSlot::allocate(Device& device) {
  const StepLimits& limits = model_.limits();
  const StepModelInfo& info = model_.info();
  const auto max_rows = static_cast<std::size_t>(limits.max_step_rows());
  const auto vocab = static_cast<std::size_t>(info.vocab);

  GAPLESS_ASSIGN_OR_RETURN(inputs_dev_, device.allocate(layout_.total_bytes()));
  GAPLESS_ASSIGN_OR_RETURN(inputs_block_pinned_, device.allocate_pinned(layout_.total_bytes()));
  inputs_pinned_ = layout_.at(inputs_block_pinned_.data());
  point_at(layout_.at(inputs_dev_.data()), buffers_);

  const auto max_crops = static_cast<std::size_t>(limits.max_crops_per_encode);
  GAPLESS_ASSIGN_OR_RETURN(crops_dev_, device.allocate(max_crops * info.crop_bytes));
  buffers_.crops = crops_dev_.as<std::uint8_t>();
  encode_lists_.images.reserve(static_cast<std::size_t>(limits.max_images_per_encode));
  encode_lists_.copies.reserve(max_crops);

  const std::size_t mask_bytes = max_rows * mask_words_ * sizeof(std::uint32_t);
  GAPLESS_ASSIGN_OR_RETURN(masks_dev_, device.allocate(mask_bytes));
  GAPLESS_ASSIGN_OR_RETURN(masks_pinned_, device.allocate_pinned(mask_bytes));
  buffers_.host_masks = masks_dev_.as<std::uint32_t>();

  const std::size_t hidden = aligned(max_rows * info.hidden_bytes);
  const std::size_t logits = aligned(max_rows * vocab * sizeof(float));
  const std::size_t tokens = aligned(max_rows * sizeof(std::int32_t));
  const std::size_t logprobs = aligned(max_rows * sizeof(float));
  const std::size_t values = aligned(max_rows * 2 * sizeof(float));
  const std::size_t confidences = aligned(max_rows * sizeof(TokenConfidence));
  GAPLESS_ASSIGN_OR_RETURN(intermediates_dev_, device.allocate(hidden + logits + tokens + logprobs +
                                                               values + confidences));
  auto* next = intermediates_dev_.as<std::byte>();
  buffers_.hidden = next;
  buffers_.logits = reinterpret_cast<float*>(next += hidden);
  buffers_.tokens = reinterpret_cast<std::int32_t*>(next += logits);
  buffers_.logprobs = reinterpret_cast<float*>(next += tokens);
  buffers_.values = reinterpret_cast<float*>(next += logprobs);
  buffers_.confidences = reinterpret_cast<TokenConfidence*>(next += values);

  const std::size_t outputs = max_rows * sizeof(StepOutput);
  plain_outputs_bytes_ = outputs + kNumStamps * sizeof(std::uint64_t);
  const std::size_t outputs_bytes =
      plain_outputs_bytes_ + max_rows * kMaxTopLogprobs * sizeof(TopLogprob);
  static_assert(sizeof(StepOutput) % sizeof(std::uint64_t) == 0, "the stamps would be misaligned");
  GAPLESS_ASSIGN_OR_RETURN(outputs_dev_, device.allocate(outputs_bytes));
  GAPLESS_ASSIGN_OR_RETURN(outputs_pinned_, device.allocate_pinned(outputs_bytes));
  buffers_.outputs = outputs_dev_.as<StepOutput>();
  buffers_.stamps = reinterpret_cast<std::uint64_t*>(outputs_dev_.as<std::byte>() + outputs);
  buffers_.top_logprobs =
      reinterpret_cast<TopLogprob*>(outputs_dev_.as<std::byte>() + plain_outputs_bytes_);

  for (auto* event : {&inputs_ready_, &masks_ready_, &outputs_ready_, &outputs_landed_}) {
    GAPLESS_ASSIGN_OR_RETURN(*event, device.create_event());
  }
  return ok_status();
}

// ---- one step

std::span<std::uint32_t> StepSlot::mask(int i) {
  return {masks_pinned_.as<std::uint32_t>() + static_cast<std::size_t>(i) * mask_words_,
          mask_words_};
}

Status StepSlot::launch_forward(const StepShape& shape) {
  shape_ = shape;
  sampled_apart_ = true;
  GAPLESS_RETURN_IF_ERROR(upload_inputs(shape));
  GAPLESS_RETURN_IF_ERROR(run(StepPart::kForward, shape));
  return shape.kind == StepKind::kEncode ? place_images() : ok_status();
}

Status StepSlot::launch_all(const StepShape& shape) {
  shape_ = shape;
  GAPLESS_RETURN_IF_ERROR(upload_inputs(shape));
  sampled_apart_ = shape.kind != StepKind::kDecode;
  if (sampled_apart_) {
    GAPLESS_RETURN_IF_ERROR(run(StepPart::kForward, shape));
    GAPLESS_RETURN_IF_ERROR(run(StepPart::kSampling, shape));
  } else {
    GAPLESS_RETURN_IF_ERROR(run(StepPart::kBoth, shape));
  }
  return finish_step(shape);
}

Status StepSlot::launch_sampling(int num_masks) {
  const std::size_t bytes =
      static_cast<std::size_t>(num_masks) * mask_words_ * sizeof(std::uint32_t);
  GAPLESS_RETURN_IF_ERROR(
      streams_.h2d->copy_to_device(masks_dev_.data(), masks_pinned_.data(), bytes));
  GAPLESS_RETURN_IF_ERROR(streams_.h2d->record(*masks_ready_));
  GAPLESS_RETURN_IF_ERROR(streams_.compute->wait(*masks_ready_));
  GAPLESS_RETURN_IF_ERROR(run(StepPart::kSampling, shape_));
  return finish_step(shape_);
}

Status StepSlot::upload_inputs(const StepShape& shape) {
  Stream& h2d = *streams_.h2d;
  if (shape.kind == StepKind::kEncode) {
    for (const CropCopy& copy : encode_lists_.copies) {
      GAPLESS_RETURN_IF_ERROR(h2d.copy_to_device(crops_dev_.as<std::uint8_t>() + copy.offset,
                                                 copy.from_pinned, copy.bytes));
    }
  } else {
    const std::size_t bytes = shape.kind == StepKind::kDecode
                                  ? layout_.decode_bytes()
                                  : layout_.prefill_bytes(shape.num_token_notes);
    GAPLESS_RETURN_IF_ERROR(
        h2d.copy_to_device(inputs_dev_.data(), inputs_block_pinned_.data(), bytes));
  }
  GAPLESS_RETURN_IF_ERROR(h2d.record(*inputs_ready_));
  return streams_.compute->wait(*inputs_ready_);
}

Status StepSlot::run(StepPart part, const StepShape& shape) {
  Graph* const graph = graphs_.find(part, shape);
  return graph != nullptr ? streams_.compute->launch(*graph) : enqueue(part, shape);
}

Status StepSlot::enqueue(StepPart part, const StepShape& shape) {
  switch (part) {
    case StepPart::kForward:
      return enqueue_forward(shape);
    case StepPart::kSampling:
      GAPLESS_RETURN_IF_ERROR(model_.stamp(*streams_.compute, buffers_.stamps + kSamplingBegin));
      return enqueue_sampling(shape);
    case StepPart::kBoth:  // back to back: the end of the one is the begin of the other
      GAPLESS_RETURN_IF_ERROR(enqueue_forward(shape));
      return enqueue_sampling(shape);
  }
  GAPLESS_CHECK_MSG(false, "unknown part of a step");
  return ok_status();
}

// The forward of an encode ends with place_images().
Status StepSlot::enqueue_forward(const StepShape& shape) {
  Stream& compute = *streams_.compute;
  GAPLESS_RETURN_IF_ERROR(model_.stamp(compute, buffers_.stamps + kForwardBegin));
  GAPLESS_RETURN_IF_ERROR(model_.forward(compute, shape, buffers_));
  if (shape.kind == StepKind::kEncode) return ok_status();
  return model_.stamp(compute, buffers_.stamps + kForwardEnd);
}

Status StepSlot::enqueue_sampling(const StepShape& shape) {
  Stream& compute = *streams_.compute;
  GAPLESS_RETURN_IF_ERROR(model_.sample(compute, shape, buffers_));
  return model_.stamp(compute, buffers_.stamps + kSamplingEnd);
}

Status StepSlot::place_images() {
  Stream& compute = *streams_.compute;
  GAPLESS_RETURN_IF_ERROR(model_.project(compute, encode_lists_.images, buffers_));
  GAPLESS_RETURN_IF_ERROR(model_.stamp(compute, buffers_.stamps + kForwardEnd));
  return finish_step(shape_);
}

// What follows the last graph of a step, down to the event that the host waits for.
Status StepSlot::finish_step(const StepShape& shape) {
  Stream& compute = *streams_.compute;
  std::size_t bytes = plain_outputs_bytes_;
  if (shape.with_top_logprobs) {
    GAPLESS_RETURN_IF_ERROR(model_.top_logprobs(compute, shape, buffers_));
    GAPLESS_RETURN_IF_ERROR(model_.stamp(compute, buffers_.stamps + kSamplingEnd));
    bytes = outputs_dev_.size_bytes();
  }
  GAPLESS_RETURN_IF_ERROR(compute.record(*outputs_ready_));
  GAPLESS_RETURN_IF_ERROR(streams_.d2h->wait(*outputs_ready_));
  GAPLESS_RETURN_IF_ERROR(
      streams_.d2h->copy_to_host(outputs_pinned_.data(), outputs_dev_.data(), bytes));
  return streams_.d2h->record(*outputs_landed_);
}

StatusOr<bool> StepSlot::wait(std::int64_t timeout_ns) {
  if (timeout_ns > 0) return outputs_landed_->synchronize_within(timeout_ns);
  GAPLESS_RETURN_IF_ERROR(outputs_landed_->synchronize());
  return true;
}

std::size_t StepSlot::device_bytes() const {
  return inputs_dev_.size_bytes() + crops_dev_.size_bytes() + masks_dev_.size_bytes() +
         intermediates_dev_.size_bytes() + outputs_dev_.size_bytes();
}

std::span<const StepOutput> StepSlot::outputs() const {
  return {outputs_pinned_.as<StepOutput>(),
          static_cast<std::size_t>(model_.limits().max_step_rows())};
}

std::span<const TopLogprob, kMaxTopLogprobs> StepSlot::top_logprobs(int i) const {
  const auto* first = reinterpret_cast<const TopLogprob*>(outputs_pinned_.as<const std::byte>() +
                                                          plain_outputs_bytes_);
  return std::span<const TopLogprob, kMaxTopLogprobs>(
      first + static_cast<std::size_t>(i) * kMaxTopLogprobs, kMaxTopLogprobs);
}

std::int64_t StepSlot::stamp_ns(StepStamp stamp) const {
  const auto* stamps =
      reinterpret_cast<const std::uint64_t*>(outputs_pinned_.as<StepOutput>() + outputs().size());
  if (shape_.kind == StepKind::kEncode && stamp > kForwardEnd) stamp = kForwardEnd;
  if (!sampled_apart_ && stamp == kSamplingBegin) stamp = kForwardEnd;
  return static_cast<std::int64_t>(stamps[stamp]);
}

}  // namespace gapless
