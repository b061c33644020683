// Strong types for the numbers that name things, so that a row cannot be passed for a page.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace gapless {

template <typename Tag, typename Rep = std::int32_t>
struct Id {
  Rep value = -1;

  constexpr Id() = default;
  constexpr explicit Id(Rep v) : value(v) {}
  constexpr bool valid() const { return value >= 0; }
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

using RowId = Id<struct RowTag>;      // a sequence's seat on the device, kept for its life
using PageId = Id<struct PageTag>;    // a KV page of kPageTokens tokens; page 0 is trash
using SlotId = Id<struct SlotTag>;    // a step slot of the pipeline, 0 .. depth-1
using TokenId = Id<struct TokenTag>;  // an index into the vocabulary
using SequenceId = Id<struct SequenceTag, std::int64_t>;  // one generation of one request
using RequestId = Id<struct RequestTag, std::int64_t>;

}  // namespace gapless

template <typename Tag, typename Rep>
struct std::hash<gapless::Id<Tag, Rep>> {
  std::size_t operator()(const gapless::Id<Tag, Rep>& id) const noexcept {
    return std::hash<Rep>()(id.value);
  }
};
