#include "pipeline/fill_inputs.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "pipeline/step_graphs.h"

namespace gapless {
namespace {

void set_no_changes(const StepInputs& inputs) {
  *inputs.num_installs = 0;
  *inputs.num_deltas = 0;
  *inputs.num_copies = 0;
}

// The row as it stands before its prefill.
RowState installed_row(const Sequence& sequence) {
  RowState row = sequence.prompt.row;
  row.input = TokenInput{};
  row.position = sequence.num_cached;
  row.num_generated = 0;
  row.done = 0;
  return row;
}

void fill_page_deltas(const Sequence& sequence, const PageTable& pages, const StepInputs& inputs) {
  std::int32_t index = 0;
  for (const PageId page : pages.pages()) {
    inputs.deltas[(*inputs.num_deltas)++] = {sequence.row.value, index++, page.value};
  }
  if (!sequence.tail_page.valid()) return;
  // The page behind the shared ones is our own: the end of the prefix goes there.
  const auto own = static_cast<std::size_t>(sequence.num_cached / kPageTokens);
  inputs.copies[(*inputs.num_copies)++] = {sequence.tail_page.value, pages.pages()[own].value};
}

int fill_tokens(const Sequence& sequence, const PageTable& pages, int image_tokens, int first_token,
                const StepInputs& inputs) {
  int token = first_token;
  for (int position = sequence.num_cached; position < sequence.prompt_tokens(); ++position) {
    TokenInput input = sequence.prompt.inputs[static_cast<std::size_t>(position)];
    if (input.kind == InputKind::kImage) {
      const auto image = static_cast<std::size_t>(input.id / image_tokens);
      input.id = sequence.image_slots[image].value * image_tokens + input.id % image_tokens;
    }
    inputs.inputs[token] = input;
    inputs.positions[token] = position;
    inputs.cache_slots[token] = pages.cache_slot(position);
    ++token;
  }
  return token - first_token;
}

// The blocks that the prefill computes; their tokens start at first_token.
void fill_segments(const Sequence& sequence, int image_tokens, int first_token, StepShape& shape,
                   const StepInputs& inputs) {
  const int num_segments = sequence.num_segments();
  int begin = sequence.num_cached;
  for (int i = 1; i <= num_segments; ++i) {
    const int num_images = sequence.num_images() - num_segments + i;
    const int prefix_len = prefix_end(sequence.prompt, num_images, image_tokens);
    const int end = i == num_segments ? sequence.prompt_tokens() : prefix_len;
    inputs.sequences[shape.num_segments++] = {.row = sequence.row.value,
                                              .first_token = first_token,
                                              .num_tokens = end - begin,
                                              .num_cached = begin,
                                              .prefix_len = prefix_len};
    shape.max_new_tokens = std::max(shape.max_new_tokens, end - begin);
    first_token += end - begin;
    begin = end;
  }
}

// What the row that is installed as the i-th one knows of tokens.
void fill_notes(const Sequence& sequence, int i, StepShape& shape, const StepInputs& inputs) {
  const std::vector<TokenNote>& notes = sequence.prompt.token_notes;
  std::copy(notes.begin(), notes.end(), inputs.notes + shape.num_token_notes);
  inputs.first_notes[i] = shape.num_token_notes;
  shape.num_token_notes += static_cast<int>(notes.size());
  inputs.first_notes[i + 1] = shape.num_token_notes;
}

// Up to the bucket; nothing to do where the shape is exact already.
void pad_prefill(const StepLimits& limits, StepShape& shape, const StepInputs& inputs) {
  if (shape.num_tokens > limits.max_graph_tokens) return;
  const int num_tokens = prefill_token_bucket(shape.num_tokens, limits);
  // A graph has as many rows as segments: padding rows fill up where prompts have several images.
  const int num_rows = prefill_row_bucket(shape.num_segments, limits.max_prefill_sequences);
  std::fill(inputs.inputs + shape.num_tokens, inputs.inputs + num_tokens, TokenInput{});
  std::fill(inputs.positions + shape.num_tokens, inputs.positions + num_tokens, 0);
  std::fill(inputs.cache_slots + shape.num_tokens, inputs.cache_slots + num_tokens, 0);
  std::fill(inputs.rows + shape.num_rows, inputs.rows + num_rows, -1);
  std::fill(inputs.sequences + shape.num_segments, inputs.sequences + num_rows,
            AttentionSequence{});
  std::fill(inputs.last_tokens + shape.num_rows, inputs.last_tokens + num_rows, 0);
  std::fill(inputs.tokens_consumed + shape.num_rows, inputs.tokens_consumed + num_rows, 0);
  shape.num_tokens = num_tokens;
  shape.max_new_tokens = num_tokens;
  shape.num_rows = num_rows;
  shape.num_segments = num_rows;
}

}  // namespace

StepShape fill_decode(const StepPlan& plan, const StepLimits& limits, const StepInputs& inputs) {
  set_no_changes(inputs);
  StepShape shape;
  shape.kind = StepKind::kDecode;
  shape.num_rows = decode_bucket(plan.num_rows, limits.max_seats);
  shape.with_regions = plan.with_regions;
  shape.with_grammars = plan.with_grammars;
  shape.with_top_logprobs = plan.with_top_logprobs;
  std::int32_t* out = inputs.rows;
  for (const RowId row : plan.rows()) *out++ = row.value;
  std::fill(out, inputs.rows + shape.num_rows, -1);
  return shape;
}

StepShape fill_prefill(const StepPlan& plan, const StepLimits& limits, const Seating& seating,
                       int image_tokens, const StepInputs& inputs) {
  set_no_changes(inputs);
  StepShape shape;
  shape.kind = StepKind::kPrefill;
  shape.num_rows = plan.num_rows;
  shape.with_regions = plan.with_regions;
  shape.with_grammars = plan.with_grammars;
  shape.with_top_logprobs = plan.with_top_logprobs;
  int i = 0;
  for (const RowId row : plan.rows()) {
    const Sequence& sequence = *seating.at(row);
    const PageTable& pages = seating.pages(row);
    fill_page_deltas(sequence, pages, inputs);
    const int num_tokens = fill_tokens(sequence, pages, image_tokens, shape.num_tokens, inputs);
    inputs.rows[i] = row.value;
    inputs.install_rows[i] = row.value;
    inputs.installs[i] = installed_row(sequence);
    fill_notes(sequence, i, shape, inputs);
    fill_segments(sequence, image_tokens, shape.num_tokens, shape, inputs);
    inputs.last_tokens[i] = shape.num_tokens + num_tokens - 1;
    inputs.tokens_consumed[i] = num_tokens;
    shape.num_tokens += num_tokens;
    ++i;
  }
  *inputs.num_installs = plan.num_rows;
  pad_prefill(limits, shape, inputs);
  return shape;
}

StepShape fill_encode(const StepPlan& plan, const Seating& seating, std::size_t crop_bytes,
                      EncodeLists& lists) {
  lists.images.clear();
  lists.copies.clear();
  StepShape shape;
  shape.kind = StepKind::kEncode;
  // Not 0 only where one image goes on alone.
  shape.first_crop = plan.images().front().first_crop;
  for (const PlannedImage& planned : plan.images()) {
    const Sequence& sequence = *seating.at(planned.row);
    const auto index = static_cast<std::size_t>(planned.image);
    const PreparedImage& image = sequence.prompt.images[index];
    const int end_crop = planned.first_crop + planned.num_crops;
    if (end_crop == std::ssize(image.crops_pinned)) {
      // One that goes on is alone: its features begin with the first place.
      lists.images.push_back({.first_crop = shape.num_crops,
                              .num_crops = end_crop,
                              .tile_rows = image.tile_rows,
                              .tile_cols = image.tile_cols,
                              .image_slot = sequence.image_slots[index].value});
    }
    for (int i = planned.first_crop; i < end_crop; ++i) {
      const std::uint8_t* const crop = image.crops_pinned[static_cast<std::size_t>(i)];
      CropCopy* last = lists.copies.empty() ? nullptr : &lists.copies.back();
      if (last != nullptr && last->from_pinned + last->bytes == crop) {
        last->bytes += crop_bytes;  // neighbours in pinned memory go up in one copy
      } else {
        const auto place = static_cast<std::size_t>(shape.num_crops);
        lists.copies.push_back({crop, crop_bytes * place, crop_bytes});
      }
      ++shape.num_crops;
    }
  }
  return shape;
}

}  // namespace gapless
