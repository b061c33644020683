// The units of the attention in decoder_kernel.cuh: which block attends to what, and how it comes into the ring.
//
// unit = some pages of one key head, or of two that lie side by side in a page, keys and values: a stage of
// the ring of 16 KB, to which one warp attends. Units start at multiples of their size of the sequence. Their
// order is by row, key heads, place in the sequence; each block takes an equal run of them.
#pragma once

#include "base/limits.h"
#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/kv_element.cuh"
#include "kernels/cuda/device/stage_ring.cuh"

namespace gapless {

// Pieces of a unit in its stage, in order: a page's keys, its values, the next page's keys, and so
// on.
template <typename S, typename Element>
struct UnitShape {
  static constexpr int kVectorBytes = kVector * sizeof(Element);
  static constexpr int kKeyBytes = S::kHeadDim * sizeof(Element);
  static constexpr int kHeadBytes = kPageTokens * kKeyBytes;
  static constexpr int kPieceBytes = S::kHeadsOfUnit * kHeadBytes;
  static constexpr int kBytes = 16 << 10;
  static constexpr int kPieces = kBytes / kPieceBytes;
  static constexpr int kPages = kPieces / 2;
  static constexpr int kKeys = kPages * kPageTokens;
};
// Contexts that kMaxUnits units hold, whatever the elements.
inline constexpr int kMaxDecoderContext = kMaxUnits * UnitShape<ParallelDecoder, Bf16>::kKeys;

// The units of a block.
struct UnitRange {
  int begin, end;
  __device__ int size() const { return end - begin; }
};

// Of all rows, in shared memory.
struct AttentionRows {
  int num_keys[kMaxSeats];        // the new one included; 0: nothing to do
  int seat[kMaxSeats];            // row of the page table
  int first_unit[kMaxSeats + 1];  // of all rows' key heads
  UnitRange own;                  // this block's, computed once: to divide takes long

  template <typename S, typename Element>
  __device__ int units(int row) const {
    constexpr int kKeys = UnitShape<S, Element>::kKeys;
    return (num_keys[row] + kKeys - 1) / kKeys;
  }

  // One warp.
  template <typename S, typename Element>
  __device__ void load(const DecoderLaunch& p) {
    const int lane = threadIdx.x % kWarp;
    int before = 0;
    for (int base = 0; base < p.num_rows; base += kWarp) {
      const int row = base + lane;
      int own = 0;
      if (row < p.num_rows) {
        const AttentionSequence sequence = p.sequences[row];
        num_keys[row] = sequence.num_tokens == 0 ? 0 : sequence.num_cached + 1;
        seat[row] = sequence.row;
        own = units<S, Element>(row) * (key_heads<S>(p) / S::kHeadsOfUnit);
      }
      int sum = own;
      for (int offset = 1; offset < kWarp; offset *= 2) {
        const int lower = __shfl_up_sync(kFullWarp, sum, offset);
        if (lane >= offset) sum += lower;
      }
      if (row < p.num_rows) first_unit[row] = before + sum - own;
      before += __shfl_sync(kFullWarp, sum, kWarp - 1);
    }
    if (lane == 0) {
      first_unit[p.num_rows] = before;
      const std::int64_t total = before;
      own = {static_cast<int>(blockIdx.x * total / gridDim.x),
             static_cast<int>((blockIdx.x + 1) * total / gridDim.x)};
    }
    __syncwarp();
  }
};

// One unit. Found in rising order: `row` is where the search begins.
template <typename S, typename Element>
struct Unit {
  using Shape = UnitShape<S, Element>;
  // heads: which kHeadsOfUnit key heads. num_keys: of the row, from first_key on.
  int row = 0, heads = 0, first_key = 0, num_keys = 0;

  __device__ void find(const AttentionRows& rows, int index) {
    while (rows.first_unit[row + 1] <= index) ++row;
    const int units = rows.units<S, Element>(row), rest = index - rows.first_unit[row];
    heads = rest / units;
    first_key = rest % units * Shape::kKeys;
    num_keys = rows.num_keys[row] - first_key;
  }
  __device__ int num_pages() const {
    return min((num_keys + kPageTokens - 1) / kPageTokens, Shape::kPages);
  }
  __device__ bool has_newest() const { return num_keys <= Shape::kKeys; }
};

// The ring's producer of this block's units, the same in all layers. A batch of units is looked up
// while the one before it is asked for: page numbers come from far away.
template <typename S, typename Element>
class PageStream {
  using Shape = UnitShape<S, Element>;
  static constexpr int kBatch = kWarp / Shape::kPieces;  // units

 public:
  __device__ PageStream(const DecoderLaunch& p, const AttentionRows& rows)
      : p_(p), rows_(rows), page_bytes_(std::int64_t{key_heads<S>(p)} * Shape::kHeadBytes) {}

  // Once, when the rows are known.
  __device__ void start() {
    range_ = rows_.own;
    look_up(range_.begin);
    first_row_ = __shfl_sync(kFullWarp, unit_.row, 0);
  }

  // All of a layer.
  template <int kInFlightBytes>
  __device__ __forceinline__ void ask_for(const DecoderLayer& layer, RingProducer& producer) {
    static_assert(kInFlightBytes >= Shape::kBytes);
    const int piece = threadIdx.x % Shape::kPieces;
    const char* plane = static_cast<const char*>(piece % 2 == 0 ? layer.keys : layer.values);
    for (int first = range_.begin; first < range_.end; first += kBatch) {
      const char* from = piece / 2 < num_pages_
                             ? plane + page_ * page_bytes_ + unit_.heads * Shape::kPieceBytes
                             : nullptr;
      const int asked = 2 * num_pages_ * Shape::kPieceBytes;
      const int next = first + kBatch;
      look_up(next < range_.end ? next : range_.begin);
      producer.push<Shape::kPieces>({.x_bytes = 0,
                                     .streamed = Shape::kBytes,
                                     .piece_bytes = Shape::kPieceBytes,
                                     .max_in_flight = kInFlightBytes / Shape::kBytes},
                                    min(kBatch, range_.end - first), asked, from);
    }
  }

 private:
  // Lane kPieces * i + 2j + k: of unit first + i, page j, keys or values.
  __device__ __forceinline__ void look_up(int first) {
    const int lane = threadIdx.x % kWarp, index = first + lane / Shape::kPieces;
    num_pages_ = 0;
    if (index >= range_.end) return;
    if (first == range_.begin) unit_.row = first_row_;
    unit_.find(rows_, index);
    num_pages_ = unit_.num_pages();
    const int page_index =
        unit_.first_key / kPageTokens + min(lane / 2 % Shape::kPages, num_pages_ - 1);
    page_ = __ldg(p_.page_table + std::int64_t{rows_.seat[unit_.row]} * p_.page_table_stride +
                  page_index);
  }

  const DecoderLaunch& p_;
  const AttentionRows& rows_;
  const std::int64_t page_bytes_;
  UnitRange range_ = {};
  int first_row_ = 0;  // of the first unit
  Unit<S, Element> unit_;
  int num_pages_ = 0;  // of the unit; 0: there is none
  std::int32_t page_ = 0;
};

}  // namespace gapless
