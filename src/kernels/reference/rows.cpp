#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "kernels/kv_index.h"
#include "kernels/reference/reference_ops.h"

namespace gapless::reference {

namespace {

void fill_memory(const BeginStepParams& params, int install) {
  const TokenMemory& memory = params.token_memory;
  const std::int64_t begin = params.install_rows[install] * memory.stride;
  std::fill_n(memory.uses + begin, memory.stride, std::uint16_t{0});
  std::fill_n(memory.biases + begin, memory.stride, 0.0f);
  for (int n = params.first_notes[install]; n < params.first_notes[install + 1]; ++n) {
    const TokenNote& note = params.notes[n];
    memory.uses[begin + note.token] = note.in_prompt != 0 ? kTokenInPrompt : 0;
    memory.biases[begin + note.token] = note.bias;
  }
}

void count_use(const TokenMemory& memory, std::int32_t row, std::int32_t token) {
  std::uint16_t& uses = memory.uses[row * memory.stride + token];
  if ((uses & kMaxTokenUses) < kMaxTokenUses) ++uses;
}

}  // namespace

void begin_step(const BeginStepParams& params) {
  const int num_installs = std::min(*params.num_installs, params.max_installs);
  for (int i = 0; i < num_installs; ++i) {
    params.row_states[params.install_rows[i]] = params.installs[i];
    if ((params.installs[i].flags & kRowAdjustsLogits) != 0) fill_memory(params, i);
  }
  const int num_deltas = std::min(*params.num_deltas, params.max_deltas);
  for (int i = 0; i < num_deltas; ++i) {
    const PageTableDelta& delta = params.deltas[i];
    params.page_table[std::int64_t{delta.row} * params.page_table_stride + delta.index] =
        delta.page;
  }
}

namespace {

// Which logits the live rows read.
StepLogits step_logits(const PlanDecodeParams& params) {
  StepLogits needed;
  std::set<std::int32_t> tokens;
  for (int i = 0; i < params.num_rows; ++i) {
    if (params.rows[i] < 0 || params.row_states[params.rows[i]].done != 0) continue;
    const auto candidates =
        few_candidates(params.row_states[params.rows[i]], params.automata, params.vocab);
    if (!candidates) {
      needed.all = 1;
    } else if (candidates->size() > 1) {
      tokens.insert(candidates->begin(), candidates->end());
    }
  }
  if (tokens.size() > StepLogits::kMaxTokens) needed.all = 1;
  if (needed.all == 0) std::copy(tokens.begin(), tokens.end(), needed.tokens);
  return needed;
}

// Which rows begin with the same pages.
void find_shared_prefixes(const PlanDecodeParams& params) {
  std::map<std::int32_t, std::vector<int>> sets;  // of a slice, by their first page
  const auto pages_of = [&params](int i) {
    return params.page_table + std::int64_t{params.rows[i]} * params.page_table_stride;
  };
  const auto full_pages_of = [&params](int i) {
    return params.row_states[params.rows[i]].position / kPageTokens;
  };
  const auto tell = [&](const std::vector<int>& set) {
    if (set.size() < 2) return;
    std::uint64_t rows = 0;
    for (const int i : set) rows |= std::uint64_t{1} << i % kSharingSlice;
    const std::int32_t* first = pages_of(set.front());
    for (const int i : set) {
      const int most = std::min(full_pages_of(i), full_pages_of(set.front()));
      const std::int32_t* const differs = std::mismatch(first, first + most, pages_of(i)).first;
      params.shared_prefixes[i] = {.rows = rows,
                                   .num_pages = static_cast<std::int32_t>(differs - first)};
    }
  };
  for (int i = 0; i < params.num_rows; ++i) {
    params.shared_prefixes[i] = {};
    if (i == sharing_slice_begin(i)) {
      for (const auto& [page, set] : sets) tell(set);
      sets.clear();
    }
    if (params.rows[i] < 0 || params.row_states[params.rows[i]].done != 0) continue;
    std::vector<int>& set = sets[*pages_of(i)];
    set.push_back(i);
    if (set.size() == kMaxSharingRows) tell(std::exchange(set, {}));
  }
  for (const auto& [page, set] : sets) tell(set);
}

bool any_lives(const PlanDecodeParams& params) {
  return std::any_of(params.rows, params.rows + params.num_rows, [&](std::int32_t row) {
    return row >= 0 && params.row_states[row].done == 0;
  });
}

}  // namespace

void plan_decode(const PlanDecodeParams& params) {
  if (params.needed_logits != nullptr) *params.needed_logits = step_logits(params);
  if (params.shared_prefixes != nullptr) find_shared_prefixes(params);
  if (params.any_lives != nullptr) *params.any_lives = any_lives(params) ? 1 : 0;
  for (int i = 0; i < params.num_rows; ++i) {
    const std::int32_t row = params.rows[i];
    const bool padding = row < 0;
    if (padding || params.row_states[row].done != 0) {
      params.input_index[i] = -1;
      params.positions[i] = 0;
      params.cache_slots[i] = i % kPageTokens;  // page 0 is trash
      params.sequences[i] = {.row = padding ? 0 : row, .first_token = i};
      continue;
    }
    const std::int32_t position = params.row_states[row].position;
    const std::int32_t* page_table_row =
        params.page_table + std::int64_t{row} * params.page_table_stride;
    params.input_index[i] = row;
    params.positions[i] = position;
    params.cache_slots[i] = static_cast<std::int32_t>(kv_slot(page_table_row, position));
    params.sequences[i] = {
        .row = row, .first_token = i, .num_tokens = 1, .num_cached = position, .prefix_len = 0};
  }
}

void gather_rows(const GatherRowsParams& params) {
  const std::int64_t dim = params.dim;
  for (std::int64_t i = 0; i < params.num_rows; ++i) {
    const float* from = static_cast<const float*>(params.x) + params.index[i] * dim;
    std::copy(from, from + dim, static_cast<float*>(params.y) + i * dim);
  }
}

namespace {

bool is_stop_id(const RowState& row, std::int32_t token) {
  return std::find(row.stop_ids, row.stop_ids + row.num_stop_ids, token) !=
         row.stop_ids + row.num_stop_ids;
}

TokenInput next_input(const AdvanceRowsParams& params, const RowState& row, int i) {
  const std::int32_t token = params.tokens[i];
  if ((row.flags & kRowDecodesRegions) != 0) {
    const float* values = params.values + std::int64_t{i} * 2;
    if (token == params.coord_id) return {InputKind::kCoord, token, values[0], 0};
    if (token == params.size_id) return {InputKind::kSize, token, values[0], values[1]};
  }
  return {InputKind::kText, token, 0, 0};
}

void move_automaton(const AdvanceRowsParams& params, RowState& row, std::int32_t token) {
  if (row.automaton == kNoAutomaton) return;
  const AutomatonState& state = params.automata[row.automaton];
  for (int edge = 0; edge < state.num_edges; ++edge) {
    if (state.tokens[edge] != token || state.next[edge] == kForbiddenEdge) continue;
    row.automaton = state.next[edge];
    const bool is_exit = state.is_open != 0 && edge == 0 && row.max_after_exit > 0;
    if (is_exit) row.max_generated = row.num_generated + row.max_after_exit;
    return;
  }
  if (state.is_open != 0 || state.classes == 0) return;
  const int token_class = params.token_classes[token];
  if ((state.classes & (1u << token_class)) != 0) row.automaton = state.class_next[token_class];
}

StepOutput advance(const AdvanceRowsParams& params, RowState& row, int i) {
  const std::int32_t token = params.tokens[i];
  const std::int32_t consumed = params.tokens_consumed != nullptr ? params.tokens_consumed[i] : 1;
  row.input = next_input(params, row, i);
  row.position += consumed;
  row.num_generated += 1;
  move_automaton(params, row, token);

  StepOutcome outcome = StepOutcome::kContinues;
  if (is_stop_id(row, token)) {
    outcome = StepOutcome::kStopped;
  } else if (row.num_generated >= row.max_generated) {
    outcome = StepOutcome::kLength;
  }
  row.done = outcome != StepOutcome::kContinues;
  StepOutput output{.token = token,
                    .outcome = outcome,
                    .x = row.input.x,
                    .y = row.input.y,
                    .logprob = params.logprobs[i],
                    .position = row.position - 1,
                    .confidence = {}};
  if ((row.flags & kRowWantsConfidence) != 0) {
    output.confidence.token = params.confidences[i].token;
    if (row.input.kind != InputKind::kText) {
      output.confidence.x = params.confidences[i].x;
      output.confidence.y = params.confidences[i].y;
    }
  }
  return output;
}

}  // namespace

void advance_rows(const AdvanceRowsParams& params) {
  for (int i = 0; i < params.num_rows; ++i) {
    StepOutput& output = params.outputs[i];
    output = {.token = -1, .outcome = StepOutcome::kAlreadyDone};
    if (params.rows[i] < 0) continue;
    RowState& row = params.row_states[params.rows[i]];
    if (row.done != 0) {
      output.position = row.position;
    } else {
      output = advance(params, row, i);
      if ((row.flags & kRowAdjustsLogits) != 0) {
        count_use(params.token_memory, params.rows[i], output.token);
      }
    }
  }
}

}  // namespace gapless::reference
