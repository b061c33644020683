#include "kernels/reference/reference_ops.h"

namespace gapless::reference {

void fill_random(const FillRandomParams&) {}

}  // namespace gapless::reference
