// Threads that work on large pictures go below those that answer: on a machine whose cores are all
// busy with such work, a text or a probe that takes a millisecond should not wait for its share.
#pragma once

namespace gapless {

// The calling thread gets a third of another thread's share of a core from now on. Once is enough;
// later calls of the same thread do nothing.
void yield_to_other_threads();

}  // namespace gapless
