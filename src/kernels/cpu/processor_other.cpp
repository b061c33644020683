// Machines other than x86-64.
#include "kernels/cpu/processor.h"

namespace gapless {

Processor this_processor() {
  return {};
}

}  // namespace gapless
