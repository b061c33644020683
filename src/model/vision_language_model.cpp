#include "model/vision_language_model.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "constraint/spatial_automaton.h"
#include "image/normalize.h"
#include "model/bump_layout.h"
#include "model/model_summary.h"
#include "model/rope_table.h"
#include "model/staged_upload.h"

namespace gapless {
namespace {

constexpr std::size_t kConstantsPieceBytes = 1u << 20;
constexpr int kPixelValues = 256;

std::span<const std::byte> pixel_table(DType dtype) {
  if (dtype == DType::kF32) return bytes_of(kPixelTableF32);
  return bytes_of(kPixelTableBf16);
}

}  // namespace

VisionLanguageModel::VisionLanguageModel(Device& device, Kernels& kernels,
                                         const ModelConfig& config, ModelWeights weights,
                                         const StepLimits& limits, KvFormat kv_format)
    : device_(device),
      config_(config),
      limits_(limits),
      kv_format_(kv_format),
      vision_shape_(vision_shape(config)),
      text_shape_(text_shape(config)),
      context_{.kernels = &kernels, .dtype = kernels.activation_dtype()},
      weights_(std::move(weights)) {
  info_.vocab = text_shape_.vocab;
  info_.hidden_dim = text_shape_.dim;
  info_.max_context = text_shape_.max_context;
  info_.image_tokens = vision_shape_.patches_per_crop;
  info_.hidden_bytes = static_cast<std::size_t>(text_shape_.dim) * dtype_bytes(context_.dtype);
  const auto crop_size = static_cast<std::size_t>(config.vision.crop_size);
  info_.crop_bytes = crop_size * crop_size * 3;
  info_.decode_weight_bytes = decode_step_bytes(0, 0);
  info_.kv_token_bytes = decode_step_bytes(1, 1) - decode_step_bytes(1, 0);
}

std::int64_t VisionLanguageModel::decode_step_bytes(int num_rows, int context) const {
  return total_bytes(decode_step_traffic(config_, context_.dtype,
                                         weights_.text.lm_head.prepared_format, kv_format_,
                                         num_rows, context));
}

StatusOr<std::unique_ptr<VisionLanguageModel>> VisionLanguageModel::create(
    Device& device, Kernels& kernels, const ModelConfig& config, ModelWeights weights,
    const StepLimits& limits, KvFormat kv_format) {
  GAPLESS_RETURN_IF_ERROR(check_model_shape(config));
  GAPLESS_CHECK(limits.max_prefill_tokens >= limits.max_prefill_sequences);
  GAPLESS_CHECK(limits.max_pages_per_row * kPageTokens >= config.text.max_context);
  std::unique_ptr<VisionLanguageModel> model(
      new VisionLanguageModel(device, kernels, config, std::move(weights), limits, kv_format));
  GAPLESS_RETURN_IF_ERROR(model->prepare());
  return model;
}

Status VisionLanguageModel::prepare() {
  GAPLESS_RETURN_IF_ERROR(upload_constants());
  GAPLESS_ASSIGN_OR_RETURN(workspace_,
                           Workspace::create(device_, *context_.kernels, config_, limits_));
  const SpatialTokens tokens{.coord_id = config_.tokenizer.coord_id.value,
                             .size_id = config_.tokenizer.size_id.value,
                             .eos_id = config_.tokenizer.eos_id.value};
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device_.create_stream("start-up"));
  GAPLESS_ASSIGN_OR_RETURN(
      state_, DeviceState::create(device_, *stream, text_shape_, info_.image_tokens, context_.dtype,
                                  kv_format_, limits_, build_spatial_automata(tokens)));
  build_parts();
  log_decode_path();
  return tune();
}

void VisionLanguageModel::log_decode_path() const {
  if (const Status fast = text_decoder_->check_fast_decode(1); !fast.ok()) {
    log_info("decode steps are composed of single ops, because {}", fast.message());
  } else if (const Status large = text_decoder_->check_fast_decode(limits_.max_seats);
             !large.ok()) {
    log_info("the largest decode steps are composed of single ops, because {}", large.message());
  }
}

Status VisionLanguageModel::tune() {
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device_.create_stream("start-up"));
  GAPLESS_RETURN_IF_ERROR(vision_encoder_->tune(*stream, limits_.max_crops_per_encode));
  GAPLESS_RETURN_IF_ERROR(projector_->tune(*stream));
  GAPLESS_RETURN_IF_ERROR(text_decoder_->tune(*stream, limits_.max_prefill_tokens));
  return stream->synchronize();
}

Status VisionLanguageModel::upload_constants() {
  const std::vector<float> rope =
      make_rope_table(text_shape_.max_context, text_shape_.rotary_dim, config_.text.rope_theta);
  const std::span<const std::byte> pixels = pixel_table(context_.dtype);
  BumpLayout sizes;
  sizes.take(pixels.size());
  sizes.take(bytes_of(rope).size());
  GAPLESS_ASSIGN_OR_RETURN(constants_, device_.allocate(sizes.peak_bytes()));
  BumpLayout layout(constants_.data());
  lut_dev_ = layout.take(pixels.size());
  rope_table_dev_ = layout.take_array<float>(rope.size());

  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device_.create_stream("start-up"));
  GAPLESS_ASSIGN_OR_RETURN(StagedUpload upload,
                           StagedUpload::create(device_, *stream, kConstantsPieceBytes));
  GAPLESS_RETURN_IF_ERROR(upload.copy(lut_dev_, pixels));
  GAPLESS_RETURN_IF_ERROR(upload.copy(rope_table_dev_, bytes_of(rope)));
  return upload.finish();
}

void VisionLanguageModel::build_parts() {
  const VisionWorkspace& vision = workspace_->vision();
  const TextWorkspace& text = workspace_->text();
  vision_encoder_.emplace(context_, vision_shape_, config_.vision.crop_size,
                          config_.vision.enc_patch_size, weights_.vision, vision, lut_dev_);
  projector_.emplace(context_, vision_shape_, config_.vision.overlap_margin, weights_.projector,
                     vision);
  text_decoder_.emplace(context_, text_shape_, weights_.text, text, *state_, rope_table_dev_);
  region_heads_.emplace(context_, weights_.region.decoder, text, state_->row_states(),
                        RegionTokens{.coord_id = config_.tokenizer.coord_id.value,
                                     .size_id = config_.tokenizer.size_id.value});
}

Status VisionLanguageModel::forward(Stream& compute, const StepShape& shape,
                                    const StepBuffers& buffers) {
  switch (shape.kind) {
    case StepKind::kEncode:
      return encode(compute, shape, buffers.crops);
    case StepKind::kPrefill:
      return prefill(compute, shape, buffers);
    case StepKind::kDecode:
      return decode(compute, shape, buffers);
  }
  GAPLESS_CHECK_MSG(false, "unknown step kind");
  return ok_status();
}

std::byte* VisionLanguageModel::crop_features(int crop) const {
  const auto crop_elements = static_cast<std::size_t>(vision_shape_.patches_per_crop) *
                             static_cast<std::size_t>(vision_shape_.dim);
  return static_cast<std::byte*>(workspace_->vision().features) +
         static_cast<std::size_t>(crop) * crop_elements * dtype_bytes(context_.dtype);
}

Status VisionLanguageModel::encode(Stream& compute, const StepShape& shape,
                                   const std::uint8_t* crops) {
  GAPLESS_CHECK(shape.num_crops <= limits_.max_crops_per_encode);
  GAPLESS_CHECK(shape.first_crop + shape.num_crops <= max_feature_crops(limits_));
  return vision_encoder_->encode(compute, crops, shape.num_crops, crop_features(shape.first_crop));
}

Status VisionLanguageModel::project(Stream& compute, std::span<const EncodeImage> images,
                                    const StepBuffers&) {
  for (const EncodeImage& image : images) {
    GAPLESS_CHECK(image.image_slot >= 0 && image.image_slot < limits_.num_image_slots);
    const TileGrid tiles{.rows = image.tile_rows, .cols = image.tile_cols};
    GAPLESS_RETURN_IF_ERROR(projector_->project(compute, crop_features(image.first_crop), tiles,
                                                state_->image_slot(image.image_slot)));
  }
  return ok_status();
}

Status VisionLanguageModel::prefill(Stream& compute, const StepShape& shape,
                                    const StepBuffers& buffers) {
  GAPLESS_CHECK(shape.num_tokens <= limits_.max_prefill_tokens);
  GAPLESS_CHECK(shape.num_rows <= shape.num_segments &&
                shape.num_segments <= limits_.max_prefill_sequences);
  GAPLESS_RETURN_IF_ERROR(begin_step(compute, buffers));
  GAPLESS_RETURN_IF_ERROR(copy_pages(compute, buffers));
  void* x = workspace_->text().x;
  GAPLESS_RETURN_IF_ERROR(
      embed(compute, {.inputs = buffers.inputs, .out = x, .num_tokens = shape.num_tokens}));
  GAPLESS_RETURN_IF_ERROR(text_decoder_->run_prefill(compute,
                                                     {.x = x,
                                                      .positions = buffers.positions,
                                                      .cache_slots = buffers.cache_slots,
                                                      .sequences = buffers.sequences,
                                                      .num_sequences = shape.num_segments,
                                                      .num_tokens = shape.num_tokens,
                                                      .max_new_tokens = shape.max_new_tokens,
                                                      .decode = false},
                                                     buffers.last_tokens, shape.num_rows,
                                                     buffers.hidden));
  GAPLESS_RETURN_IF_ERROR(
      text_decoder_->compute_logits(compute, buffers.hidden, shape.num_rows, buffers.logits));
  return record_outputs(compute, buffers, shape.num_rows);
}

// Everything that changes from step to step is read from device memory, so this can be captured.
Status VisionLanguageModel::decode(Stream& compute, const StepShape& shape,
                                   const StepBuffers& buffers) {
  GAPLESS_CHECK(shape.num_rows <= limits_.max_seats);
  GAPLESS_RETURN_IF_ERROR(begin_step(compute, buffers));
  const TextWorkspace& text = workspace_->text();
  PlanDecodeParams plan;
  plan.rows = buffers.rows;
  plan.row_states = state_->row_states();
  plan.page_table = state_->page_table();
  plan.page_table_stride = state_->page_table_stride();
  plan.num_rows = shape.num_rows;
  plan.positions = text.positions;
  plan.cache_slots = text.cache_slots;
  plan.sequences = text.sequences;
  plan.input_index = text.input_index;
  GAPLESS_RETURN_IF_ERROR(context_.kernels->plan_decode(compute, plan));

  // The rows' states hold their next inputs: the carry-over from the step before.
  GAPLESS_RETURN_IF_ERROR(embed(compute, {.inputs = &state_->row_states()->input,
                                          .input_stride_bytes = sizeof(RowState),
                                          .index = text.input_index,
                                          .out = buffers.hidden,
                                          .num_tokens = shape.num_rows}));
  GAPLESS_RETURN_IF_ERROR(text_decoder_->run_decode(compute,
                                                    {.x = buffers.hidden,
                                                     .positions = text.positions,
                                                     .cache_slots = text.cache_slots,
                                                     .sequences = text.sequences,
                                                     .rows = buffers.rows,
                                                     .num_sequences = shape.num_rows,
                                                     .num_tokens = shape.num_rows,
                                                     .max_new_tokens = 1,
                                                     .decode = true},
                                                    buffers.logits));
  return record_outputs(compute, buffers, shape.num_rows);
}

Status VisionLanguageModel::begin_step(Stream& compute, const StepBuffers& buffers) {
  BeginStepParams params;
  params.install_rows = buffers.install_rows;
  params.installs = buffers.installs;
  params.deltas = buffers.deltas;
  params.num_installs = buffers.num_installs;
  params.num_deltas = buffers.num_deltas;
  params.max_installs = limits_.max_prefill_sequences;
  params.max_deltas = limits_.max_page_deltas;
  params.row_states = state_->row_states();
  params.page_table = state_->page_table();
  params.page_table_stride = state_->page_table_stride();
  params.first_notes = buffers.first_notes;
  params.notes = buffers.notes;
  params.token_memory = state_->token_memory();
  return context_.kernels->begin_step(compute, params);
}

Status VisionLanguageModel::copy_pages(Stream& compute, const StepBuffers& buffers) {
  CopyPagesParams params;
  params.kv_base = state_->kv_base();
  params.page_bytes = state_->page_bytes_one();
  params.num_pages = state_->num_pages();
  params.num_layers = text_shape_.num_layers;
  params.copies = buffers.copies;
  params.num_copies = buffers.num_copies;
  params.max_copies = limits_.max_page_copies;
  return context_.kernels->copy_pages(compute, params);
}

// Fills in what every embedding launch shares.
Status VisionLanguageModel::embed(Stream& compute, EmbedParams params) {
  params.wte = weights_.text.wte;
  params.image_embeddings = state_->image_embeddings();
  params.region = weights_.region.encoder;
  params.dim = text_shape_.dim;
  params.vocab = text_shape_.vocab;
  GAPLESS_RETURN_IF_ERROR(context_.kernels->embed(compute, params));
  return context_.record(compute, "text.input", params.out, params.num_tokens, params.dim);
}

Status VisionLanguageModel::record_outputs(Stream& compute, const StepBuffers& buffers,
                                           int num_rows) {
  if (context_.recorder == nullptr) return ok_status();
  GAPLESS_RETURN_IF_ERROR(
      context_.record(compute, "text.hidden", buffers.hidden, num_rows, text_shape_.dim));
  return context_.recorder->record(compute, "text.logits",
                                   {buffers.logits, num_rows, text_shape_.vocab, DType::kF32});
}

Status VisionLanguageModel::sample(Stream& compute, const StepShape& shape,
                                   const StepBuffers& buffers) {
  GAPLESS_CHECK(shape.kind != StepKind::kEncode);
  Kernels& kernels = *context_.kernels;
  SampleParams sampling;
  sampling.logits = buffers.logits;
  sampling.logits_stride = text_shape_.vocab;
  sampling.rows = buffers.rows;
  sampling.row_states = state_->row_states();
  sampling.automata = state_->automata();
  sampling.host_masks = buffers.host_masks;
  sampling.host_mask_stride = (text_shape_.vocab + 31) / 32;
  sampling.token_memory = state_->token_memory();
  sampling.tokens = buffers.tokens;
  sampling.logprobs = buffers.logprobs;
  sampling.num_rows = shape.num_rows;
  sampling.vocab = text_shape_.vocab;
  sampling.scratch = workspace_->text().sample_scratch;
  GAPLESS_RETURN_IF_ERROR(kernels.sample(compute, sampling));
  if (shape.with_regions) {
    GAPLESS_RETURN_IF_ERROR(region_heads_->decode(compute, buffers, shape.num_rows));
  }

  AdvanceRowsParams advance;
  advance.rows = buffers.rows;
  advance.tokens = buffers.tokens;
  advance.logprobs = buffers.logprobs;
  advance.values = buffers.values;
  if (shape.kind == StepKind::kPrefill) advance.tokens_consumed = buffers.tokens_consumed;
  advance.automata = state_->automata();
  advance.row_states = state_->row_states();
  advance.token_memory = state_->token_memory();
  advance.outputs = buffers.outputs;
  advance.num_rows = shape.num_rows;
  advance.coord_id = config_.tokenizer.coord_id.value;
  advance.size_id = config_.tokenizer.size_id.value;
  return kernels.advance_rows(compute, advance);
}

Status VisionLanguageModel::top_logprobs(Stream& compute, const StepShape& shape,
                                         const StepBuffers& buffers) {
  GAPLESS_CHECK(shape.kind != StepKind::kEncode);
  return context_.kernels->top_logprobs(compute, {.logits = buffers.logits,
                                                  .logits_stride = text_shape_.vocab,
                                                  .rows = buffers.rows,
                                                  .row_states = state_->row_states(),
                                                  .top = buffers.top_logprobs,
                                                  .num_rows = shape.num_rows,
                                                  .vocab = text_shape_.vocab});
}

Status VisionLanguageModel::stamp(Stream& compute, std::uint64_t* stamp_dev) {
  return context_.kernels->stamp_time(compute, stamp_dev);
}

}  // namespace gapless
