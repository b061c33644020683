#include "kernels/cuda/decoder_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/num_bits.h"
#include "kernels/cuda/attention_test_kit.h"
#include "kernels/cuda/decoder_work.h"
#include "kernels/cuda/expert_route.h"

namespace gapless {
namespace {

// ---- Lists that are refused, and why.

constexpr int index_of(Value value) {
  return static_cast<int>(value);
}

constexpr DecoderSchedule parallel() {
  return ParallelDecoder::kSchedule;
}
constexpr DecoderSchedule with_rule(Value value, Announcement how, Announcers who) {
  DecoderSchedule schedule = parallel();
  schedule.values[index_of(value)] = {how, who};
  return schedule;
}
constexpr DecoderSchedule with_phases(std::initializer_list<int> order) {
  DecoderSchedule schedule = parallel();
  schedule.num_layer_phases = 0;
  for (const int phase : order) {
    schedule.layer[schedule.num_layer_phases++] = parallel().layer[phase];
  }
  return schedule;
}

// The compiler refuses them.
static_assert(schedule_fault(with_phases({1, 0, 2, 3, 4, 5})) != nullptr);
static_assert(schedule_fault(with_rule(Value::kInner, Announcement::kActivation,
                                       Announcers::kEveryBlock)) != nullptr);

void expect_fault(const DecoderSchedule& schedule, const std::string& why) {
  const char* fault = schedule_fault(schedule);
  EXPECT_EQ(fault == nullptr ? "none" : fault, why);
}

TEST(DecoderScheduleTest, WhatIsReadHasAWriterBefore) {
  expect_fault(with_phases({1, 0, 2, 3, 4, 5}),
               "a phase reads what no phase before it has written");
  expect_fault(with_phases({0, 1, 2, 4, 3, 5}),
               "a phase reads what no phase before it has written");
  DecoderSchedule no_first = parallel();
  no_first.first.writes = Value::kNone;
  expect_fault(no_first, "a phase reads what no phase before it has written");
}

TEST(DecoderScheduleTest, AValueHasOneWriterAndAReader) {
  expect_fault(with_phases({0, 1, 2, 2, 3, 4, 5}), "a value has two writers in a layer");
  DecoderSchedule unread = parallel();
  unread.layer[4].reads[0] = Value::kNone;
  expect_fault(unread, "a value is announced that nobody reads");
}

TEST(DecoderScheduleTest, NobodyCountsBeforeAllHaveCountedTheTurnBefore) {
  const char* const why = "a counter may be counted before everyone has counted the turn before";
  // Blocks without columns of fc1 wait for nothing before they would count it.
  expect_fault(with_rule(Value::kInner, Announcement::kActivation, Announcers::kEveryBlock), why);
  // Here the wait for all units holds everyone back.
  expect_fault(with_rule(Value::kSums, Announcement::kCounter, Announcers::kEveryBlock), "none");
}

TEST(DecoderScheduleTest, WhatAllWaitForIsCounted) {
  expect_fault(with_rule(Value::kParts, Announcement::kItself, Announcers::kEveryBlock),
               "what all blocks wait for has a counter in every layer");
  expect_fault(with_rule(Value::kQkv, Announcement::kActivation, Announcers::kEveryBlock),
               "products, and only they, read activations");
  expect_fault(with_rule(Value::kNorm, Announcement::kCounter, Announcers::kBlocksWithRow),
               "products, and only they, read activations");
}

// The feed-forward's sums have a place of their own: those of the attention are read until its norm is there.
TEST(DecoderScheduleTest, ASequentialLayerHasTwoSums) {
  DecoderSchedule schedule = SequentialDecoder::kSchedule;
  schedule.layer[7].writes = schedule.layer[8].reads[0] = Value::kSums;
  expect_fault(schedule, "a value has two writers in a layer");
}

TEST(DecoderScheduleTest, AnnouncersFitTheirPhase) {
  expect_fault(with_rule(Value::kNorm, Announcement::kActivation, Announcers::kEveryBlock),
               "norms, and only they, are counted by blocks with a row");
  expect_fault(with_rule(Value::kSums, Announcement::kItself, Announcers::kBlocksWithTiles),
               "only a product is counted by blocks with tiles");
  DecoderSchedule sums_by_tiles = parallel();
  std::swap(sums_by_tiles.values[index_of(Value::kInner)].announcers,
            sums_by_tiles.values[index_of(Value::kSums)].announcers);
  expect_fault(sums_by_tiles, "only a product is counted by blocks with tiles");
}

// Without the wait for all units nothing says that everybody is through with a layer.
TEST(DecoderScheduleTest, ALayerHasAWaitForEveryone) {
  DecoderSchedule schedule = parallel();
  schedule.num_layer_phases = 0;
  const auto add = [&](const Phase& phase) { schedule.layer[schedule.num_layer_phases++] = phase; };
  add(parallel().layer[2]);
  add({PhaseKind::kPartialSums, Matrix::kOutput, {Value::kInner, Value::kNone}, Value::kSums});
  add(parallel().layer[5]);
  expect_fault(schedule, "no counter tells a reader that a value's other place has been emptied");
}

// ---- All warps of all blocks, walking.

struct Config {
  int num_layers = 3, num_blocks = 5, num_rows = 3;
  int dim = 256, ff_dim = 256, vocab = 100;
  // Of the attention.
  std::vector<TestRow> rows = {{500}, {100}, {0}};
  bool has_head = true;
  int ring_stages = 6;
  StepLogits needed = {.all = 1};
  bool by_turns = false;  // the order of a launch of more than 64 rows
  // Of a list with experts.
  int first_with_experts = 1;
  int num_experts = 16, experts_per_token = 4, expert_dim = 128;
};

StepLogits needed_of(const std::vector<std::int32_t>& tokens) {
  StepLogits needed;
  for (const std::int32_t token : tokens) needed.add(token);
  return needed;
}

template <typename S>
DecoderSizes sizes_of(const Config& c) {
  if (S::kHasExperts) {
    return {c.dim, 3 * c.dim, c.dim, c.ff_dim, c.ff_dim, c.vocab};
  }
  if (!S::kIsSequential) return {c.dim, 3 * c.dim, c.dim, c.ff_dim, c.ff_dim, c.vocab};
  // Two query heads to a key head.
  return {
      c.dim, 4 * c.dim, 2 * c.dim, 2 * c.ff_dim, c.ff_dim, c.vocab, first_part_of_inner(c.ff_dim)};
}

// What a warp does next: `may` it, and then `act`.
struct Action {
  std::function<bool()> may;
  std::function<void()> act = [] {};
};

// Every warp is a list of actions, made by a walk over the schedule; in random order one after the
// other does what it may. Beside what warps can see it keeps what is so, and compares.
template <typename S>
class Simulation {
  using Of = ScheduleOf<S>;

 public:
  explicit Simulation(const Config& config)
      : c_(config), step_(config.rows), blocks_(config.num_blocks) {
    for (int block = 0; block < c_.num_blocks; ++block) {
      const DecoderSizes sizes = sizes_of<S>(c_);
      blocks_[block].shares.divide(sizes, block, c_.num_blocks);
      blocks_[block].shares.keep_needed(c_.needed);
      const DecoderWork work(sizes, blocks_[block].shares, block, c_.num_blocks);
      blocks_[block].rows = step_.rows_of<kPages>(kGroups, block, c_.num_blocks);
      stream(block, work);
      compute(block, work);
      signal(block, work);
      if (!few_rows()) bring_x(block, work);
      if (S::kHasExperts) find_routes(block, work);
    }
  }

  // "" or what went wrong.
  std::string run(unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::size_t> next(warps_.size(), 0);
    std::size_t asleep = 0;  // one warp, until nobody else can go on
    while (problem_.empty()) {
      std::vector<std::size_t> ready;
      bool ended = true;
      for (std::size_t i = 0; i < warps_.size(); ++i) {
        if (next[i] == warps_[i].size()) continue;
        ended = false;
        if (i != asleep && warps_[i][next[i]].may()) ready.push_back(i);
      }
      if (ended) return problem_;
      if (ready.empty()) {
        const bool can_go_on =
            next[asleep] < warps_[asleep].size() && warps_[asleep][next[asleep]].may();
        if (!can_go_on) return "hangs";
        ready.push_back(std::exchange(asleep, random() % warps_.size()));
      }
      const std::size_t warp = ready[random() % ready.size()];
      for (unsigned i = random() % 20 + 1; i > 0 && next[warp] < warps_[warp].size(); --i) {
        const Action& action = warps_[warp][next[warp]];
        if (!action.may()) break;
        action.act();
        ++next[warp];
      }
    }
    return problem_;
  }

 private:
  // What route warps tell each other: parts of logits, and whom rows chose.
  static constexpr Value kLogits = Value::kNone;
  static constexpr Value kChoices = static_cast<Value>(kNumValues + 1);
  static constexpr int kPlaces = kNumValues + 2;
  static constexpr int kPages = 2, kGroups = 2, kMaxKeys = 1 << 16;
  // Stages: phase, unit, chunk; or phase, run, place in the run.
  using Stage = std::tuple<int, int, int>;
  struct Block {
    TileShares shares;
    AttentionRows rows;
    std::vector<Stage> streamed;
    std::vector<bool> has_x, x_is_there;
    int consumed = 0;
    int announced[kPlaces] = {}, passed_on[kPlaces] = {};
    int routes = 0;       // that its route warp has found
    int layers_read = 0;  // arrivals of those who read them
  };
  using Actions = std::vector<Action>;

  static constexpr int kFirst = -1, kLast = kMaxLayerPhases;
  template <int kIndex>
  struct PhaseConstant {
    static constexpr Phase kPhase =
        kIndex == kFirst  ? S::kSchedule.first
        : kIndex == kLast ? S::kSchedule.last
                          : S::kSchedule.layer[(kIndex + kMaxLayerPhases) % kMaxLayerPhases];
  };

  bool few_rows() const { return c_.num_rows <= 8; }
  bool has_experts(int layer) const {
    return S::kHasExperts && layer >= c_.first_with_experts && layer < c_.num_layers;
  }
  // One of the two products of a layer's experts.
  static constexpr bool is_of_experts(const Phase& phase) {
    return S::kHasExperts && (phase.matrix == Matrix::kInner || phase.reads[0] == Value::kInner);
  }
  // Some rows are done, and the others choose by layer and row.
  ExpertRoute route_of(int layer) const {
    ExpertRoute route = {};
    std::mt19937 random(static_cast<unsigned>(layer));
    for (int row = 0; row < c_.num_rows; ++row) {
      while (row % 5 != 3 && num_bits(route.chosen[row]) < c_.experts_per_token) {
        route.chosen[row] |= std::uint64_t{1} << random() % static_cast<unsigned>(c_.num_experts);
      }
    }
    if (c_.num_rows <= 32) {
      route.make_passes<kPassRows<32, PreparedFormat::kFp8>>(c_.num_rows, c_.num_experts,
                                                             OneLane());
    } else {
      route.make_passes<kPassRows<64, PreparedFormat::kFp8>>(c_.num_rows, c_.num_experts,
                                                             OneLane());
    }
    return route;
  }
  // A unit's (place, chunks).
  template <typename Use>
  void for_expert_units(const Phase& phase, int layer, int block, const Use& use) const {
    const bool is_up = phase.matrix == Matrix::kInner;
    const int tiles = is_up ? 2 * c_.expert_dim / 16 : c_.dim / 16;
    const ExpertShare share = route_of(layer).share_of(tiles, block, c_.num_blocks);
    for (ExpertUnits units(share, tiles); units.has(); units.next()) {
      use(units.pass() * tiles + units.tile(), (is_up ? c_.dim : c_.expert_dim) / 128);
    }
  }
  // Who counts stages or computes does so when the route is there.
  Action wait_for_route(const Block& b, int layer) const {
    return {[&b, turn = layer - c_.first_with_experts] { return b.routes > turn; }};
  }
  Action leave_layer(Block& b, int count) const {
    return {[] { return true; }, [&b, count] { b.layers_read += count; }};
  }
  int route_counters() const { return few_rows() ? 1 : 2; }
  bool has_part(const Phase& phase, int layer, int block, const DecoderWork& work) const {
    if (is_of_experts(phase) && has_experts(layer)) {
      bool has_any = false;
      for_expert_units(phase, layer, block, [&](int, int) { has_any = true; });
      return has_any;
    }
    if (phase.kind == PhaseKind::kNorm) return block < c_.num_rows;
    if (phase.kind == PhaseKind::kAttention) return blocks_[block].rows.num_units() > 0;
    if (phase.kind == PhaseKind::kCombine) return true;
    return DecoderWork::has(work.first_unit(phase.kind, phase.matrix));
  }
  template <typename Use>
  void for_stages(const Phase& phase, int layer, int at, int block, const DecoderWork& work,
                  const Use& use) {
    if (is_of_experts(phase) && has_experts(layer)) {
      for_expert_units(phase, layer, block, [&](int unit, int chunks) {
        // Computing warps read their activations themselves.
        for (int i = 0; i < chunks; ++i) use(Stage{at, unit, i}, Value::kNone);
      });
      return;
    }
    if (phase.kind == PhaseKind::kAttention) {
      AttentionUnit<kPages> unit;
      const AttentionRows& rows = blocks_[block].rows;
      for (int i = 0; i < rows.num_units(); ++i) {
        unit.find(rows, rows.unit_at(i));
        use(Stage{at, unit.run, unit.heads * kMaxKeys + unit.first_key}, Value::kNone);
      }
    }
    if (phase.matrix == Matrix::kNone) return;
    for (ProductUnit unit = work.first_unit(phase.kind, phase.matrix); DecoderWork::has(unit);
         work.next(phase.kind, unit)) {
      std::vector<std::pair<int, Value>> chunks;
      for (const Value value : phase.reads) {
        const ChunkRange range = work.chunks_of(value, unit);
        for (int i = range.begin; i < range.end; ++i) chunks.emplace_back(i, value);
      }
      const int size = static_cast<int>(chunks.size());
      for (int i = 0; i < size; ++i) {
        const auto n = static_cast<std::size_t>(c_.by_turns ? chunk_in_turn(i, size) : i);
        use(Stage{at, unit.at, chunks[n].first}, chunks[n].second);
      }
    }
  }
  // As the kernel's walks go: use(phase constant, layer, place of the phase in the step).
  template <typename Use>
  void for_phases(const Use& use) {
    int at = 0;
    use(PhaseConstant<kFirst>(), -1, at++);
    for (int layer = 0; layer < c_.num_layers; ++layer) {
      [&]<int... kIndices>(std::integer_sequence<int, kIndices...>) {
        (use(PhaseConstant<kIndices>(), layer, at++), ...);
      }
      (std::make_integer_sequence<int, Of::kNumPhases>());
    }
    if (c_.has_head) use(PhaseConstant<kLast>(), c_.num_layers, at++);
  }
  void fail(const std::string& what) {
    if (problem_.empty()) problem_ = what;
  }

  void stream(int block, const DecoderWork& work) {
    Actions actions;
    Block& b = blocks_[block];
    for_phases([&](auto constant, int layer, int at) {
      constexpr Phase kPhase = decltype(constant)::kPhase;
      if (is_of_experts(kPhase) && has_experts(layer)) {
        actions.push_back(wait_for_route(b, layer));
      }
      if (kPhase.kind == PhaseKind::kNorm && has_experts(layer)) {
        actions.push_back(leave_layer(b, 1));
      }
      for_stages(kPhase, layer, at, block, work, [&](const Stage& stage, Value x) {
        const bool has_x = x != Value::kNone && !few_rows();
        actions.push_back({[this, &b] {
                             return static_cast<int>(b.streamed.size()) - b.consumed <
                                    c_.ring_stages;
                           },
                           [&b, stage, has_x] {
                             b.streamed.push_back(stage);
                             b.x_is_there.push_back(!has_x);
                           }});
      });
    });
    warps_.push_back(std::move(actions));
  }

  // Until a turn of a value is counted, and then it must be there.
  template <Value kValue>
  Action wait_for_count(int turn, const DecoderWork& work) {
    const unsigned target = (turn + 1) * work.template counting_blocks<S, kValue>(c_.num_rows);
    return {[this, target] { return counts_[index_of(kValue)] >= target; },
            [this, turn] {
              if (missing(kValue, turn) != 0) fail("reads what is not written yet");
            }};
  }
  int& missing(Value value, int turn) { return at(missing_, value, turn); }
  int& readers(Value value, int turn) { return at(readers_, value, turn); }
  static int& at(std::vector<int> (&of)[kPlaces], Value value, int turn) {
    std::vector<int>& turns = of[index_of(value)];
    const auto i = static_cast<std::size_t>(turn + 1);  // -1 would be wrong, and is seen as such
    if (turns.size() <= i) turns.resize(i + 1);
    return turns[i];
  }

  void compute(int block, const DecoderWork& work) {
    Actions actions;
    Block& b = blocks_[block];
    int consumed = 0;
    for_phases([&](auto constant, int layer, int at) {
      constexpr Phase kPhase = decltype(constant)::kPhase;
      const bool mine = has_part(kPhase, layer, block, work);
      const bool of_experts = is_of_experts(kPhase) && has_experts(layer);
      if (kPhase.kind == PhaseKind::kNorm && S::kHasExperts && layer >= 0) {
        actions.push_back(leave_layer(b, has_experts(layer) ? 1 : 1 + route_counters()));
      }
      wait_for<kPhase.kind, kPhase.reads[0]>(mine, layer, work, actions);
      wait_for<kPhase.kind, kPhase.reads[1]>(mine, layer, work, actions);
      if (of_experts && !few_rows()) {
        actions.push_back(wait_for_count<kPhase.reads[0]>(layer, work));
      }
      for_stages(kPhase, layer, at, block, work, [&](const Stage& stage, Value /*x*/) {
        const int i = consumed++;
        actions.push_back({[&b, i] {
                             const auto n = static_cast<std::size_t>(i);
                             return n < b.streamed.size() && b.x_is_there[n];
                           },
                           [this, &b, stage, i] {
                             if (b.streamed[i] != stage) fail("takes another stage for its own");
                             ++b.consumed;
                           }});
      });
      if (kPhase.kind == PhaseKind::kAttention && has_experts(layer)) {
        actions.push_back(wait_for_route(b, layer));
      }
      constexpr Value kFirstRead = kPhase.reads[0], kSecondRead = kPhase.reads[1];
      constexpr Value kWritten = kPhase.writes;
      const int turn = turn_written<kWritten>(layer);
      const bool writes = mine && has_reader<kWritten>(layer);
      if (writes) ++missing(kWritten, turn);
      actions.push_back({[] { return true; },
                         [this, mine, writes, turn, layer] {
                           if (writes && turn > 0 && readers(kWritten, turn - 1) != 0) {
                             fail("writes what is still read");
                           }
                           for (const Value value : {kFirstRead, kSecondRead}) {
                             if (mine && value != Value::kNone) --readers(value, layer);
                           }
                           if (writes) --missing(kWritten, turn);
                         }});
      if (counts<kWritten>(layer, work)) {
        int& announced = b.announced[index_of(kWritten)];
        const int& passed_on = b.passed_on[index_of(kWritten)];
        actions.push_back({[] { return true; },
                           [this, &announced, &passed_on] {
                             if (++announced > passed_on + 1) fail("announces too early");
                           }});
      }
    });
    warps_.push_back(std::move(actions));
  }
  template <PhaseKind kKind, Value kValue>
  void wait_for(bool mine, int layer, const DecoderWork& work, Actions& actions) {
    if constexpr (kValue != Value::kNone) {
      if (mine) ++readers(kValue, layer);
      if (kKind == PhaseKind::kNorm && !mine) return;
      if (few_rows() ? Of::template computing_waits<kValue, true>(layer)
                     : Of::template computing_waits<kValue, false>(layer)) {
        actions.push_back(wait_for_count<kValue>(layer, work));
      } else if (mine && !counted<kValue>(layer)) {
        actions.push_back({[this, layer] { return missing(kValue, layer) == 0; }});
      }
    }
  }
  template <Value kValue>
  bool counted(int turn) const {
    return few_rows() ? Of::template counted<kValue, true>(turn)
                      : Of::template counted<kValue, false>(turn);
  }
  template <Value kValue>
  static int turn_written(int layer) {
    return Of::template turn_written<kValue>(layer);
  }
  template <Value kValue>
  bool has_reader(int layer) const {
    return kValue != Value::kNone && turn_written<kValue>(layer) < c_.num_layers + c_.has_head;
  }
  template <Value kValue>
  bool counts(int layer, const DecoderWork& work) const {
    return has_reader<kValue>(layer) && counted<kValue>(turn_written<kValue>(layer)) &&
           work.template counts<S, kValue>(c_.num_rows);
  }

  void signal(int block, const DecoderWork& work) {
    Actions actions;
    Block& b = blocks_[block];
    for_phases([&](auto constant, int layer, int /*at*/) {
      constexpr Value kWritten = decltype(constant)::kPhase.writes;
      if (!counts<kWritten>(layer, work)) return;
      const int& announced = b.announced[index_of(kWritten)];
      int& passed_on = b.passed_on[index_of(kWritten)];
      unsigned& count = counts_[index_of(kWritten)];
      actions.push_back(
          {[&announced, turn = turn_written<kWritten>(layer)] { return announced > turn; },
           [&passed_on, &count] {
             ++passed_on;
             ++count;
           }});
    });
    warps_.push_back(std::move(actions));
  }

  void bring_x(int block, const DecoderWork& work) {
    Actions actions;
    Block& b = blocks_[block];
    int stage_at = 0;
    for_phases([&](auto constant, int layer, int at) {
      constexpr Phase kPhase = decltype(constant)::kPhase;
      unsigned known = 0;
      if (is_of_experts(kPhase) && has_experts(layer)) {
        actions.push_back(wait_for_route(b, layer));
      }
      if (kPhase.kind == PhaseKind::kNorm && has_experts(layer)) {
        actions.push_back(leave_layer(b, 1));
      }
      for_stages(kPhase, layer, at, block, work, [&](const Stage& /*stage*/, Value x) {
        const auto i = static_cast<std::size_t>(stage_at++);
        if (x == Value::kNone) return;
        if ((known & value_bit(x)) == 0) {
          actions.push_back(x == kPhase.reads[0] ? wait_for_count<kPhase.reads[0]>(layer, work)
                                                 : wait_for_count<kPhase.reads[1]>(layer, work));
        }
        known |= value_bit(x);
        actions.push_back(
            {[&b, i] { return i < b.streamed.size(); }, [&b, i] { b.x_is_there[i] = true; }});
      });
    });
    warps_.push_back(std::move(actions));
  }

  // A route warp makes its part of the logits of the norm, reads all parts of its rows and says whom they chose, and reads what all rows
  // chose. Two layers by turns have places.
  void find_routes(int block, const DecoderWork& work) {
    Actions actions;
    Block& b = blocks_[block];
    for (int layer = 0; layer < c_.num_layers; ++layer) {
      if (layer > 0) {
        actions.push_back(
            {[this, &b, layer] { return b.layers_read >= layer * (1 + route_counters()); }});
      }
      if (!has_experts(layer)) continue;
      if (few_rows()) {
        actions.push_back({[this, layer] { return missing(Value::kNorm, layer) == 0; }});
      } else {
        actions.push_back(wait_for_count<Value::kNorm>(layer, work));
      }
      ++readers(Value::kNorm, layer);
      ++missing(kLogits, layer);
      actions.push_back({[] { return true; },
                         [this, layer] {
                           if (readers(kLogits, layer - 1) != 0) fail("writes what is still read");
                           --readers(Value::kNorm, layer);
                           --missing(kLogits, layer);
                         }});
      if (block < c_.num_rows) {
        ++readers(kLogits, layer);
        ++missing(kChoices, layer);
        actions.push_back({[this, layer] { return missing(kLogits, layer) == 0; },
                           [this, layer] {
                             if (readers(kChoices, layer - 1) != 0)
                               fail("writes what is still read");
                             --readers(kLogits, layer);
                             --missing(kChoices, layer);
                           }});
      }
      ++readers(kChoices, layer);
      actions.push_back({[this, layer] { return missing(kChoices, layer) == 0; },
                         [this, &b, layer] {
                           --readers(kChoices, layer);
                           if (b.routes != layer - c_.first_with_experts)
                             fail("finds another route");
                           ++b.routes;
                         }});
    }
    warps_.push_back(std::move(actions));
  }

  const Config c_;
  const TestStep step_;
  std::vector<Block> blocks_;
  std::vector<Actions> warps_;
  unsigned counts_[kPlaces] = {};
  std::vector<int> missing_[kPlaces];  // blocks that have not written their part of a turn
  std::vector<int> readers_[kPlaces];  // phases of blocks that are not through with reading it
  std::string problem_;
};

std::vector<Config> configs() {
  return {
      {},
      {.num_blocks = 14, .num_rows = 12},
      {.num_blocks = 24, .num_rows = 12, .dim = 128, .ff_dim = 128, .rows = {{31}, {0}}},
      {.num_blocks = 40, .num_rows = 12, .dim = 128, .ff_dim = 128, .rows = {{31}, {0}}},
      {.num_blocks = 40, .num_rows = 2, .dim = 128, .ff_dim = 128, .rows = {{31}, {0}}},
      {.num_layers = 1, .num_blocks = 9, .num_rows = 9, .rows = {{-1}}, .has_head = false},
      {.num_layers = 5, .num_blocks = 3, .num_rows = 1, .ff_dim = 1024, .has_head = false},
      {.num_layers = 2, .num_blocks = 16, .num_rows = 16, .ff_dim = 1152, .vocab = 3000},
      {.num_blocks = 14, .num_rows = 12, .vocab = 3000, .needed = needed_of({0, 5})},
      {.num_blocks = 14, .num_rows = 3, .vocab = 3000, .needed = needed_of({2999, 0, 1500})},
      {.num_blocks = 9, .num_rows = 9, .vocab = 3000, .needed = needed_of({})},
      {.num_blocks = 9, .num_rows = 2, .vocab = 3000, .needed = needed_of({})},
      // Rows about one picture, about two, and others beside them.
      {.num_blocks = 14, .num_rows = 12, .rows = std::vector<TestRow>(12, {300, 0, 17})},
      {.num_blocks = 14, .rows = {{300, 0, 17}, {-1, 0, 17}, {290, 0, 17}}},
      {.num_blocks = 20,
       .num_rows = 10,
       .rows = {{300, 0, 17}, {70, 1, 4}, {300, 0, 9}, {600}, {80, 1, 4}, {-1}, {75, 1, 2}, {5}}},
      {.num_layers = 2,
       .num_blocks = 20,
       .num_rows = 12,
       .dim = 1024,
       .ff_dim = 2048,
       .by_turns = true},
      {.num_blocks = 12, .num_rows = 12, .dim = 1024, .ff_dim = 1024, .by_turns = true},
  };
}

// Stages are in the same order for all, nobody waits for ever, reads what is not there, or writes
// what is still read.
TEST(DecoderScheduleTest, WarpsAgree) {
  for (const Config& config : configs()) {
    for (unsigned seed = 0; seed < 20; ++seed) {
      EXPECT_EQ(Simulation<ParallelDecoder>(config).run(seed), "") << seed;
      EXPECT_EQ(Simulation<SequentialDecoder>(config).run(seed), "") << seed;
      for (const int first : {1, 2}) {
        Config with_experts = config;
        with_experts.first_with_experts = first;
        EXPECT_EQ(Simulation<ExpertsDecoder>(with_experts).run(seed), "") << seed << ", " << first;
      }
    }
  }
}

// And the simulation sees what a refused list does.
struct InnerCountedByAll : ParallelDecoder {
  static constexpr DecoderSchedule kSchedule =
      with_rule(Value::kInner, Announcement::kActivation, Announcers::kEveryBlock);
};
struct AttentionFirst : ParallelDecoder {
  static constexpr DecoderSchedule kSchedule = with_phases({1, 0, 2, 3, 4, 5});
};

template <typename S>
std::string first_problem() {
  for (const Config& config : configs()) {
    for (unsigned seed = 0; seed < 50; ++seed) {
      const std::string problem = Simulation<S>(config).run(seed);
      if (!problem.empty()) return problem;
    }
  }
  return "";
}

TEST(DecoderScheduleTest, WhatIsRefusedGoesWrong) {
  EXPECT_EQ(first_problem<InnerCountedByAll>(), "reads what is not written yet");
  EXPECT_EQ(first_problem<AttentionFirst>(), "hangs");
}

// A stage costs the streaming warp as much whatever its size: units are as few as can be, and none is small beside the others.
TEST(DecoderScheduleTest, UnitsAreFewAndNearlyEqual) {
  for (int count = 1; count <= 70; ++count) {
    SCOPED_TRACE(std::to_string(count) + " tiles");
    TileShares own;
    own.divide({.dim = 2048,
                .qkv_width = count * kPreparedTileRows,
                .q_width = 2048,
                .up_width = 2048,
                .ff_dim = 2048,
                .vocab = 16},
               0, 1);
    const DecoderWork work({}, own, 0, 1);
    std::vector<int> sizes;
    for (ProductUnit unit = work.first_unit(PhaseKind::kProduct, Matrix::kQkv); work.has(unit);
         work.next(PhaseKind::kProduct, unit)) {
      sizes.push_back(work.tiles_of(PhaseKind::kProduct, unit).size());
    }
    EXPECT_EQ(sizes.size(), static_cast<std::size_t>((count + kUnitTiles - 1) / kUnitTiles));
    const auto [smallest, largest] = std::ranges::minmax(sizes);
    EXPECT_LE(largest, kUnitTiles);
    EXPECT_GE(smallest, count > 5 ? kUnitTiles - 1 : std::min(count, 2));
  }
}

// Both warpgroups' stages alternate, and each meets its turns one after the other, the chunks of a turn as they lie.
TEST(DecoderScheduleTest, ChunksComeTurnByTurn) {
  for (int size = 2; size <= 130; size += 2) {
    SCOPED_TRACE(std::to_string(size) + " chunks");
    std::vector<int> chunks, sorted;
    for (int stage = 0; stage < size; ++stage) chunks.push_back(chunk_in_turn(stage, size));
    for (int stage = 0; stage < size; ++stage) {
      EXPECT_EQ(chunks[stage] % 2, stage % 2);
      if (stage < 2) continue;
      const auto turn_of = [](int chunk) { return chunk / 2 % kChunkTurns; };
      EXPECT_GT(std::pair(turn_of(chunks[stage]), chunks[stage]),
                std::pair(turn_of(chunks[stage - 2]), chunks[stage - 2]));
    }
    std::ranges::sort(chunks);
    for (int chunk = 0; chunk < size; ++chunk) sorted.push_back(chunk);
    EXPECT_EQ(chunks, sorted);
  }
}

// A feed-forward's first product is two, and nobody has more of both than an equal share.
TEST(DecoderScheduleTest, BothPartsOfTheFeedForwardAreAnEqualShare) {
  for (const int ff_dim : {14336, 12288, 9728}) {
    const DecoderSizes sizes{.dim = 4096,
                             .qkv_width = 6144,
                             .q_width = 4096,
                             .up_width = 2 * ff_dim,
                             .ff_dim = ff_dim,
                             .vocab = 16,
                             .first_ff_dim = first_part_of_inner(ff_dim)};
    const int all = 2 * ff_dim / kPreparedTileRows;
    for (int block = 0; block < 132; ++block) {
      TileShares own;
      own.divide(sizes, block, 132);
      const int first = own.of[static_cast<int>(Matrix::kInner)].size();
      const int rest = own.of[static_cast<int>(Matrix::kInnerRest)].size();
      EXPECT_GE(first, rest) << ff_dim;
      EXPECT_GE(rest, 1) << ff_dim;
      EXPECT_LE(first + rest, (all + 131) / 132) << ff_dim;
    }
  }
}

// A launch by turns takes even numbers of chunks (has_even_units).
TEST(DecoderScheduleTest, UnitsHaveAsManyChunksOfBothPartsAsOfOne) {
  for (int chunks = kDecoderColumnRanks; chunks <= 128; chunks += kDecoderColumnRanks) {
    const int ff_dim = chunks * kPreparedTileColumns;
    const TileShares own{};
    const DecoderWork work({.dim = 1024,
                            .qkv_width = 2048,
                            .q_width = 1024,
                            .up_width = 2 * ff_dim,
                            .ff_dim = ff_dim,
                            .vocab = 16,
                            .first_ff_dim = first_part_of_inner(ff_dim)},
                           own, 0, 1);
    for (int rank = 0; rank < kDecoderColumnRanks; ++rank) {
      const ProductUnit unit{rank, kDecoderColumnRanks};
      EXPECT_EQ(work.chunks_of(Value::kInner, unit).size() +
                    work.chunks_of(Value::kInnerRest, unit).size(),
                chunks / kDecoderColumnRanks)
          << chunks << " chunks";
    }
  }
}

// Who waits for a part waits for as many blocks as have tiles of it, however few these are.
TEST(DecoderScheduleTest, AsManyBlocksHaveTilesOfAPartAsAreCounted) {
  for (int chunks = 1; chunks <= 40; ++chunks) {
    const int ff_dim = chunks * kPreparedTileColumns;
    const DecoderSizes sizes{.dim = 128,
                             .qkv_width = 256,
                             .q_width = 128,
                             .up_width = 2 * ff_dim,
                             .ff_dim = ff_dim,
                             .vocab = 16,
                             .first_ff_dim = first_part_of_inner(ff_dim)};
    for (const int num_blocks : {1, 24, 100, 132}) {
      for (const Matrix matrix : {Matrix::kInner, Matrix::kInnerRest}) {
        unsigned with_tiles = 0, counted = 0;
        for (int block = 0; block < num_blocks; ++block) {
          TileShares own;
          own.divide(sizes, block, num_blocks);
          const DecoderWork work(sizes, own, block, num_blocks);
          EXPECT_GE(work.tiles(matrix).size(), 0);
          with_tiles += work.tiles(matrix).size() > 0;
          counted = work.blocks_with_tiles(matrix);
        }
        EXPECT_EQ(with_tiles, counted) << chunks << " chunks, " << num_blocks << " blocks";
      }
    }
  }
}

// What a block has of a product, as (tile, chunk).
std::vector<std::pair<int, int>> pieces_of(const DecoderWork& work, const Phase& phase) {
  std::vector<std::pair<int, int>> pieces;
  for (ProductUnit unit = work.first_unit(phase.kind, phase.matrix); work.has(unit);
       work.next(phase.kind, unit)) {
    const TileRange tiles = work.tiles_of(phase.kind, unit);
    EXPECT_LE(tiles.size(), kUnitTiles);
    for (const Value x : phase.reads) {
      const ChunkRange chunks = work.chunks_of(x, unit);
      for (int tile = tiles.begin; tile < tiles.end; ++tile) {
        for (int i = chunks.begin; i < chunks.end; ++i) pieces.emplace_back(tile, i);
      }
    }
  }
  return pieces;
}

// Each block's tiles and shares together are all prepared matrices, once.
template <typename S>
void expect_covered_once(const Config& config) {
  const DecoderSizes sizes = sizes_of<S>(config);
  const DecoderSchedule& schedule = S::kSchedule;
  std::vector<Phase> phases(schedule.layer, schedule.layer + schedule.num_layer_phases);
  phases.push_back(schedule.last);
  std::vector<std::pair<int, int>> seen[3];  // [qkv | fc1], [proj | fc2], head
  for (const Phase& phase : phases) {
    if (!is_product(phase.kind)) continue;
    auto& matrix = seen[phase.matrix == Matrix::kOutput ? 1
                        : phase.matrix == Matrix::kHead ? 2
                                                        : 0];
    for (int block = 0; block < config.num_blocks; ++block) {
      TileShares own;
      own.divide(sizes, block, config.num_blocks);
      const DecoderWork work(sizes, own, block, config.num_blocks);
      for (const auto& piece : pieces_of(work, phase)) matrix.push_back(piece);
    }
  }
  const std::pair<int, int> shapes[3] = {{(sizes.qkv_width + sizes.up_width) / 16, sizes.dim / 128},
                                         {sizes.dim / 16, (sizes.q_width + sizes.ff_dim) / 128},
                                         {(sizes.vocab + 15) / 16, sizes.dim / 128}};
  for (int i = 0; i < 3; ++i) {
    const auto [tiles, chunks] = shapes[i];
    std::vector<std::pair<int, int>> all;
    for (int tile = 0; tile < tiles; ++tile) {
      for (int chunk = 0; chunk < chunks; ++chunk) all.emplace_back(tile, chunk);
    }
    std::sort(seen[i].begin(), seen[i].end());
    EXPECT_EQ(seen[i], all) << "matrix " << i << " among " << config.num_blocks << " blocks";
  }
}

// The tiles of the head that blocks keep are their own, and hold every needed column.
TEST(DecoderScheduleTest, BlocksKeepTheHeadsNeededTiles) {
  const Config config{.num_blocks = 132, .dim = 2048, .ff_dim = 8192, .vocab = 51200};
  const DecoderSizes sizes = sizes_of<ParallelDecoder>(config);
  for (const auto& tokens : {std::vector<std::int32_t>{}, {0, 5}, {51199, 7, 15, 16, 400, 25000}}) {
    const StepLogits needed = needed_of(tokens);
    std::vector<bool> is_kept(static_cast<std::size_t>(config.vocab) / 16, false);
    int num_kept = 0;
    for (int block = 0; block < config.num_blocks; ++block) {
      TileShares whole, kept;
      whole.divide(sizes, block, config.num_blocks);
      kept = whole;
      kept.keep_needed(needed);
      const auto head = static_cast<int>(Matrix::kHead);
      for (const Matrix other : {Matrix::kQkv, Matrix::kInner}) {
        const auto matrix = static_cast<int>(other);
        EXPECT_EQ(kept.of[matrix].begin, whole.of[matrix].begin);
        EXPECT_EQ(kept.of[matrix].end, whole.of[matrix].end);
      }
      if (kept.of[head].size() == 0) continue;
      EXPECT_GE(kept.of[head].begin, whole.of[head].begin);
      EXPECT_LE(kept.of[head].end, whole.of[head].end);
      for (int tile = kept.of[head].begin; tile < kept.of[head].end; ++tile) {
        is_kept[static_cast<std::size_t>(tile)] = true;
        ++num_kept;
      }
    }
    for (const std::int32_t token : tokens) {
      EXPECT_TRUE(is_kept[static_cast<std::size_t>(token) / 16]) << token;
    }
    // 7, 15 and 16 lie in the first block's share, 400 in the second's.
    EXPECT_EQ(num_kept, tokens.empty() ? 0 : tokens.size() == 2 ? 1 : 5);
  }
}

TEST(DecoderScheduleTest, UnitsCoverEachMatrixOnce) {
  for (const int num_blocks : {1, 7, 132}) {
    const Config config{.num_blocks = num_blocks, .dim = 640, .ff_dim = 1152, .vocab = 1000};
    expect_covered_once<ParallelDecoder>(config);
    expect_covered_once<SequentialDecoder>(config);
    expect_covered_once<ExpertsDecoder>(config);
  }
}

}  // namespace
}  // namespace gapless
