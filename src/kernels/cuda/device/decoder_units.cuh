// The units of the attention in decoder_kernel.cuh (attention_rows.h says which block attends to what), and how they come
// into the ring: a unit's keys and values are a stage of 16 KB.
#pragma once

#include "base/limits.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/kv_element.cuh"
#include "kernels/cuda/device/register_exchange.cuh"
#include "kernels/cuda/device/stage_ring.cuh"
#include "kernels/kv_layout.h"

namespace gapless {

// What a warp of a sequential decoder's attention keeps between two products, of the reduce buffer or more: a group's queries, and
// where registers are not exchanged the new token's key and values, too.
inline constexpr int kGroupScratchBytes =
    kHasRegisterExchange ? kReduceBytes / kProductWarps : (1 << 10) + kWarp * 16;

// A unit in its stage: page by page, as the cache has them (kernels/kv_layout.h). Its heads are neighbours in a page, so each page
// is one piece: the first head's keys, its values, the next head's keys, and so on.
template <typename S, typename Element>
struct UnitShape {
  static constexpr KvLayout kLayout{.num_heads = S::kHeadsOfUnit, .head_dim = S::kHeadDim};
  static constexpr int kVectorBytes = kVector * sizeof(Element);
  static constexpr int kKeyBytes = S::kHeadDim * sizeof(Element);
  static constexpr int kHeadBytes = kLayout.head_size() * sizeof(Element);  // keys and values
  static constexpr int kValuesAt =
      kLayout.in_page(KvPart::kValues, 0, 0) * sizeof(Element);  // behind the head's keys
  static constexpr int kPageBytes = static_cast<int>(kLayout.page_size() * sizeof(Element));
  static constexpr int kBytes = 16 << 10;
  static constexpr int kPages = kBytes / kPageBytes;
  static constexpr int kKeys = kPages * kPageTokens;
};
// Contexts that kMaxUnits units hold, whatever the elements.
inline constexpr int kMaxDecoderContext = kMaxUnits * UnitShape<ParallelDecoder, Bf16>::kKeys;

template <typename S, typename Element>
using Unit = AttentionUnit<UnitShape<S, Element>::kPages>;
// Of a parallel decoder: of pairs of heads.
template <typename Element>
using PairShape = UnitShape<ParallelDecoder, Element>;
template <typename Element>
using PairUnit = Unit<ParallelDecoder, Element>;

// A warp that loads AttentionRows.
struct WarpLanes {
  __device__ static int index() { return threadIdx.x % kWarp; }
  __device__ static int count() { return kWarp; }
  __device__ static void sync() { __syncwarp(); }
  // Of the lanes below this one, and of all.
  __device__ static int sum_before(int own) { return sum_of_lower_lanes(own); }
  __device__ static int sum(int own) { return __reduce_add_sync(kFullWarp, own); }
};

// Whether rows that begin with the same pages share units. Not so grouped queries. And not where the code for it takes registers
// that the rest of the kernel needs: up to 8 rows of an 8-bit cache, and where registers are not exchanged. Not so scaled heads.
template <typename S, int kRows, typename Element>
inline constexpr bool kSharesUnits = kHasRegisterExchange && !S::kIsSequential && !S::kHasExperts &&
                                     (kRows > 8 || sizeof(Element) > 1);

// One warp.
template <typename S, int kRows, typename Element>
__device__ inline void load_rows(const DecoderLaunch& p, AttentionRows& rows) {
  const AttentionStep step{
      .sequences = p.sequences,
      .prefixes = kSharesUnits<S, kRows, Element> ? p.shared_prefixes : nullptr,
      .num_rows = p.num_rows,
      .num_groups = key_heads<S>(p) / S::kHeadsOfUnit,
      .merges_units = S::kIsSequential};
  rows.load<UnitShape<S, Element>::kPages>(step, blockIdx.x, gridDim.x, WarpLanes());
}

// The ring's producer of this block's units, the same in all layers. A batch of units is looked up
// while the one before it is asked for: page numbers come from far away.
template <typename S, typename Element>
class PageStream {
  using Shape = UnitShape<S, Element>;
  static constexpr int kBatch = kWarp / Shape::kPages;  // units

 public:
  __device__ PageStream(const DecoderLaunch& p, const AttentionRows& rows)
      : p_(p), rows_(rows), page_bytes_(std::int64_t{key_heads<S>(p)} * Shape::kHeadBytes) {}

  // Once, when the rows are known.
  __device__ void start() {
    num_units_ = rows_.num_units();
    look_up(0);
    first_run_ = __shfl_sync(kFullWarp, unit_.run, 0);
  }

  // All of a layer.
  template <int kInFlightBytes>
  __device__ __forceinline__ void ask_for(const DecoderLayer& layer, RingProducer& producer) {
    static_assert(kInFlightBytes >= Shape::kBytes);
    const int page = threadIdx.x % Shape::kPages;
    const char* pages = static_cast<const char*>(layer.pages);
    for (int first = 0; first < num_units_; first += kBatch) {
      const char* from = page < num_pages_
                             ? pages + page_ * page_bytes_ + unit_.heads * Shape::kPageBytes
                             : nullptr;
      const int asked = num_pages_ * Shape::kPageBytes;
      const int next = first + kBatch;
      look_up(next < num_units_ ? next : 0);
      producer.push<Shape::kPages>({.x_bytes = 0,
                                    .streamed = Shape::kBytes,
                                    .piece_bytes = Shape::kPageBytes,
                                    .max_in_flight = kInFlightBytes / Shape::kBytes},
                                   min(kBatch, num_units_ - first), asked, from);
    }
  }

 private:
  // Lane kPages * i + j: of unit first + i, page j.
  __device__ __forceinline__ void look_up(int first) {
    const int lane = threadIdx.x % kWarp, index = first + lane / Shape::kPages;
    num_pages_ = 0;
    if (index >= num_units_) return;
    if (first == 0) unit_.run = first_run_;
    unit_.find(rows_, rows_.unit_at(index));
    num_pages_ = unit_.num_pages();
    const int page_index =
        unit_.first_key / kPageTokens + min(lane % Shape::kPages, num_pages_ - 1);
    page_ = __ldg(p_.page_table + std::int64_t{rows_.seat[unit_.row()]} * p_.page_table_stride +
                  page_index);
  }

  const DecoderLaunch& p_;
  const AttentionRows& rows_;
  const std::int64_t page_bytes_;
  int num_units_ = 0;
  int first_run_ = 0;  // of the first unit
  Unit<S, Element> unit_;
  int num_pages_ = 0;  // of the unit; 0: there is none
  std::int32_t page_ = 0;
};

}  // namespace gapless
