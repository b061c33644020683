// How the system treats a thread.
//
// Threads that work on large pictures go below those that answer: on a machine whose cores are all
// busy with such work, a text or a probe that takes a millisecond should not wait for its share.
#pragma once

namespace gapless {

// The calling thread gets a third of another thread's share of a core from now on. Once is enough;
// later calls of the same thread do nothing.
void yield_to_other_threads();

// The calling thread's sleeps end when they should from now on: Linux lets them end 50 us later, so
// that the core wakes for several at once. Once is enough, as above.
void wake_on_time();

// For threads that answer and then wait: from now on the calling thread asks for short turns on a core. Who asks for less at a time
// comes sooner when it wakes: Linux (6.12 and later) stops a thread with longer turns for it. Its share of a core stays what it
// was. Where the system does not know this, nothing changes. Once is enough, as above.
void come_soon();

}  // namespace gapless
