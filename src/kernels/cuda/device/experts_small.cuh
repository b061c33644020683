// What warps of a block of decoder_kernel.cuh share of experts and scaled heads.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/row_product.cuh"
#include "kernels/cuda/expert_route.h"

namespace gapless {

// Nothing, unless the decoder has experts.
template <bool kHasExperts>
struct ExpertsSmall {};

template <>
struct ExpertsSmall<true> {
  static constexpr int kScaledPitch = kGroupTiles * kTileRows + 8;  // of a row: no bank conflicts
  std::uint64_t
      choices_read;  // mbarrier: the route warp has read what rows of a layer with experts chose
  std::uint64_t route_ready;  // mbarrier: the route of such a layer is written
  std::uint64_t layer_read;   // mbarrier: all who read a layer's route are through with the layer
  std::uint64_t logits_emptied;  // mbarrier: this block's share of logit_parts is empty, once
  ExpertRoute route;
  alignas(16) Bf16 logits[kRouteExperts];  // of the row that is looked at
  // What is multiplied to scale heads (decoder_scales.cuh): activated numbers of a unit's columns of q, k and v.
  alignas(16) Bf16 scaled[kMaxRouteRows][kScaledPitch];
};

}  // namespace gapless
