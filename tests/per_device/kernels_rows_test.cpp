#include <cstring>
#include <optional>
#include <set>
#include <vector>

#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

constexpr std::int32_t kCoordId = 5, kSizeId = 6;

using RowsTest = KernelsTest;

bool same_bytes(const RowState& a, const RowState& b) {
  return std::memcmp(&a, &b, sizeof(RowState)) == 0;
}

RowState numbered_row(int number) {
  RowState row;
  row.input = {InputKind::kText, number, 0, 0};
  row.position = 100 + number;
  row.sampling.seed = 0x1234567890ull + number;
  return row;
}

TEST_F(RowsTest, BeginStepInstallsRowsAndPages) {
  constexpr int kRows = 6, kStride = 8;
  std::vector<RowState> states(kRows);
  for (int i = 0; i < kRows; ++i) states[i] = numbered_row(i);
  std::vector<std::int32_t> table(kRows * kStride, 77);
  const std::vector<std::int32_t> install_rows = {4, 0, 2};
  const std::vector<RowState> installs = {numbered_row(40), numbered_row(41), numbered_row(42)};
  const std::vector<PageTableDelta> deltas = {{4, 0, 9}, {4, 7, 8}, {1, 3, 3}, {5, 5, 5}};
  // The lists are longer than what this step uses.
  const std::vector<std::int32_t> num_installs = {2}, num_deltas = {3};

  std::vector<RowState> expected_states = states;
  expected_states[4] = installs[0];
  expected_states[0] = installs[1];
  std::vector<std::int32_t> expected_table = table;
  expected_table[4 * kStride + 0] = 9;
  expected_table[4 * kStride + 7] = 8;
  expected_table[1 * kStride + 3] = 3;

  const Buffer states_dev = upload(states), table_dev = upload(table);
  const Buffer rows_dev = upload(install_rows), installs_dev = upload(installs);
  const Buffer deltas_dev = upload(deltas);
  const Buffer num_installs_dev = upload(num_installs), num_deltas_dev = upload(num_deltas);
  BeginStepParams p{.install_rows = rows_dev.as<std::int32_t>(),
                    .installs = installs_dev.as<RowState>(),
                    .deltas = deltas_dev.as<PageTableDelta>(),
                    .num_installs = num_installs_dev.as<std::int32_t>(),
                    .num_deltas = num_deltas_dev.as<std::int32_t>(),
                    .max_installs = 3,
                    .max_deltas = 4,
                    .row_states = states_dev.as<RowState>(),
                    .page_table = table_dev.as<std::int32_t>(),
                    .page_table_stride = kStride};
  run(kernels_->begin_step(*stream_, p));
  const std::vector<RowState> actual = download<RowState>(states_dev);
  for (int i = 0; i < kRows; ++i) EXPECT_TRUE(same_bytes(actual[i], expected_states[i])) << i;
  EXPECT_EQ(download<std::int32_t>(table_dev), expected_table);

  // Nothing to install, no deltas: nothing changes.
  const Buffer zero_dev = upload(std::vector<std::int32_t>{0});
  p.num_installs = p.num_deltas = zero_dev.as<std::int32_t>();
  run(kernels_->begin_step(*stream_, p));
  EXPECT_EQ(download<std::int32_t>(table_dev), expected_table);
  EXPECT_TRUE(same_bytes(download<RowState>(states_dev)[4], installs[0]));
}

// More than one thread block of the GPU takes.
TEST_F(RowsTest, BeginStepMakesEveryPageTableChangeOfALongList) {
  constexpr int kRows = 8, kStride = 128, kNumDeltas = 1000;
  std::vector<std::int32_t> table(kRows * kStride, 77);
  std::vector<PageTableDelta> deltas;
  for (int i = 0; i < kNumDeltas; ++i) deltas.push_back({i % kRows, i / kRows, 100 + i});
  const Buffer states_dev = upload(std::vector<RowState>(kRows));
  const Buffer table_dev = upload(table), deltas_dev = upload(deltas);
  const Buffer rows_dev = upload(std::vector<std::int32_t>{0});
  const Buffer installs_dev = upload(std::vector<RowState>(1));
  const Buffer num_installs_dev = upload(std::vector<std::int32_t>{0});
  const Buffer num_deltas_dev = upload(std::vector<std::int32_t>{kNumDeltas});
  run(kernels_->begin_step(*stream_, {.install_rows = rows_dev.as<std::int32_t>(),
                                      .installs = installs_dev.as<RowState>(),
                                      .deltas = deltas_dev.as<PageTableDelta>(),
                                      .num_installs = num_installs_dev.as<std::int32_t>(),
                                      .num_deltas = num_deltas_dev.as<std::int32_t>(),
                                      .max_installs = 1,
                                      .max_deltas = kNumDeltas,
                                      .row_states = states_dev.as<RowState>(),
                                      .page_table = table_dev.as<std::int32_t>(),
                                      .page_table_stride = kStride}));
  for (const PageTableDelta& delta : deltas) {
    table[static_cast<std::size_t>(delta.row * kStride + delta.index)] = delta.page;
  }
  EXPECT_EQ(download<std::int32_t>(table_dev), table);
}

TEST_F(RowsTest, BeginStepGivesAdjustingRowsTheirTokenMemory) {
  constexpr int kRows = 5, kVocab = 1021;
  const std::int64_t stride = token_memory_stride(kVocab);
  const std::size_t entries = static_cast<std::size_t>(kRows * stride);
  const std::vector<std::uint16_t> old_uses(entries, 7);
  const std::vector<float> old_biases(entries, 7.5f);
  const std::vector<std::int32_t> install_rows = {3, 1, 4, 0};
  std::vector<RowState> installs(4);
  for (const int i : {0, 2, 3}) installs[i].flags = kRowAdjustsLogits;
  const std::vector<std::int32_t> first_notes = {0, 2, 2, 2, 5};
  const std::vector<TokenNote> notes = {{.token = 0, .in_prompt = 1},
                                        {.token = kVocab - 1, .bias = -3},
                                        {.token = 8, .in_prompt = 1, .bias = 2},
                                        {.token = 9, .in_prompt = 1},
                                        {.token = 500, .bias = 100}};
  const std::vector<std::int32_t> num_installs = {4}, num_deltas = {0};

  std::vector<std::uint16_t> uses = old_uses;
  std::vector<float> biases = old_biases;
  for (const int row : {3, 4, 0}) {  // row 1 is plain, row 2 is not seated
    std::fill_n(uses.begin() + row * stride, stride, 0);
    std::fill_n(biases.begin() + row * stride, stride, 0.0f);
  }
  uses[3 * stride + 0] = uses[8] = uses[9] = kTokenInPrompt;
  biases[3 * stride + kVocab - 1] = -3;
  biases[8] = 2;
  biases[500] = 100;

  const Buffer states_dev = upload(std::vector<RowState>(kRows));
  const Buffer table_dev = upload(std::vector<std::int32_t>(kRows * 8));
  const Buffer rows_dev = upload(install_rows), installs_dev = upload(installs);
  const Buffer first_dev = upload(first_notes), notes_dev = upload(notes);
  const Buffer num_installs_dev = upload(num_installs), num_deltas_dev = upload(num_deltas);
  const Buffer uses_dev = upload(old_uses), biases_dev = upload(old_biases);
  const Buffer deltas_dev = upload(std::vector<PageTableDelta>(1));
  run(kernels_->begin_step(*stream_, {.install_rows = rows_dev.as<std::int32_t>(),
                                      .installs = installs_dev.as<RowState>(),
                                      .first_notes = first_dev.as<std::int32_t>(),
                                      .notes = notes_dev.as<TokenNote>(),
                                      .deltas = deltas_dev.as<PageTableDelta>(),
                                      .num_installs = num_installs_dev.as<std::int32_t>(),
                                      .num_deltas = num_deltas_dev.as<std::int32_t>(),
                                      .max_installs = 4,
                                      .max_deltas = 1,
                                      .row_states = states_dev.as<RowState>(),
                                      .page_table = table_dev.as<std::int32_t>(),
                                      .page_table_stride = 8,
                                      .token_memory = {.uses = uses_dev.as<std::uint16_t>(),
                                                       .biases = biases_dev.as<float>(),
                                                       .stride = stride}}));
  EXPECT_EQ(download<std::uint16_t>(uses_dev), uses);
  EXPECT_EQ(download<float>(biases_dev), biases);
}

TEST_F(RowsTest, PlanDecodeOfLiveDoneAndPaddingRows) {
  constexpr int kSeats = 5, kStride = 128;
  std::vector<RowState> states(kSeats);
  std::vector<std::int32_t> table(kSeats * kStride);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(1000 + i);
  states[0].position = 0;
  states[1].position = 15;
  states[2].position = 2047;
  states[3].position = 2048;  // past the end, and past its page-table row
  states[3].done = 1;
  states[4].position = 16;
  const std::vector<std::int32_t> rows = {4, 2, 3, -1, 0, 1, -1};
  const int num_rows = static_cast<int>(rows.size());

  const Buffer states_dev = upload(states), table_dev = upload(table), rows_dev = upload(rows);
  const std::size_t ints = (num_rows + 1) * sizeof(std::int32_t);
  const Buffer positions = poisoned_bytes(ints), slots = poisoned_bytes(ints);
  const Buffer index = upload(std::vector<std::int32_t>(num_rows + 1, -7));
  const Buffer sequences = poisoned_bytes((num_rows + 1) * sizeof(AttentionSequence));
  run(kernels_->plan_decode(*stream_, {.rows = rows_dev.as<std::int32_t>(),
                                       .row_states = states_dev.as<RowState>(),
                                       .page_table = table_dev.as<std::int32_t>(),
                                       .page_table_stride = kStride,
                                       .num_rows = num_rows,
                                       .positions = positions.as<std::int32_t>(),
                                       .cache_slots = slots.as<std::int32_t>(),
                                       .sequences = sequences.as<AttentionSequence>(),
                                       .input_index = index.as<std::int32_t>()}));
  using Ints = std::vector<std::int32_t>;
  EXPECT_EQ(download<std::int32_t>(positions), (Ints{16, 2047, 0, 0, 0, 15, 0, -1}));
  EXPECT_EQ(download<std::int32_t>(index), (Ints{4, 2, -1, -1, 0, 1, -1, -7}));
  const Ints slot = download<std::int32_t>(slots);
  EXPECT_EQ(slot[0], (1000 + 4 * kStride + 1) * kPageTokens);
  EXPECT_EQ(slot[1], (1000 + 2 * kStride + 127) * kPageTokens + 15);
  EXPECT_EQ(slot[4], 1000 * kPageTokens);
  EXPECT_EQ(slot[5], (1000 + kStride) * kPageTokens + 15);
  for (const int i : {2, 3, 6}) {
    EXPECT_GE(slot[i], 0) << "row " << i;
    EXPECT_LT(slot[i], kPageTokens) << "row " << i << " must write into the trash page";
  }
  EXPECT_EQ(slot[7], -1) << "wrote past the last row";

  const auto sequence = download<AttentionSequence>(sequences);
  for (int i = 0; i < num_rows; ++i) {
    const bool live = rows[i] >= 0 && rows[i] != 3;
    EXPECT_EQ(sequence[i].row, rows[i] < 0 ? 0 : rows[i]) << i;
    EXPECT_EQ(sequence[i].first_token, i);
    EXPECT_EQ(sequence[i].num_tokens, live ? 1 : 0) << i;
    EXPECT_EQ(sequence[i].num_cached, live ? states[rows[i]].position : 0) << i;
    EXPECT_EQ(sequence[i].prefix_len, 0) << i;
  }
  EXPECT_EQ(sequence[num_rows].row, -1) << "wrote past the last row";
}

// In any place of the step, and whatever the others are.
TEST_F(RowsTest, PlanDecodeSaysWhetherAnyRowLives) {
  constexpr int kStride = 1;
  for (const int num_rows : {1, 33, 64}) {
    for (int live = -1; live < num_rows; live += std::max(num_rows / 4, 1)) {
      SCOPED_TRACE(std::to_string(num_rows) + " rows, alive: " + std::to_string(live));
      std::vector<RowState> states(static_cast<std::size_t>(num_rows));
      std::vector<std::int32_t> rows;
      for (int i = 0; i < num_rows; ++i) {
        states[static_cast<std::size_t>(i)].done = i == live ? 0 : 1;
        rows.push_back(i != live && i % 3 == 0 ? -1 : i);
      }
      const Buffer states_dev = upload(states), rows_dev = upload(rows);
      const Buffer table = upload(std::vector<std::int32_t>(rows.size() * kStride, 1));
      const std::size_t ints = rows.size() * sizeof(std::int32_t);
      const Buffer positions = poisoned_bytes(ints), slots = poisoned_bytes(ints);
      const Buffer index = poisoned_bytes(ints);
      const Buffer sequences = poisoned_bytes(rows.size() * sizeof(AttentionSequence));
      const Buffer any_lives = poisoned_bytes(2 * sizeof(std::uint32_t));
      const std::uint32_t poison = download<std::uint32_t>(any_lives)[1];
      run(kernels_->plan_decode(*stream_, {.rows = rows_dev.as<std::int32_t>(),
                                           .row_states = states_dev.as<RowState>(),
                                           .page_table = table.as<std::int32_t>(),
                                           .page_table_stride = kStride,
                                           .num_rows = num_rows,
                                           .positions = positions.as<std::int32_t>(),
                                           .cache_slots = slots.as<std::int32_t>(),
                                           .sequences = sequences.as<AttentionSequence>(),
                                           .input_index = index.as<std::int32_t>(),
                                           .any_lives = any_lives.as<std::uint32_t>()}));
      EXPECT_EQ(download<std::uint32_t>(any_lives),
                (std::vector<std::uint32_t>{live >= 0 ? 1u : 0u, poison}));
    }
  }
}

// Which rows of a step begin with the same pages.
class PlanSharedPrefixesTest : public KernelsTest {
 protected:
  static constexpr int kStride = 128;

  // A row of so many tokens whose first `num_common` pages are those of a picture. Done rows: -1.
  void add(int position, int picture, int num_common) {
    const auto row = static_cast<std::int32_t>(states_.size());
    rows_.push_back(row);
    states_.push_back({.position = std::max(position, 0)});
    states_.back().done = position < 0 ? 1 : 0;
    for (int page = 0; page < kStride; ++page) {
      table_.push_back(page < num_common ? 100'000 + picture * kStride + page
                                         : 1 + row * kStride + page);
    }
  }

  std::vector<SharedPrefix> plan() {
    const std::size_t num_rows = rows_.size();
    const Buffer states = upload(states_), rows = upload(rows_), table = upload(table_);
    const std::size_t ints = num_rows * sizeof(std::int32_t);
    const Buffer positions = poisoned_bytes(ints), slots = poisoned_bytes(ints);
    const Buffer index = poisoned_bytes(ints);
    const Buffer sequences = poisoned_bytes(num_rows * sizeof(AttentionSequence));
    const Buffer prefixes = poisoned_bytes(num_rows * sizeof(SharedPrefix));
    run(kernels_->plan_decode(*stream_, {.rows = rows.as<std::int32_t>(),
                                         .row_states = states.as<RowState>(),
                                         .page_table = table.as<std::int32_t>(),
                                         .page_table_stride = kStride,
                                         .num_rows = static_cast<int>(num_rows),
                                         .positions = positions.as<std::int32_t>(),
                                         .cache_slots = slots.as<std::int32_t>(),
                                         .sequences = sequences.as<AttentionSequence>(),
                                         .input_index = index.as<std::int32_t>(),
                                         .shared_prefixes = prefixes.as<SharedPrefix>()}));
    // Sequences are planned as ever.
    const auto planned = download<AttentionSequence>(sequences);
    for (std::size_t i = 0; i < num_rows; ++i) {
      EXPECT_EQ(planned[i].first_token, static_cast<int>(i));
      const bool lives = rows_[i] >= 0 && states_[static_cast<std::size_t>(rows_[i])].done == 0;
      EXPECT_EQ(planned[i].num_tokens, lives ? 1 : 0) << i;
    }
    return download<SharedPrefix>(prefixes);
  }

  std::vector<RowState> states_;
  std::vector<std::int32_t> rows_, table_;
};

TEST_F(PlanSharedPrefixesTest, RowsWithTheSameFirstPagesAreASet) {
  add(850, 0, 45), add(850, 1, 45), add(900, 0, 45), add(700, 2, 45), add(800, 1, 30);
  const std::vector<SharedPrefix> prefixes = plan();
  EXPECT_EQ(prefixes[0].rows, 0b00101u);
  EXPECT_EQ(prefixes[2].rows, 0b00101u);
  EXPECT_EQ(prefixes[2].num_pages, 45);
  EXPECT_EQ(prefixes[1].rows, 0b10010u);
  EXPECT_EQ(prefixes[4].rows, 0b10010u);
  EXPECT_EQ(prefixes[4].num_pages, 30);
  EXPECT_EQ(prefixes[3].rows, 0u) << "nobody else is about its picture";
  // What a set's first row has in common with itself are all pages that are full.
  EXPECT_EQ(prefixes[0].num_pages, 53);
}

TEST_F(PlanSharedPrefixesTest, APageThatIsNotFullIsNotShared) {
  add(850, 0, 128), add(719, 0, 128), add(720, 0, 128), add(15, 0, 128);
  const std::vector<SharedPrefix> prefixes = plan();
  EXPECT_EQ(prefixes[1].rows, 0b1111u);
  EXPECT_EQ(prefixes[1].num_pages, 44);
  EXPECT_EQ(prefixes[2].num_pages, 45);
  EXPECT_EQ(prefixes[3].num_pages, 0);
  states_[3].position = 0;
  EXPECT_EQ(plan()[3].num_pages, 0);
  // Neither is one that the first row has not filled.
  states_[0].position = 40;
  EXPECT_EQ(plan()[2].num_pages, 2);
}

TEST_F(PlanSharedPrefixesTest, DoneAndPaddingRowsAreInNoSet) {
  add(850, 0, 45), add(-1, 0, 45), add(850, 0, 45), add(850, 0, 45);
  rows_[2] = -1;
  std::vector<SharedPrefix> prefixes = plan();
  EXPECT_EQ(prefixes[0].rows, 0b1001u);
  EXPECT_EQ(prefixes[1].rows, 0u);
  EXPECT_EQ(prefixes[2].rows, 0u);
  EXPECT_EQ(prefixes[3].rows, 0b1001u);
  states_[0].done = 1;
  for (const SharedPrefix& prefix : plan()) EXPECT_EQ(prefix.rows, 0u);
}

TEST_F(PlanSharedPrefixesTest, ManyRowsAreSeveralSets) {
  for (int i = 0; i < kMaxSeats; ++i) add(850 + i, i % 3 == 0 ? 1 : 0, 100);
  const std::vector<SharedPrefix> prefixes = plan();
  std::vector<std::uint64_t> sets(kMaxSeats);
  for (int at = 0; at < 2 * kMaxSeats / kSharingSlice; ++at) {
    const int picture = at % 2, slice = at / 2 * kSharingSlice;
    std::vector<int> members;
    for (int i = slice; i < slice + kSharingSlice; ++i) {
      if ((i % 3 == 0 ? 1 : 0) == picture) members.push_back(i);
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      const std::size_t begin = i / kMaxSharingRows * kMaxSharingRows;
      const std::size_t end = std::min(begin + kMaxSharingRows, members.size());
      for (std::size_t k = begin; end - begin > 1 && k < end; ++k) {
        sets[static_cast<std::size_t>(members[i])] |= std::uint64_t{1}
                                                      << members[k] % kSharingSlice;
      }
    }
  }
  for (std::size_t i = 0; i < sets.size(); ++i) {
    EXPECT_EQ(prefixes[i].rows, sets[i]) << i;
    if (sets[i] != 0) {
      EXPECT_GE(prefixes[i].num_pages, 850 / kPageTokens) << i;
    }
  }
}

// Which logits a step's rows will read.
class PlanLogitsTest : public KernelsTest {
 protected:
  static constexpr std::int32_t kCoord = 5, kSize = 6, kEos = 0;
  static constexpr int kVocab = 1000;
  enum State { kX, kY, kBoxSize, kOpen, kClasses, kMany, kOutside };

  PlanLogitsTest() {
    automata_ = {{.num_edges = 2, .tokens = {kCoord, kEos}, .next = {kY, kX}},
                 {.num_edges = 1, .tokens = {kCoord}, .next = {kX}},
                 {.num_edges = 1, .tokens = {kSize}, .next = {kX}},
                 {.num_edges = 1, .tokens = {kEos}, .next = {kForbiddenEdge}, .is_open = 1},
                 {.num_edges = 1, .tokens = {kEos}, .next = {kX}, .classes = 1u << 3},
                 {.num_edges = 4, .tokens = {7, 300, 7, 999}, .next = {kX, kX, kX, kX}},
                 {.num_edges = 3, .tokens = {8, kVocab, -1}, .next = {kX, kX, kX}}};
  }

  RowState& add(std::int32_t automaton) {
    rows_.push_back(static_cast<std::int32_t>(states_.size()));
    states_.push_back({.max_generated = 100, .automaton = automaton, .flags = kRowSkipsLogprob});
    states_.back().num_stop_ids = 1;
    states_.back().stop_ids[0] = kEos;
    return states_.back();
  }

  // Empty: all of them.
  std::optional<std::set<std::int32_t>> plan() {
    const auto num_rows = static_cast<int>(rows_.size());
    const Buffer states = upload(states_), rows = upload(rows_), automata = upload(automata_);
    const Buffer table = upload(std::vector<std::int32_t>(states_.size() * 8));
    const auto ints = static_cast<std::size_t>(num_rows) * sizeof(std::int32_t);
    const Buffer positions = poisoned_bytes(ints), slots = poisoned_bytes(ints);
    const Buffer index = poisoned_bytes(ints);
    const Buffer sequences =
        poisoned_bytes(static_cast<std::size_t>(num_rows) * sizeof(AttentionSequence));
    const Buffer needed = poisoned_bytes(sizeof(StepLogits));
    run(kernels_->plan_decode(*stream_, {.rows = rows.as<std::int32_t>(),
                                         .row_states = states.as<RowState>(),
                                         .page_table = table.as<std::int32_t>(),
                                         .page_table_stride = 8,
                                         .num_rows = num_rows,
                                         .positions = positions.as<std::int32_t>(),
                                         .cache_slots = slots.as<std::int32_t>(),
                                         .sequences = sequences.as<AttentionSequence>(),
                                         .input_index = index.as<std::int32_t>(),
                                         .automata = automata.as<AutomatonState>(),
                                         .vocab = kVocab,
                                         .needed_logits = needed.as<StepLogits>()}));
    const StepLogits found = download<StepLogits>(needed)[0];
    if (found.all != 0) return std::nullopt;
    std::set<std::int32_t> tokens;
    for (const std::int32_t token : found.tokens) {
      if (token == -1) continue;
      EXPECT_TRUE(token >= 0 && token < kVocab) << token;
      EXPECT_TRUE(tokens.insert(token).second) << token << " twice";
    }
    return tokens;
  }
  std::optional<std::set<std::int32_t>> plan_one(std::int32_t automaton) {
    states_.clear(), rows_.clear();
    add(automaton);
    return plan();
  }

  std::vector<AutomatonState> automata_;
  std::vector<RowState> states_;
  std::vector<std::int32_t> rows_;
};

using Tokens = std::set<std::int32_t>;

TEST_F(PlanLogitsTest, AStateThatListsItsTokensReadsTheirsAndOneTokenNone) {
  EXPECT_EQ(plan_one(kX), (Tokens{kEos, kCoord}));
  EXPECT_EQ(plan_one(kY), Tokens{});
  EXPECT_EQ(plan_one(kBoxSize), Tokens{});
  EXPECT_EQ(plan_one(kMany), (Tokens{7, 300, 999}));
  EXPECT_EQ(plan_one(kOutside), Tokens{}) << "the only token of the vocabulary comes anyway";
  for (const std::int32_t automaton : {std::int32_t{kOpen}, std::int32_t{kClasses}, kNoAutomaton}) {
    EXPECT_EQ(plan_one(automaton), std::nullopt) << automaton;
  }
}

TEST_F(PlanLogitsTest, WhoTellsLogprobsReadsAll) {
  add(kY).flags = 0;
  EXPECT_EQ(plan(), std::nullopt);
  states_[0].flags = kRowSkipsLogprob;
  EXPECT_EQ(plan(), Tokens{});
  states_[0].sampling.num_top_logprobs = 1;
  EXPECT_EQ(plan(), std::nullopt);
}

TEST_F(PlanLogitsTest, HeldBackStopIdsAreNoCandidates) {
  add(kX).sampling.min_tokens = 3;
  EXPECT_EQ(plan(), Tokens{}) << "only the coordinate is left";
  states_[0].num_generated = 3;
  EXPECT_EQ(plan(), (Tokens{kEos, kCoord}));
}

// An exit that must be taken is the only token of an open state.
TEST_F(PlanLogitsTest, AnOpenStateAtItsLimitReadsNone) {
  automata_[kOpen] = {.num_edges = 1, .tokens = {3}, .next = {kX}, .is_open = 1};
  RowState& row = add(kOpen);
  row.max_after_exit = 5;
  row.exit_at = 4;
  EXPECT_EQ(plan(), std::nullopt);
  states_[0].num_generated = 4;
  EXPECT_EQ(plan(), Tokens{});
}

TEST_F(PlanLogitsTest, AStepReadsWhatItsLiveRowsReadTogether) {
  for (int i = 0; i < 64; ++i) add(i % 3);
  EXPECT_EQ(plan(), (Tokens{kEos, kCoord}));
  states_[40].automaton = kMany;
  EXPECT_EQ(plan(), (Tokens{kEos, kCoord, 7, 300, 999}));
  for (const int plain : {0, 33, 63}) {
    states_[static_cast<std::size_t>(plain)].automaton = kNoAutomaton;
    EXPECT_EQ(plan(), std::nullopt) << plain;
    states_[static_cast<std::size_t>(plain)].done = 1;
    EXPECT_EQ(plan(), (Tokens{kEos, kCoord, 7, 300, 999})) << "who is done reads nothing";
  }
  rows_.assign(rows_.size(), -1);
  EXPECT_EQ(plan(), Tokens{});
}

TEST_F(PlanLogitsTest, MoreTokensThanThereIsRoomForAreAll) {
  for (int i = 0; i < 3; ++i) {
    const std::int32_t first = 100 * i;
    automata_.push_back(
        {.num_edges = 3, .tokens = {first, first + 1, first + 2}, .next = {kX, kX, kX}});
    EXPECT_EQ(plan_one(static_cast<std::int32_t>(automata_.size()) - 1),
              (Tokens{first, first + 1, first + 2}));
  }
  states_.clear(), rows_.clear();
  for (std::size_t i = 0; i < 3; ++i) add(static_cast<std::int32_t>(automata_.size() - 1 - i));
  EXPECT_EQ(plan(), std::nullopt);
}

TEST_F(RowsTest, GatherRowsCopiesBits) {
  for (const int dim : {256, 2048, 24}) {
    const TestTensor x = random_tensor(9 * static_cast<std::size_t>(dim));
    const std::vector<std::int32_t> index = {8, 0, 3, 3, 7};
    const Buffer index_dev = upload(index);
    const Buffer y = poisoned(6 * static_cast<std::size_t>(dim));
    run(kernels_->gather_rows(*stream_, {.x = x.dev(),
                                         .index = index_dev.as<std::int32_t>(),
                                         .y = y.data(),
                                         .num_rows = 5,
                                         .dim = dim}));
    const std::vector<float> actual = floats(y);
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_TRUE(
          bits_equal(rows_of(actual, dim, i, i + 1), rows_of(x.host, dim, index[i], index[i] + 1)));
    }
    EXPECT_TRUE(all_poison(rows_of(actual, dim, 5, 6)));
  }
}

class AdvanceRowsTest : public KernelsTest {
 protected:
  struct Batch {
    std::vector<std::int32_t> seats, tokens;
    std::vector<float> logprobs, values;
    std::vector<TokenConfidence> confidences;
    std::vector<std::int32_t> consumed;  // empty: 1 each
    std::vector<RowState> states;
    std::vector<AutomatonState> automata;
    std::vector<std::uint8_t> token_classes;
    std::vector<std::uint16_t> uses;  // [seats, 104]

    // Adds a row on a new seat.
    RowState& add(std::int32_t token, float x = 0, float y = 0) {
      seats.push_back(static_cast<std::int32_t>(states.size()));
      tokens.push_back(token);
      logprobs.push_back(-0.5f * static_cast<float>(tokens.size()));
      values.insert(values.end(), {x, y});
      const float sure = 0.125f * static_cast<float>(tokens.size());
      confidences.push_back({sure, sure / 2, sure / 4});
      RowState row;
      row.position = 730;
      row.num_generated = 3;
      row.max_generated = 10;
      row.num_stop_ids = 2;
      row.stop_ids[0] = 0;
      row.stop_ids[1] = 99;
      return states.emplace_back(row);
    }
  };

  std::vector<StepOutput> outputs_;
  std::vector<RowState> states_;
  std::vector<std::uint16_t> uses_;
  static constexpr int kMemoryStride = 104;

  void advance(const Batch& b) {
    const int num_rows = static_cast<int>(b.seats.size());
    const Buffer seats = upload(b.seats), tokens = upload(b.tokens);
    const Buffer logprobs = upload(b.logprobs), values = upload(b.values);
    const Buffer confidences = upload(b.confidences);
    const Buffer consumed = upload(b.consumed), states = upload(b.states);
    const Buffer automata = upload(b.automata), token_classes = upload(b.token_classes);
    const Buffer outputs = poisoned_bytes((num_rows + 1) * sizeof(StepOutput));
    const Buffer uses = upload(b.uses);
    run(kernels_->advance_rows(
        *stream_, {.rows = seats.as<std::int32_t>(),
                   .tokens = tokens.as<std::int32_t>(),
                   .logprobs = logprobs.as<float>(),
                   .values = values.as<float>(),
                   .confidences = confidences.as<TokenConfidence>(),
                   .tokens_consumed = b.consumed.empty() ? nullptr : consumed.as<std::int32_t>(),
                   .automata = automata.as<AutomatonState>(),
                   .token_classes = token_classes.as<std::uint8_t>(),
                   .row_states = states.as<RowState>(),
                   .token_memory = {.uses = uses.as<std::uint16_t>(), .stride = kMemoryStride},
                   .outputs = outputs.as<StepOutput>(),
                   .num_rows = num_rows,
                   .coord_id = kCoordId,
                   .size_id = kSizeId}));
    outputs_ = download<StepOutput>(outputs);
    EXPECT_EQ(outputs_.back().token, -1) << "wrote past the last row";
    EXPECT_EQ(static_cast<std::int32_t>(outputs_.back().outcome), -1) << "wrote past the last row";
    outputs_.pop_back();
    states_ = download<RowState>(states);
    uses_ = download<std::uint16_t>(uses);
  }

  void expect_output(int i, std::int32_t token, StepOutcome outcome, float x, float y,
                     float logprob, std::int32_t position) {
    EXPECT_EQ(outputs_[i].token, token) << "row " << i;
    EXPECT_EQ(outputs_[i].outcome, outcome) << "row " << i;
    EXPECT_EQ(outputs_[i].x, x) << "row " << i;
    EXPECT_EQ(outputs_[i].y, y) << "row " << i;
    EXPECT_EQ(outputs_[i].logprob, logprob) << "row " << i;
    EXPECT_EQ(outputs_[i].position, position) << "row " << i;
  }

  void expect_input(int seat, InputKind kind, std::int32_t id, float x, float y) {
    EXPECT_EQ(states_[seat].input.kind, kind) << "seat " << seat;
    EXPECT_EQ(states_[seat].input.id, id) << "seat " << seat;
    EXPECT_EQ(states_[seat].input.x, x) << "seat " << seat;
    EXPECT_EQ(states_[seat].input.y, y) << "seat " << seat;
  }
};

TEST_F(AdvanceRowsTest, EveryOutcome) {
  Batch b;
  b.add(42, 7, 7);              // 0 continues; its values are stale and not reported
  b.add(99);                    // 1 stops, by the second stop id
  b.add(42).num_generated = 9;  // 2 reaches the limit with the tenth token
  b.add(0).num_generated = 9;   // 3 stops at the limit
  b.add(42).num_stop_ids = 0;   // 4
  b.add(7).done = 1;            // 5 a zombie
  b.add(8);                     // 6 padding
  b.seats[6] = -1;
  b.add(0).num_stop_ids = 0;  // 7 a stop id beyond the count is none
  advance(b);
  expect_output(0, 42, StepOutcome::kContinues, 0, 0, -0.5f, 730);
  expect_output(1, 99, StepOutcome::kStopped, 0, 0, -1.0f, 730);
  expect_output(2, 42, StepOutcome::kLength, 0, 0, -1.5f, 730);
  expect_output(3, 0, StepOutcome::kStopped, 0, 0, -2.0f, 730);
  expect_output(4, 42, StepOutcome::kContinues, 0, 0, -2.5f, 730);
  expect_output(5, -1, StepOutcome::kAlreadyDone, 0, 0, 0, 730);
  expect_output(6, -1, StepOutcome::kAlreadyDone, 0, 0, 0, 0);
  expect_output(7, 0, StepOutcome::kContinues, 0, 0, -4.0f, 730);
  for (const int seat : {0, 4, 7}) EXPECT_EQ(states_[seat].done, 0) << "seat " << seat;
  for (const int seat : {1, 2, 3, 5}) EXPECT_NE(states_[seat].done, 0) << "seat " << seat;
  for (const int seat : {0, 1, 2, 3, 4, 7}) {
    EXPECT_EQ(states_[seat].position, 731) << "seat " << seat;
    EXPECT_EQ(states_[seat].num_generated, b.states[seat].num_generated + 1) << "seat " << seat;
    expect_input(seat, InputKind::kText, b.tokens[seat], 0, 0);
  }
  EXPECT_TRUE(same_bytes(states_[5], b.states[5])) << "a zombie changes nothing";
  EXPECT_TRUE(same_bytes(states_[6], b.states[6])) << "nor does padding";
}

TEST_F(AdvanceRowsTest, RegionTokensBecomeTheNextInput) {
  Batch b;
  b.add(kCoordId, 0.25f, 0.75f).flags = kRowDecodesRegions;
  b.add(kSizeId, 0.5f, 0.125f).flags = kRowDecodesRegions;
  b.add(kCoordId, 0.25f, 0.75f);  // its regions are not decoded: ordinary tokens
  b.add(kSizeId, 0.25f, 0.75f);
  b.add(41, 0.25f, 0.75f).flags = kRowDecodesRegions;
  advance(b);
  expect_input(0, InputKind::kCoord, kCoordId, 0.25f, 0);
  expect_input(1, InputKind::kSize, kSizeId, 0.5f, 0.125f);
  expect_input(2, InputKind::kText, kCoordId, 0, 0);
  expect_input(3, InputKind::kText, kSizeId, 0, 0);
  expect_input(4, InputKind::kText, 41, 0, 0);
  expect_output(0, kCoordId, StepOutcome::kContinues, 0.25f, 0, -0.5f, 730);
  expect_output(1, kSizeId, StepOutcome::kContinues, 0.5f, 0.125f, -1.0f, 730);
  expect_output(2, kCoordId, StepOutcome::kContinues, 0, 0, -1.5f, 730);
}

TEST_F(AdvanceRowsTest, RowsThatAskAreToldHowSureTheirTokenIs) {
  Batch b;
  b.add(kCoordId).flags = kRowDecodesRegions | kRowWantsConfidence;
  b.add(kCoordId).flags = kRowDecodesRegions;  // does not ask
  b.add(42).flags = kRowDecodesRegions | kRowWantsConfidence;
  b.add(7).flags = kRowWantsConfidence;
  b.states[3].done = 1;
  advance(b);
  EXPECT_EQ(outputs_[0].confidence, (TokenConfidence{0.125f, 0.0625f, 0.03125f}));
  EXPECT_EQ(outputs_[1].confidence, TokenConfidence());
  EXPECT_EQ(outputs_[2].confidence, (TokenConfidence{0.375f, 0, 0})) << "no value was decoded";
  EXPECT_EQ(outputs_[3].confidence, TokenConfidence());
}

TEST_F(AdvanceRowsTest, AutomatonMovesAlongTheEdge) {
  Batch b;
  b.automata = {{.num_edges = 2, .tokens = {10, 11}, .next = {1, 0}},
                {.num_edges = 1, .tokens = {12, 13}, .next = {kNoAutomaton, 0}}};
  b.add(10).automaton = 0;
  b.add(11).automaton = 0;
  b.add(12).automaton = 1;
  b.add(13).automaton = 1;  // beyond num_edges: no edge
  b.add(10);                // free rows stay free
  advance(b);
  EXPECT_EQ(states_[0].automaton, 1);
  EXPECT_EQ(states_[1].automaton, 0);
  EXPECT_EQ(states_[2].automaton, kNoAutomaton);
  EXPECT_EQ(states_[3].automaton, 1);
  EXPECT_EQ(states_[4].automaton, kNoAutomaton);
}

TEST_F(AdvanceRowsTest, AnAutomatonMovesByTheTokensClass) {
  Batch b;
  b.token_classes.assign(kMemoryStride, 0);
  b.token_classes[10] = b.token_classes[11] = b.token_classes[99] = 2;
  b.token_classes[12] = 3;
  b.automata = {
      {.num_edges = 1, .tokens = {11}, .next = {2}, .classes = 1u << 2, .class_next = {3, 3, 1, 3}},
      {.is_open = 1, .classes = 1u << 2, .class_next = {0, 0, 0}},
      {.num_edges = 0}};
  b.add(10).automaton = 0;  // 0 by its class
  b.add(11).automaton = 0;  // 1 the edge goes before it
  b.add(12).automaton = 0;  // 2 of another class
  b.add(13).automaton = 0;  // 3 of none
  b.add(10).automaton = 1;  // 4 open states have none
  b.add(10).automaton = 2;  // 5 nor has this one
  b.add(99).automaton = 0;  // 6 a stop id ends the row, and moves it as well
  advance(b);
  const std::int32_t expected[] = {1, 2, 0, 0, 1, 2, 1};
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    EXPECT_EQ(states_[i].automaton, expected[i]) << "row " << i;
  }
}

TEST_F(AdvanceRowsTest, TheExitOfAnOpenStateLimitsWhatFollows) {
  Batch b;
  b.automata = {{.num_edges = 2, .tokens = {10, 11}, .next = {1, kForbiddenEdge}, .is_open = 1},
                {.num_edges = 1, .tokens = {10}, .next = {kNoAutomaton}}};
  const auto add = [&](std::int32_t token, std::int32_t state, std::int32_t max_after_exit) {
    RowState& row = b.add(token);
    row.automaton = state;
    row.max_after_exit = max_after_exit;
    row.max_generated = 100;
  };
  add(12, 0, 5);  // 0 goes on
  add(10, 0, 5);  // 1 leaves
  add(11, 0, 5);  // 2 a forbidden one, which only comes where nothing was left
  add(10, 1, 5);  // 3 closed states have no exit
  advance(b);
  EXPECT_EQ(states_[0].automaton, 0);
  EXPECT_EQ(states_[1].automaton, 1);
  EXPECT_EQ(states_[2].automaton, 0);
  EXPECT_EQ(states_[3].automaton, kNoAutomaton);
  for (const int seat : {0, 2, 3}) EXPECT_EQ(states_[seat].max_generated, 100) << "seat " << seat;
  EXPECT_EQ(states_[1].max_generated, 9) << "4 generated, 5 more";
}

TEST_F(AdvanceRowsTest, AdjustingRowsCountTheirTokens) {
  Batch b;
  b.add(42).flags = kRowAdjustsLogits;  // 0: the first time
  b.add(42).flags = kRowAdjustsLogits;  // 1: once more, and the prompt has it
  b.add(42);                            // 2 has no memory
  b.add(7).flags = kRowAdjustsLogits;   // 3: as often as can be counted
  b.add(42).flags = kRowAdjustsLogits;  // 4 a zombie
  b.states[4].done = 1;
  b.add(0).flags = kRowAdjustsLogits;  // 5: a stop id counts too, and nobody reads it
  b.seats.push_back(-1);               // padding
  b.tokens.push_back(42);
  b.logprobs.push_back(0);
  b.values.insert(b.values.end(), {0, 0});
  b.confidences.emplace_back();
  b.uses.assign(6 * kMemoryStride, 0);
  b.uses[1 * kMemoryStride + 42] = kTokenInPrompt | 5;
  b.uses[3 * kMemoryStride + 7] = kTokenInPrompt | kMaxTokenUses;
  std::vector<std::uint16_t> expected = b.uses;
  expected[42] = 1;
  expected[1 * kMemoryStride + 42] = kTokenInPrompt | 6;
  expected[5 * kMemoryStride + 0] = 1;
  advance(b);
  EXPECT_EQ(uses_, expected);
}

TEST_F(AdvanceRowsTest, PrefillConsumesManyTokens) {
  Batch b;
  b.add(42).position = 0;
  b.add(43).position = 730;
  b.consumed = {760, 12};
  advance(b);
  EXPECT_EQ(states_[0].position, 760);
  EXPECT_EQ(states_[1].position, 742);
  expect_output(0, 42, StepOutcome::kContinues, 0, 0, -0.5f, 759);
  expect_output(1, 43, StepOutcome::kContinues, 0, 0, -1.0f, 741);
}

TEST_F(AdvanceRowsTest, LeavesTheRestOfTheRowAlone) {
  Batch b;
  RowState& row = b.add(42);
  row.sampling.temperature = 0.5f, row.sampling.top_p = 0.3f, row.sampling.min_p = 0.1f,
  row.sampling.top_k = 9, row.sampling.seed = 77;
  row.num_denied_ids = 2, row.denied_ids[1] = 4, row.flags = kRowHostMask;
  advance(b);
  RowState expected = b.states[0];
  expected.input = {InputKind::kText, 42, 0, 0};
  expected.position = 731;
  expected.num_generated = 4;
  EXPECT_TRUE(same_bytes(states_[0], expected));
}

TEST_F(RowsTest, StampsRiseInStreamOrder) {
  const Buffer stamps = poisoned_bytes(3 * sizeof(std::uint64_t));
  for (int i = 0; i < 3; ++i) {
    run(kernels_->stamp_time(*stream_, stamps.as<std::uint64_t>() + i));
  }
  const auto values = download<std::uint64_t>(stamps);
  EXPECT_LT(values[0], ~std::uint64_t{0});
  EXPECT_LE(values[0], values[1]);
  EXPECT_LE(values[1], values[2]);
  EXPECT_LT(values[2], ~std::uint64_t{0});
}

}  // namespace
}  // namespace gapless
