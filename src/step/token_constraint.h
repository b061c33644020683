// A constraint on what a sequence may sample next, kept by the host (kRowHostMask).
//
// The loop calls allowed() after the sequence's previous token was committed (commit before
// finalize, I5) and before this step's sampling is launched. The same constraint may also exist as
// a device automaton (spatial_automaton.h); both give the same tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/ids.h"

namespace gapless {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Sets the bits of the allowed tokens; `mask` comes in as zeros. Bit t of word t/32.
  virtual void allowed(std::span<std::uint32_t> mask) const = 0;
  // Whether allowed() would answer without waiting for somebody.
  virtual bool is_ready() const { return true; }
  // The sequence sampled `token` and goes on.
  virtual void advance(TokenId token) = 0;
};

}  // namespace gapless
