#include "model/decoder_model.h"

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "model/model_summary.h"
#include "model/staged_upload.h"

namespace gapless {

DecoderModel::DecoderModel(Device& device, Kernels& kernels, const ModelShape& shape,
                           const StepLimits& limits, KvFormat kv_format)
    : device_(device),
      limits_(limits),
      kv_format_(kv_format),
      shape_(shape),
      context_{.kernels = &kernels, .dtype = kernels.activation_dtype()} {
  info_.vocab = shape.text.vocab;
  info_.hidden_dim = shape.text.dim;
  info_.max_context = shape.text.max_context;
  info_.image_tokens = shape.vision.patches_per_crop;
  info_.hidden_bytes = static_cast<std::size_t>(shape.text.dim) * dtype_bytes(context_.dtype);
}

StatusOr<ChosenExperts> DecoderModel::chosen_experts() const {
  ChosenExperts chosen = {};
  if (chosen_experts_.data() == nullptr) return chosen;
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device_.create_stream("counters"));
  GAPLESS_ASSIGN_OR_RETURN(const PinnedBuffer pinned, device_.allocate_pinned(sizeof(chosen)));
  GAPLESS_RETURN_IF_ERROR(
      stream->copy_to_host(pinned.data(), chosen_experts_.data(), sizeof(chosen)));
  GAPLESS_RETURN_IF_ERROR(stream->synchronize());
  return *pinned.as<ChosenExperts>();
}

std::int64_t DecoderModel::decode_step_bytes(int num_rows, int context,
                                             std::optional<double> experts) const {
  const TextWeights& text = weights().text;
  return total_bytes(decode_step_traffic(shape_.text, text, context_.dtype,
                                         text.lm_head.prepared_format, kv_format_, num_rows,
                                         context, experts));
}

Status DecoderModel::prepare(std::span<const float> rope_table,
                             std::span<const AutomatonState> automata,
                             std::span<const std::uint8_t> token_classes) {
  GAPLESS_CHECK(limits_.max_prefill_tokens >= limits_.max_prefill_sequences);
  GAPLESS_CHECK(limits_.max_pages_per_row * kPageTokens >= info_.max_context);
  info_.decode_weight_bytes = decode_step_bytes(0, 0);
  info_.kv_token_bytes = decode_step_bytes(1, 1) - decode_step_bytes(1, 0);
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device_.create_stream("start-up"));
  GAPLESS_RETURN_IF_ERROR(upload_rope_table(*stream, rope_table));
  GAPLESS_ASSIGN_OR_RETURN(workspace_,
                           Workspace::create(device_, *context_.kernels, shape_, limits_));
  GAPLESS_ASSIGN_OR_RETURN(
      state_, DeviceState::create(device_, *stream, shape_.text, info_.image_tokens, context_.dtype,
                                  kv_format_, limits_, automata, token_classes));
  if (shape_.text.experts.num_experts > 0) {
    GAPLESS_ASSIGN_OR_RETURN(chosen_experts_, device_.allocate(sizeof(ChosenExperts)));
    GAPLESS_RETURN_IF_ERROR(stream->fill_bytes(chosen_experts_.data(), 0, sizeof(ChosenExperts)));
    GAPLESS_RETURN_IF_ERROR(stream->synchronize());
  }
  text_decoder_.emplace(context_, shape_.text, weights().text, workspace_->text(), *state_,
                        rope_table_.as<float>(), chosen_experts_.as<ChosenExperts>());
  return ok_status();
}

Status DecoderModel::upload_rope_table(Stream& stream, std::span<const float> table) {
  GAPLESS_ASSIGN_OR_RETURN(rope_table_, device_.allocate(table.size_bytes()));
  GAPLESS_ASSIGN_OR_RETURN(StagedUpload upload,
                           StagedUpload::create(device_, stream, kUploadPieceBytes));
  GAPLESS_RETURN_IF_ERROR(upload.copy(rope_table_.data(), std::as_bytes(table)));
  return upload.finish();
}

Status DecoderModel::hold_grammars(const std::vector<std::string>& texts, std::int32_t eos_id,
                                   std::size_t table_bytes) {
  // Without an end token an answer ends where nothing is legal, which the host tells from an error.
  if (eos_id < 0 || eos_id >= info_.vocab) return ok_status();
  GAPLESS_ASSIGN_OR_RETURN(
      grammars_, DeviceGrammars::create(device_, texts, eos_id, info_.vocab, limits_, table_bytes));
  info_.holds_grammars = true;
  return ok_status();
}

std::vector<MemoryPart> DecoderModel::memory_parts() const {
  const DecoderWeights& held = weights();
  std::vector<MemoryPart> parts;
  const auto add = [&parts](const char* name, std::size_t bytes) {
    if (bytes > 0) parts.push_back({name, bytes});
  };
  add("weights", held.buffer.size_bytes());
  add("their copy for 8-bit products", held.fp8.size_bytes());
  add("matrices in 8-bit whole numbers", held.int8.size_bytes());
  add("prepared matrices", held.prepared.size_bytes());
  add("activations", workspace_->bytes());
  add("sequences and pictures", state_->bytes_without_cache());
  add("keys and values", state_->cache_bytes());
  if (grammars_) add("grammars", grammars_->bytes());
  return parts;
}

void DecoderModel::log_decode_path() const {
  if (const Status fast = text_decoder_->check_fast_decode(1); !fast.ok()) {
    log_info("decode steps are composed of single ops, because {}", fast.message());
  } else if (const Status large = text_decoder_->check_fast_decode(limits_.max_seats);
             !large.ok()) {
    log_info("the largest decode steps are composed of single ops, because {}", large.message());
  }
}

Status DecoderModel::tune(Stream& stream) {
  return text_decoder_->tune(stream, limits_.max_prefill_tokens);
}

Status DecoderModel::encode(Stream&, const StepShape&, const std::uint8_t*) {
  GAPLESS_CHECK_MSG(false, "this model has no encoder");
  return ok_status();
}

Status DecoderModel::project(Stream&, std::span<const EncodeImage> images, const StepBuffers&) {
  GAPLESS_CHECK_MSG(images.empty(), "this model has no encoder");
  return ok_status();
}

Status DecoderModel::decode_regions(Stream&, const StepBuffers&, int) {
  return ok_status();
}

Status DecoderModel::forward(Stream& compute, const StepShape& shape, const StepBuffers& buffers) {
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

Status DecoderModel::prefill(Stream& compute, const StepShape& shape, const StepBuffers& buffers) {
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
Status DecoderModel::decode(Stream& compute, const StepShape& shape, const StepBuffers& buffers) {
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
  plan.automata = state_->automata();
  plan.vocab = shape_.text.vocab;
  plan.needed_logits = text.needed_logits;
  plan.shared_prefixes = text.shared_prefixes;
  plan.any_lives = text.any_lives;
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

Status DecoderModel::begin_step(Stream& compute, const StepBuffers& buffers) {
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

Status DecoderModel::copy_pages(Stream& compute, const StepBuffers& buffers) {
  CopyPagesParams params;
  params.kv_base = state_->kv_base();
  params.page_bytes = state_->layer_page_bytes();
  params.num_pages = state_->num_pages();
  params.num_layers = shape_.text.num_layers;
  params.copies = buffers.copies;
  params.num_copies = buffers.num_copies;
  params.max_copies = limits_.max_page_copies;
  return context_.kernels->copy_pages(compute, params);
}

// Fills in what every embedding launch shares.
Status DecoderModel::embed(Stream& compute, EmbedParams params) {
  params.wte = weights().text.wte;
  params.image_embeddings = state_->image_embeddings();
  params.region = region_encoder_;
  params.dim = shape_.text.dim;
  params.vocab = shape_.text.vocab;
  GAPLESS_RETURN_IF_ERROR(context_.kernels->embed(compute, params));
  return context_.record(compute, "text.input", params.out, params.num_tokens, params.dim);
}

Status DecoderModel::record_outputs(Stream& compute, const StepBuffers& buffers, int num_rows) {
  if (context_.recorder == nullptr) return ok_status();
  GAPLESS_RETURN_IF_ERROR(
      context_.record(compute, "text.hidden", buffers.hidden, num_rows, shape_.text.dim));
  return context_.recorder->record(compute, "text.logits",
                                   {buffers.logits, num_rows, shape_.text.vocab, DType::kF32});
}

Status DecoderModel::sample(Stream& compute, const StepShape& shape, const StepBuffers& buffers) {
  GAPLESS_CHECK(shape.kind != StepKind::kEncode);
  Kernels& kernels = *context_.kernels;
  GrammarMasksParams grammars;
  if (shape.with_grammars) {
    grammars = grammars_->params();
    grammars.rows = buffers.rows;
    grammars.row_states = state_->row_states();
    grammars.num_rows = shape.num_rows;
    GAPLESS_RETURN_IF_ERROR(kernels.grammar_masks(compute, grammars));
  }
  SampleParams sampling;
  sampling.logits = buffers.logits;
  sampling.logits_stride = shape_.text.vocab;
  sampling.rows = buffers.rows;
  sampling.row_states = state_->row_states();
  sampling.automata = state_->automata();
  sampling.token_classes = state_->token_classes();
  sampling.host_masks = buffers.host_masks;
  sampling.host_mask_stride = (shape_.text.vocab + 31) / 32;
  sampling.grammar_masks = grammars.masks;
  sampling.behind_grammar_masks = shape.with_grammars;
  sampling.token_memory = state_->token_memory();
  sampling.tokens = buffers.tokens;
  sampling.logprobs = buffers.logprobs;
  sampling.confidences = buffers.confidences;
  sampling.num_rows = shape.num_rows;
  sampling.vocab = shape_.text.vocab;
  sampling.scratch = workspace_->text().sample_scratch;
  GAPLESS_RETURN_IF_ERROR(kernels.sample(compute, sampling));
  if (shape.with_regions) {
    GAPLESS_RETURN_IF_ERROR(decode_regions(compute, buffers, shape.num_rows));
  }

  AdvanceRowsParams advance;
  advance.rows = buffers.rows;
  advance.tokens = buffers.tokens;
  advance.logprobs = buffers.logprobs;
  advance.values = buffers.values;
  advance.confidences = buffers.confidences;
  if (shape.kind == StepKind::kPrefill) advance.tokens_consumed = buffers.tokens_consumed;
  advance.automata = state_->automata();
  advance.token_classes = state_->token_classes();
  advance.row_states = state_->row_states();
  advance.token_memory = state_->token_memory();
  advance.outputs = buffers.outputs;
  advance.num_rows = shape.num_rows;
  advance.coord_id = coord_id_;
  advance.size_id = size_id_;
  return kernels.advance_rows(compute, advance);
}

Status DecoderModel::top_logprobs(Stream& compute, const StepShape& shape,
                                  const StepBuffers& buffers) {
  GAPLESS_CHECK(shape.kind != StepKind::kEncode);
  return context_.kernels->top_logprobs(compute, {.logits = buffers.logits,
                                                  .logits_stride = shape_.text.vocab,
                                                  .rows = buffers.rows,
                                                  .row_states = state_->row_states(),
                                                  .top = buffers.top_logprobs,
                                                  .num_rows = shape.num_rows,
                                                  .vocab = shape_.text.vocab});
}

Status DecoderModel::stamp(Stream& compute, std::uint64_t* stamp_dev) {
  return context_.kernels->stamp_time(compute, stamp_dev);
}

StatusOr<std::unique_ptr<TextModel>> TextModel::create(
    Device& device, Kernels& kernels, const TextShape& shape, DecoderWeights weights,
    std::span<const float> rope_table, const StepLimits& limits, KvFormat kv_format) {
  std::unique_ptr<TextModel> model(
      new TextModel(device, kernels, shape, std::move(weights), limits, kv_format));
  GAPLESS_RETURN_IF_ERROR(model->prepare(rope_table, {}, {}));
  model->log_decode_path();
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.create_stream("start-up"));
  GAPLESS_RETURN_IF_ERROR(model->tune(*stream));
  GAPLESS_RETURN_IF_ERROR(stream->synchronize());
  return model;
}

}  // namespace gapless
