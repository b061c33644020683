// The warps of decoder_kernel.cuh that move data: the streaming warp, the x warp, the signal warp.
#pragma once

#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/decoder_block.cuh"
#include "kernels/cuda/device/decoder_experts.cuh"
#include "kernels/cuda/device/grid_counters.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// ---- The streaming warp.

// What it asks for ahead: so many bytes in stages that are full. (Those that are not count as much:
// more of them instead, up to the same bytes, take longer.) Few rows are bound by the latency of
// small accesses, many are not.
template <int kRows>
inline constexpr int kInFlightBytes = (kRows <= 32 ? 64 : 80) << 10;

// Columns of a few tiles of a matrix.
struct WeightRun {
  const char* weights;
  int all_tiles;  // of the matrix' rows
  TileRange tiles;
  ChunkRange chunks;
};

// x_bytes: room for activations in their stages, kStageXBytes<S, kRows> or none.
template <typename S, PreparedFormat kFormat, int kRows>
__device__ __forceinline__ void stream_tiles(RingProducer& producer, const WeightRun& run,
                                             int x_bytes = kStageXBytes<S, kRows>) {
  constexpr int kTileBytes = kPreparedTileBytes<kFormat>;
  constexpr int kMaxInFlight = kInFlightBytes<kRows> / (kGroupTiles * kTileBytes);
  static_assert(kMaxInFlight >= 1);
  static_assert((DecoderLayout<S>::kRingBytes != 0 ? DecoderLayout<S>::kRingBytes
                                                   : DecoderLayout<S>::kSmallestRingBytes) >=
                kXRingBytes<S, kFormat, kRows> +
                    2 * (kStageXBytes<S, kRows> + kGroupTiles * kTileBytes));
  const int lane = threadIdx.x % kWarp;
  const int bytes = run.tiles.size() * kTileBytes;
  for (int chunk = run.chunks.begin; chunk < run.chunks.end; chunk += kWarp) {
    const char* from =
        run.weights + prepared_tile_offset<kFormat>(run.all_tiles, run.tiles.begin, chunk + lane);
    producer.push<1>({.x_bytes = x_bytes,
                      .streamed = bytes,
                      .piece_bytes = bytes,
                      .max_in_flight = kMaxInFlight},
                     min(kWarp, run.chunks.end - chunk), bytes, from);
  }
}

// The stages of a unit of both parts of a product, turn by turn.
template <typename S, PreparedFormat kFormat, int kRows>
__device__ __forceinline__ void stream_turns(RingProducer& producer, const char* weights,
                                             int all_tiles, const TileRange& tiles,
                                             const XSource& x) {
  constexpr int kTileBytes = kPreparedTileBytes<kFormat>;
  constexpr int kMaxInFlight = kInFlightBytes<kRows> / (kGroupTiles * kTileBytes);
  static_assert(DecoderLayout<S>::kRingBytes >=
                2 * (kStageXBytes<S, kRows> + kGroupTiles * kTileBytes));
  const int lane = threadIdx.x % kWarp, size = x.size();
  const int bytes = tiles.size() * kTileBytes;
  for (int stage = 0; stage < size; stage += kWarp) {
    const int chunk = x.chunk(chunk_in_turn(min(stage + lane, size - 1), size));
    const char* from = weights + prepared_tile_offset<kFormat>(all_tiles, tiles.begin, chunk);
    producer.push<1>({.x_bytes = kStageXBytes<S, kRows>,
                      .streamed = bytes,
                      .piece_bytes = bytes,
                      .max_in_flight = kMaxInFlight},
                     min(kWarp, size - stage), bytes, from);
  }
}

// What it asks for in a product: columns of tiles, unit after unit.
struct ProductStream {
  const char* weights;
  int all_tiles;
  PhaseKind kind;
  ProductUnit unit;
  Value first, second;  // what its columns multiply
};

// Walks over the products of a layer, and what is asked for before each.
template <typename S, PreparedFormat kFormat, int kRows, typename CacheElement>
class Streaming {
  static constexpr int kNumPhases = ScheduleOf<S>::kNumPhases;
  using AllPhases = std::make_integer_sequence<int, kNumPhases>;

 public:
  __device__ explicit Streaming(const DecoderBlockState<S>& block)
      : block_(block),
        p_(block.p),
        producer_(block.small.ring, block.ring_data, block.template stage_bytes<kFormat, kRows>()),
        pages_(p_, block.small.rows) {}

  __device__ void run() {
    const int num_layers = p_.num_layers;
    // Weights are asked for in one place: that is a lot of code, and inlined.
    for (int l = 0; l <= num_layers; ++l) {
      const bool is_last = l == num_layers;
      if (is_last && p_.head_weights == nullptr) break;
#pragma unroll 1
      for (int product = 0; product < (is_last ? 1 : kNumProducts<S>); ++product) {
        ProductStream next;
        if (is_last) {
          constexpr Phase kPhase = S::kSchedule.last;
          next = of<kPhase.kind, kPhase.matrix, kPhase.reads[0], kPhase.reads[1]>(p_.head_weights);
        } else {
          begin(l, product, next, AllPhases());
        }
        if constexpr (S::kHasExperts) {
          if (!is_last && has_experts(p_, l)) {
            // No dense feed-forward lies below q, k and v, or beside proj.
            next.all_tiles = alone_tiles(product);
          }
          const bool of_experts = !is_last && has_experts(p_, l) && product >= kFirstOfExperts;
          ask_for_any(next, l, of_experts, product == kFirstOfExperts);
        } else {
          ask_for(next);
        }
      }
      if constexpr (S::kHasExperts) {
        __syncwarp();
        if (!is_last && has_experts(p_, l) && threadIdx.x % kWarp == 0) leave_layer(block_);
      }
    }
    producer_.end(kCopyingWarps);
  }

 private:
  template <PhaseKind kKind, Matrix kMatrix, Value kFirst, Value kSecond>
  __device__ __forceinline__ ProductStream of(const char* weights) const {
    return {weights, block_.work.all_tiles(kMatrix),
            kKind,   block_.work.first_unit(kKind, kMatrix),
            kFirst,  kSecond};
  }

  template <int... kIndices>
  __device__ __forceinline__ void begin(int l, int product, ProductStream& next,
                                        std::integer_sequence<int, kIndices...> /*phases*/) {
    (begin_phase<kIndices>(l, product, next), ...);
  }
  template <int kIndex>
  __device__ __forceinline__ void begin_phase(int l, int product, ProductStream& next) {
    constexpr Phase kPhase = S::kSchedule.layer[kIndex];
    constexpr int kProduct = products_before<S>(kIndex);
    if constexpr (kPhase.kind == PhaseKind::kAttention) {
      static_assert(kProduct < kNumProducts<S>, "pages are asked for before a product");
      if (product == kProduct) ask_for_pages(l);
    } else if constexpr (is_product(kPhase.kind)) {
      const DecoderLayer& layer = p_.layers[l];
      if (product == kProduct) {
        next = of<kPhase.kind, kPhase.matrix, kPhase.reads[0], kPhase.reads[1]>(
            kPhase.matrix == Matrix::kOutput ? layer.output_weights : layer.input_weights);
      }
    }
  }

  // Of a layer with experts, products from here on are theirs.
  static constexpr int kFirstOfExperts = 2;

  __device__ int alone_tiles(int product) const {
    return (product == 0 ? 3 * p_.dim : p_.dim) / kTileRows;
  }

  // A product's units, or those of an expert layer's passes: of gates and ups, or of what brings them back. Stages of experts have no
  // room for activations. One code for both (compact_product.cuh says why).
  __device__ __forceinline__ void ask_for_any(const ProductStream& product, int l, bool of_experts,
                                              bool is_up) {
    const ExpertRoute& route = block_.small.experts.route;
    const ExpertProduct of_expert = is_up ? expert_up(p_) : expert_down(p_);
    if (of_experts) wait_for_route(block_, l);
    ExpertUnits units(is_up ? route.up : route.down, of_expert.tiles);
    ProductUnit unit = product.unit;
    WeightRun run{.weights = product.weights, .all_tiles = product.all_tiles};
    if (of_experts) {
      const ExpertLayer& layer = p_.experts.layers[l];
      run.weights = is_up ? layer.up_weights : layer.down_weights;
      run.all_tiles = p_.experts.num_experts * of_expert.tiles;
      run.chunks = {0, of_expert.chunks};
    }
#pragma unroll 1
    while (of_experts ? units.has() : DecoderWork::has(unit)) {
      if (of_experts) {
        const int begin = route.passes[units.pass()].expert * of_expert.tiles + units.tile();
        run.tiles = {begin, begin + units.size()};
        units.next();
      } else {
        // None of these products has two parts.
        run.tiles = block_.work.tiles_of(product.kind, unit);
        run.chunks = block_.work.chunks_of(product.first, unit);
        block_.work.next(product.kind, unit);
      }
      stream_tiles<S, kFormat, kRows>(producer_, run, of_experts ? 0 : kXBytes<kRows>);
    }
  }

  __device__ __forceinline__ void ask_for_pages(int l) {
    if (l == 0) {
      // Keys and values of the step before may still be on their way into the cache.
      wait_for_predecessor();
      wait_barrier(shared_address(&block_.small.rows_ready), 0);
      pages_.start();
    }
    pages_.template ask_for<kInFlightBytes<kRows>>(p_.layers[l], producer_);
  }

  __device__ __forceinline__ void ask_for(const ProductStream& product) {
    const DecoderWork& work = block_.work;
    ProductUnit unit = product.unit;
    bool is_second = false;
#pragma unroll 1
    while (work.has(unit)) {
      if constexpr (kByTurns<S, kRows>) {
        stream_turns<S, kFormat, kRows>(
            producer_, product.weights, product.all_tiles, work.tiles_of(product.kind, unit),
            {nullptr, work.chunks_of(product.first, unit), work.chunks_of(product.second, unit)});
        work.next(product.kind, unit);
        continue;
      }
      stream_tiles<S, kFormat, kRows>(
          producer_, {product.weights, product.all_tiles, work.tiles_of(product.kind, unit),
                      work.chunks_of(is_second ? product.second : product.first, unit)});
      is_second = !is_second && product.second != Value::kNone;
      if (!is_second) work.next(product.kind, unit);
    }
  }

  const DecoderBlockState<S>& block_;
  const DecoderLaunch& p_;
  RingProducer producer_;
  PageStream<S, CacheElement> pages_;
};

// ---- The x warp: it reads what the rows are. From 9 rows on, kCopyingLanes of it then bring
// activations (several threads that each ask for copies would be in each other's way).

template <typename S, PreparedFormat kFormat, int kRows>
class Bringing {
  using AllPhases = std::make_integer_sequence<int, ScheduleOf<S>::kNumPhases>;

 public:
  __device__ explicit Bringing(const DecoderBlockState<S>& block)
      : block_(block),
        p_(block.p),
        x_ring_(block.template x_ring<kFormat, kRows>()),
        num_units_(block.small.rows.num_units()) {}

  __device__ void run() {
    for (int l = 0; l < p_.num_layers; ++l) {
      known_ = 0;
      bring_layer(l, AllPhases());
      if constexpr (S::kHasExperts) {
        if (has_experts(p_, l) && threadIdx.x % kWarp == 0) leave_layer(block_);
      }
    }
    known_ = 0;
    constexpr Phase kPhase = S::kSchedule.last;
    if (p_.head_weights != nullptr) {
      bring<kPhase.kind, kPhase.matrix, kPhase.reads[0], kPhase.reads[1]>(p_.num_layers);
    }
  }

 private:
  template <int... kIndices>
  __device__ void bring_layer(int l, std::integer_sequence<int, kIndices...> /*phases*/) {
    (bring_phase<kIndices>(l), ...);
  }
  template <int kIndex>
  __device__ __forceinline__ void bring_phase(int l) {
    constexpr Phase kPhase = S::kSchedule.layer[kIndex];
    if constexpr (kPhase.kind == PhaseKind::kAttention) stage_ += num_units_;
    if constexpr (S::kHasExperts &&
                  (kPhase.matrix == Matrix::kInner || kPhase.reads[0] == Value::kInner)) {
      if (has_experts(p_, l)) {
        // Computing warps read their activations themselves.
        pass_over_experts(l, kPhase.matrix == Matrix::kInner);
        return;
      }
    }
    if constexpr (is_product(kPhase.kind)) {
      bring<kPhase.kind, kPhase.matrix, kPhase.reads[0], kPhase.reads[1]>(l);
    }
  }

  __device__ __forceinline__ void pass_over_experts(int l, bool is_up) {
    wait_for_route(block_, l);
    const ExpertRoute& route = block_.small.experts.route;
    const ExpertProduct product = is_up ? expert_up(p_) : expert_down(p_);
    for (ExpertUnits units(is_up ? route.up : route.down, product.tiles); units.has();
         units.next()) {
      stage_ += product.chunks;
    }
  }

  template <PhaseKind kKind, Matrix kMatrix, Value kFirst, Value kSecond>
  __device__ __forceinline__ void bring(int l) {
    const DecoderWork& work = block_.work;
    for (ProductUnit unit = work.first_unit(kKind, kMatrix); work.has(unit);
         work.next(kKind, unit)) {
      if constexpr (kByTurns<S, kRows>) {
        bring_turns<kFirst, kSecond>(l, unit);
      } else {
        bring_part<kFirst>(l, unit);
        if constexpr (kSecond != Value::kNone) bring_part<kSecond>(l, unit);
      }
    }
  }

  template <Value kFirst, Value kSecond>
  __device__ __forceinline__ void bring_turns(int l, const ProductUnit& unit) {
    const DecoderWork& work = block_.work;
    const XSource x{nullptr, work.chunks_of(kFirst, unit), work.chunks_of(kSecond, unit)};
    const int size = x.size();
#pragma unroll 1
    for (int stage = 0; stage < size; ++stage) {
      const int at = chunk_in_turn(stage, size);
      if (kSecond == Value::kNone || x.part(at) == 0) {
        wait_until_known<kFirst>(l);
        bring_chunk(activations<kFirst>(), x.chunk(at));
      } else if constexpr (kSecond != Value::kNone) {
        wait_until_known<kSecond>(l);
        bring_chunk(activations<kSecond>(), x.chunk(at));
      }
    }
  }

  template <Value kValue>
  __device__ __forceinline__ void bring_part(int l, const ProductUnit& unit) {
    wait_until_known<kValue>(l);
    const ChunkRange chunks = block_.work.chunks_of(kValue, unit);
    for (int chunk = chunks.begin; chunk < chunks.end; ++chunk) {
      bring_chunk(activations<kValue>(), chunk);
    }
  }

  template <Value kValue>
  __device__ __forceinline__ void wait_until_known(int l) {
    if ((known_ & value_bit(kValue)) == 0) {
      wait_for_count(block_.counter(kValue), block_.template count_of<kValue>(l));
      publish_to_copy_engine();
      known_ |= value_bit(kValue);
    }
  }
  template <Value kValue>
  __device__ __forceinline__ const Bf16* activations() const {
    return kValue == Value::kNorm     ? p_.norm
           : kValue == Value::kFfNorm ? p_.sequential.ff_norm
                                      : p_.wide;
  }
  __device__ __forceinline__ void bring_chunk(const Bf16* activations, int chunk) {
    const Bf16* from = activations + chunk * (kRows * kProductColumns);
    if constexpr (kHasXRing<S, kRows>) {
      x_ring_.bring(x_stage_++, from);
    } else {
      block_.ring.bring_x(stage_++, x_stage_++, from, kXBytes<kRows>);
    }
  }

  const DecoderBlockState<S>& block_;
  const DecoderLaunch& p_;
  const XRingOf<kRows> x_ring_;
  const int num_units_;
  unsigned stage_ = 0, x_stage_ = 0;
  unsigned known_ = 0;  // values of this layer that it has waited for
};

// ---- The signal warp: one thread.

template <typename S, int kRows>
class Signalling {
  using AllPhases = std::make_integer_sequence<int, ScheduleOf<S>::kNumPhases>;

 public:
  __device__ explicit Signalling(const DecoderBlockState<S>& block) : block_(block) {}

  __device__ void run() {
    constexpr Phase kFirst = S::kSchedule.first;
    pass_on<kFirst.writes>(-1);
    for (int l = 0; l < block_.p.num_layers; ++l) pass_on_layer(l, AllPhases());
  }

 private:
  template <int... kIndices>
  __device__ void pass_on_layer(int l, std::integer_sequence<int, kIndices...> /*phases*/) {
    (pass_on<S::kSchedule.layer[kIndices].writes>(l), ...);
  }
  template <Value kValue>
  __device__ __forceinline__ void pass_on(int l) {
    if (!block_.template counts<kValue, kXFromMemory<kRows>>(l)) return;
    const int turn = ScheduleOf<S>::template turn_written<kValue>(l);
    wait_barrier(block_.written(kValue), turn & 1);
    signal(block_.counter(kValue));
  }

  const DecoderBlockState<S>& block_;
};

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
