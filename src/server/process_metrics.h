// What Prometheus' own clients tell of a process: process_cpu_seconds_total and the like.
#pragma once

#include "server/exposition.h"

namespace gapless {

// Of this process, from /proc; what the system does not say is left out.
void write_process(Exposition& out);

}  // namespace gapless
