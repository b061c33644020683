#include "sim/fake_model.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/limits.h"
#include "device/cpu/cpu_stream.h"
#include "sim/sim_device.h"
#include "sim/sim_stream.h"
#include "step/automaton_walk.h"

namespace gapless {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}
std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  return mix(mix(a) + 0x9e3779b97f4a7c15ULL + b);
}

std::uint64_t hash_bytes(const void* data, std::size_t bytes) {
  const auto* in = static_cast<const unsigned char*>(data);
  std::uint64_t hash = bytes;
  for (std::size_t i = 0; i < bytes; ++i) hash = mix(hash, in[i]);
  return hash;
}

// Of what a row with kRowAdjustsLogits knows of tokens.
std::uint64_t notes_digest(const TokenNote* begin, const TokenNote* end) {
  return hash_bytes(begin, static_cast<std::size_t>(end - begin) * sizeof(TokenNote));
}

// ---- what the model computes, for it and for its oracle alike

constexpr std::uint64_t kPositionBits = 0xffff;

std::uint64_t make_entry(std::uint64_t value, int position, std::uint64_t context) {
  const auto tag = static_cast<std::uint64_t>(position) & kPositionBits;
  return (mix(value, mix(context, tag)) & ~kPositionBits) | tag;
}
std::uint64_t entry_weight(std::uint64_t entry) {
  return mix(entry);
}

std::uint64_t plain_value(const TokenInput& input) {
  const auto id = static_cast<std::uint64_t>(static_cast<std::uint32_t>(input.id));
  const std::uint64_t xy = std::uint64_t{std::bit_cast<std::uint32_t>(input.x)} << 32 |
                           std::bit_cast<std::uint32_t>(input.y);
  return mix(mix(static_cast<std::uint64_t>(input.kind), id), xy);
}
std::uint64_t image_value(std::uint64_t digest, int index) {
  return mix(digest, static_cast<std::uint64_t>(index) + 77);
}

// The digest of an image: every byte of every crop, in order, and the tiling.
class ImageDigest {
 public:
  ImageDigest(int tile_rows, int tile_cols)
      : digest_(mix(static_cast<std::uint64_t>(tile_rows), static_cast<std::uint64_t>(tile_cols))) {
  }
  void add(const std::uint8_t* crop, std::size_t bytes) { add_feature(hash_bytes(crop, bytes)); }
  void add_feature(std::uint64_t feature) { digest_ = mix(digest_, feature); }
  std::uint64_t value() const { return digest_; }

 private:
  std::uint64_t digest_;
};

bool is_stop(const RowState& row, std::int32_t token) {
  return std::find(row.stop_ids, row.stop_ids + row.num_stop_ids, token) !=
         row.stop_ids + row.num_stop_ids;
}

bool wants_to_stop(const RowState& row) {
  const auto length = static_cast<std::uint32_t>(row.sampling.seed >> 32);
  return length != 0 && static_cast<std::uint32_t>(row.num_generated) + 1 >= length;
}

// `is_allowed` speaks for the automaton or the mask; it allows one token at least.
template <typename IsAllowed>
std::int32_t choose_token(const RowState& row, std::uint64_t hidden, std::uint64_t notes, int vocab,
                          IsAllowed&& is_allowed) {
  if (wants_to_stop(row) && row.num_stop_ids > 0 && is_allowed(row.stop_ids[0])) {
    return row.stop_ids[0];
  }
  const std::uint64_t random =
      mix((row.flags & kRowAdjustsLogits) != 0 ? mix(hidden, notes) : hidden,
          mix(row.sampling.seed, static_cast<std::uint64_t>(row.num_generated)));
  const auto first = static_cast<std::int32_t>(random % static_cast<std::uint64_t>(vocab));
  std::int32_t only_stop = -1;
  for (std::int32_t i = 0; i < vocab; ++i) {
    const std::int32_t token = (first + i) % vocab;
    if (!is_allowed(token)) continue;
    if (!is_stop(row, token)) return token;
    only_stop = token;
  }
  return only_stop;
}

// What a token does to its row; the sequence's answer so far is the caller's.
StepOutput advance_row(RowState& row, std::int32_t token, std::uint64_t hidden, int consumed,
                       const FakeModelConfig& config) {
  StepOutput output{.token = token, .position = row.position};
  row.input = {.kind = InputKind::kText, .id = token};
  if ((row.flags & kRowDecodesRegions) != 0 && (token == kFakeCoordId || token == kFakeSizeId)) {
    output.x = static_cast<float>(mix(hidden, 1) % 1024) / 1023.0f;
    output.y = token == kFakeSizeId ? static_cast<float>(mix(hidden, 2) % 1024) / 1023.0f : 0.0f;
    row.input = {.kind = token == kFakeCoordId ? InputKind::kCoord : InputKind::kSize,
                 .x = output.x,
                 .y = output.y};
  }
  if ((row.flags & kRowWantsConfidence) != 0) {
    output.confidence.token = static_cast<float>(mix(hidden, 3) % 1024) / 1024.0f;
  }
  row.position += consumed;
  ++row.num_generated;
  walk_automaton(config.automata.data(), config.token_classes.data(), token, row);
  if (is_stop(row, token)) {
    output.outcome = StepOutcome::kStopped;
  } else if (row.num_generated >= row.max_generated) {
    output.outcome = StepOutcome::kLength;
  }
  row.done = output.outcome == StepOutcome::kContinues ? 0 : 1;
  return output;
}

bool mask_allows(const std::uint32_t* mask, std::int32_t token) {
  return (mask[token / 32] >> (token % 32) & 1u) != 0;
}

bool is_denied(const RowState& row, std::int32_t token) {
  return std::find(row.denied_ids, row.denied_ids + row.num_denied_ids, token) !=
         row.denied_ids + row.num_denied_ids;
}

std::int32_t sample_token(const RowState& row, std::uint64_t hidden, std::uint64_t notes,
                          const FakeModelConfig& config, const std::uint32_t* mask) {
  return choose_token(row, hidden, notes, config.vocab, [&](std::int32_t token) {
    if (row.automaton != kNoAutomaton) {
      const AutomatonState& state = config.automata[static_cast<std::size_t>(row.automaton)];
      return listed_tokens(state, row, config.token_classes.data()).allows(token);
    }
    if ((row.flags & kRowHostMask) != 0 || row.grammar != kNoGrammar) {
      return mask_allows(mask, token);
    }
    return !is_denied(row, token);
  });
}

// The `place`-th alternative of a token.
TopLogprob alternative(std::uint64_t hidden, int place, int vocab) {
  const std::uint64_t random = mix(hidden, 1000 + static_cast<std::uint64_t>(place));
  return {static_cast<std::int32_t>(random % static_cast<std::uint64_t>(vocab)),
          -static_cast<float>(random >> 40)};
}

}  // namespace

FakeModelConfig FakeModelConfig::small() {
  FakeModelConfig config;
  config.limits = {.max_seats = 6,
                   .max_prefill_tokens = 96,
                   .max_prefill_sequences = 3,
                   .max_crops_per_encode = 4,
                   .max_images_per_encode = 2,
                   .num_pages = 24,
                   .max_pages_per_row = 8,
                   .num_image_slots = 4,
                   .max_page_copies = 2,
                   .max_page_deltas = 16};
  config.max_context = 96;
  return config;
}

std::uint64_t fake_seed(std::uint32_t seed, int num_tokens) {
  const std::uint64_t length = num_tokens < 0 ? 0 : static_cast<std::uint64_t>(num_tokens) + 1;
  return length << 32 | seed;
}

// ---- the model

StatusOr<std::unique_ptr<FakeModel>> FakeModel::create(Device& device, FakeModelConfig config) {
  std::unique_ptr<FakeModel> model(new FakeModel(device, std::move(config)));
  GAPLESS_RETURN_IF_ERROR(model->allocate());
  return model;
}

FakeModel::FakeModel(Device& device, FakeModelConfig config)
    : device_(device), config_(std::move(config)) {
  GAPLESS_CHECK(device.kind() != DeviceKind::kCuda);
  info_.vocab = config_.vocab;
  info_.hidden_dim = 1;
  info_.hidden_bytes = sizeof(std::uint64_t);
  info_.max_context = config_.max_context;
  info_.image_tokens = config_.image_tokens;
  info_.crop_bytes = config_.crop_bytes;
  info_.holds_grammars = true;
}

Status FakeModel::allocate() {
  const auto size = [](int count) { return static_cast<std::size_t>(count); };
  const StepLimits& limits = config_.limits;
  GAPLESS_ASSIGN_OR_RETURN(rows_dev_, device_.allocate(size(limits.num_rows()) * sizeof(RowState)));
  GAPLESS_ASSIGN_OR_RETURN(grammar_rows_dev_,
                           device_.allocate(size(limits.num_rows()) * sizeof(std::uint64_t)));
  GAPLESS_ASSIGN_OR_RETURN(notes_dev_,
                           device_.allocate(size(limits.num_rows()) * sizeof(std::uint64_t)));
  GAPLESS_ASSIGN_OR_RETURN(
      page_table_dev_, device_.allocate(size(limits.num_rows()) * size(limits.max_pages_per_row) *
                                        sizeof(std::int32_t)));
  GAPLESS_ASSIGN_OR_RETURN(
      entries_dev_, device_.allocate(size(limits.num_pages) * kPageTokens * sizeof(std::uint64_t)));
  GAPLESS_ASSIGN_OR_RETURN(image_pool_dev_,
                           device_.allocate(size(limits.num_image_slots) * sizeof(std::uint64_t)));
  const int max_crops = std::max(limits.max_crops_per_encode, kMaxTilesPerImage + 1);
  GAPLESS_ASSIGN_OR_RETURN(features_dev_,
                           device_.allocate(size(max_crops) * sizeof(std::uint64_t)));
  for (const Buffer* buffer : {&rows_dev_, &grammar_rows_dev_, &notes_dev_, &page_table_dev_,
                               &entries_dev_, &image_pool_dev_, &features_dev_}) {
    std::memset(buffer->data(), 0, buffer->size_bytes());  // both devices live in host memory
  }
  return ok_status();
}

Status FakeModel::enqueue(Stream& stream, std::int64_t duration_ns, std::function<void()> begin,
                          std::function<void()> end, const char* label) {
  if (device_.kind() == DeviceKind::kSimulated) {
    return SimStream::of(stream).enqueue_kernel({.duration_ns = duration_ns,
                                                 .on_begin = std::move(begin),
                                                 .on_end = std::move(end),
                                                 .label = label});
  }
  auto& cpu_stream = *static_cast<CpuStream*>(stream.native_handle());
  return cpu_stream.enqueue([begin = std::move(begin), end = std::move(end)] {
    if (begin) begin();
    end();
    return ok_status();
  });
}

Status FakeModel::forward(Stream& compute, const StepShape& shape, const StepBuffers& buffers) {
  const std::int64_t duration_ns = config_.forward_ns ? config_.forward_ns(shape) : 0;
  if (shape.kind == StepKind::kEncode) {
    return enqueue(
        compute, duration_ns, {}, [this, shape, buffers] { encode(shape, buffers); }, "encode");
  }
  // The list of rows must be there when the kernel begins and stay until it ends.
  auto rows_at_begin = std::make_shared<std::uint64_t>(0);
  const std::size_t row_bytes = sizeof(std::int32_t) * static_cast<std::size_t>(shape.num_rows);
  const auto begin = [rows_at_begin, buffers, row_bytes] {
    *rows_at_begin = hash_bytes(buffers.rows, row_bytes);
  };
  const auto end = [this, rows_at_begin, shape, buffers, row_bytes] {
    if (hash_bytes(buffers.rows, row_bytes) != *rows_at_begin) ++num_faults_;
    begin_step(buffers);
    if (shape.kind == StepKind::kPrefill) {
      prefill(shape, buffers);
    } else {
      decode(shape, buffers);
    }
  };
  return enqueue(compute, duration_ns, begin, end,
                 shape.kind == StepKind::kPrefill ? "prefill" : "decode");
}

Status FakeModel::project(Stream& compute, std::span<const EncodeImage> images,
                          const StepBuffers&) {
  std::vector<EncodeImage> kept(images.begin(), images.end());
  return enqueue(
      compute, 0, {}, [this, kept = std::move(kept)] { place_images(kept); }, "project");
}

Status FakeModel::sample(Stream& compute, const StepShape& shape, const StepBuffers& buffers) {
  const std::int64_t duration_ns = config_.sampling_ns ? config_.sampling_ns(shape) : 0;
  return enqueue(
      compute, duration_ns, {}, [this, shape, buffers] { sample_rows(shape, buffers); },
      "sampling");
}

Status FakeModel::top_logprobs(Stream& compute, const StepShape& shape,
                               const StepBuffers& buffers) {
  ++num_top_logprobs_calls_;
  return enqueue(
      compute, 0, {}, [this, shape, buffers] { rank_tokens(shape, buffers); }, "top_logprobs");
}

Status FakeModel::stamp(Stream& compute, std::uint64_t* stamp_dev) {
  const auto write = [this, stamp_dev] {
    *stamp_dev = device_.kind() == DeviceKind::kSimulated
                     ? static_cast<SimDevice&>(device_).device_clock_ns()
                     : static_cast<std::uint64_t>(host_now_ns());
  };
  return enqueue(compute, 0, {}, write, "stamp");
}

// ---- kernels

void FakeModel::encode(const StepShape& shape, const StepBuffers& buffers) {
  GAPLESS_CHECK(shape.num_crops <= config_.limits.max_crops_per_encode);
  for (int i = 0; i < shape.num_crops; ++i) {
    features_dev_.as<std::uint64_t>()[shape.first_crop + i] = hash_bytes(
        buffers.crops + static_cast<std::size_t>(i) * info_.crop_bytes, info_.crop_bytes);
  }
}

void FakeModel::place_images(std::span<const EncodeImage> images) {
  for (const EncodeImage& image : images) {
    ImageDigest digest(image.tile_rows, image.tile_cols);
    for (int i = 0; i < image.num_crops; ++i) {
      digest.add_feature(features_dev_.as<std::uint64_t>()[image.first_crop + i]);
    }
    image_pool_dev_.as<std::uint64_t>()[image.image_slot] = digest.value();
  }
}

void FakeModel::begin_step(const StepBuffers& buffers) {
  for (int i = 0; i < *buffers.num_installs; ++i) {
    rows_dev_.as<RowState>()[buffers.install_rows[i]] = buffers.installs[i];
    if ((buffers.installs[i].flags & kRowAdjustsLogits) == 0) continue;
    notes_dev_.as<std::uint64_t>()[buffers.install_rows[i]] = notes_digest(
        buffers.notes + buffers.first_notes[i], buffers.notes + buffers.first_notes[i + 1]);
  }
  for (int i = 0; i < *buffers.num_deltas; ++i) {
    const PageTableDelta& delta = buffers.deltas[i];
    page_table_dev_.as<std::int32_t>()[delta.row * config_.limits.max_pages_per_row + delta.index] =
        delta.page;
  }
  auto* entries = entries_dev_.as<std::uint64_t>();
  for (int i = 0; i < *buffers.num_copies; ++i) {
    const PageCopy& copy = buffers.copies[i];
    std::copy_n(entries + copy.from * kPageTokens, kPageTokens, entries + copy.to * kPageTokens);
  }
}

std::uint64_t FakeModel::input_value(const TokenInput& input) const {
  if (input.kind != InputKind::kImage) return plain_value(input);
  const std::uint64_t digest = image_pool_dev_.as<std::uint64_t>()[input.id / config_.image_tokens];
  return image_value(digest, input.id % config_.image_tokens);
}

std::uint64_t FakeModel::sum_entries(std::int32_t row, int num_tokens) {
  const std::int32_t* pages =
      page_table_dev_.as<std::int32_t>() + row * config_.limits.max_pages_per_row;
  std::uint64_t sum = 0;
  for (int position = 0; position < num_tokens; ++position) {
    const std::uint64_t entry =
        entries_dev_.as<std::uint64_t>()[pages[position / kPageTokens] * kPageTokens +
                                         position % kPageTokens];
    if ((entry & kPositionBits) != (static_cast<std::uint64_t>(position) & kPositionBits)) {
      ++num_faults_;
    }
    sum += entry_weight(entry);
  }
  return sum;
}

void FakeModel::write_entry(std::int32_t row, int position, int cache_slot, std::uint64_t entry) {
  const std::int32_t page =
      page_table_dev_
          .as<std::int32_t>()[row * config_.limits.max_pages_per_row + position / kPageTokens];
  if (page == 0 || page * kPageTokens + position % kPageTokens != cache_slot) ++num_faults_;
  entries_dev_.as<std::uint64_t>()[cache_slot] = entry;
}

void FakeModel::prefill(const StepShape& shape, const StepBuffers& buffers) {
  auto* hidden = static_cast<std::uint64_t*>(buffers.hidden);
  for (int i = 0; i < shape.num_segments; ++i) {
    const AttentionSequence& segment = buffers.sequences[i];
    if (segment.num_tokens == 0) continue;  // padding
    const TokenInput* inputs = buffers.inputs + segment.first_token;
    std::uint64_t acc = sum_entries(segment.row, segment.num_cached);
    std::uint64_t block = acc;
    for (int k = 0; k < segment.num_tokens; ++k) {
      if (segment.num_cached + k < segment.prefix_len) block = mix(block, input_value(inputs[k]));
    }
    for (int k = 0; k < segment.num_tokens; ++k) {
      const int position = buffers.positions[segment.first_token + k];
      if (position != segment.num_cached + k) ++num_faults_;
      const std::uint64_t context = position < segment.prefix_len ? block : acc;
      const std::uint64_t entry = make_entry(input_value(inputs[k]), position, context);
      write_entry(segment.row, position, buffers.cache_slots[segment.first_token + k], entry);
      acc += entry_weight(entry);
    }
    // The last segment of a row has the last word.
    const auto* rows_end = buffers.rows + shape.num_rows;
    const auto* row = std::find(buffers.rows, rows_end, segment.row);
    if (row == rows_end) {
      ++num_faults_;
    } else {
      hidden[row - buffers.rows] = acc;
    }
  }
}

void FakeModel::decode(const StepShape& shape, const StepBuffers& buffers) {
  auto* hidden = static_cast<std::uint64_t*>(buffers.hidden);
  for (int i = 0; i < shape.num_rows; ++i) {
    const std::int32_t row_id = buffers.rows[i];
    if (row_id < 0) continue;
    const RowState& row = rows_dev_.as<RowState>()[row_id];
    if (row.done != 0) {
      entries_dev_.as<std::uint64_t>()[row.position % kPageTokens] = 0;  // the trash page
      continue;
    }
    const std::int32_t page =
        page_table_dev_.as<std::int32_t>()[row_id * config_.limits.max_pages_per_row +
                                           row.position / kPageTokens];
    const std::uint64_t acc = sum_entries(row_id, row.position);
    const std::uint64_t entry = make_entry(input_value(row.input), row.position, acc);
    write_entry(row_id, row.position, page * kPageTokens + row.position % kPageTokens, entry);
    hidden[i] = acc + entry_weight(entry);
    if (config_.depends_on_batch) hidden[i] += static_cast<std::uint64_t>(shape.num_rows);
  }
}

// The row's place in its grammar is kept here, as the real model keeps it: it takes the row's last token, its next input.
std::vector<std::uint32_t> FakeModel::grammar_mask(std::int32_t row_id, const RowState& row) {
  if (!config_.grammars->is_held(row.grammar)) ++num_faults_;
  std::uint64_t& state = grammar_rows_dev_.as<std::uint64_t>()[row_id];
  FakeConstraint constraint(
      config_.vocab, row.num_generated == 0 ? static_cast<std::uint64_t>(row.grammar) : state);
  if (row.num_generated > 0) constraint.advance(TokenId(row.input.id));
  state = constraint.state();
  std::vector<std::uint32_t> mask(static_cast<std::size_t>(config_.vocab + 31) / 32);
  constraint.allowed(mask);
  return mask;
}

void FakeModel::sample_rows(const StepShape& shape, const StepBuffers& buffers) {
  const auto* hidden = static_cast<const std::uint64_t*>(buffers.hidden);
  const int mask_words = (config_.vocab + 31) / 32;
  for (int i = 0; i < shape.num_rows; ++i) {
    const std::int32_t row_id = buffers.rows[i];
    if (row_id < 0) continue;
    RowState& row = rows_dev_.as<RowState>()[row_id];
    if (row.done != 0) {
      buffers.outputs[i] = {.token = -1, .outcome = StepOutcome::kAlreadyDone};
      continue;
    }
    std::vector<std::uint32_t> own_mask;
    // A step without grammars has none of their work done.
    if (row.grammar != kNoGrammar && !shape.with_grammars) ++num_faults_;
    if (row.grammar != kNoGrammar) own_mask = grammar_mask(row_id, row);
    const std::uint32_t* const mask =
        own_mask.empty() ? buffers.host_masks + i * mask_words : own_mask.data();
    const std::int32_t token =
        sample_token(row, hidden[i], notes_dev_.as<std::uint64_t>()[row_id], config_, mask);
    const int consumed = shape.kind == StepKind::kPrefill ? buffers.tokens_consumed[i] : 1;
    buffers.outputs[i] = advance_row(row, token, hidden[i], consumed, config_);
  }
}

void FakeModel::rank_tokens(const StepShape& shape, const StepBuffers& buffers) {
  const auto* hidden = static_cast<const std::uint64_t*>(buffers.hidden);
  for (int i = 0; i < shape.num_rows; ++i) {
    if (buffers.rows[i] < 0) continue;
    const RowState& row = rows_dev_.as<RowState>()[buffers.rows[i]];
    for (int place = 0; place < row.sampling.num_top_logprobs; ++place) {
      buffers.top_logprobs[i * kMaxTopLogprobs + place] =
          alternative(hidden[i], place, config_.vocab);
    }
  }
}

// ---- constraint and oracle

std::shared_ptr<const void> FakeGrammars::hold(int grammar) {
  std::atomic<int>* const count = &num_holders_[static_cast<std::size_t>(grammar)];
  count->fetch_add(1);
  return {count, [](std::atomic<int>* held) { held->fetch_sub(1); }};
}

void FakeConstraint::allowed(std::span<std::uint32_t> mask) const {
  mask[0] |= 1u << kFakeStopId;
  for (int token = 0; token < vocab_; ++token) {
    if (mix(state_, static_cast<std::uint64_t>(token)) % 3 == 0) {
      mask[static_cast<std::size_t>(token / 32)] |= 1u << (token % 32);
    }
  }
}

void FakeConstraint::advance(TokenId token) {
  state_ = mix(state_, static_cast<std::uint64_t>(token.value));
}

FakeAnswer fake_answer(const FakeModelConfig& config, const PreparedPrompt& prompt,
                       TokenConstraint* constraint) {
  std::vector<std::uint64_t> images;
  for (const PreparedImage& image : prompt.images) {
    ImageDigest digest(image.tile_rows, image.tile_cols);
    for (const std::uint8_t* crop : image.crops_pinned) digest.add(crop, config.crop_bytes);
    images.push_back(digest.value());
  }
  const auto value = [&](const TokenInput& input) {
    if (input.kind != InputKind::kImage) return plain_value(input);
    return image_value(images[static_cast<std::size_t>(input.id / config.image_tokens)],
                       input.id % config.image_tokens);
  };
  std::uint64_t acc = 0;
  int position = 0;
  // Image by image, then the text.
  for (int n = 1; n <= static_cast<int>(images.size()); ++n) {
    const int end = prefix_end(prompt, n, config.image_tokens);
    std::uint64_t block = acc;
    for (int p = position; p < end; ++p) {
      block = mix(block, value(prompt.inputs[static_cast<std::size_t>(p)]));
    }
    for (; position < end; ++position) {
      const TokenInput& input = prompt.inputs[static_cast<std::size_t>(position)];
      acc += entry_weight(make_entry(value(input), position, block));
    }
  }
  const auto consume = [&](const TokenInput& input) {
    acc += entry_weight(make_entry(value(input), position++, acc));
  };
  while (position < static_cast<int>(prompt.inputs.size())) {
    consume(prompt.inputs[static_cast<std::size_t>(position)]);
  }

  RowState row = prompt.row;
  row.num_generated = 0;
  row.done = 0;
  FakeAnswer answer;
  const TokenNote* const first_note = prompt.token_notes.data();
  const std::uint64_t notes = notes_digest(first_note, first_note + prompt.token_notes.size());
  std::vector<std::uint32_t> mask(static_cast<std::size_t>(config.vocab + 31) / 32);
  while (true) {
    std::fill(mask.begin(), mask.end(), 0u);
    if (constraint != nullptr) constraint->allowed(mask);
    const std::int32_t token = sample_token(row, acc, notes, config, mask.data());
    const StepOutput output = advance_row(row, token, acc, 1, config);
    if (output.outcome == StepOutcome::kStopped) {
      answer.reason = FinishReason::kStop;
      return answer;
    }
    answer.tokens.push_back({TokenId(token), output.x, output.y, 0, {}});
    answer.tokens.back().confidence = output.confidence;
    for (int place = 0; place < row.sampling.num_top_logprobs; ++place) {
      TopLogprob one = alternative(acc, place, config.vocab);
      if (one.token == token) one.logprob = 0;  // the loop gives it the token's own
      answer.tokens.back().top_logprobs.push_back(one);
    }
    if (output.outcome == StepOutcome::kLength) {
      answer.reason = FinishReason::kLength;
      return answer;
    }
    if (constraint != nullptr) constraint->advance(TokenId(token));
    consume(row.input);
  }
}

}  // namespace gapless
