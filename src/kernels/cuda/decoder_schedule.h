// The order of a decode step that is one launch (device/decoder_kernel.cuh), written once: a list of
// phases.
//
// Every warp of every block walks over the same list and does its own part of each phase: computing
// warps compute, the streaming warp asks for what the phase streams, the x warp brings the
// activations that it reads, the signal warp tells others of what it writes. So all of them count
// the same stages of the ring, and whoever waits waits for a phase earlier in the list: none can
// wait for ever. What else must hold follows from the list, and is looked at when the kernel is
// compiled (schedule_fault): nobody counts too early, and nobody writes what others still read.
//
// Host and device, so that it is tested without a GPU.
#pragma once

#include <cstdint>
#include <utility>

#include "base/host_device.h"

namespace gapless {

enum class PhaseKind {
  kNorm,         // the block's row: adds the sums to the residual stream, and normalises it
  kProduct,      // all columns of the block's tiles of a matrix, and what becomes of the results
  kPartialSums,  // a share of the columns of some tiles; a norm adds the shares up
  kAttention,    // the block's units
  kCombine,      // the units of the block's rows and heads
};

// Weights of a product, by what it makes. In a sequential layer kOutput makes two products: of the columns
// that multiply the attention, and of those that multiply the feed-forward.
// The feed-forward's first product may be two, one after the other: kInnerRest makes what comes behind that of kInner.
enum class Matrix { kNone, kQkv, kInner, kInnerRest, kOutput, kHead };
inline constexpr int kNumMatrices = 6;
GAPLESS_HOST_DEVICE constexpr bool is_inner(Matrix matrix) {
  return matrix == Matrix::kInner || matrix == Matrix::kInnerRest;
}

// What a phase leaves in scratch memory for later ones.
enum class Value {
  kNorm,
  kQkv,
  kParts,
  kInner,
  kAttention,
  kSums,
  kFfNorm,
  kFfSums,
  kInnerRest,
  kNone
};
inline constexpr int kNumValues = 9;

// How readers learn that a value is there.
enum class Announcement {
  kCounter,     // a counter in global memory
  kItself,      // the value says so itself (device/self_announcing.cuh); in turn 0 a counter
  kActivation,  // read by products (device/activations.cuh): up to 8 rows kItself, from 9 on kCounter
};

// Who counts a value.
enum class Announcers {
  kEveryBlock,
  kBlocksWithTiles,  // of the matrix that makes it
  kBlocksWithRow,
};

struct ValueRule {
  Announcement announcement = Announcement::kCounter;
  Announcers announcers = Announcers::kEveryBlock;
};

struct Phase {
  PhaseKind kind = PhaseKind::kNorm;
  Matrix matrix = Matrix::kNone;
  // Of products in the order of the columns in the ring.
  Value reads[2] = {Value::kNone, Value::kNone};
  Value writes = Value::kNone;
};

inline constexpr int kMaxLayerPhases = 12;

// A step: `first` once, the phases of a layer for each layer, `last` once if the launch has a head.
struct DecoderSchedule {
  ValueRule values[kNumValues];
  Phase first;
  int num_layer_phases = 0;
  Phase layer[kMaxLayerPhases];
  Phase last;
};

// ---- What follows from a list.

GAPLESS_HOST_DEVICE constexpr unsigned value_bit(Value value) {
  return value == Value::kNone ? 0 : 1u << static_cast<int>(value);
}
constexpr bool reads(const Phase& phase, Value value) {
  return value != Value::kNone && (phase.reads[0] == value || phase.reads[1] == value);
}
GAPLESS_HOST_DEVICE constexpr bool is_product(PhaseKind kind) {
  return kind == PhaseKind::kProduct || kind == PhaseKind::kPartialSums;
}

// Values that a layer reads before it writes them: the layer before has left them there.
constexpr unsigned carried_values(const DecoderSchedule& schedule) {
  unsigned written = 0, carried = 0;
  for (int i = 0; i < schedule.num_layer_phases; ++i) {
    for (const Value value : schedule.layer[i].reads) carried |= value_bit(value) & ~written;
    written |= value_bit(schedule.layer[i].writes);
  }
  return carried;
}

constexpr unsigned values_announced(const DecoderSchedule& schedule, Announcement how) {
  unsigned values = 0;
  for (int i = 0; i < kNumValues; ++i) values |= (schedule.values[i].announcement == how) << i;
  return values;
}
constexpr unsigned values_counted_by(const DecoderSchedule& schedule, Announcers who) {
  unsigned values = 0;
  for (int i = 0; i < kNumValues; ++i) values |= (schedule.values[i].announcers == who) << i;
  return values;
}
// The matrix that makes a value in a layer.
constexpr Matrix matrix_of(const DecoderSchedule& schedule, Value value) {
  for (int i = 0; i < schedule.num_layer_phases; ++i) {
    if (schedule.layer[i].writes == value) return schedule.layer[i].matrix;
  }
  return Matrix::kNone;
}
// One more than the last value that a layer writes.
constexpr int num_values(const DecoderSchedule& schedule) {
  int count = 0;
  for (int i = 0; i < schedule.num_layer_phases; ++i) {
    const int written = static_cast<int>(schedule.layer[i].writes) + 1;
    count = written > count ? written : count;
  }
  return count;
}
// Of its memory: values that announce themselves use two by turns, however many rows there are.
constexpr int copies_of(const DecoderSchedule& schedule, Value value) {
  const ValueRule& rule = schedule.values[static_cast<int>(value)];
  return rule.announcement == Announcement::kCounter ? 1 : 2;
}

// ---- What must hold.

namespace schedule_check {

// Who does something in a phase, and so waits for what it reads. All of those wait alike.
enum class Party { kRow, kUnits, kQkv, kInner, kInnerRest, kOutput, kHead, kEveryone, kNumParties };

constexpr Party party_of(const Phase& phase) {
  switch (phase.kind) {
    case PhaseKind::kNorm:
      return Party::kRow;
    case PhaseKind::kAttention:
      return Party::kUnits;
    case PhaseKind::kCombine:
      return Party::kEveryone;
    default:
      break;
  }
  switch (phase.matrix) {
    case Matrix::kQkv:
      return Party::kQkv;
    case Matrix::kInner:
      return Party::kInner;
    case Matrix::kInnerRest:
      return Party::kInnerRest;
    case Matrix::kOutput:
      return Party::kOutput;
    default:
      return Party::kHead;
  }
}

// Phases of the step, a bit each, of which a block knows, by what it has waited for, that
//   through    all who had a part in it are through with its reads
//   signalled  all who count its value have counted it
struct Knowledge {
  std::uint64_t through = 0, signalled = 0;

  constexpr Knowledge operator|(const Knowledge& o) const {
    return {through | o.through, signalled | o.signalled};
  }
};

// Follows what blocks know through the first layers of a step; layers after these repeat.
class Checker {
 public:
  constexpr Checker(const DecoderSchedule& schedule, bool few_rows)
      : schedule_(schedule), few_rows_(few_rows) {}

  // nullptr, or what is wrong.
  constexpr const char* fault() {
    if (const char* wrong = add(schedule_.first, -1)) return wrong;
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int i = 0; i < schedule_.num_layer_phases; ++i) {
        if (const char* wrong = add(schedule_.layer[i], layer)) return wrong;
      }
    }
    return add(schedule_.last, kLayers);
  }

 private:
  static constexpr int kLayers = 4;
  static constexpr int kMaxPhases = kLayers * kMaxLayerPhases + 2;
  static_assert(kMaxPhases <= 64);

  struct Instance {
    Phase phase;
    int turn = 0;  // of what it writes
    bool counted = false;
    Knowledge own;  // of any block with a part in it, when it writes
    Knowledge all;  // of all of these together
  };

  constexpr ValueRule rule(Value value) const { return schedule_.values[static_cast<int>(value)]; }
  constexpr bool counted(Value value, int turn) const {
    const Announcement how = rule(value).announcement;
    return turn == 0 || how == Announcement::kCounter ||
           (how == Announcement::kActivation && !few_rows_);
  }

  // The latest instance that writes a value; -1: none.
  constexpr int writer(Value value, int before) const {
    for (int i = before - 1; i >= 0; --i) {
      if (instances_[i].phase.writes == value) return i;
    }
    return -1;
  }

  // What a block knows that has waited for what instance `w` wrote; if `for_part`, for some of it.
  constexpr Knowledge learned(int w, bool for_part) const {
    const Instance& from = instances_[w];
    const std::uint64_t bit = std::uint64_t{1} << w;
    if (!from.counted) {
      return for_part ? from.own : from.all | Knowledge{.through = bit};
    }
    Knowledge result = from.all | Knowledge{.through = bit, .signalled = bit};
    if (rule(from.phase.writes).announcers == Announcers::kEveryBlock) {
      // Everyone has come that far, and counts in the order of the list.
      result.through |= bit - 1;
      for (int i = 0; i < w; ++i) {
        if (instances_[i].counted) result.signalled |= std::uint64_t{1} << i;
      }
    }
    return result;
  }

  constexpr const char* add(const Phase& phase, int layer) {
    const int at = count_++;
    Instance& self = instances_[at];
    self.phase = phase;
    const Party party = party_of(phase);
    Knowledge& known = known_[static_cast<int>(party)];
    Knowledge& everyone = known_[static_cast<int>(Party::kEveryone)];
    self.own = known | everyone;
    // What this phase's readers together know beyond that.
    Knowledge together;
    for (const Value value : phase.reads) {
      if (value == Value::kNone) continue;
      const int w = writer(value, at);
      if (w < 0) return "a phase reads what no phase before it has written";
      const Announcement how = rule(value).announcement;
      if ((how == Announcement::kActivation) != is_product(phase.kind)) {
        return "products, and only they, read activations";
      }
      if (phase.kind == PhaseKind::kCombine && how != Announcement::kCounter) {
        return "what all blocks wait for has a counter in every layer";
      }
      const bool for_part =
          phase.kind == PhaseKind::kPartialSums || phase.kind == PhaseKind::kAttention;
      const Knowledge news = learned(w, for_part);
      self.own = self.own | news;
      if (phase.kind == PhaseKind::kCombine) everyone = everyone | news;
      // Shares of columns are all columns. A row that is done has no units: nobody reads its q, k, v.
      if (phase.kind == PhaseKind::kPartialSums) together = together | learned(w, false);
      if (const char* wrong = check_read(value, self.own, w)) return wrong;
    }
    known = known | self.own;
    self.all = self.own | together;
    if (phase.writes == Value::kNone) return nullptr;
    return check_write(self, at, layer, everyone);
  }

  // A reader of the value that instance `w` wrote.
  constexpr const char* check_read(Value value, const Knowledge& own, int w) const {
    const int before = writer(value, w);
    if (instances_[w].counted || before < 0) return nullptr;
    // It must find the place empty until the value comes: who wrote the turn before emptied it.
    for (int i = before; i < w; ++i) {
      const Instance& at = instances_[i];
      const bool all_counted = at.counted && (own.signalled >> i & 1) != 0 &&
                               rule(at.phase.writes).announcers == Announcers::kEveryBlock;
      if (all_counted) return nullptr;
    }
    return "no counter tells a reader that a value's other place has been emptied";
  }

  constexpr const char* check_write(Instance& self, int at, int layer, const Knowledge& everyone) {
    const Value value = self.phase.writes;
    const bool is_carried = (carried_values(schedule_) & value_bit(value)) != 0;
    self.turn = is_carried ? layer + 1 : layer;
    self.counted = counted(value, self.turn);
    const ValueRule own_rule = rule(value);
    const bool by_row = own_rule.announcers == Announcers::kBlocksWithRow;
    if (by_row != (self.phase.kind == PhaseKind::kNorm)) {
      return "norms, and only they, are counted by blocks with a row";
    }
    if (own_rule.announcers == Announcers::kBlocksWithTiles &&
        self.phase.kind != PhaseKind::kProduct) {
      return "only a product is counted by blocks with tiles";
    }
    const int before = writer(value, at);
    if (before < 0) {
      return self.turn == 0 ? nullptr : "a value that a layer leaves for the next has no first";
    }
    if (instances_[before].turn + 1 != self.turn) return "a value has two writers in a layer";
    for (int i = before + 1; i < at; ++i) {
      if (reads(instances_[i].phase, value) && (self.own.through >> i & 1) == 0) {
        return "a value may be written while the one before it is still read";
      }
    }
    const Knowledge& counting =
        own_rule.announcers == Announcers::kEveryBlock ? everyone : self.own;
    if (self.counted && (counting.signalled >> before & 1) == 0) {
      return "a counter may be counted before everyone has counted the turn before";
    }
    return nullptr;
  }

  const DecoderSchedule& schedule_;
  const bool few_rows_;
  int count_ = 0;
  Instance instances_[kMaxPhases] = {};
  // What any block knows that has a part in phases of a party, by its own order of phases.
  Knowledge known_[static_cast<int>(Party::kNumParties)] = {};
};

}  // namespace schedule_check

// Why a kernel with this list could hang or read what is not there; nullptr: it cannot.
constexpr const char* schedule_fault(const DecoderSchedule& schedule) {
  if (schedule.num_layer_phases < 1 || schedule.num_layer_phases > kMaxLayerPhases) {
    return "a layer has no phases, or too many";
  }
  unsigned written = 0, read = 0;
  const auto note = [&](const Phase& phase) {
    for (const Value value : phase.reads) read |= value_bit(value);
    written |= value_bit(phase.writes);
  };
  for (int i = 0; i < schedule.num_layer_phases; ++i) {
    const Phase& phase = schedule.layer[i];
    if (is_product(phase.kind) != (phase.matrix != Matrix::kNone)) {
      return "products, and only they, have a matrix";
    }
    note(phase);
  }
  note(schedule.last);
  if (written & ~read) return "a value is announced that nobody reads";
  // From 9 rows on the x warp counts activations, up to 8 rows they announce themselves.
  for (const bool few_rows : {true, false}) {
    if (const char* wrong = schedule_check::Checker(schedule, few_rows).fault()) return wrong;
  }
  return nullptr;
}

// ---- What the walks ask, of a schedule type S: a struct with kSchedule.

// All of it known to the compiler: between two phases a block has no time to look anything up.
template <typename S>
struct ScheduleOf {
  static constexpr int kNumPhases = S::kSchedule.num_layer_phases;
  static constexpr unsigned kCarried = carried_values(S::kSchedule);
  static constexpr unsigned kAlwaysCounted = values_announced(S::kSchedule, Announcement::kCounter);
  static constexpr unsigned kActivations =
      values_announced(S::kSchedule, Announcement::kActivation);
  static constexpr unsigned kByTiles =
      values_counted_by(S::kSchedule, Announcers::kBlocksWithTiles);
  static constexpr unsigned kByRow = values_counted_by(S::kSchedule, Announcers::kBlocksWithRow);
  template <Value kValue>
  static constexpr Matrix kMatrixOf = matrix_of(S::kSchedule, kValue);
  // Those that its phases write are the first of all.
  static constexpr int kNumValues = num_values(S::kSchedule);

  GAPLESS_HOST_DEVICE static constexpr bool in(unsigned values, Value value) {
    return (values & value_bit(value)) != 0;
  }

  // Layer -1 is `first`, layer num_layers `last`. Which time of a value it is that phases of a layer
  // write; those that read it read turn `layer`.
  template <Value kValue>
  GAPLESS_HOST_DEVICE static int turn_written(int layer) {
    return in(kCarried, kValue) ? layer + 1 : layer;
  }
  // Whether a turn of it is counted.
  template <Value kValue, bool kFewRows>
  GAPLESS_HOST_DEVICE static bool counted(int turn) {
    if constexpr (in(kFewRows ? kAlwaysCounted : kAlwaysCounted | kActivations, kValue))
      return true;
    return turn == 0;
  }
  // Whether computing warps wait for its counter: from 9 rows on the x warp does so for activations.
  template <Value kValue, bool kFewRows>
  GAPLESS_HOST_DEVICE static bool computing_waits(int turn) {
    if constexpr (!kFewRows && in(kActivations, kValue)) return false;
    return counted<kValue, kFewRows>(turn);
  }
};

// Products among the first phases of a layer, and those of them that compute whole columns.
template <typename S>
GAPLESS_HOST_DEVICE constexpr int products_before(int phase) {
  int count = 0;
  for (int i = 0; i < phase; ++i) count += is_product(S::kSchedule.layer[i].kind);
  return count;
}
template <typename S>
GAPLESS_HOST_DEVICE constexpr int whole_products_before(int phase) {
  int count = 0;
  for (int i = 0; i < phase; ++i) count += S::kSchedule.layer[i].kind == PhaseKind::kProduct;
  return count;
}
template <typename S>
inline constexpr int kNumProducts = products_before<S>(ScheduleOf<S>::kNumPhases);

// ---- The lists.

// A parallel block: attention and feed-forward read the same norm, and one product adds both to the
// residual stream. Between what is signalled and what is waited for lies a product that needs
// neither.
struct ParallelDecoder {
  static constexpr bool kIsSequential = false;
  static constexpr bool kHasExperts = false;
  static constexpr int kHeadDim = 64;
  static constexpr int kHeadsOfUnit = 2;  // key heads beside each other in a unit of the attention
  static constexpr int kNormVectors = 1;  // of a row: eights of columns that a thread normalises
  static constexpr DecoderSchedule kSchedule = {
      .values = {
          /* kNorm      */ {Announcement::kActivation, Announcers::kBlocksWithRow},
          /* kQkv       */ {Announcement::kItself, Announcers::kEveryBlock},
          /* kParts     */ {Announcement::kCounter, Announcers::kEveryBlock},
          /* kInner     */ {Announcement::kActivation, Announcers::kBlocksWithTiles},
          /* kAttention */ {Announcement::kActivation, Announcers::kEveryBlock},
          /* kSums      */ {Announcement::kItself, Announcers::kEveryBlock},
      },
      .first = {.kind = PhaseKind::kNorm, .writes = Value::kNorm},
      .num_layer_phases = 6,
      .layer =
          {
              {PhaseKind::kProduct, Matrix::kQkv, {Value::kNorm, Value::kNone}, Value::kQkv},
              {PhaseKind::kAttention, Matrix::kNone, {Value::kQkv, Value::kNone}, Value::kParts},
              {PhaseKind::kProduct, Matrix::kInner, {Value::kNorm, Value::kNone}, Value::kInner},
              {PhaseKind::kCombine,
               Matrix::kNone,
               {Value::kParts, Value::kNone},
               Value::kAttention},
              {PhaseKind::kPartialSums,
               Matrix::kOutput,
               {Value::kInner, Value::kAttention},
               Value::kSums},
              {PhaseKind::kNorm, Matrix::kNone, {Value::kSums, Value::kNone}, Value::kNorm},
          },
      .last = {PhaseKind::kProduct, Matrix::kHead, {Value::kNorm, Value::kNone}, Value::kNone},
  };
};
static_assert(schedule_fault(ParallelDecoder::kSchedule) == nullptr);

// A sequential block: the feed-forward reads what the attention has added to the residual stream. So each
// product needs the one before it, and but for the feed-forward's two parts nothing lies between a signal and the
// wait for it. Such models are wide: a wait is short beside what a product reads, and meanwhile the ring fills.
struct SequentialDecoder {
  static constexpr bool kIsSequential = true;
  static constexpr bool kHasExperts = false;
  static constexpr int kHeadDim = 128;
  static constexpr int kHeadsOfUnit = 1;
  static constexpr int kNormVectors = 2;
  static constexpr DecoderSchedule kSchedule = {
      .values = {
          /* kNorm      */ {Announcement::kActivation, Announcers::kBlocksWithRow},
          /* kQkv       */ {Announcement::kItself, Announcers::kEveryBlock},
          /* kParts     */ {Announcement::kCounter, Announcers::kEveryBlock},
          /* kInner     */ {Announcement::kActivation, Announcers::kBlocksWithTiles},
          /* kAttention */ {Announcement::kActivation, Announcers::kEveryBlock},
          /* kSums      */ {Announcement::kItself, Announcers::kEveryBlock},
          /* kFfNorm    */ {Announcement::kActivation, Announcers::kBlocksWithRow},
          /* kFfSums    */ {Announcement::kItself, Announcers::kEveryBlock},
          /* kInnerRest */ {Announcement::kActivation, Announcers::kBlocksWithTiles},
      },
      .first = {.kind = PhaseKind::kNorm, .writes = Value::kNorm},
      .num_layer_phases = 9,
      .layer =
          {
              {PhaseKind::kProduct, Matrix::kQkv, {Value::kNorm, Value::kNone}, Value::kQkv},
              {PhaseKind::kAttention, Matrix::kNone, {Value::kQkv, Value::kNone}, Value::kParts},
              {PhaseKind::kCombine,
               Matrix::kNone,
               {Value::kParts, Value::kNone},
               Value::kAttention},
              {PhaseKind::kPartialSums,
               Matrix::kOutput,
               {Value::kAttention, Value::kNone},
               Value::kSums},
              {PhaseKind::kNorm, Matrix::kNone, {Value::kSums, Value::kNone}, Value::kFfNorm},
              {PhaseKind::kProduct, Matrix::kInner, {Value::kFfNorm, Value::kNone}, Value::kInner},
              {PhaseKind::kProduct,
               Matrix::kInnerRest,
               {Value::kFfNorm, Value::kNone},
               Value::kInnerRest},
              {PhaseKind::kPartialSums,
               Matrix::kOutput,
               {Value::kInner, Value::kInnerRest},
               Value::kFfSums},
              {PhaseKind::kNorm, Matrix::kNone, {Value::kFfSums, Value::kNone}, Value::kNorm},
          },
      .last = {PhaseKind::kProduct, Matrix::kHead, {Value::kNorm, Value::kNone}, Value::kNone},
  };
};
static_assert(schedule_fault(SequentialDecoder::kSchedule) == nullptr);

// A parallel block whose query and value heads are scaled and whose feed-forward may have experts: Moondream 3. A layer has
// experts or a dense feed-forward, which all warps read in the launch; both make and read the same values. What the route
// warps do (device/decoder_route.cuh) is in no phase: they read kNorm, and a block announces its parts when its own has
// read all that they tell each other, so who has waited for all parts knows that all are through with it. The product of proj comes before the
// feed-forward, so that its weights and the attention's pages are on their way while the route is found.
struct ExpertsDecoder {
  static constexpr bool kIsSequential = false;
  static constexpr bool kHasExperts = true;
  static constexpr int kHeadDim = 64;
  static constexpr int kHeadsOfUnit = 2;
  static constexpr int kNormVectors = 1;
  static constexpr DecoderSchedule kSchedule = {
      .values = {
          /* kNorm      */ {Announcement::kActivation, Announcers::kBlocksWithRow},
          /* kQkv       */ {Announcement::kItself, Announcers::kEveryBlock},
          /* kParts     */ {Announcement::kCounter, Announcers::kEveryBlock},
          // Who has tiles depends on the route, so all blocks count.
          /* kInner     */ {Announcement::kActivation, Announcers::kEveryBlock},
          /* kAttention */ {Announcement::kActivation, Announcers::kEveryBlock},
          /* kSums      */ {Announcement::kItself, Announcers::kEveryBlock},
          /* kFfNorm    */ {},
          /* kFfSums    */ {Announcement::kItself, Announcers::kEveryBlock},
      },
      .first = {.kind = PhaseKind::kNorm, .writes = Value::kNorm},
      .num_layer_phases = 7,
      .layer =
          {
              {PhaseKind::kProduct, Matrix::kQkv, {Value::kNorm, Value::kNone}, Value::kQkv},
              {PhaseKind::kAttention, Matrix::kNone, {Value::kQkv, Value::kNone}, Value::kParts},
              {PhaseKind::kCombine,
               Matrix::kNone,
               {Value::kParts, Value::kNone},
               Value::kAttention},
              {PhaseKind::kPartialSums,
               Matrix::kOutput,
               {Value::kAttention, Value::kNone},
               Value::kSums},
              {PhaseKind::kProduct, Matrix::kInner, {Value::kNorm, Value::kNone}, Value::kInner},
              {PhaseKind::kPartialSums,
               Matrix::kOutput,
               {Value::kInner, Value::kNone},
               Value::kFfSums},
              {PhaseKind::kNorm, Matrix::kNone, {Value::kSums, Value::kFfSums}, Value::kNorm},
          },
      .last = {PhaseKind::kProduct, Matrix::kHead, {Value::kNorm, Value::kNone}, Value::kNone},
  };
};
static_assert(schedule_fault(ExpertsDecoder::kSchedule) == nullptr);

}  // namespace gapless
